"""A convolution and a linear map of flattened patches are the same map, with weights taken both ways in every order."""

from dataclasses import replace
from typing import get_args

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from lessons.parts import (
    Flattening,
    LinearPatchEmbedding,
    Patchify,
    PatchReader,
    convolution_to_linear,
    linear_to_convolution,
)
from tests.nn.reference import some_images
from vitrail.errors import DataError, UsageError
from vitrail.nn import Parts, PatchEmbedding, ViT, ViTConfig

FLATTENINGS = get_args(Flattening)
SIDES = st.tuples(st.integers(1, 5), st.integers(1, 5))


def pair(channels: int, patch: tuple[int, int], bias: bool, flattening: Flattening):
    """Both forms in float64; the linear one has the convolution's weights."""
    convolution = PatchEmbedding(channels, 7, patch, bias).double()
    linear = LinearPatchEmbedding(channels, 7, patch, bias, flattening).double()
    with torch.no_grad():
        linear.proj.weight.copy_(convolution_to_linear(convolution.proj.weight, flattening))
        if bias:
            linear.proj.bias.copy_(convolution.proj.bias)
    return convolution, linear


@settings(max_examples=60)
@given(
    grid=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    patch=SIDES,
    channels=st.integers(1, 5),
    bias=st.booleans(),
    flattening=st.sampled_from(FLATTENINGS),
)
def test_both_forms_agree_in_output_and_in_every_gradient(grid, patch, channels, bias, flattening):
    convolution, linear = pair(channels, patch, bias, flattening)
    size = (grid[0] * patch[0], grid[1] * patch[1])
    images = [some_images(2, channels, *size).double().requires_grad_() for _ in range(2)]
    outputs = [convolution(images[0]), linear(images[1])]
    torch.testing.assert_close(outputs[1], outputs[0], rtol=0, atol=1e-12)
    asked = some_images(1, *outputs[0].shape, seed=3)[0].double()
    for output in outputs:
        output.backward(asked)
    torch.testing.assert_close(images[1].grad, images[0].grad, rtol=0, atol=1e-12)
    gradient = convolution_to_linear(convolution.proj.weight.grad, flattening)
    torch.testing.assert_close(linear.proj.weight.grad, gradient, rtol=0, atol=1e-11)
    if bias:
        torch.testing.assert_close(linear.proj.bias.grad, convolution.proj.bias.grad, rtol=0, atol=1e-11)


@settings(max_examples=40)
@given(patch=SIDES, channels=st.integers(1, 5), flattening=st.sampled_from(FLATTENINGS))
def test_weights_come_back_bit_for_bit(patch, channels, flattening):
    weight = torch.arange(3 * channels * patch[0] * patch[1]).float().reshape(3, channels, *patch)
    linear = convolution_to_linear(weight, flattening)
    assert torch.equal(linear_to_convolution(linear, patch, flattening), weight)
    for row, kernel in zip(linear, weight, strict=True):
        assert torch.equal(row[None], Patchify(patch, flattening=flattening)(kernel)), "a patch is flattened alike"


@pytest.mark.parametrize("wrong", FLATTENINGS)
@pytest.mark.parametrize("right", FLATTENINGS)
def test_a_wrong_order_is_another_map(right: Flattening, wrong: Flattening):
    """The planted fault: what the weights of one document do in the code of another."""
    convolution, linear = pair(3, (4, 5), True, right)
    linear.patchify = Patchify((4, 5), flattening=wrong)
    images = some_images(2, 3, 8, 10).double()
    assert torch.allclose(linear(images), convolution(images)) == (right == wrong)


SMALL = ViTConfig(image_size=(8, 12), patch_size=(4, 3), classes=5, width=8, depth=2, heads=2)


def same_but_for(change: dict[str, Tensor], network: ViT, parts: Parts) -> ViT:
    other = ViT(network.config, parts).eval()
    other.load_state_dict({**network.state_dict(), **change})
    return other


@pytest.mark.parametrize("flattening", FLATTENINGS)
@pytest.mark.parametrize("bias", [True, False])
def test_the_three_networks_say_the_same(flattening: Flattening, bias: bool):
    """Convolution, rearranged and linear, and patches cut beforehand: one network."""
    network = ViT(replace(SMALL, embed_bias=bias)).eval()
    torch.manual_seed(0)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    name = "patch_embed.proj.weight"
    change = {name: convolution_to_linear(network.state_dict()[name], flattening)}
    linear = same_but_for(
        change,
        network,
        Parts(embedding=lambda c: LinearPatchEmbedding(c.channels, c.width, c.patch, c.embed_bias, flattening)),
    )
    reader = PatchReader(network.config, flattening).eval()
    reader.vit.load_state_dict({**network.state_dict(), **change})
    images = some_images(3, 3, 8, 12)
    logits = network(images)
    assert logits.std() > 0.1
    torch.testing.assert_close(linear(images), logits, rtol=0, atol=1e-5)
    cut = Patchify((4, 3), flattening=flattening)(images)
    torch.testing.assert_close(reader(cut), logits, rtol=0, atol=1e-5)


def test_a_map_that_fits_no_patch_is_an_error():
    with pytest.raises(DataError, match=r"147 .*4x4"):
        linear_to_convolution(torch.zeros(5, 147), (4, 4), "h w c")


@pytest.mark.usefixtures("as_a_user")
def test_an_unknown_order_is_an_error():
    for use in (
        lambda: convolution_to_linear(torch.zeros(2, 3, 4, 4), "c w h"),
        lambda: linear_to_convolution(torch.zeros(2, 48), (4, 4), "hwc"),
        lambda: LinearPatchEmbedding(3, 8, (4, 4), flattening="rows"),
    ):
        with pytest.raises(UsageError):
            use()
