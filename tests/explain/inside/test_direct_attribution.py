"""Direct attribution sums to the logit (T8), and each term is what a sum made by hand says."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.explain.reference import PLAIN, VARIANTS, make_images, make_network
from tests.explain.refused import must_refuse
from vitrail.explain.inside import direct_attribution
from vitrail.nn import STANDARD, Record, ViT, ViTConfig

pytestmark = pytest.mark.usefixtures("as_a_user")

LAYER_SCALE = replace(PLAIN, layer_scale=0.5)
KINDS = {**VARIANTS, "layer scale": LAYER_SCALE}
every_kind = pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)


def by_hand(network: ViT, images: Tensor, target: int) -> tuple[dict[str, Tensor], Tensor]:
    """(W_c * gamma) . (u - mean u) / sigma for every term u of the residual stream, and W_c . beta + b_c."""
    config, record = network.config, Record()
    logits = network(images, record)
    last = record[f"blocks.{config.depth - 1}.output"]
    deviation = ((last - last.mean(dim=-1, keepdim=True)).square().mean(dim=-1, keepdim=True) + config.norm_eps).sqrt()
    reads = torch.zeros(last.shape[1], config.width, dtype=last.dtype)  # what the heads read of each token
    if config.pooling == "class":
        reads[0] = network.head.weight[target]
    else:
        reads[config.prefix :] = network.head.weight[target] / (last.shape[1] - config.prefix)
    constant = network.head.weight[target] @ network.norm.bias + network.head.bias[target]
    if network.head_dist is not None:
        reads[int(config.class_token)] += network.head_dist.weight[target]
        constant = constant + network.head_dist.weight[target] @ network.norm.bias + network.head_dist.bias[target]
        reads, constant = reads / 2, constant / 2

    def said(added: Tensor) -> Tensor:
        centred = added - added.mean(dim=-1, keepdim=True)
        return (reads * network.norm.weight * centred / deviation).sum(dim=(1, 2))

    terms = {"embedding": said(record["tokens"]), "constant": constant.expand(len(images))}
    for index, block in enumerate(network.blocks):
        scale = block.ls1.gamma if config.layer_scale else 1.0
        for head in range(config.heads):
            columns = slice(head * config.head_width, (head + 1) * config.head_width)
            attended = record[f"blocks.{index}.attended"][:, head]
            terms[f"head {index} {head}"] = said(attended @ block.attn.proj.weight[:, columns].T * scale)
        bias = (block.attn.proj.bias * scale).expand_as(last)
        terms[f"bias {index}"] = said(bias)
        terms[f"mlp {index}"] = said(record[f"blocks.{index}.mlp"])
    return {name: term.detach() for name, term in terms.items()}, logits[:, target].detach()


@every_kind
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_the_parts_sum_to_the_logit(config: ViTConfig, dtype: torch.dtype, limit: float) -> None:
    network, images = make_network(config).to(dtype), make_images(config, 4).to(dtype)
    for target in (None, 1, [0, 1, 2, 3], (3, 1), lambda logits: logits[:, 0] - 2 * logits[:, 2]):
        parts = direct_attribution(network, images, target)
        assert parts.heads.shape == (3, 2, 4)
        assert parts.gap.abs().max() <= limit * max(1.0, float(parts.logit.abs().max()))
    chosen = direct_attribution(network, images, [0, 1, 2, 3])
    assert (chosen.logit - network(images)[range(4), range(4)]).abs().max() <= 1e-5


@every_kind
def test_every_part_is_the_one_made_by_hand(config: ViTConfig) -> None:
    network, images = make_network(config).double(), make_images(config, 3).double()
    terms, logit = by_hand(network, images, 2)
    assert (torch.stack(list(terms.values())).sum(dim=0) - logit).abs().max() <= 1e-12
    parts = direct_attribution(network, images, 2)
    found = {"embedding": parts.embedding, "constant": parts.constant}
    for index in range(config.depth):
        found |= {f"head {index} {head}": parts.heads[index, head] for head in range(config.heads)}
        found |= {f"bias {index}": parts.attention_bias[index], f"mlp {index}": parts.mlp[index]}
    assert set(found) == set(terms)
    for name, term in terms.items():
        assert (found[name] - term).abs().max() <= 1e-10, name
        assert term.abs().max() > 1e-4 or config.pooling == "mean"


def test_a_forgotten_part_would_be_noticed() -> None:
    """The sum can fail: without any one of its parts it does not close."""
    parts = direct_attribution(make_network(PLAIN).double(), make_images(PLAIN, 4).double(), 1)
    left = [parts.embedding, *parts.heads.flatten(0, 1), *parts.attention_bias, *parts.mlp, parts.constant]
    for part in left:
        assert (parts.gap + part).abs().max() > 1e-4


def test_another_function_of_the_logits_leaves_its_gap() -> None:
    network, images = make_network(PLAIN).double(), make_images(PLAIN).double()
    parts = direct_attribution(network, images, lambda logits: logits[:, 0] * logits[:, 1])
    assert (parts.gap + parts.logit).abs().max() <= 1e-10


def test_a_network_without_biases_or_head(tmp_path: Path) -> None:
    bare = dict.fromkeys(("embed_bias", "qkv_bias", "out_bias", "mlp_bias", "head_bias"), False)
    for config in (replace(PLAIN, **bare), replace(PLAIN, classes=0)):
        network, images = make_network(config).double(), make_images(config).double()
        assert direct_attribution(network, images, 3).gap.abs().max() <= 1e-12
    network = make_network(replace(PLAIN, **bare)).double()
    network.norm = nn.LayerNorm(12, bias=False).double().eval()
    parts = direct_attribution(network, images, 3)
    assert parts.constant.tolist() == parts.attention_bias.sum(dim=0).tolist() == [0.0, 0.0]
    assert parts.gap.abs().max() <= 1e-12


def test_the_network_is_left_as_it_is_in_any_mode() -> None:
    network, images = make_network(PLAIN), make_images(PLAIN).requires_grad_()
    free = direct_attribution(network, images, 1)
    assert all(parameter.grad is None for parameter in network.parameters())
    assert images.grad is None
    network.requires_grad_(False)
    with torch.inference_mode():
        frozen = direct_attribution(network, make_images(PLAIN), 1)
    assert torch.equal(frozen.heads, free.heads)
    assert not frozen.heads.is_inference()
    assert not free.constant.requires_grad


def test_parts_that_cannot_be_read_are_refused() -> None:
    class Other(nn.Module):
        def forward(self, tokens: Tensor, record: object) -> Tensor:
            return tokens

    normed = ViT(PLAIN, replace(STANDARD, norm=lambda c: nn.LocalResponseNorm(2))).eval()
    with must_refuse("LocalResponseNorm", "norm"):
        direct_attribution(normed, make_images(PLAIN))
    foreign = ViT(PLAIN, replace(STANDARD, attention=lambda _: Other())).eval()
    with must_refuse("blocks.0"):
        direct_attribution(foreign, make_images(PLAIN))
