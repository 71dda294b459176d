"""Tests that would go red if a fault of D2 or D4 came into vitrail and no other test would say so.

Each guard is a function of a network, shown to find the fault on a network that has it.
"""

import importlib
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lessons.parts import Patchify, PatchReader
from vitrail.data import ArrayImages, Preprocessing, Split
from vitrail.data.batches import Batch
from vitrail.data.dataset import label_inputs
from vitrail.explain import METHODS
from vitrail.model import Model
from vitrail.nn import (
    SILENT,
    Attention,
    Parts,
    Transformer,
    TransformerConfig,
    ViT,
    ViTConfig,
)
from vitrail.runs.evaluate import evaluate_split
from vitrail.tasks import Classes
from vitrail.training.transfer.student import distillation

ROOT = Path(__file__).parents[2]
PICTURES = ViTConfig(image_size=8, patch_size=4, channels=1, classes=5, width=8, depth=2, heads=2, layer_scale=0.1)
WORDS = TransformerConfig(
    source_vocab_size=11,
    target_vocab_size=13,
    width=8,
    encoder_depth=2,
    decoder_depth=2,
    heads=2,
    mlp_dim=16,
    dropout=0.0,
    max_length=6,
)


def vit(parts: Parts | None = None, config: ViTConfig = PICTURES) -> ViT:
    """A network whose head, which would begin at zero, answers."""
    torch.manual_seed(0)
    network = ViT(config) if parts is None else ViT(config, parts)
    for head in (network.head, network.head_dist):
        if isinstance(head, nn.Linear):
            nn.init.normal_(head.weight)
    return network.eval()


def transformer(config: TransformerConfig = WORDS, parts: Parts | None = None) -> Transformer:
    torch.manual_seed(0)
    return (Transformer(config) if parts is None else Transformer(config, parts)).eval()


def images(count: int = 3) -> Tensor:
    return torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def ids(count: int = 3, length: int = 4) -> Tensor:
    return torch.randint(3, 11, (count, length), generator=torch.Generator().manual_seed(1))


def leaves(answer: Tensor) -> list[Tensor]:
    """Everything that a gradient of `answer` would flow into."""
    found, waiting, seen = [], [answer.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        waiting += [before for before, _ in node.next_functions]
    return found


def strangers(network: nn.Module, answer: Tensor) -> int:
    """How many of them are no parameters of the network, or not in its state dict."""
    known = {id(parameter) for parameter in network.parameters()}
    saved = {tensor.data_ptr() for tensor in network.state_dict().values()}
    return sum(id(leaf) not in known or leaf.data_ptr() not in saved for leaf in leaves(answer))


class Listed(nn.Module):
    """Attention whose maps stand in a plain list."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.maps = [nn.Linear(width, width)]

    def forward(self, tokens: Tensor, context=None, mask=None, record=SILENT, cache=None) -> Tensor:
        return self.maps[0](tokens)


def test_whatever_learns_is_a_parameter_and_is_saved() -> None:
    """D2b keeps the heads' maps in lists."""
    network, writer = vit(config=replace(PICTURES, registers=1, distillation_token=True)), transformer()
    answers = {network: network(images()), writer: writer(ids(), ids())}
    for one, answer in answers.items():
        assert len(leaves(answer)) > 20
        assert strangers(one, answer) == 0
    listed = vit(Parts(attention=lambda config: Listed(config.width)))
    assert strangers(listed, listed(images())) == 2 * 2
    writer = transformer(parts=Parts(attention=lambda config: Listed(config.width)))
    assert strangers(writer, writer(ids(), ids())) > 0


class Counted(nn.Module):
    """An attention that counts its calls."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.inner, self.calls = Attention(width, heads), 0

    def forward(self, tokens: Tensor, *others, **named) -> Tensor:
        self.calls += 1
        return self.inner(tokens, *others, **named)


class Twice(nn.Module):
    """A block that runs another two times and takes one answer."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, tokens: Tensor, record=SILENT) -> Tensor:
        self.block(tokens)
        return self.block(tokens, record)


def calls(network: nn.Module, run: Callable[[], Tensor]) -> set[int]:
    run()
    return {module.calls for module in network.modules() if isinstance(module, Counted)}


def test_each_attention_runs_once() -> None:
    """D2b computes it twice."""
    counting = Parts(attention=lambda config: Counted(config.width, config.heads))
    network = vit(counting)
    assert calls(network, lambda: network(images())) == {1}
    writer = transformer(parts=Parts(attention=lambda config: Counted(config.width, config.heads)))
    assert calls(writer, lambda: writer(ids(), ids())) == {1}
    twice = vit(counting)
    twice.blocks[1] = Twice(twice.blocks[1])
    assert calls(twice, lambda: twice(images())) == {1, 2}


def held_by_autograd(run: Callable[[], object]) -> int:
    """How many tensors are kept for a backward pass."""
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        run()
    return len(kept)


def test_evaluation_keeps_no_graph() -> None:
    """D2b adds up the test loss with its graph."""
    names = tuple("abcde")
    samples = label_inputs(ArrayImages(np.zeros((7, 8, 8), dtype=np.uint8)), np.zeros(7, dtype=np.int64), names)
    network = vit()
    model = Model(network, Preprocessing(size=(8, 8), channels=1, mean=(0.5,), std=(0.5,)), Classes(names))
    assert held_by_autograd(lambda: evaluate_split(model, Split(samples, "test"))) == 0
    assert held_by_autograd(lambda: network(images())) > 0


def test_positions_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """D2b makes its table in every forward pass."""
    made: list[str] = []

    def counted(where: str, make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def table(*sizes) -> Tensor:
            made.extend([where] * (sizes[0] != 1))  # one row is made where a configuration checks its width
            return make(*sizes)

        return table

    for module, names in (("vit", ("sinusoids", "sinusoids_2d")), ("seq2seq", ("sinusoids",))):
        for name in names:
            place = f"vitrail.nn.{module}.{name}"
            monkeypatch.setattr(place, counted(place, getattr(importlib.import_module(f"vitrail.nn.{module}"), name)))
    networks = [vit(config=replace(PICTURES, positions=kind)) for kind in ("sinusoidal", "sinusoidal-2d")]
    writer = transformer()
    assert len(made) == 4  # two pictures' tables, the source's and the target's
    for network in networks:
        network(images())
    writer(ids(), ids())
    assert len(made) == 4
    writer(ids(length=9), ids())  # a source longer than the table: the planted call
    assert len(made) == 5


def untouched_by(changes: dict[str, object], build: Callable[..., nn.Module], *inputs: Tensor) -> list[str]:
    """The fields whose other value changes neither the answers nor the shapes of the parameters."""

    def said(**change: object) -> tuple[list[torch.Size], Tensor]:
        torch.manual_seed(3)
        network = build(replace(WORDS, **change)).train()
        return [parameter.shape for parameter in network.parameters()], network(*inputs)

    shapes, answer = said()
    idle = []
    for name, value in changes.items():
        other_shapes, other = said(**{name: value})
        if shapes == other_shapes and torch.equal(answer, other):
            idle.append(name)
    return idle


OTHERWISE = {
    "source_vocab_size": 12, "target_vocab_size": 14, "pad_id": 3, "width": 12, "encoder_depth": 1, "decoder_depth": 1,
    "heads": 4, "head_dim": 3, "mlp_dim": 8, "dropout": 0.5, "attention_dropout": 0.5, "activation": "gelu",
    "norm": "pre", "embeddings": "tied", "norm_eps": 0.1,
}  # fmt: skip
NOT_OF_THE_FORWARD_PASS = {"bos_id", "eos_id", "max_length"}  # they steer `generate`, and refuse what is too long


def test_no_field_of_the_transformer_is_ignored() -> None:
    """D2a takes an activation and applies ReLU."""
    assert set(OTHERWISE) | NOT_OF_THE_FORWARD_PASS == {field.name for field in fields(TransformerConfig)}
    assert untouched_by(OTHERWISE, transformer, ids(), ids()) == []
    deaf = Parts(activation=lambda config: nn.ReLU())
    assert untouched_by(OTHERWISE, lambda config: transformer(config, deaf), ids(), ids()) == ["activation"]


def test_the_transformer_gives_logits_over_its_vocabulary() -> None:
    """D2a gives a softmax over the width."""

    def are_logits(answer: Tensor) -> bool:
        return answer.shape[-1] == 13 and bool((answer < 0).any()) and bool(((answer.sum(-1) - 1).abs() > 1e-3).any())

    with torch.no_grad():
        answer = transformer()(ids(), ids())
    assert are_logits(answer)
    assert not are_logits(answer.softmax(-1))
    assert not are_logits(answer[..., :8])


class Flat(nn.Module):
    """A linear map of the pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(64, 5)

    def forward(self, pictures: Tensor) -> Tensor:
        return self.map(pictures.flatten(1))


def test_whatever_gives_logits_can_be_taught() -> None:
    """D2c lets in three classes of its own."""
    labels = torch.tensor([0, 1, 2])
    batch = Batch(images(), labels, labels, np.arange(3), 0, 0, 0)
    with_token = vit(config=replace(PICTURES, distillation_token=True))
    for network, token in ((vit(), False), (with_token, True), (Flat(), False), (nn.Sequential(Flat()), False)):
        loss, count, _ = distillation(lambda batch: torch.zeros(3, 5), token=token)(network, batch)
        (loss / count).backward()
        assert all(parameter.grad is not None for parameter in network.parameters() if parameter.requires_grad)


def explained_alike(method: str, cut: Callable[[Tensor], Tensor]) -> bool:
    """Whether a network that reads the patches of `cut` is explained as the one that reads pictures."""
    network, reader = vit().double(), PatchReader(PICTURES).eval().double()
    state = network.state_dict()
    state["patch_embed.proj.weight"] = state["patch_embed.proj.weight"].flatten(1)
    reader.vit.load_state_dict(state)
    pictures = images().double()  # some maps are small differences of large parts
    given = ((network, pictures), (reader.vit, reader.pictures(cut(pictures))))
    ours, theirs = (METHODS[method].function(*each, 2).values for each in given)
    return torch.allclose(ours, theirs, atol=1e-5 * float(ours.abs().max()), rtol=0)


@pytest.mark.usefixtures("as_a_user")  # the methods' signatures speak of pictures
def test_a_network_that_reads_patches_is_explained_as_one_that_reads_pictures() -> None:
    """D4 cuts columns first: its maps would be those of another picture."""
    down = Patchify(4, order="columns")
    assert [name for name in METHODS if not explained_alike(name, Patchify(4))] == []
    assert [name for name in METHODS if explained_alike(name, down)] == []
