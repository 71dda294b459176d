"""The same weights give the same logits as in timm and in torchvision, and a swap of two parameters is found.

Every parameter is redrawn first: fresh heads are zero and fresh norms do nothing, so fresh networks would agree on
anything.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import timm
import torch
import torchvision
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from tests.nn.reference import redraw, some_images
from vitrail.nn import ViT, ViTConfig

TIMM: dict[str, ViTConfig] = {
    "vit_tiny_patch16_224": ViTConfig.from_size("Ti/16"),
    "vit_small_patch16_224": ViTConfig.from_size("S/16"),
    "vit_base_patch16_224": ViTConfig.from_size("B/16"),
    "deit_tiny_distilled_patch16_224": replace(ViTConfig.from_size("Ti/16"), distillation_token=True),
}

SMALL = ViTConfig(image_size=(24, 40), patch_size=8, classes=9, width=24, depth=3, heads=3)
FORMS: dict[str, tuple[ViTConfig, dict]] = {
    "plain": (SMALL, {}),
    "LayerScale": (replace(SMALL, layer_scale=0.1), {"init_values": 0.1}),
    "registers and mean": (
        replace(SMALL, registers=4, pooling="mean"),
        {"reg_tokens": 4, "global_pool": "avg", "fc_norm": False},
    ),
    "registers, class token, LayerScale": (
        replace(SMALL, registers=2, layer_scale=0.5),
        {"reg_tokens": 2, "init_values": 0.5},
    ),
    "only patches": (
        replace(SMALL, pooling="mean", class_token=False),
        {"class_token": False, "global_pool": "avg", "fc_norm": False},
    ),
    "relu, no qkv bias": (replace(SMALL, activation="relu", qkv_bias=False), {"act_layer": nn.ReLU, "qkv_bias": False}),
    "no positions, no head": (replace(SMALL, positions="none", classes=0), {"pos_embed": "none", "num_classes": 0}),
    "rectangular patches, one channel": (
        replace(SMALL, patch_size=(6, 10), channels=1),
        {"patch_size": (6, 10), "in_chans": 1},
    ),
}


def must_give_the_same_logits(theirs: nn.Module, ours: nn.Module, images: Tensor) -> None:
    """Norms with one epsilon, which random images do not show; logits that vary, and are equal to 1e-4."""
    epsilons = [{module.eps for module in net.modules() if isinstance(module, nn.LayerNorm)} for net in (theirs, ours)]
    assert epsilons[0] == epsilons[1]
    with torch.no_grad():
        expected, logits = theirs(images), ours(images)
    assert expected.std() > 0.1
    assert (logits - expected).abs().max() <= 1e-4


def ours_with_the_names_of_timm(theirs: nn.Module, config: ViTConfig) -> ViT:
    redraw(theirs)
    theirs.eval()
    ours = ViT(config).eval()
    ours.load_state_dict(theirs.state_dict())  # parameters bear timm's names
    return ours


LARGER = ("vit_small_patch16_224", "vit_base_patch16_224")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.soak] if name in LARGER else []) for name in TIMM]
)
def test_logits_equal_timms(name: str):
    theirs = timm.create_model(name)
    must_give_the_same_logits(theirs, ours_with_the_names_of_timm(theirs, TIMM[name]), some_images(2, 3, 224, 224))


def small_timm(form: str) -> VisionTransformer:
    config, options = FORMS[form]
    shape = {"img_size": config.image, "patch_size": 8, "num_classes": 9, "embed_dim": 24, "depth": 3, "num_heads": 3}
    return VisionTransformer(**{**shape, **options}, dynamic_img_size=True, weight_init="skip")


@pytest.mark.parametrize("form", FORMS)
def test_logits_of_every_form_equal_timms_on_any_grid(form: str):
    theirs, config = small_timm(form), FORMS[form][0]
    ours = ours_with_the_names_of_timm(theirs, config)
    for rows, columns in ((3, 5), (5, 3), (1, 1), (2, 9)):
        height, width = rows * config.patch[0], columns * config.patch[1]
        must_give_the_same_logits(theirs, ours, some_images(3, config.channels, height, width))


def exchanged(one: str, other: str) -> Callable[[ViT], None]:
    def swap(network: ViT) -> None:
        first, second = network.get_parameter(one), network.get_parameter(other)
        kept = first.clone()
        first.copy_(second)
        second.copy_(kept)

    return swap


def rolled(name: str, count: int, dim: int = 0) -> Callable[[ViT], None]:
    def roll(network: ViT) -> None:
        network.get_parameter(name).copy_(network.get_parameter(name).roll(count, dims=dim))

    return roll


SWAPS: dict[str, Callable[[ViT], None]] = {
    "norm1 and norm2, weights": exchanged("blocks.1.norm1.weight", "blocks.1.norm2.weight"),
    "norm1 and norm2, biases": exchanged("blocks.1.norm1.bias", "blocks.1.norm2.bias"),
    "a norm's weight and bias": exchanged("norm.weight", "norm.bias"),
    "biases of proj and fc2": exchanged("blocks.2.attn.proj.bias", "blocks.2.mlp.fc2.bias"),
    "the factors of LayerScale": exchanged("blocks.0.ls1.gamma", "blocks.0.ls2.gamma"),
    "queries, keys and values in turn": rolled("blocks.0.attn.qkv.weight", 24),
    "biases of queries, keys and values in turn": rolled("blocks.0.attn.qkv.bias", 24),
    "heads in another order": rolled("blocks.0.attn.proj.weight", 8, dim=1),
    "blocks in another order": exchanged("blocks.0.mlp.fc1.weight", "blocks.1.mlp.fc1.weight"),
    "registers in front of their positions": rolled("pos_embed", 1, dim=1),
    "channels of the image": rolled("patch_embed.proj.weight", 1, dim=1),
    "classes by one": rolled("head.bias", 1),
}


@pytest.fixture(scope="module")
def pair() -> tuple[VisionTransformer, ViT]:
    form = "registers, class token, LayerScale"
    theirs = small_timm(form)
    return theirs, ours_with_the_names_of_timm(theirs, FORMS[form][0])


@pytest.mark.parametrize("swap", SWAPS)
def test_a_planted_swap_is_found(pair: tuple[VisionTransformer, ViT], swap: str):
    theirs, ours = pair
    ours.load_state_dict(theirs.state_dict())
    images = some_images(2, 3, 24, 40)
    must_give_the_same_logits(theirs, ours, images)
    with torch.no_grad():
        SWAPS[swap](ours)
    with pytest.raises(AssertionError):
        must_give_the_same_logits(theirs, ours, images)


def test_fresh_networks_are_refused_since_their_logits_say_nothing():
    theirs = small_timm("plain").eval()
    nn.init.zeros_(theirs.head.weight)
    with pytest.raises(AssertionError):
        must_give_the_same_logits(theirs, ViT(SMALL).eval(), some_images(2, 3, 24, 40))


TORCHVISION = {
    "class_token": "cls_token",
    "encoder.pos_embedding": "pos_embed",
    "conv_proj": "patch_embed.proj",
    "encoder.layers.encoder_layer_": "blocks.",
    "self_attention.in_proj_": "attn.qkv.",
    "self_attention.out_proj": "attn.proj",
    "mlp.0": "mlp.fc1",
    "mlp.3": "mlp.fc2",
    "ln_1": "norm1",
    "ln_2": "norm2",
    "encoder.ln": "norm",
    "heads.head": "head",
}


def from_torchvision(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Torchvision's names in timm's words; its queries, keys and values are in one map as ours."""

    def renamed(name: str) -> str:
        for theirs, ours in TORCHVISION.items():
            name = name.replace(theirs, ours)
        return name

    return {renamed(name): tensor for name, tensor in state.items()}


def test_logits_equal_torchvisions_and_a_swap_is_found():
    theirs = torchvision.models.VisionTransformer(24, 8, num_layers=6, num_heads=3, hidden_dim=24, mlp_dim=96).eval()
    redraw(theirs)
    ours = ViT(replace(SMALL, image_size=24, classes=1000, depth=6)).eval()
    ours.load_state_dict(from_torchvision(theirs.state_dict()))
    images = some_images(1, 3, 24, 24)
    must_give_the_same_logits(theirs, ours, images)
    with torch.no_grad():
        exchanged("blocks.5.norm1.weight", "blocks.5.norm2.weight")(ours)
    with pytest.raises(AssertionError):
        must_give_the_same_logits(theirs, ours, images)
