"""The map beside the outputs: a graph gives what the method itself gives, for every task and number of images."""

from collections.abc import Callable
from dataclasses import replace
from typing import get_args, get_type_hints

import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import vitrail
from tests.deploy.small import NAMES, small_model
from tests.errors import must_raise
from tests.sequence_models import image_model
from vitrail.cli.args import Export
from vitrail.deploy.attribution import ROWS, with_map
from vitrail.deploy.onnx import build, contract_of, to_bytes
from vitrail.errors import UsageError
from vitrail.explain import METHODS
from vitrail.model.contract import MAP, OUTPUTS, PIXELS
from vitrail.model.onnx_file import relative_gap
from vitrail.nn.twin import detached
from vitrail.nn.vit import ClassToken, MeanOfPatches
from vitrail.tasks import TASKS, Attributes, Classes, Codec, MultiLabels, Standardized

HALVES = Attributes(("x", "y"), (NAMES[:3], NAMES[3:]))
NUMBERS = Standardized(NAMES, (2.0,) * 5, (3.0,) * 5)


def images(count: int) -> Tensor:
    return torch.randint(0, 256, (count, 3, 24, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(count))


def centred_model(codec: Codec, task: str, pool: nn.Module | None = None) -> vitrail.Model:
    """The small model, whose outputs are about zero: so answers and signs differ from image to image."""
    model = small_model(codec, TASKS[task], depth=2)
    network, reads = model.network, model.preprocessing
    network.pool = pool or network.pool
    network.eval().head.bias.data -= network(reads.normalise(images(5))).mean(dim=0).detach()
    return model


def of(model: vitrail.Model, method: str, conservative: bool, inputs: Tensor) -> vitrail.explain.Attribution:
    """What vitrail itself says."""
    held = replace(model, network=detached(model.network)) if conservative else model
    return METHODS[method].function(held, inputs)


class Writes(ClassToken):
    """A pooling that writes into one of two tensors of zeros, which are not the same one."""

    def forward(self, tokens: Tensor, prefix: int) -> Tensor:
        written, empty = torch.zeros_like(tokens[:, 0]), torch.zeros_like(tokens[:, 0])
        written += tokens[:, 0]
        return written + empty


class Counts(ClassToken):
    """A pooling that asks for the number of images."""

    def forward(self, tokens: Tensor, prefix: int) -> Tensor:
        return tokens[:, 0] * torch.ones(len(tokens), 1)


class Looks(ClassToken):
    """A pooling that decides by what it sees."""

    def forward(self, tokens: Tensor, prefix: int) -> Tensor:
        return tokens[:, 0] if tokens.sum() > 0 else tokens[:, 1]


@pytest.mark.parametrize(
    ("task", "codec", "method", "conservative", "pool"),
    [
        # Of two blocks AttCAT is zero under a class token, since norms read no length
        ("multilabel", MultiLabels(NAMES), "attcat", False, MeanOfPatches()),
        ("regression", NUMBERS, "gradient_rollout", False, Writes()),
        ("attributes", HALVES, "generic_attention", True, ClassToken()),
    ],
)
def test_a_graph_gives_the_map_of_the_method(
    task: str, codec: Codec, method: str, conservative: bool, pool: nn.Module
) -> None:
    model = centred_model(codec, task, pool)
    graph = with_map(model, method, conservative)
    for count in (1, 2, 5):
        inputs = model.preprocessing.normalise(images(count))
        wanted = of(model, method, conservative, inputs)
        outputs, found = graph(inputs)
        assert found.shape == wanted.values.shape
        assert relative_gap(wanted.values.flatten(1), found.flatten(1)) < 1e-5
        assert relative_gap(model.network(inputs).detach(), outputs) < 1e-5
    told_apart = outputs[:, 0] > 0 if task == "regression" else wanted.target
    assert len(told_apart.unique()) > 1  # a target that is fixed, or the wrong side, would show


def test_the_map_stands_in_the_file_whatever_the_number_of_images() -> None:
    model = centred_model(Classes(NAMES), "classify")
    model.network.blocks[0].mlp.act = nn.SiLU().eval()  # ONNX has no operator for its gradient
    explained = {"method": "generic_attention"}
    proto = build(model, contract_of(model, explained=explained), with_map(model, "generic_attention"))
    session = onnxruntime.InferenceSession(to_bytes(proto))
    for count in (1, 2, 5):
        inputs = model.preprocessing.normalise(images(count))
        wanted = of(model, "generic_attention", False, inputs)
        outputs, found = session.run([OUTPUTS, MAP], {PIXELS: images(count).permute(0, 2, 3, 1).numpy()})
        assert found.dtype == "float32"
        assert relative_gap(wanted.values.flatten(1), torch.from_numpy(found).flatten(1)) < 1e-4
        assert relative_gap(model.network(inputs).detach(), torch.from_numpy(outputs)) < 1e-5
    assert len(wanted.target.unique()) > 1


def test_the_verb_and_the_graph_have_the_same_methods() -> None:
    (words,) = [get_args(kind) for kind in get_args(get_type_hints(Export)["explain"]) if get_args(kind)]
    assert words == tuple(ROWS)
    with must_raise(UsageError, ".*".join(ROWS)) as caught:
        with_map(small_model(), "attca")
    assert caught.value.hint.flags == {"explain": "attcat"}
    assert "rise" not in caught.value.problem


@pytest.mark.parametrize(
    ("made", "method", "named"),
    [
        (small_model, "rise", "attcat"),
        (small_model, "generic_attentoin", "generic_attention"),
        (image_model, "attcat", "ImageToSequence"),
        (lambda: centred_model(Classes(NAMES), "classify", Counts()), "attcat", None),
        (lambda: centred_model(Classes(NAMES), "classify", Looks()), "attcat", None),
    ],
)
def test_what_a_graph_cannot_hold_is_refused(made: Callable[[], vitrail.Model], method: str, named: str | None) -> None:
    with must_raise(UsageError, named):
        with_map(made(), method)
