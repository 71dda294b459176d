"""A head that gives its mean, against a network whose head is replaced by hand."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from tests.explain.reference import PLAIN, VARIANTS, make_images, make_network
from tests.explain.refused import must_refuse
from vitrail.explain.inside import head_ablation
from vitrail.nn import STANDARD, Record, ViT, ViTConfig

pytestmark = pytest.mark.usefixtures("as_a_user")

KINDS = {**VARIANTS, "layer scale": replace(PLAIN, layer_scale=0.5)}


def by_hand(network: ViT, images: Tensor, background: Tensor, layer: int, head: int) -> Tensor:
    """Logits, by the blocks' own equations."""
    config, record = network.config, Record()
    with torch.no_grad():
        network(background, record)
        usual = sum(record[f"blocks.{layer}.attended"]) / len(background)
        tokens = network.embed(images)
        for index, block in enumerate(network.blocks):
            queries, keys, values = block.attn.project(
                block.norm1(tokens), rotation=network.rotation(network.grid(images))
            )
            weights = (queries @ keys.transpose(2, 3) / config.head_width**0.5).softmax(dim=3)
            heads = list((weights @ values).unbind(1))
            if index == layer:
                heads[head] = usual[head].expand_as(heads[head])
            tokens = tokens + block.ls1(block.attn.proj(torch.cat(heads, dim=2)))
            tokens = tokens + block.ls2(block.mlp(block.norm2(tokens)))
        return network.readout(tokens)


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_it_is_the_change_of_the_network_without_the_head(config: ViTConfig) -> None:
    network, images = make_network(config).double(), make_images(config, 5).double()
    background, labels = make_images(config, 7, seed=4).double(), torch.tensor([0, 1, 2, 3, 0])
    whole = network(images).detach()
    found = head_ablation(network, images, labels, background=background, labels=labels)
    assert found.change.shape == (3, 2, 5)
    assert (found.layers, found.heads) == ((0, 1, 2), (0, 1))
    assert found.whole == pytest.approx(float((whole.argmax(dim=1) == labels).double().mean()))
    for layer in range(3):
        for head in range(2):
            without = by_hand(network, images, background, layer, head)
            change = (without - whole)[range(5), labels]
            assert (found.change[layer, head] - change).abs().max() <= 1e-10
            assert change.abs().max() > 1e-3
            assert found.accuracy[layer, head] == pytest.approx(
                float((without.argmax(dim=1) == labels).double().mean())
            )


def test_background_images_run_a_few_at_a_time() -> None:
    """What a record keeps of each is many times its image; the mean is over all of them, also at an uneven end."""
    network, images = make_network(PLAIN).double(), make_images(PLAIN, 2).double()
    background, seen = make_images(PLAIN, 19, seed=4).double(), list[int]()
    handle = network.patch_embed.register_forward_hook(lambda _, given, __: seen.append(len(given[0])))
    found = head_ablation(network, images, 1, background=background, layers=[1, -2])
    handle.remove()
    assert max(seen) <= 8
    without = by_hand(network, images, background, 1, 0)
    change = (without - network(images).detach())[:, 1]
    assert (found.change[0, 0] - change).abs().max() <= 1e-10
    assert torch.equal(found.change[0], found.change[1])  # the same block, asked for twice


def test_without_labels_it_is_the_share_of_answers_that_stay() -> None:
    network, images = make_network(PLAIN), make_images(PLAIN, 32)
    with torch.no_grad():
        network.blocks[0].attn.proj.weight.mul_(20)
    found = head_ablation(network, images, background=make_images(PLAIN, 8, seed=4))
    stays = by_hand(network, images, make_images(PLAIN, 8, seed=4), 0, 1).argmax(dim=1) == network(images).argmax(dim=1)
    assert found.whole == 1.0
    assert found.accuracy[0, 1] == stays.float().mean()
    assert found.accuracy[0].min() < 1


def test_a_head_that_writes_nothing_changes_nothing_and_zero_is_not_the_mean() -> None:
    network, images = make_network(PLAIN), make_images(PLAIN, 4)
    with torch.no_grad():
        network.blocks[1].attn.proj.weight[:, :5] = 0.0
    found = head_ablation(network, images, 1, background=images)
    assert found.change[1, 0].abs().max() <= 1e-6
    assert found.change[1, 1].abs().max() > 1e-3
    alone = head_ablation(network, images[:1], 1, background=images[:1])  # its own mean is itself
    assert alone.change.abs().max() <= 1e-6


def test_some_layers_and_heads() -> None:
    network, images, background = make_network(PLAIN), make_images(PLAIN), make_images(PLAIN, 3, seed=2)
    every = head_ablation(network, images, 1, background=background)
    some = head_ablation(network, images, 1, background=background, layers=[-1, 0], heads=[1])
    assert (some.layers, some.heads) == ((2, 0), (1,))
    assert torch.equal(some.change[:, 0], every.change[[2, 0], 1])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"layers": [3]}, ("-3..2", "got 3")),
        ({"heads": [0, 2]}, ("0..1", "got 2")),
        ({"heads": [-1]}, ("0..1", "got -1")),
        ({"background": torch.zeros(2, 2, 12, 8)}, ("(2, 12, 10)", "(2, 2, 12, 8)")),
        ({"background": torch.zeros(0, 2, 12, 10)}, ("(0, 2, 12, 10)",)),
        ({"labels": torch.tensor([1])}, ("2 images", "(1,)")),
    ],
    ids=str,
)
def test_what_does_not_fit_is_a_usage_error(options: dict[str, object], named: tuple[str, ...]) -> None:
    with must_refuse(*named):
        head_ablation(make_network(PLAIN), make_images(PLAIN), **({"background": make_images(PLAIN)} | options))


def test_a_foreign_attention_is_refused_and_the_network_is_left_alone() -> None:
    class Other(nn.Module):
        def forward(self, tokens: Tensor, record: object) -> Tensor:
            return tokens

    foreign = ViT(PLAIN, replace(STANDARD, attention=lambda _: Other())).eval()
    with must_refuse("blocks.0", "Other"):
        head_ablation(foreign, make_images(PLAIN), background=make_images(PLAIN))
    network = make_network(PLAIN)
    before, kinds = network(make_images(PLAIN)), [type(module) for module in network.modules()]
    head_ablation(network, make_images(PLAIN), background=make_images(PLAIN))
    assert torch.equal(network(make_images(PLAIN)), before)
    assert [type(module) for module in network.modules()] == kinds
