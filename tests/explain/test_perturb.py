"""The engine: images, masks and fills in full batches, in any shape; the numbers that are read from logits."""

import pytest
import torch

from tests.explain.refused import must_refuse
from tests.explain.scores.checks import background
from tests.explain.scores.reference import GRID, PATCH, make_images, make_network
from vitrail.explain.perturb import composite, explained_number, logits_of, measure_masked
from vitrail.explain.scores import from_background
from vitrail.explain.target import ChosenTarget


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
    logits = logits_of(network, 6, images.__getitem__, batch)
    assert network.seen == [batch] * (6 // batch) + [6 % batch] * bool(6 % batch)
    assert not logits.requires_grad
    assert (logits - network(images)).abs().max() <= 1e-14


@pytest.mark.parametrize("batch", [1, 7, 200])
def test_axes_of_masks_and_fills_broadcast(batch: int) -> None:
    """Masks (draws, steps, b), (steps, 1) for all images, or (b) alone; fills for each draw, or one for all images."""
    network, images, chosen = make_network(), make_images(), ChosenTarget(torch.tensor([2, 0, 3]))
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
        assert (numbers - chosen.of(logits)).abs().max() <= 1e-12
        assert (fractions - chosen.of(logits.softmax(dim=-1))).abs().max() <= 1e-12


def test_what_is_read_from_logits() -> None:
    logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    classes, others = torch.tensor([0, 1, 2]), torch.tensor([4, 4, 0])
    one, two = ChosenTarget(classes), ChosenTarget(classes, others)
    picked, against = (logits[:, range(3), each] for each in (classes, others))
    assert torch.equal(explained_number(logits, one, "logit"), picked)
    assert torch.equal(explained_number(logits, one), picked - logits.mean(dim=2))
    assert torch.equal(explained_number(logits, two), picked - against)
    assert torch.equal(explained_number(logits, one, "probability")[0, 1], logits[0, 1].softmax(dim=0)[1])
    assert torch.equal(explained_number(logits, two, "probability"), (picked - against).sigmoid())
    assert torch.equal(explained_number(logits, one, "top-1"), (logits.argmax(dim=2) == classes).float())


def test_a_function_and_a_single_output_have_no_probability() -> None:
    logits = torch.randn(2, 3, 5)
    function = ChosenTarget(torch.full((3,), -1), function=lambda rows: rows[:, 0])
    assert explained_number(logits, function, "probability").isnan().all()
    assert torch.equal(explained_number(logits, function), logits[..., 0])
    single = ChosenTarget(torch.zeros(3, dtype=torch.long))
    assert explained_number(logits[..., :1], single, "probability").isnan().all()
    assert torch.equal(explained_number(logits[..., :1], single), logits[..., 0])


@pytest.mark.usefixtures("as_a_user")
def test_what_cannot_be_asked_is_refused() -> None:
    images = make_images()
    with must_refuse("eval mode") as caught:
        logits_of(make_network().train(), 3, images.__getitem__, 8)
    assert caught.value.hint == "network.eval()"
    with must_refuse("batch_size", 0):
        logits_of(make_network(), 3, images.__getitem__, 0)
