"""The conformance suite of weights: each row opens live and from its files, answers as its peer does, and goes back."""

import argparse
import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
import torchvision
import transformers
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import vitrail
from tests.errors import must_raise
from tests.weights.families import NETWORK, ROWS, answer, flax, under_names_of
from tests.weights.planting import proofs
from tests.weights.redraw import redrawn
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import DataError, UsageError
from vitrail.model.model import Model, resize_model
from vitrail.nn import ViT, resize_network as resize
from vitrail.nn.cost import layers
from vitrail.nn.embedding import RESIZE_RULES, Size
from vitrail.weights.convert import convert_network, family_of, from_tensors
from vitrail.weights.family import rename
from vitrail.weights.files import read_weights
from vitrail.weights.names import find_weights
from vitrail.weights.published import GAP
from vitrail.weights.transformers import MODELS, of_config

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
ENOUGH = 0.1  # deviation of the peer's logits: less would let anything pass


def gap(ours: Tensor, theirs: Tensor) -> float:
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max() / theirs.abs().max())


def goes_back(tensors: dict[str, Tensor]) -> None:
    """The family's names, to ours and back, give what was used, bit for bit, and nothing else."""
    family = family_of(list(tensors))
    names = rename(family, tensors)
    back = under_names_of(family, names.tensors, tensors)
    assert all(torch.equal(back[name], tensors[name]) for name in names.used)
    assert all(back[name].isnan().all() for name in names.skipped)
    assert {*names.used, *names.skipped} == tensors.keys()


@pytest.mark.parametrize("name", ROWS)
@torch.no_grad()
def test_it_opens_and_answers_as_its_peer(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    row = ROWS[name]
    module, files = row.make(tmp_path)
    before = {key: tensor.clone() for key, tensor in module.state_dict().items()}
    with proofs() as proved:
        live = vitrail.convert(module, preprocessing=Preprocessing(row.size, mean=MEAN, std=STD))
    (honest, _), (redrawn_gap, moved) = proved  # never a third: the first draw is loud enough
    assert (
        max(honest, redrawn_gap) < GAP / 4
    )  # of rounding alone, which differs from one processor to the next: up to 1.1e-6
    assert moved > 0.05  # five times what is asked, by image and positions
    config = live.network.config
    images = torch.randn(3, 3, *config.image, generator=torch.Generator().manual_seed(7))
    assert config.image == row.size
    theirs = answer(module, images)
    assert theirs.std() > ENOUGH
    assert (theirs[0] - theirs[1]).std() > ENOUGH / 10
    assert gap(live.network(images), theirs) < 1e-4

    opened = vitrail.load(files, assume=row.assume or None, preprocessing=live.preprocessing)
    assert gap(opened.network(images), theirs) < 1e-4
    assert opened.network.config == config
    goes_back(module.state_dict())
    goes_back(read_weights(find_weights(files).weights))

    wide: Any = torch.randn(2, 3, *row.other, generator=torch.Generator().manual_seed(8))
    bigger = resize_model(live, row.other)
    assert bigger.network.config.image == row.other
    theirs = row.at(module, wide)
    assert gap(bigger.network(wide), theirs) < 1e-4
    for rule, wrong in under_another_rule(live.network, row.other, wide).items():
        assert gap(wrong, theirs) > 3e-4, rule
    assert resize_model(live, config.image).network is live.network

    check_grey(live)
    check_cost(live.network)
    assert all(torch.equal(before[key], tensor) for key, tensor in module.state_dict().items())


def check_grey(model: Model) -> None:
    """For one channel, a grey image gives what its three equal channels gave."""
    pixels = torch.randint(0, 256, (2, 1, *model.network.config.image), dtype=torch.uint8)
    grey = resize_model(model, channels=1)
    three = model.network(model.preprocessing.normalise(pixels.expand(-1, 3, -1, -1)))
    assert gap(grey.network(grey.preprocessing.normalise(pixels)), three) < 1e-5


def check_cost(network: ViT) -> None:
    """The table of layers adds up to what the network holds, and to what torch counts while it runs on numbers."""
    held, asks = sum(one.numel() for one in network.parameters()), [one.requires_grad for one in network.parameters()]
    network.requires_grad_(False)  # torch's own counter stumbles over a parameter that is read as a token
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        network(torch.zeros(1, 3, *network.config.image))
    for grad in (True, False):
        rows = layers(network.requires_grad_(grad))
        assert sum(row.parameters for row in rows) == held
        assert sum(row.flops for row in rows) == counter.get_total_flops()
    for parameter, before in zip(network.parameters(), asks, strict=True):
        parameter.requires_grad_(before)


def under_another_rule(network: ViT, size: Size, images: Tensor) -> dict[str, Tensor]:
    """Answers to images of another size with positions carried there by each rule that is not the network's own."""
    found = {}
    for rule in {*RESIZE_RULES} - {network.config.position_resize} if network.pos_embed is not None else ():
        other = copy.deepcopy(network)
        other.config = replace(network.config, position_resize=rule)
        found[rule] = resize(other, size)(images)
    return found


def a_tenth_more(positions: Tensor) -> Tensor:
    """Of a class token and 4 x 4 patches, for 3 x 6, as DINO and DINOv2 do it."""
    plane = positions[:, 1:].reshape(1, 4, 4, 48).permute(0, 3, 1, 2)
    scaled = F.interpolate(plane, scale_factor=((3 + 0.1) / 4, (6 + 0.1) / 4), mode="bicubic")
    return torch.cat([positions[:, :1], scaled.permute(0, 2, 3, 1).reshape(1, 18, 48)], dim=1)


@torch.no_grad()
def test_a_checkpoint_of_dino_has_its_rule_and_its_bare_backbone_says_whose_it_got(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its training leaves a student, the teacher that averages it, their heads, and the options that were typed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made: Any = [timm.create_model("vit_small_patch16_224", **NETWORK, img_size=64, num_classes=0) for _ in range(2)]
    module, student = (redrawn(each, seed) for seed, each in enumerate(made))
    names = ("mlp.0.weight", "mlp.0.bias", "last_layer.weight_g", "last_layer.weight_v")
    head = {f"head.{name}": torch.ones(8) for name in names}
    whole = [head | {f"backbone.{name}": tensor for name, tensor in each.state_dict().items()} for each in made]
    checkpoint = {
        "student": {f"module.{name}": tensor for name, tensor in whole[1].items()},
        "teacher": whole[0],
        "optimizer": torch.optim.AdamW(student.parameters()).state_dict(),
        "epoch": 100,
        "args": argparse.Namespace(arch="vit_small", global_crops_scale=(0.4, 1.0), data_path="imagenet"),
    }
    torch.save(checkpoint, tmp_path / "checkpoint.pth")
    save_file(module.state_dict(), tmp_path / "backbone.safetensors")

    def opened(name: str, **assume: Any) -> Model:
        reads = Preprocessing((64, 64))
        return vitrail.load(tmp_path / name, assume={"heads": 3, **assume}, preprocessing=reads, image_size=(48, 96))

    wide: Any = torch.randn(2, 3, 48, 96, generator=torch.Generator().manual_seed(1))
    theirs: Any = copy.deepcopy(module)
    theirs.set_input_size(img_size=(48, 96))
    by_timm = theirs(wide)
    theirs.pos_embed.copy_(a_tenth_more(module.get_parameter("pos_embed")))
    by_dino = theirs(wide)
    model, again, bare = opened("checkpoint.pth"), opened("checkpoint.pth"), opened("backbone.safetensors")
    assert gap(model.network(wide), by_dino) < 1e-4
    assert torch.equal(again.network(wide), model.network(wide)), "the second time from the cache"
    assert gap(opened("backbone.safetensors", position_resize="dinov2").network(wide), by_dino) < 1e-4
    assert gap(opened("checkpoint.pth", position_resize="timm").network(wide), by_timm) < 1e-4
    assert gap(bare.network(wide), by_timm) < 1e-4
    assert gap(by_timm, by_dino) > 3e-4
    assert "teacher" in model.facts["weights"]
    assert "last_layer" in model.facts["left_out"]
    assert "position_resize=dinov2" in bare.facts["resized"]
    assert "position_resize" not in model.facts["resized"]


LABS = {"reg_token": "register_tokens", ".mlp.fc1.": ".mlp.w12.", ".mlp.fc2.": ".mlp.w3."}


@pytest.mark.parametrize(
    "name", ["vit_small_patch14_dinov2", "vit_small_patch14_reg4_dinov2", "vit_giant_patch14_dinov2"]
)
@torch.no_grad()
def test_dinov2_as_its_lab_publishes_it_has_its_rule_of_positions(name: str, tmp_path: Path) -> None:
    """Scaled to a tenth of a patch more; with registers as timm does it, as the lab's own hub says."""
    module: Any = redrawn(timm.create_model(name, **NETWORK, img_size=56))
    state, registers = module.state_dict(), module.num_reg_tokens
    if registers:  # the lab's class token has a position, which timm's files have added to it
        state["pos_embed"] = torch.cat([torch.zeros_like(state["cls_token"]), state["pos_embed"]], dim=1)
    for old, new in LABS.items() if "giant" in name else [*LABS.items()][:1]:
        state = {key.replace(old, new): tensor for key, tensor in state.items()}
    save_file({**state, "mask_token": torch.zeros(1, 48)}, tmp_path / "dinov2.safetensors")
    model = vitrail.load(tmp_path / "dinov2.safetensors", assume={"heads": 3}, preprocessing=Preprocessing((56, 56)))
    wide: Any = torch.randn(2, 3, 42, 84, generator=torch.Generator().manual_seed(1))
    bigger: Any = copy.deepcopy(module)
    bigger.set_input_size(img_size=(42, 84))
    if not registers:
        bigger.pos_embed.copy_(a_tenth_more(module.pos_embed))
    assert gap(resize_model(model, (42, 84)).network(wide), bigger(wide)) < 1e-4
    for wrong in under_another_rule(model.network, (42, 84), wide).values():
        assert gap(wrong, bigger(wide)) > 3e-4


@pytest.mark.parametrize(("kind", "idle"), [("CLIP", 2), ("SigLIP", 11)])
def test_a_classifier_of_clip_is_known_without_its_configuration(kind: str, idle: int, tmp_path: Path) -> None:
    """It has classes, and what they do not depend on is left out: moving it moves no answer of the peer's."""
    module, files = ROWS[f"transformers {kind} classifier"].make(tmp_path)
    model = vitrail.load(files, preprocessing=Preprocessing((32, 32)))
    tensors = read_weights(find_weights(files).weights)
    config = model.network.config
    assume = {"heads": config.heads, "activation": config.activation, "norm_eps": config.norm_eps}
    bare = from_tensors(tensors, {**assume, "position_resize": config.position_resize}, "a file")
    assert model.classes == ("ant", "bee", "cat")
    assert bare.network.config == config
    assert bare.network.state_dict().keys() == model.network.state_dict().keys()
    assert len(bare.skipped) == idle
    images: Any = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        before = answer(module, images)
        for key in bare.skipped:
            module.state_dict()[key].add_(1)
        assert torch.equal(answer(module, images), before)


def test_a_size_that_patches_do_not_divide_offers_the_nearest(tmp_path: Path) -> None:
    module, _ = ROWS["timm Ti/16"].make(tmp_path)
    model = vitrail.convert(module)
    with must_raise(UsageError, r"208x208[^\n]*224x224"):
        resize_model(model, 222)


def test_what_a_configuration_leaves_out_is_what_transformers_takes() -> None:
    """Published files hold only what differs from the defaults."""
    for kind in MODELS:
        full = transformers.CONFIG_MAPPING[kind]().to_dict()
        assert of_config({"model_type": kind}) == of_config({**full, "id2label": None})


def test_a_square_that_is_only_guessed_is_said() -> None:
    """Nine positions are those of 3 x 3 patches, or of a class token and 2 x 4."""
    state = redrawn(timm.create_model("vit_tiny_patch16_224", **NETWORK, img_size=(32, 64))).state_dict()
    guessed = from_tensors(state, {"heads": 3}, "a file")
    right = from_tensors(state, {"heads": 3, "image_size": (32, 64)}, "a file")
    assert (guessed.network.config.image, right.network.config.image) == ((48, 48), (32, 64))
    assert len(guessed.assumed) == len(right.assumed) + 1


@pytest.mark.parametrize("front", ["params/", "params/img/"])
@torch.no_grad()
def test_blocks_that_are_stacked_along_an_axis_are_taken_apart(front: str, tmp_path: Path) -> None:
    """As big_vision's `scan` stores them, in files of SigLIP beside a tower for texts: timm's reader is the peer."""
    alone = {name.replace("params/", front): array for name, array in flax(modern=True).items()}
    first = f"{front}Transformer/encoderblock_0/"
    block = {name.removeprefix(first) for name in alone if name.startswith(first)}
    stacked = {name: array for name, array in alone.items() if "encoderblock" not in name}
    for rest in block:
        each = [alone[f"{front}Transformer/encoderblock_{number}/{rest}"] for number in range(2)]
        stacked[f"{front}Transformer/encoderblock/{rest}"] = np.stack(each)
    if "img" in front:
        stacked["params/txt/Transformer/encoderblock/LayerNorm_0/scale"] = np.ones((5, 8), np.float32)
        stacked["params/t"] = np.ones(1, np.float32)
    networks = {}
    for name, arrays in {"alone": alone, "stacked": stacked}.items():
        np.savez(tmp_path / f"{name}.npz", **arrays)
        networks[name] = vitrail.load(tmp_path / f"{name}.npz", preprocessing=Preprocessing((64, 64))).network
    theirs: Any = timm.create_model("vit_base_patch16_siglip_224", **NETWORK, img_size=64).eval()
    theirs.load_pretrained(str(tmp_path / "stacked.npz"))
    images: Any = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    assert networks["stacked"].config == networks["alone"].config
    for name, tensor in networks["alone"].state_dict().items():
        assert torch.equal(networks["stacked"].state_dict()[name], tensor), name
    assert gap(networks["stacked"](images), theirs(images)) < 1e-4


@torch.no_grad()
def test_arrays_of_bfloat16_are_numbers_again(tmp_path: Path) -> None:
    """numpy has no bfloat16: big_vision's files hold two bytes that are no kind of number."""
    whole = {name: torch.from_numpy(array).bfloat16() for name, array in flax(modern=True).items()}
    np.savez(tmp_path / "half.npz", **{name: each.view(torch.int16).numpy().view("V2") for name, each in whole.items()})
    np.savez(tmp_path / "whole.npz", **{name: each.float().numpy() for name, each in whole.items()})
    half, full = (
        vitrail.load(tmp_path / f"{name}.npz", preprocessing=Preprocessing((64, 64))).network.state_dict()
        for name in ("half", "whole")
    )
    assert all(torch.equal(half[name], tensor) for name, tensor in full.items())


STACKED = "Transformer/encoderblock/LayerNorm_0/scale"
DAMAGED = {
    "a scalar": {STACKED: torch.ones(())},
    "more blocks than a network has": {STACKED: torch.ones(100_000, 1)},
    "no block": {STACKED: torch.ones(0, 48)},
    "one block more": {STACKED: torch.ones(3, 48)},
    "a block by itself, too": {"Transformer/encoderblock_1/LayerNorm_0/scale": torch.ones(48)},
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_stack_is_refused(case: str) -> None:
    tensors = {name.removeprefix("params/"): torch.from_numpy(array) for name, array in flax(modern=True).items()}
    names = [name for name in tensors if "encoderblock_0" in name]
    for name in names:
        both = [tensors.pop(name), tensors.pop(name.replace("_0/", "_1/", 1))]
        tensors[name.replace("encoderblock_0", "encoderblock")] = torch.stack(both)
    assert from_tensors(tensors, {}, "a file").network.config.depth == 2
    with must_raise(DataError):
        from_tensors({**tensors, **DAMAGED[case]}, {}, "a file")


def test_a_proof_lets_no_gpu_round_to_tf32() -> None:
    """Else a map that is a convolution here and a product there would differ by more than is allowed."""
    module, places = redrawn(timm.create_model("vit_tiny_patch16_224", depth=1)), list[tuple[str, str]]()

    def precision() -> tuple[str, str]:
        return torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision

    for part in (module.patch_embed.proj, module.head):
        part.register_forward_hook(lambda *_: places.append(precision()))
    before, matmul = precision(), torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    high = precision()
    try:
        convert_network(module)
        assert precision() == high != before
    finally:
        torch.set_float32_matmul_precision(matmul)
    assert places == 4 * [("ieee", "ieee")]  # two parts, in two proofs


@pytest.mark.soak
@pytest.mark.parametrize(("name", "heads"), [("vit_b_16", 12), ("vit_b_32", 12), ("vit_l_16", 16), ("vit_h_14", 16)])
def test_torchvisions_own_networks_in_full_size(name: str, heads: int, tmp_path: Path) -> None:
    module = redrawn(torchvision.models.get_model(name))
    images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(7))
    reads = Preprocessing((224, 224), mean=(0.5,) * 3, std=(0.5,) * 3)
    with torch.no_grad():
        theirs = module(images)
        assert theirs.std() > 0.1
        assert (vitrail.convert(module, preprocessing=reads).network(images) - theirs).abs().max() <= 1e-4
        save_file(module.state_dict(), tmp_path / "network.safetensors")
        del module
        opened = vitrail.load(tmp_path / "network.safetensors", assume={"heads": heads}, preprocessing=reads)
        assert (opened.network(images) - theirs).abs().max() <= 1e-4
