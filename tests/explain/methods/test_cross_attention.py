"""Where a decoder looked: the very weights of its cross-attention, in the row that wrote each token."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.explain.refused import must_refuse, must_refuse_and_say_what_works
from vitrail.explain import cross_attention
from vitrail.nn import ImageToSequence, ImageToSequenceConfig, Record, ViTConfig

READER = ViTConfig(image_size=(16, 24), patch_size=8, channels=1, classes=0, width=16, depth=1, heads=2, registers=2)
CONFIG = ImageToSequenceConfig(encoder=READER, vocab_size=9, decoder_depth=3, max_length=8)
TARGET = torch.tensor([[4, 5, 8, 3], [7, 3, 0, 0]])


def make_reader() -> ImageToSequence:
    torch.manual_seed(0)
    network = ImageToSequence(CONFIG)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.5)
    return network.eval()


def make_images() -> torch.Tensor:
    return torch.randn(2, 1, 16, 24, generator=torch.Generator().manual_seed(1))


network, images = pytest.fixture(make_reader, name="network"), pytest.fixture(make_images, name="images")


@pytest.mark.parametrize(("layer", "head"), [(None, None), (-1, None), (0, 1), (None, 0)])
def test_it_is_the_attention_of_the_row_before(
    network: ImageToSequence, images: torch.Tensor, layer: int | None, head: int | None
) -> None:
    attribution = cross_attention(network, images, TARGET, layer=layer, head=head)
    assert attribution.values.shape == (2, 4, 2, 3)
    record = Record()
    logits = network(images, torch.cat([torch.full((2, 1), 1), TARGET], dim=1), record).detach()
    blocks = range(3) if layer is None else [layer % 3]
    weights = torch.stack([record[f"decoder.blocks.{index}.cross.attention"] for index in blocks])
    weights = weights.mean(dim=2) if head is None else weights[:, :, head]
    by_hand = weights.mean(dim=0)
    for image, place in ((0, 0), (0, 1), (0, 3), (1, 1)):
        torch.testing.assert_close(attribution.values[image, place].flatten(), by_hand[image, place])
        assert float(attribution.values[image, place].sum()) == pytest.approx(1.0, abs=1e-5)
        assert float(attribution.logit[image, place]) == pytest.approx(
            float(logits[image, place, TARGET[image, place]]), abs=1e-5
        )
    assert not attribution.values[1, 2:].any()
    assert torch.equal(attribution.target, TARGET)
    assert (attribution.method, attribution.signed, attribution.class_specific) == ("cross_attention", False, False)
    assert attribution.notes == ((), ())


def test_a_map_without_signal_is_noted(network: ImageToSequence, images: torch.Tensor) -> None:
    for block in network.decoder.blocks:
        nn.init.zeros_(block.cross_attn.qkv.weight)
        nn.init.zeros_(block.cross_attn.qkv.bias)
    attribution = cross_attention(network, images, TARGET)
    assert attribution.notes[0] == tuple(f"token {place}: no signal" for place in (1, 2, 3, 4))
    assert attribution.notes[1] == ("token 1: no signal", "token 2: no signal")


def test_the_network_is_left_as_it_was(network: ImageToSequence, images: torch.Tensor) -> None:
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    target = TARGET.clone()
    cross_attention(network, images, target)
    assert torch.equal(target, TARGET)
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())
    with torch.inference_mode():
        assert cross_attention(network, images, target).values.shape == (2, 4, 2, 3)


def test_another_image_size(network: ImageToSequence) -> None:
    config = replace(CONFIG, encoder=replace(READER, positions="sinusoidal-2d"))
    attribution = cross_attention(ImageToSequence(config).eval(), torch.randn(2, 1, 24, 40), TARGET)
    assert attribution.values.shape == (2, 4, 3, 5)


def test_what_does_not_fit_is_refused(network: ImageToSequence, images: torch.Tensor) -> None:
    for option, value, named in (("layer", 3, "-3..2"), ("head", 2, "0..1")):
        must_refuse_and_say_what_works(
            lambda **options: cross_attention(network, images, TARGET, **options),
            option,
            named,
            value,
            **{option: value},
        )
    with must_refuse("(2, 0)"):
        cross_attention(network, images, TARGET[:, :0])
    with must_refuse("id 14"):
        cross_attention(network, images, TARGET + 6)
    network.decoder.blocks[1].train()
    with must_refuse("decoder.blocks.1") as caught:
        cross_attention(network, images, TARGET)
    assert str(caught.value.hint) == "network.eval()"
