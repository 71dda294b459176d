"""Parts of one's own train and come back, named ones are stored by name, and one that breaks its contract is told."""

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.errors import must_raise
from tests.explain.own_parts import CONFIG, PARTS, RotaryAttention
from tests.nn.reference import redraw, some_images
from tests.nn.sequences import IMAGES, SMALL
from vitrail.errors import UsageError
from vitrail.nn import (
    MLP,
    STANDARD,
    Attention,
    ImageToSequence,
    LayerScale,
    Parts,
    Transformer,
    ViT,
    ViTConfig,
    check_parts,
    detached,
    names_of,
    parts_of,
)
from vitrail.nn.parts import TABLE


def test_a_network_of_own_parts_learns_and_its_state_comes_back():
    torch.manual_seed(0)
    network = ViT(CONFIG, PARTS)
    check_parts(CONFIG, PARTS)
    images, labels = some_images(32, 2, 12, 20), torch.arange(32) % 4
    images = images + 0.5 * labels.float()[:, None, None, None]
    optimizer, losses = torch.optim.AdamW(network.parameters(), lr=3e-3), []
    for _ in range(30):
        loss = F.cross_entropy(network(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert all(parameter.grad is not None for parameter in network.parameters())
    again = ViT(ViTConfig.from_dict(json.loads(json.dumps(asdict(CONFIG)))), PARTS)
    again.load_state_dict(network.state_dict())
    assert torch.equal(again.eval()(images), network.eval()(images))


def test_rotary_positions_are_turned_and_matter():
    """The scores depend on the distance alone, and an exchange of two patches changes the answer."""
    attention = RotaryAttention(replace(CONFIG, class_token=False, registers=0, pooling="mean"))
    redraw(attention)
    one = some_images(1, 1, 1, 4).expand(1, 1, 15, 4)
    scores = (attention.turned(one) @ attention.turned(one).mT)[0, 0].unflatten(0, (3, 5)).unflatten(2, (3, 5))
    torch.testing.assert_close(scores[0, 0, 1, 2], scores[1, 2, 2, 4])
    assert not torch.allclose(scores[0, 0, 1, 2], scores[0, 0, 2, 1])
    network, images = ViT(CONFIG, PARTS).eval(), some_images(1, 2, 12, 20)
    exchanged = images.clone()
    exchanged[..., :4, :4], exchanged[..., 4:8, 8:12] = images[..., 4:8, 8:12], images[..., :4, :4]
    assert not torch.allclose(network(images), network(exchanged), atol=1e-6)


def test_every_network_takes_the_same_parts():
    norm = Parts(norm=lambda config: nn.RMSNorm(config.width), scale=lambda config: LayerScale(config.width, 0.5))
    networks = [ViT(CONFIG, norm), Transformer(SMALL, norm), ImageToSequence(IMAGES, norm, norm)]
    for network in networks:
        assert network.parts is norm
        kinds = {type(module) for module in network.modules()}
        assert {nn.RMSNorm, LayerScale} <= kinds
        assert nn.LayerNorm not in kinds
    for slot in ("positions", "embed_norm", "pooling", "head"):
        with must_raise(UsageError, slot):
            Transformer(SMALL, Parts(**{slot: lambda config: nn.Identity()}))


def test_a_norm_before_the_blocks_is_the_only_difference_it_makes():
    plain = replace(CONFIG, positions="learned")
    network, normed = ViT(plain), ViT(plain, parts_of({"embed_norm": "layer"}))
    assert [*network.state_dict(), "norm_pre.weight", "norm_pre.bias"] == sorted(
        normed.state_dict(), key=[*network.state_dict(), "norm_pre.weight", "norm_pre.bias"].index
    )
    redraw(network)
    normed.load_state_dict({**normed.state_dict(), **network.state_dict()})
    images = some_images(2, 2, 12, 20)
    expected = F.layer_norm(network.embed(images), (16,), eps=plain.norm_eps)
    torch.testing.assert_close(normed.embed(images), expected)


@pytest.mark.parametrize(("slot", "name"), [(slot, name) for slot in TABLE for name in TABLE[slot]])
def test_a_part_of_the_table_is_stored_by_its_name_works_and_is_held_fixed(slot: str, name: str):
    together = {"pooling": "class_and_mean", "head": "of_two"}  # the one gives the other twice the numbers
    named = together if together.get(slot) == name else {slot: name}
    parts = parts_of(named)
    assert names_of(parts) == named
    assert parts_of(json.loads(json.dumps(names_of(parts)))) == parts
    network = ViT(replace(CONFIG, positions="learned"), parts).eval()
    redraw(network)
    check_parts(network.config, parts)
    images = some_images(2, 2, 12, 20)
    assert torch.equal(detached(network)(images), network(images))


def test_own_parts_are_named_by_what_they_are_called():
    names = names_of(PARTS)
    assert names["norm"] == "own:rms_norm"
    assert names["attention"] == "own:RotaryAttention"
    assert parts_of(names, PARTS) == PARTS
    assert names_of(STANDARD) == {}
    for wrong, given in (
        (names, STANDARD),
        ({"norm": "own:rms_norm"}, PARTS),
        ({"norm": "rmss"}, STANDARD),
        ({"nrom": "rms"}, STANDARD),
    ):
        with pytest.raises(UsageError):
            parts_of(wrong, given)


class Half(nn.Module):
    """Gives half of its numbers."""

    def forward(self, tokens: Tensor, *more: object, **others: object) -> Tensor:
        return tokens[..., : tokens.shape[-1] // 2]


class OneToken(nn.Module):
    """Gives one token for all: added to the others it would fit, and say something else."""

    def forward(self, tokens: Tensor, **others: object) -> Tensor:
        return tokens[:, :1]


class NotFinite(nn.Module):
    """Divides by zero."""

    def forward(self, tokens: Tensor, **others: object) -> Tensor:
        return tokens / 0


class Shut(nn.Module):
    """Knows nothing of what it is called with."""

    def forward(self) -> Tensor:
        return torch.zeros(())


def no_part(config: Any, *others: Any) -> Any:
    raise LookupError("nothing there")


def nothing(config: Any, *others: Any) -> Any:
    return None


BROKEN: list[tuple[str, Any]] = [
    ("embedding", lambda config: nn.Flatten()),
    ("embedding", lambda config: nn.Linear(3, 3)),
    ("positions", lambda config: torch.zeros(1, 1, config.width)),
    ("positions", lambda config: nn.Identity()),
    ("embed_norm", lambda config: OneToken()),
    ("norm", lambda config: nn.LayerNorm(config.width + 1)),
    ("norm", lambda config: NotFinite()),
    ("norm", lambda: nn.Identity()),
    ("norm", nn.LayerNorm(16)),
    ("attention", lambda config: Half()),
    ("attention", lambda config: OneToken()),
    ("attention", lambda config: Attention(config.width + 4, 4)),
    ("mlp", lambda config, activation: OneToken()),
    ("mlp", lambda config, activation: nn.Linear(config.width, config.width + 1)),
    ("activation", lambda config: Half()),
    ("scale", lambda config: nn.Linear(config.width, 1)),
    ("pooling", lambda config: Half()),
    ("head", lambda config: nn.Linear(config.width, config.classes + 1)),
]
EVERYWHERE = ("norm", "attention", "mlp", "activation", "scale")


@pytest.mark.parametrize(("slot", "part"), BROKEN)
def test_a_part_that_breaks_its_contract_is_named(slot: str, part):
    with must_raise(UsageError, f"the {slot} "):
        check_parts(CONFIG, Parts(**{slot: part}))


@pytest.mark.parametrize("config", [CONFIG, SMALL, IMAGES], ids=["ViT", "Transformer", "ImageToSequence"])
def test_the_parts_of_every_network_are_tried(config: Any):
    """Also those of blocks that write, and one that fails inside another is told by its own name."""
    check_parts(config, PARTS if config is CONFIG else Parts(scale=lambda config: LayerScale(config.width, 0.5)))
    for slot in EVERYWHERE:
        for part in (lambda *_: Shut(), lambda *_: OneToken(), no_part, nothing):
            with must_raise(UsageError, f"the {slot} "):
                check_parts(config, Parts(**{slot: part}))
    inside = Parts(mlp=lambda config, activation: MLP(config.width, 8, activation), activation=lambda config: Shut())
    with must_raise(UsageError, r"\bactivation\b"):
        check_parts(config, inside)


def test_a_part_that_was_tried_is_left_as_it_was():
    norm = nn.LayerNorm(16)
    check_parts(CONFIG, Parts(norm=lambda config: norm))
    assert "forward" not in vars(norm)
