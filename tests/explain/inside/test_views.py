"""What all views inside a network promise, whatever they show."""

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.explain.left import same, state_of, with_gradients
from tests.explain.reference import PLAIN, VARIANTS, make_images, make_network
from tests.explain.refused import must_refuse
from tests.explain.suite import SOME_VARIANTS
from vitrail.explain.inside import (
    attention_distance,
    direct_attribution,
    find_sinks,
    head_ablation,
    head_sources,
    logit_lens,
    patch_lens,
)
from vitrail.nn import ViT

pytestmark = pytest.mark.usefixtures("as_a_user")

View = Callable[[ViT, Tensor], Tensor]

# what each view says of every image, with the images first
VIEWS: dict[str, View] = {
    "logit lens": lambda network, images: logit_lens(network, images).transpose(0, 1),
    "patch lens": lambda network, images: patch_lens(network, images, 1),
    "head ablation": lambda network, images: head_ablation(
        network, images, 1, background=images.new_zeros(1, *images.shape[1:])
    ).change.movedim(2, 0),
    "direct attribution": lambda network, images: direct_attribution(network, images, 1).heads.movedim(2, 0),
    "head sources": lambda network, images: head_sources(network, images, 1, (0, 1)).vectors,
    "attention distance": lambda network, images: attention_distance(network, images).pixels.movedim(2, 0),
    "sinks": lambda network, images: find_sinks(network, images).norms.transpose(0, 1),
}
every_view = pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)


@every_view
@pytest.mark.parametrize("variant", SOME_VARIANTS)
def test_a_batch_is_one_by_one_on_any_grid(view: View, variant: str) -> None:
    network = make_network(VARIANTS[variant])
    for size in ((12, 10), (4, 22)):
        images = torch.randn(3, 2, *size, generator=torch.Generator().manual_seed(1))
        together = view(network, images)
        assert len(together) == 3
        assert together.isfinite().all()
        for image in range(3):
            alone = view(network, images[image : image + 1])[0]
            assert (alone - together[image]).abs().max() <= 1e-5 * max(1.0, float(alone.abs().max()))
        assert (together[0] - together[1]).abs().max() > 1e-4


@every_view
def test_no_image_at_all(view: View) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(view(make_network(PLAIN), make_images(PLAIN, 0))) == 0


@every_view
def test_the_network_and_the_mode_are_left_as_found(view: View) -> None:
    network, images = with_gradients(make_network(PLAIN)), make_images(PLAIN)
    before, plain = state_of(network), view(network, images)
    for context in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with context():
            found = view(network, make_images(PLAIN))
        assert same(before, state_of(network)), context
        assert torch.equal(found, plain), context


@every_view
def test_training_mode_and_wrong_images_are_refused(view: View) -> None:
    with must_refuse("training mode"):
        view(make_network(PLAIN).train(), make_images(PLAIN))
    with must_refuse("(b, 2, h, w)"):
        view(make_network(PLAIN), torch.zeros(1, 3, 12, 10))
    with must_refuse("12x11"):
        view(make_network(PLAIN), torch.zeros(1, 2, 12, 11))


@every_view
def test_half_precision(view: View) -> None:
    """The views work in bfloat16 and are about right."""
    exact = view(make_network(PLAIN), make_images(PLAIN))
    rough = view(make_network(PLAIN).bfloat16(), make_images(PLAIN).bfloat16())
    assert (rough.float() - exact).abs().max() <= 0.1 * max(1.0, float(exact.abs().max()))
