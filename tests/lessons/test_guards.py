"""Tests that would go red if a fault of D0, D1 or D3 came into vitrail and no other test would say so.

Each guard is a function of a network, shown to find the fault on a network that has it.
"""

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from vitrail.nn import SILENT, Attention, Branches, EncoderBlock, Parts, PatchEmbedding, ViT, ViTConfig

FORMS = {
    "class": ViTConfig(image_size=8, patch_size=4, channels=1, classes=5, width=8, depth=2, heads=2),
    "mean": ViTConfig(
        image_size=8, patch_size=4, channels=1, classes=5, width=8, depth=2, heads=2, pooling="mean", class_token=False
    ),
    "sinusoidal": ViTConfig(
        image_size=8, patch_size=4, channels=1, classes=5, width=8, depth=2, heads=2, positions="sinusoidal"
    ),
    "registers": ViTConfig(
        image_size=8,
        patch_size=4,
        channels=1,
        classes=5,
        width=8,
        depth=2,
        heads=2,
        registers=2,
        distillation_token=True,
        layer_scale=0.1,
        qkv_bias=False,
    ),
}

over_forms = pytest.mark.parametrize("form", FORMS)


def made(form: str, parts: Parts | None = None) -> ViT:
    """A network whose head, which would begin at zero, answers."""
    torch.manual_seed(0)
    network = ViT(FORMS[form]) if parts is None else ViT(FORMS[form], parts)
    for head in (network.head, network.head_dist):
        if isinstance(head, nn.Linear):
            nn.init.normal_(head.weight)
            nn.init.normal_(head.bias)
    return network.eval()


def pictures(count: int = 3) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(count, 1, 8, 8)


def are_logits(network: ViT) -> bool:
    """Whether answers may be anything: no row sums to 1, and some are negative."""
    with torch.no_grad():
        answers = network(pictures())
    return bool((answers < 0).any()) and bool(((answers.sum(1) - 1).abs() > 1e-3).all())


@over_forms
def test_networks_give_logits(form: str) -> None:
    assert are_logits(made(form))
    probabilities = Parts(head=lambda config: nn.Sequential(nn.Linear(8, 5), nn.Softmax(dim=-1)))
    assert not are_logits(made(form, probabilities))


def growth(network: ViT) -> float:
    """How far the answer moves when the tokens behind the last block are ten times as large."""
    torch.manual_seed(2)
    tokens = torch.randn(3, network.config.prefix + 4, 8)
    with torch.no_grad():
        return float((network.readout(10 * tokens) - network.readout(tokens)).abs().max())


@over_forms
def test_the_head_reads_normalised_tokens(form: str) -> None:
    network = made(form)
    assert growth(network) < 1e-3
    network.norm = nn.Identity()
    assert growth(network) > 1


class Counter(TorchDispatchMode):
    """Counts the operations that reach torch's kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def operations(network: nn.Module, count: int) -> int:
    with Counter() as counter, torch.no_grad():
        network(pictures(count))
    return counter.count


class PictureByPicture(nn.Module):
    """A patch map in a Python loop."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = PatchEmbedding(1, 8, (4, 4))

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([self.inner(image[None]) for image in images])


@over_forms
def test_a_larger_batch_needs_no_more_operations(form: str) -> None:
    assert operations(made(form), 2) == operations(made(form), 17)
    looped = made(form, Parts(embedding=lambda config: PictureByPicture()))
    assert operations(looped, 2) < operations(looped, 17)


class FreshTable(nn.Module):
    """A patch map whose table of zeros is always on the processor and in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = PatchEmbedding(1, 8, (4, 4))

    def forward(self, images: Tensor) -> Tensor:
        return torch.zeros(len(images), 4, 8, device="cpu") + self.inner(images)


def places(network: ViT) -> set[tuple[str, torch.dtype]]:
    """Where the answers to pictures on the `meta` device are, and to those in float64: device and type."""
    there = network.to("meta", torch.float64)
    answers = there(pictures().to("meta", torch.float64))
    return {(answers.device.type, answers.dtype)}


@over_forms
def test_everything_stays_where_the_pictures_are(form: str) -> None:
    assert places(made(form)) == {("meta", torch.float64)}
    with pytest.raises(RuntimeError, match="device"):
        places(made(form, Parts(embedding=lambda config: FreshTable())))


def calls_differ(network: nn.Module) -> bool:
    images = pictures()
    with torch.no_grad():
        return not torch.equal(network(images), network(images))


class FreshTokens(nn.Module):
    """Positions that are drawn at every call."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = PatchEmbedding(1, 8, (4, 4))

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.inner(images)
        return tokens + torch.randn_like(tokens)


@over_forms
def test_two_calls_give_the_same_bits(form: str) -> None:
    assert not calls_differ(made(form))
    assert calls_differ(made(form, Parts(embedding=lambda config: FreshTokens())))


class AlongTheBatch(nn.Module):
    """Attention over the wrong axis."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Attention(8, 2)

    def forward(self, tokens: Tensor, mask: Tensor | None = None, record=SILENT) -> Tensor:
        return self.inner(tokens.transpose(0, 1)).transpose(0, 1)


def unseen_pixels(network: ViT) -> int:
    """Pixels without which each picture's own answer would be the same."""
    images = pictures().requires_grad_()
    answers = network(images)
    torch.manual_seed(3)
    (gradient,) = torch.autograd.grad((answers * torch.randn_like(answers)).sum(), images)
    return int((gradient == 0).sum())


@over_forms
def test_every_pixel_reaches_the_answer(form: str) -> None:
    assert unseen_pixels(made(form)) == 0
    if FORMS[form].pooling == "class" and not FORMS[form].distillation_token:
        blind = made(form, Parts(attention=lambda config: AlongTheBatch()))
        assert unseen_pixels(blind) == pictures().numel()


def test_heads_are_never_guessed() -> None:
    with pytest.raises(ValueError, match="heads"):
        Attention(768)  # pyrefly: ignore


def written_into(block: nn.Module) -> bool:
    """Whether a block changes the tokens that it was given."""
    torch.manual_seed(4)
    tokens = torch.randn(2, 5, 8)
    before = tokens.clone()
    with torch.no_grad():
        block(tokens)
    return not torch.equal(tokens, before)


class Hands(nn.Module):
    """A branch that returns what it got."""

    def forward(self, tokens: Tensor, mask: Tensor | None = None, record=SILENT) -> Tensor:
        return tokens


class InPlace(Branches):
    """A block that adds its input in place to what its branch gives."""

    def forward(self, tokens: Tensor) -> Tensor:
        added = self.mix(self.norm1(tokens), SILENT, None)
        added += tokens
        return added


def test_no_part_writes_into_its_input() -> None:
    parts = Parts(
        norm=lambda config: nn.Identity(), attention=lambda config: Hands(), mlp=lambda config, activation: Hands()
    )
    assert not written_into(EncoderBlock(ViTConfig(), parts))
    assert written_into(InPlace(ViTConfig(), parts))


@over_forms
def test_pictures_stay_as_they_were(form: str) -> None:
    images = pictures()
    with torch.no_grad():
        made(form)(images)
    assert torch.equal(images, pictures())
