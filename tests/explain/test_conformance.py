"""What every method promises of its maps; a new row of `METHODS` inherits all of it (see also test_manners.py)."""

import inspect
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.explain.methods_page import source_of
from tests.explain.reference import PLAIN, VARIANTS, make_images, make_network
from tests.explain.suite import (
    BY_MASKING,
    CUT_AT_ZERO,
    EVERY,
    differentiates,
    draws,
    every_method,
    every_method_and_variant,
    quick,
    takes,
)
from vitrail.explain import METHODS, Attribution, Method, forward
from vitrail.explain.methods import METHODS_OF_TEXTS
from vitrail.nn import ViT, ViTConfig

WITH_CHUNKS = [quick(method) for method in METHODS.values() if takes(method, "batch_size")]
DRAWING = [quick(method) for method in METHODS.values() if draws(method)]
unchecked = pytest.mark.usefixtures("as_a_user")  # of annotations, which cost half of the time: others above check them
SIZES = ((12, 10), (4, 2), (8, 22), (24, 4))


def helps_of(function: Any) -> dict[str, str]:
    """What the docstring of a function says of each argument, in one line."""
    arguments = (inspect.getdoc(function) or "").partition("\nArgs:\n")[2].partition("\n\n")[0]
    found = re.findall(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", arguments, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


def test_the_table_is_complete() -> None:
    for name, method in (EVERY | METHODS_OF_TEXTS).items():
        assert method.name == name == inspect.unwrap(method.function).__name__
        assert method.title
        assert method.summary
        function = inspect.unwrap(method.function)
        ours = function.__module__.startswith("vitrail.")
        assert not ours or re.search(r"\d{4}\)", source_of(method)), name  # the paper
        assert method.about.endswith("."), name
        assert 80 < len(method.about) < 600, name
        parameters = inspect.signature(function).parameters.values()
        defaults = {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}
        defaults.pop("grid", None)  # of networks that no command opens
        assert {option: row.default for option, row in method.options.items()} == defaults, name
        helps = helps_of(function)
        assert {option: row.help for option, row in method.options.items()} == {each: helps[each] for each in defaults}


def test_what_masks_is_said_where_patches_are_masked() -> None:
    """A masked patch is no absence of evidence."""
    masking = [method for method in METHODS.values() if takes(method, "fill")]
    assert {each.name for each in masking} == BY_MASKING
    for method in masking:
        assert inspect.signature(method.function).parameters["fill"].default == "mean"


@every_method_and_variant
def test_shape_finite_and_what_it_says_of_itself(method: Method, config: ViTConfig) -> None:
    network, images = make_network(config), make_images(config, 3)
    attribution = method.function(network, images)
    assert attribution.values.shape == (3, 3, 5)
    assert attribution.values.isfinite().all()
    assert attribution.values.min() >= 0 or method.signed
    assert (attribution.method, attribution.signed, attribution.class_specific) == (
        method.name,
        method.signed,
        method.class_specific,
    )
    nothing = [method.name in CUT_AT_ZERO and not each.any() for each in attribution.values]
    assert attribution.notes == tuple(("no signal",) if one else () for one in nothing)
    assert not all(nothing)
    logits = network(images)
    assert torch.equal(attribution.target, logits.argmax(dim=1))
    assert (attribution.logit - logits.amax(dim=1)).abs().max() <= 1e-6
    for tensor in (attribution.values, attribution.logit, attribution.target):
        assert not tensor.requires_grad
        assert not tensor.is_inference()


@unchecked
@every_method_and_variant
def test_a_batch_is_its_images_one_by_one(method: Method, config: ViTConfig) -> None:
    network, images = make_network(config), make_images(config, 5)
    targets = torch.tensor([0, 3, 1, 2, 3])
    together = method.function(network, images, targets)
    for index in range(5):
        alone = method.function(network, images[index : index + 1], int(targets[index]))
        assert (alone.values[0] - together.values[index]).abs().max() <= 1e-5 * max(1.0, alone.values.abs().max())
        assert (alone.logit[0] - together.logit[index]).abs() <= 1e-5


@unchecked
@every_method_and_variant
def test_the_class_specific_claim_is_true(method: Method, config: ViTConfig) -> None:
    network, images = make_network(config), make_images(config)
    maps = [method.function(network, images, target).values for target in range(config.classes)]
    for target in range(1, config.classes):
        if method.class_specific:
            assert (maps[target] - maps[0]).abs().max() > 0.01 * maps[0].max()
        else:
            assert torch.equal(maps[target], maps[0])


@unchecked
@every_method_and_variant
def test_any_grid(method: Method, config: ViTConfig) -> None:
    network = make_network(config)
    for height, width in SIZES:
        images = torch.randn(2, 2, height, width, generator=torch.Generator().manual_seed(0))
        attribution = method.function(network, images)
        assert attribution.values.shape == (2, height // 4, width // 2), (height, width)
        assert attribution.values.isfinite().all(), (height, width)


@unchecked
@every_method_and_variant
def test_float64(method: Method, config: ViTConfig) -> None:
    single = method.function(make_network(config), make_images(config), 1).values
    double = method.function(make_network(config).double(), make_images(config).double(), 1).values
    assert double.dtype == torch.float64
    assert (double - single).abs().max() <= 1e-4 * max(1.0, float(double.max()))
    assert not torch.equal(double, single.double())


@every_method_and_variant
def test_no_signal_is_said_for_the_image_that_has_none(method: Method, config: ViTConfig) -> None:
    network, images = make_network(replace(config, positions="none", rotary=None)), make_images(config, 3)
    images[1] = 0.5
    attribution = method.function(network, images)
    assert attribution.notes[1] == ("no signal",)
    for image in (0, 2):  # a method that cuts at zero may leave nothing of an image, and then says so
        nothing = not attribution.signed and not attribution.values[image].any()
        assert ("no signal" in attribution.notes[image]) == nothing


@unchecked
@every_method_and_variant
def test_no_class_has_a_signal_in_a_network_that_has_learnt_nothing(method: Method, config: ViTConfig) -> None:
    """A fresh head is zero: nothing moves the logit, so a map of a class is zero, and the attribution says so."""
    attribution = method.function(ViT(config).eval(), make_images(config), 1)
    assert attribution.values.any() != method.class_specific
    assert attribution.notes == (("no signal",) if method.class_specific else (),) * 2


@unchecked
@every_method
def test_many_images_and_none(method: Method) -> None:
    network = make_network(PLAIN)
    assert method.function(network, make_images(PLAIN, 65)).values.shape == (65, 3, 5)
    empty = method.function(network, make_images(PLAIN, 0))
    assert empty.values.shape == (0, 3, 5)
    assert empty.notes == ()


@unchecked
@pytest.mark.parametrize("method", WITH_CHUNKS, ids=lambda method: method.name)
def test_neither_place_in_the_batch_nor_chunks_matter(method: Method) -> None:
    network, images = make_network(PLAIN).double(), make_images(PLAIN, 3).double()
    targets = torch.tensor([3, 1, 0])
    whole = method.function(network, images, targets, batch_size=10**6).values
    turned = method.function(network, images.flip(0), targets.flip(0), batch_size=7).values.flip(0)
    assert (turned - whole).abs().max() <= 1e-12


@pytest.mark.parametrize("method", DRAWING, ids=lambda method: method.name)
def test_the_seed_decides(method: Method) -> None:
    network, images = make_network(PLAIN), make_images(PLAIN)
    first = method.function(network, images, 1).values
    torch.manual_seed(99)
    before = torch.get_rng_state()
    assert torch.equal(first, method.function(network, images, 1).values)
    assert torch.equal(before, torch.get_rng_state()), "the caller's random numbers are used up"
    assert (method.function(network, images, 1, seed=1).values - first).abs().max() > 1e-3


@unchecked
@every_method
def test_the_second_call_does_not_see_the_first(method: Method) -> None:
    network = make_network(PLAIN)
    first, second = make_images(PLAIN, seed=1), make_images(PLAIN, seed=2)
    alone = method.function(network, second).values
    method.function(network, first)
    assert torch.equal(method.function(network, second).values, alone)


@unchecked
@every_method
def test_kinds_of_target(method: Method) -> None:
    network, images = make_network(PLAIN), make_images(PLAIN, 3)
    logits = network(images).detach()

    def explain(target: int | Tensor | None) -> Attribution:
        return method.function(network, images, target)

    assert torch.equal(explain(None).values, explain(logits.argmax(dim=1)).values)
    wanted = explain(2)
    for given in (torch.tensor(2), torch.tensor([2, 2, 2], dtype=torch.uint8)):
        attribution = explain(given)
        assert attribution.target.tolist() == [2, 2, 2]
        assert attribution.target.dtype == torch.int64
        assert torch.equal(attribution.values, wanted.values)
        assert (attribution.logit - logits[:, 2]).abs().max() <= 1e-6
    mixed = torch.tensor([3, 0, 1])
    attribution = explain(mixed)
    assert torch.equal(attribution.target, mixed)
    mixed[0] = 0
    assert attribution.target[0] == 3  # the attribution does not share the caller's tensor


@unchecked
@every_method
def test_what_is_not_finite_is_said_and_stays_in_its_image(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network may make it of images of numbers; here an image brings it, past the check."""
    network, images = make_network(PLAIN), make_images(PLAIN, 3)
    clean = method.function(network, images, 1).values
    monkeypatch.setattr(forward, "check_finite_images", lambda images: None)
    images[1, 0, 0, 0] = torch.nan
    attribution = method.function(network, images, 1)
    assert attribution.notes == ((), ("not finite",), ())
    assert (attribution.values - clean)[[0, 2]].abs().max() <= 1e-5


@every_method
def test_a_network_without_a_head(method: Method) -> None:
    """Its logits are what the head would read, and `target` counts those."""
    attribution = method.function(make_network(replace(PLAIN, classes=0)), make_images(PLAIN), PLAIN.width - 1)
    assert attribution.values.isfinite().all()
    assert attribution.target.tolist() == [PLAIN.width - 1] * 2


# ---- digits of small relevance


def keeps_small_digits(methods: Iterable[Method]) -> bool:
    """Whether each map is that of float64, before a head a million times smaller.

    With mean pooling, where what never left its token lies on all patches: a difference from it would lose the rest.
    """
    for config in (VARIANTS["mean-0"], VARIANTS["mean-2-register"]):
        network, images = make_network(config), make_images(config)
        with torch.no_grad():
            network.head.weight.mul_(1e-6)
        for method in filter(differentiates, methods):
            if takes(method, "tolerance"):  # its nodes lie where differences of logits say, which lose digits
                continue
            single = method.function(network.float(), images, 1).values
            double = method.function(network.double(), images.double(), 1).values
            if (single - double).abs().max() > 1e-5 * double.abs().max():
                return False
    return True


def test_small_relevance_keeps_its_digits() -> None:
    """The planted fault: relevance taken as R - I, after the identity was added."""
    assert keeps_small_digits(map(quick, METHODS.values()))

    def from_the_identity(*given: Any) -> Attribution:
        attribution = METHODS["generic_attention"].function(*given)
        return replace(attribution, values=(1 + attribution.values) - 1)

    assert not keeps_small_digits([replace(METHODS["generic_attention"], function=from_the_identity)])
