"""Explanations in Python: targets by name, maps of other tools, plain functions as methods, and what is refused."""

from functools import partial

import numpy as np
import pytest
import torch
from captum.attr import IntegratedGradients
from torch import Tensor, nn

import vitrail
from tests.errors import must_raise
from vitrail import explain
from vitrail.errors import UsageError
from vitrail.explain import Attribution, Contrast, inside
from vitrail.explain.target import by_index

SIZE, PATCH, GRID = (16, 24), (4, 8), (4, 3)  # sides that differ, so that none is taken for another
CONFIG = vitrail.ViTConfig(width=16, depth=2, heads=2, mlp_dim=32, image_size=SIZE, patch_size=PATCH, classes=3)
DRAW = torch.Generator().manual_seed(0)


def shaken(network: nn.Module) -> nn.Module:
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.3, generator=DRAW)
    return network.eval()


NETWORK = shaken(vitrail.ViT(CONFIG))
MODEL = vitrail.Model(NETWORK, vitrail.Preprocessing(SIZE), vitrail.Classes(("cat", "dog", "7")))
IMAGES, OTHERS = torch.randn(2, 3, *SIZE, generator=DRAW), torch.randn(12, 3, *SIZE, generator=DRAW)
FEATURES = vitrail.Model(
    NETWORK, vitrail.Preprocessing(SIZE), vitrail.tasks.Numbers(3), vitrail.tasks.TASKS["features"]
)
NAMED = [
    ("dog", 1),
    (["7", "cat"], [2, 0]),
    ([1, "cat"], [1, 0]),
    (("cat", "dog"), (0, 1)),
    (Contrast(["cat", "dog"], "7"), ([0, 1], 2)),
    (None, None),
    (torch.tensor([0, 2]), [0, 2]),
]


@pytest.mark.parametrize(("named", "index"), NAMED, ids=str)
def test_a_target_is_named_wherever_a_model_is_passed(named: object, index: object) -> None:
    wanted = explain.saliency(NETWORK, IMAGES, index)
    ways = {
        "a method": explain.saliency(MODEL, IMAGES, named),
        "a pixel map": Attribution.of_pixels(torch.ones(2, *SIZE), IMAGES, MODEL, named),
        "compare": explain.compare(MODEL, IMAGES, "saliency", named, scored=False).attributions[0],
    }
    for way, found in ways.items():
        for part in ("target", "logit", "contrast"):
            ours, theirs = getattr(found, part), getattr(wanted, part)
            assert (ours is None and theirs is None) or torch.equal(ours, theirs), (way, part)
    assert torch.equal(ways["a method"].values, wanted.values)
    assert torch.equal(ways["compare"].values, wanted.values)
    assert torch.equal(explain.trust(MODEL, IMAGES, wanted, background=OTHERS).before.isnan(), torch.zeros(2) > 0)


def test_every_function_of_a_network_takes_its_model() -> None:
    sheet, direct = (function(MODEL, IMAGES, "dog") for function in (explain.balance_sheet, inside.direct_attribution))
    assert torch.equal(sheet.logit, NETWORK(IMAGES)[:, 1].detach())
    assert torch.equal(direct.logit, sheet.logit)
    assert torch.equal(inside.logit_lens(MODEL, IMAGES), inside.logit_lens(NETWORK, IMAGES))
    ablation = partial(inside.head_ablation, background=OTHERS, layers=[0])
    assert torch.equal(ablation(MODEL, IMAGES, "dog").change, ablation(NETWORK, IMAGES, 1).change)
    assert torch.equal(explain.occlusion(FEATURES, IMAGES, "2").values, explain.occlusion(NETWORK, IMAGES, 2).values)
    assert torch.equal(
        explain.occlusion(FEATURES, IMAGES).target, torch.zeros(2, dtype=torch.long)
    )  # as the codec says
    for model, target, given in (
        (MODEL, "cow", "cow"),
        (NETWORK, "cat", "cat"),
        (MODEL, ["cat", "cow"], "cow"),
        (MODEL, 3, "3"),
    ):
        with must_raise(UsageError, given):
            explain.rollout(model, IMAGES, target)
        with must_raise(UsageError, given):
            explain.compare(model, IMAGES, "rollout", target, background=OTHERS)
    assert by_index(lambda outputs: outputs[:, 0], MODEL.output)(NETWORK(IMAGES)).shape == (2,)


def test_a_map_of_captum_is_ours_on_the_grid() -> None:
    theirs = IntegratedGradients(NETWORK).attribute(IMAGES, target=1, n_steps=50, method="gausslegendre").detach()
    ours = explain.integrated_gradients(NETWORK, IMAGES, 1, steps=50, tolerance=None)
    found = Attribution.of_pixels(theirs, IMAGES, MODEL, "dog", method="captum")
    torch.testing.assert_close(found.values, ours.values, rtol=1e-5, atol=1e-6)
    assert (found.signed, found.class_specific, found.size, found.method) == (True, True, SIZE, "captum")
    # each patch by hand, and of all ways in which a tool gives its numbers
    whole, (height, width), wanted = theirs.sum(dim=1), PATCH, torch.empty(2, *GRID)
    for row in range(GRID[0]):
        for column in range(GRID[1]):
            patch = whole[:, row * height : (row + 1) * height, column * width : (column + 1) * width]
            wanted[:, row, column] = patch.sum(dim=(1, 2))
    for given in (theirs, whole, theirs.numpy(), whole.double().numpy(), wanted):
        torch.testing.assert_close(Attribution.of_pixels(given, IMAGES, NETWORK, 1).values, wanted)
    for given in (whole[0].numpy(), wanted[0]):  # of one image
        torch.testing.assert_close(Attribution.of_pixels(given, IMAGES[:1], NETWORK, 1).values, wanted[:1])
    mean = Attribution.of_pixels(theirs.abs(), IMAGES, NETWORK, 1, join="mean")
    torch.testing.assert_close(mean.values.sum() * 32, theirs.abs().sum())
    assert not mean.signed
    trust = partial(explain.trust, MODEL, IMAGES, background=OTHERS, full=True)
    assert torch.equal(
        trust(mean).drops.masked, trust(Attribution.of_pixels(theirs.abs(), IMAGES, MODEL, 1)).drops.masked
    )
    cnn = shaken(nn.Sequential(nn.Conv2d(3, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()))
    assert Attribution.of_pixels(theirs, IMAGES, cnn, 1, grid=(2, 2)).values.shape == (2, 2, 2)
    flat, hole = torch.ones(2, *SIZE), torch.full((2, *SIZE), torch.nan)
    assert [Attribution.of_pixels(each, IMAGES, MODEL).notes[0] for each in (flat, hole)] == [
        ("no signal",),
        ("not finite",),
    ]
    for wrong in (theirs[:1], theirs[..., :8], theirs[0, 0], torch.zeros(2, 5)):
        with must_raise(UsageError, str(wrong.shape[-1])):
            Attribution.of_pixels(wrong, IMAGES, NETWORK)
    with must_raise(UsageError, "grid"):
        Attribution.of_pixels(theirs, IMAGES, cnn)


def brightness(network: nn.Module, images: Tensor, target: object) -> Tensor:
    """How bright each pixel is.

    A control.
    """
    return images.abs()


def sharper(network: nn.Module, images: Tensor, target: object, power: float = 2.0) -> Attribution:
    made = explain.saliency(network, images, target)
    return Attribution(made.values**power, made.target, made.logit, "x", False, True, made.notes)


def test_a_plain_function_is_a_method() -> None:
    as_numpy = partial(lambda network, images, target: np.ones((2, *GRID), np.float32))
    functions = [brightness, sharper, "saliency", as_numpy, explain.grad_cam]
    found = explain.compare(MODEL, IMAGES, functions, "dog", background=OTHERS)
    assert found.methods == ("brightness", "sharper", "saliency", "partial", "grad_cam")
    assert [each.method for each in found.attributions] == list(found.methods)
    by_hand = Attribution.of_pixels(IMAGES.abs(), IMAGES, NETWORK, 1)
    assert torch.equal(found.attributions[0].values, by_hand.values)
    assert torch.equal(found.attributions[1].values, found.attributions[2].values ** 2)
    assert found.attributions[3].notes[0] == ("no signal",)
    assert [each.verdict for each in found.trusts[:1]] == [
        explain.trust(MODEL, IMAGES, by_hand, background=OTHERS).verdict
    ]
    assert found._repr_html_().count('<div class="vitrail-map">') == 5
    report = explain.report(MODEL, [np.zeros((*SIZE, 3), np.uint8)], brightness, background=OTHERS)
    assert "How bright each pixel is." in report.page()
    assert report[0].attributions[0].method == "brightness"

    def rollout(network: nn.Module, images: Tensor, target: object) -> Tensor:
        return images.abs()

    def nothing(network: nn.Module, images: Tensor, target: object) -> None:
        return None

    def broken(network: nn.Module, images: Tensor, target: object) -> Tensor:
        raise KeyError("gone")

    def other_size(network: nn.Module, images: Tensor, target: object) -> Tensor:
        return torch.zeros(2, 7, 7)

    for wrong in (rollout, nothing, broken, other_size):
        with must_raise(UsageError, wrong.__name__):
            explain.compare(MODEL, IMAGES, [wrong], scored=False)
    for wrong in (3.5, [None], object()):
        with must_raise(UsageError):
            explain.compare(MODEL, IMAGES, wrong, scored=False)  # pyrefly: ignore[bad-argument-type]
    with must_raise(UsageError, "own_method"):
        explain.compare(MODEL, IMAGES, [lambda *_: IMAGES, lambda *_: IMAGES], scored=False)


def test_what_trust_and_report_want_is_said() -> None:
    made = explain.saliency(NETWORK, IMAGES, 1)
    for call, named in (
        (lambda: explain.trust(MODEL, IMAGES), "attribution"),  # pyrefly: ignore[missing-argument]
        (lambda: explain.trust(MODEL, ["photo.jpg"], made), "images"),  # pyrefly: ignore[bad-argument-type]
        (lambda: explain.trust(MODEL, IMAGES, made.values), "attribution"),  # pyrefly: ignore[bad-argument-type]
        (lambda: explain.trust(NETWORK, IMAGES, made), "background"),
        (lambda: explain.report(MODEL), "images"),  # pyrefly: ignore[missing-argument]
        (lambda: explain.report(NETWORK, ["photo.jpg"]), "model"),  # pyrefly: ignore[bad-argument-type]
        (lambda: explain.report(MODEL, IMAGES), "float32"),
        (lambda: explain.report(MODEL, []), "image"),
        (lambda: MODEL.explain(["photo.jpg"], target="cow"), "cow"),
    ):
        with must_raise(UsageError, named):
            call()


@pytest.mark.usefixtures("as_a_user")
def test_a_place_that_is_not_there_is_an_error_of_two_lines_and_the_end_of_a_loop() -> None:
    """Everything that takes the number of an image, a map or a token; -1 is the last, whatever kind of whole number."""
    pixels = [np.zeros((*SIZE, 3), np.uint8), np.full((*SIZE, 3), 200, np.uint8)]
    found = explain.report(MODEL, pixels, trust=False)
    attribution = explain.saliency(NETWORK, IMAGES)
    trust, heads = explain.trust(MODEL, IMAGES, attribution, background=OTHERS), inside.head_sources(NETWORK, IMAGES)
    asked = {
        "report": (found.__getitem__, 2),
        "overlay": (found[0].overlay, 1),
        "attribution": (attribution.__getitem__, 2),
        "trust": (partial(trust.view, name="cat"), 2),
        "sentence": (partial(trust.sentence, name="cat"), 2),
        "heads": (heads.sentences, 2),
    }
    for name, (call, count) in asked.items():
        for wrong in (count, 99, -count - 1):
            with must_raise(UsageError, str(wrong)) as caught:
                call(wrong)
            assert isinstance(caught.value, IndexError), name
            (place,) = caught.value.hint.flags.values()
            call(place)
        for no_number in (1.0, "0", None):
            with must_raise(UsageError):
                call(no_number)
        call(np.int64(-count))
    assert found[-1].name == found[1].name
    assert [one.name for one in found[:1]] == [found[0].name]
    assert len([*found]) == len([*attribution]) == 2
