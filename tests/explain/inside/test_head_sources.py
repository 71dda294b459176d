"""What heads bring from where sums to what the attention adds (T8)."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.explain.reference import PLAIN, VARIANTS, make_images, make_network
from tests.explain.refused import must_refuse
from vitrail.explain.inside import direct_attribution, head_ablation, head_sources
from vitrail.nn import SILENT, Parts, Record, ViTConfig, attend, parts_of

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


def test_a_norm_of_what_was_attended_is_held() -> None:
    """Its part of each head by hand: w (u - mean u) / s of what all heads attended, mapped; the rest is one bias."""
    config = replace(PLAIN, layer_scale=0.5)
    network, images = (
        make_network(config, parts=parts_of({"attention": "attended_norm"})).double(),
        make_images(config, 3),
    )
    images, record, e = images.double(), Record(), config.head_width
    logits = network(images, record)
    direct = direct_attribution(network, images, 2)
    assert direct.gap.abs().max() <= 1e-10
    last = record["blocks.2.output"]
    deviation = last.var(dim=-1, correction=0, keepdim=True).add(config.norm_eps).sqrt()[:, 0]
    reads = network.head.weight[2] * network.norm.weight
    assert (direct.logit - logits[:, 2]).abs().max() <= 1e-10
    for layer, block in enumerate(network.blocks):
        attended, norm = record[f"blocks.{layer}.attended"], block.attn.norm
        whole = attended.transpose(1, 2).flatten(2)
        scale = (norm.weight / whole.var(dim=-1, correction=0, keepdim=True).add(norm.eps).sqrt())[:, None]
        map_ = block.attn.proj.weight * block.ls1.gamma[:, None]
        bias = map_ @ norm.bias + block.attn.proj.bias * block.ls1.gamma

        def part(brought: Tensor, head: int, token: int, scale: Tensor = scale, map_: Tensor = map_) -> Tensor:
            alone = brought.new_zeros(3, 2 * e)
            alone[:, head * e : head * e + e] = brought
            return ((alone - alone.mean(dim=1, keepdim=True)) * scale[:, 0, token]) @ map_.T

        for token in (0, 5):
            found = head_sources(network, images, layer, token)
            added = record[f"blocks.{layer}.attn_out"][:, token]
            assert (found.vectors.sum(dim=(1, 2)) + found.bias - added).abs().max() <= 1e-10
            assert (found.bias - bias).abs().max() <= 1e-10
            for head in range(2):
                weights, values = (record[f"blocks.{layer}.{name}"][:, head] for name in ("attention", "values"))
                for source in range(16):
                    vector = part(weights[:, token, source, None] * values[:, source], head, token)
                    assert (found.vectors[:, head, source] - vector).abs().max() <= 1e-10
        for head in range(2):
            brought = part(attended[:, head, 0], head, 0)
            said = ((brought - brought.mean(dim=1, keepdim=True)) / deviation) @ reads
            assert (direct.heads[layer, head] - said).abs().max() <= 1e-10
    assert head_ablation(network, images, background=images).change.abs().max() > 1e-3


def test_heads_whose_parts_do_not_add_up_are_refused() -> None:
    """An attention of one's own needs no detached form where it is linear, and is refused by name where it is not."""

    class Own(nn.Module):
        def __init__(self, curved: bool) -> None:
            super().__init__()
            self.proj, self.curved = nn.Linear(10, 12), curved

        def forward(self, tokens: Tensor, record: Any = SILENT) -> Tensor:
            split = tokens[..., :10].unflatten(-1, (2, 5)).transpose(1, 2)
            record.keep_attention(split, split, split, attended := attend(split, split, split), None)
            return self.join(attended)

        def join(self, attended: Tensor) -> Tensor:
            whole = attended.transpose(1, 2).flatten(2)
            return self.proj(whole.tanh() if self.curved else whole)

    images = make_images(PLAIN)
    network = make_network(PLAIN, parts=Parts(attention=lambda config: Own(curved=False)))
    found = head_sources(network, images)
    assert (found.vectors.sum(dim=(1, 2)) + found.bias - found.output).abs().max() <= 1e-5
    curved = make_network(PLAIN, parts=Parts(attention=lambda config: Own(curved=True)))
    for view in (head_sources, direct_attribution):
        with must_refuse("Own", "blocks"):
            view(curved, images)


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
