"""What heads bring from where sums to what the attention adds (T8)."""

from dataclasses import replace

import pytest
import torch

from tests.explain.reference import PLAIN, VARIANTS, make_images, make_network
from tests.explain.refused import must_refuse
from vitrail.explain.inside import head_sources
from vitrail.nn import Record, ViTConfig

pytestmark = pytest.mark.usefixtures("as_a_user")

KINDS = {**VARIANTS, "layer scale": replace(PLAIN, layer_scale=0.5), "no bias": replace(PLAIN, out_bias=False)}
every_kind = pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)


@every_kind
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_the_sum_is_what_the_attention_adds(config: ViTConfig, dtype: torch.dtype, limit: float) -> None:
    network, images, record = make_network(config).to(dtype), make_images(config, 3).to(dtype), Record()
    network(images, record)
    for layer in range(config.depth):
        added = record[f"blocks.{layer}.output"] - record[f"blocks.{layer}.mlp"] - record[f"blocks.{layer}.input"]
        for to, token in ((0, 0), ((2, 3), config.prefix + 13), ((0, 4), config.prefix + 4)):
            sources = head_sources(network, images, layer, to)
            assert (sources.vectors.sum(dim=(1, 2)) + sources.bias - sources.output).abs().max() <= limit
            assert (sources.output - added[:, token]).abs().max() <= limit
            along = (sources.bias * sources.output).sum(dim=1) / sources.output.square().sum(dim=1)
            assert (sources.fraction.sum(dim=(1, 2)) + along - 1).abs().max() <= limit * 10


@every_kind
def test_every_vector_is_weight_times_value_times_output_map(config: ViTConfig) -> None:
    network, images, record = make_network(config).double(), make_images(config).double(), Record()
    network(images, record)
    block, e = network.blocks[1], config.head_width
    scale = block.ls1.gamma if config.layer_scale else torch.ones(config.width, dtype=torch.float64)
    sources = head_sources(network, images, 1, (2, 1))
    query = config.prefix + 11
    for image in range(2):
        for head in range(config.heads):
            for source in range(config.prefix + 15):
                weight = record["blocks.1.attention"][image, head, query, source]
                value = record["blocks.1.values"][image, head, source]
                vector = scale * (block.attn.proj.weight[:, head * e : head * e + e] @ (weight * value))
                assert (sources.vectors[image, head, source] - vector).abs().max() <= 1e-12


def test_it_is_said_in_words() -> None:
    """One head is made to look from the class token at one patch only, whose value is large."""
    config = replace(PLAIN, depth=1, width=16, heads=2, head_dim=4, registers=1)
    network, images = make_network(config), make_images(config)
    with torch.no_grad():
        network.blocks[0].attn.proj.weight[:, :4] = 0.0  # head 0 writes nothing
        network.blocks[0].attn.proj.bias.zero_()
    sources = head_sources(network, images)
    assert sources.names[:4] == ("class token", "register 0", "patch (0, 0)", "patch (0, 1)")
    assert sources.names[-1] == "patch (2, 4)"
    assert sources.fraction[:, 0].abs().max() == 0
    strongest = int(sources.fraction[1, 1].abs().argmax())
    percent = 100 * float(sources.fraction[1, 1, strongest])
    sentences = sources.sentences(image=1, count=2)
    for each in ("head 1", sources.names[strongest], f"{percent:.0f} %", "block 0"):
        assert each in sentences[0]
    assert len(sentences) == 2
    assert len(sources.sentences(count=1000)) == 2 * 17
    assert head_sources(network, images, 0, (1, 3)).to == "patch (1, 3)"


def test_names_of_all_prefix_tokens() -> None:
    network = make_network(VARIANTS["class-5-distilled"])
    names = head_sources(network, make_images(PLAIN), 0, 3).names
    assert names[:6] == ("class token", "distillation token", "register 0", "register 1", "register 2", "patch (0, 0)")
    wide = torch.zeros(1, 2, 8, 22)
    assert head_sources(network, wide, 0, (1, 10)).to == "patch (1, 10)"


@pytest.mark.parametrize(
    ("layer", "to", "named"),
    [
        (3, 0, ("-3..2", "got 3")),
        (0, 16, ("0..15", "got 16")),
        (0, -1, ("0..15", "got -1")),
        (0, (3, 0), ("0..2, 0..4", "got (3, 0)")),
        (0, (0, 5), ("0..2, 0..4", "got (0, 5)")),
        (0, (-1, 0), ("0..2, 0..4", "got (-1, 0)")),
    ],
)
def test_what_does_not_exist_names_what_does(layer: int, to: int | tuple[int, int], named: tuple[str, ...]) -> None:
    with must_refuse(*named):
        head_sources(make_network(PLAIN), make_images(PLAIN), layer, to)
