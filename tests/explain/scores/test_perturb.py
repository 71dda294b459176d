"""Fills, and the engine: images, masks and fills in full batches, in any shape; the numbers read from logits."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from benchmarks.scores import (
    Fill,
    blur,
    from_background,
    grey,
    mean_of_image,
    own_patches,
)
from tests.explain.refused import must_refuse
from tests.explain.scores.checks import background
from tests.explain.scores.reference import GRID, PATCH, make_images, make_network
from vitrail.explain.scores.perturb import composite, compute_logits, explained_number, measure_masked
from vitrail.tasks.target import choose_class, of_function


def test_every_fill_says_its_name_and_whether_it_may_be_trusted() -> None:
    fills = (from_background(background()), own_patches(), grey(0.5), mean_of_image(), blur(1.0), grey(-1.0, "black"))
    assert [fill.name for fill in fills] == ["background", "own patches", "grey", "mean", "blur", "black"]
    assert [len(fill.make(make_images(), PATCH, 4, 0)) for fill in fills] == [4, 4, 1, 1, 1, 1]


@pytest.mark.parametrize("fill", [from_background(background()), own_patches()], ids=lambda fill: fill.name)
def test_draws_are_the_seeds_alone(fill: Fill) -> None:
    images = make_images(5)
    made = fill.make(images, PATCH, 6, 3)
    assert torch.equal(made, fill.make(images, PATCH, 6, 3))
    assert not torch.equal(made, fill.make(images, PATCH, 6, 4))
    assert torch.equal(made[:2], fill.make(images, PATCH, 2, 3)), "more draws begin with the same draws"
    for one in range(5):
        assert torch.equal(made[:, one : one + 1], fill.make(images[one : one + 1], PATCH, 6, 3))
    torch.manual_seed(0)
    before = torch.get_rng_state()
    fill.make(images, PATCH, 6, 3)
    assert torch.equal(torch.get_rng_state(), before)


def test_what_was_shuffled_by_position_serves_as_background() -> None:
    """Patches of one position may change places among the background: what can be drawn is the same."""
    given = background(4).view(4, 2, GRID[0], PATCH[0], GRID[1], PATCH[1]).clone()
    shuffled = given.clone()
    for number, (row, column) in enumerate(np.ndindex(GRID)):
        order = torch.randperm(4, generator=torch.Generator().manual_seed(number))
        shuffled[:, :, row, :, column] = given[order][:, :, row, :, column]
    images = make_images(1)
    for row, column in np.ndindex(GRID):
        drawn = [
            {
                tuple(one.flatten().tolist())
                for one in from_background(some.reshape(4, *images.shape[1:]))
                .make(images, PATCH, 60, 0)
                .view(60, 2, GRID[0], PATCH[0], GRID[1], PATCH[1])[:, :, row, :, column]
            }
            for some in (given, shuffled)
        ]
        assert drawn[0] == drawn[1]
        assert len(drawn[0]) == 4


def test_background_takes_the_type_of_the_images() -> None:
    made = from_background(background()).make(make_images().float(), PATCH, 2, 0)
    assert made.dtype == torch.float32


def test_a_colour_is_one_for_all_or_one_for_each_channel() -> None:
    images = make_images()
    assert (grey(0.25).make(images, PATCH, 7, 0) == 0.25).all()
    made = grey(torch.tensor([0.5, -1.0])).make(images, PATCH, 7, 0)
    assert made.shape == (1, *images.shape)
    assert (made[:, :, 0] == 0.5).all()
    assert (made[:, :, 1] == -1.0).all()


def test_the_mean_is_each_images_own() -> None:
    images = make_images()
    made = mean_of_image().make(images, PATCH, 1, 0)[0].numpy()
    for image, channel in np.ndindex(3, 2):
        assert np.abs(made[image, channel] - images[image, channel].numpy().mean()).max() <= 1e-15


@pytest.mark.parametrize("std", [0.2, 1.0, 5.0])
def test_a_blur_is_the_weighted_mean_of_the_pixels(std: float) -> None:
    images = make_images(1)
    image, made = images[0].numpy(), blur(std).make(images, PATCH, 1, 0)[0, 0].numpy()
    rows, columns = np.indices(image.shape[1:])
    for row, column in np.ndindex(image.shape[1:]):
        down, across = (rows - row) / (std * PATCH[0]), (columns - column) / (std * PATCH[1])
        weights = np.exp(-(down**2 + across**2) / 2)
        wanted = (image * weights).sum(axis=(1, 2)) / weights.sum()
        assert np.abs(made[:, row, column] - wanted).max() <= 1e-12


@settings(deadline=None, max_examples=25)
@given(level=st.floats(-5, 5), std=st.floats(0.05, 20))
def test_a_blur_keeps_a_flat_image(level: float, std: float) -> None:
    images = torch.full((1, 1, 4, 6), level, dtype=torch.float64)
    assert (blur(std).make(images, PATCH, 1, 0) - level).abs().max() <= 1e-12


def test_what_cannot_be_filled_is_refused() -> None:
    images = make_images()
    with must_refuse("(2, 6, 12)", "(2, 6, 6)"):
        from_background(background()[..., :6]).make(images, PATCH, 1, 0)
    with must_refuse("background"):
        from_background(background()[:0])
    with must_refuse("one patch"):
        own_patches().make(images, (6, 12), 1, 0)
    with must_refuse("2 channels", "(3,)"):
        grey(torch.zeros(3)).make(images, PATCH, 1, 0)
    with must_refuse(0.0):
        blur(0.0)
    with must_refuse("draws", 0):
        own_patches().make(images, PATCH, 0, 0)
    with must_refuse("6x12", "4x3"):
        from_background(background()).make(images, (4, 3), 1, 0)


def test_nothing_hidden_is_the_image_and_all_hidden_the_fill() -> None:
    images = make_images()
    fill = from_background(background()).make(images, PATCH, 2, 0)
    nothing = torch.zeros(3, *GRID, dtype=torch.bool)
    assert torch.equal(composite(images, fill, nothing, PATCH), images.expand(2, -1, -1, -1, -1))
    assert torch.equal(composite(images, fill, ~nothing, PATCH), fill)
    assert torch.equal(composite(images, fill, nothing.double(), PATCH), images.expand(2, -1, -1, -1, -1))
    assert torch.equal(composite(images, fill, (~nothing).double(), PATCH), fill)
    pixels = torch.rand(3, *images.shape[2:]) < 0.5
    assert torch.equal(composite(images, fill[:1], pixels, (1, 1))[0], torch.where(pixels[:, None], fill[0], images))


def test_a_mask_between_0_and_1_mixes() -> None:
    images, fill = make_images(), make_images(3, seed=8)
    mask = torch.rand(3, *GRID, generator=torch.Generator().manual_seed(0)).double()
    pixels = mask.repeat_interleave(PATCH[0], dim=1).repeat_interleave(PATCH[1], dim=2)[:, None]
    assert (composite(images, fill, mask, PATCH) - (pixels * fill + (1 - pixels) * images)).abs().max() <= 1e-14


@pytest.mark.parametrize("batch", [1, 4, 5, 6, 100])
def test_logits_come_in_full_batches(batch: int) -> None:
    network, images = make_network(), make_images(6)
    logits = compute_logits(network, 6, images.__getitem__, batch)
    assert network.seen == [batch] * (6 // batch) + [6 % batch] * bool(6 % batch)
    assert not logits.requires_grad
    assert (logits - network(images)).abs().max() <= 1e-14


@pytest.mark.parametrize("batch", [1, 7, 200])
def test_axes_of_masks_and_fills_broadcast(batch: int) -> None:
    """Masks (draws, steps, b), (steps, 1) for all images, or (b) alone; fills for each draw, or one for all images."""
    network, images, chosen = make_network(), make_images(), choose_class(torch.zeros(3, 4), [2, 0, 3])
    draw = torch.Generator().manual_seed(0)
    cases = (((2, 4, 3), (2, 1, 3)), ((4, 1), (2, 1, 1)), ((3,), (2, 3)), ((4, 3), (3,)), ((2, 4, 1), (1,)))
    for masks_of, fills_of in cases:
        masks = torch.rand(*masks_of, *GRID, generator=draw) < 0.5
        fills = torch.randn(*fills_of, *images.shape[1:], generator=draw, dtype=images.dtype)
        network.seen.clear()
        numbers, fractions = measure_masked(network, images, chosen, masks, fills, ("logit", "probability"), batch)
        shape = torch.broadcast_shapes(masks_of, fills_of, (3,))
        full, last = divmod(shape.numel(), batch)
        assert network.seen == [batch] * full + [last] * bool(last)
        assert numbers.shape == fractions.shape == shape
        made = composite(images, fills, masks, PATCH).expand(*shape, *images.shape[1:])
        logits = network(made.flatten(0, -4)).unflatten(0, shape)
        assert (numbers - chosen(logits)).abs().max() <= 1e-12
        assert (fractions - chosen(logits.softmax(dim=-1))).abs().max() <= 1e-12


def test_what_is_read_from_logits() -> None:
    logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    classes, others = torch.tensor([0, 1, 2]), torch.tensor([4, 4, 0])
    one, two = (choose_class(logits[0], wanted) for wanted in (classes, (classes, others)))
    picked, against = (logits[:, range(3), each] for each in (classes, others))
    assert torch.equal(explained_number(logits, one, "logit"), picked)
    assert torch.equal(explained_number(logits, one), picked - logits.mean(dim=2))
    assert torch.equal(explained_number(logits, two), picked - against)
    assert torch.equal(explained_number(logits, one, "probability")[0, 1], logits[0, 1].softmax(dim=0)[1])
    assert torch.equal(explained_number(logits, two, "probability"), (picked - against).sigmoid())


def test_a_function_and_a_single_output_have_no_probability() -> None:
    logits = torch.randn(2, 3, 5)
    function = of_function(logits[0], lambda rows: rows[:, 0])
    assert explained_number(logits, function, "probability").isnan().all()
    assert torch.equal(explained_number(logits, function), logits[..., 0])
    single = choose_class(logits[0, :, :1])
    assert explained_number(logits[..., :1], single, "probability").isnan().all()
    assert torch.equal(explained_number(logits[..., :1], single), logits[..., 0])


@pytest.mark.usefixtures("as_a_user")
def test_what_cannot_be_asked_is_refused() -> None:
    images = make_images()
    with must_refuse("eval mode") as caught:
        compute_logits(make_network().train(), 3, images.__getitem__, 8)
    assert str(caught.value.hint) == "network.eval()"
    with must_refuse("batch_size", 0):
        compute_logits(make_network(), 3, images.__getitem__, 0)
