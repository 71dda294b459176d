"""What a folder says beside its tensors is read as its own library reads it, or refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from timm.data import create_transform, resolve_model_data_config
from timm.models import save_for_hf
from transformers import CLIPImageProcessor, Dinov2Config, Dinov2Model, ViTConfig, ViTForImageClassification

import vitrail
from tests.errors import must_raise
from tests.weights.redraw import redrawn
from vitrail.data.preprocessing import from_hugging_face
from vitrail.errors import DataError, UsageError
from vitrail.tasks.features import Numbers

SMALL = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3, "image_size": 32, "patch_size": 8}
IMAGE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (71, 93, 3), np.uint8))


def levels(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference of two images that are normalised with 0.5, of 255."""
    return float((one - other).abs().max()) * 127.5


def test_a_rectangle_that_is_cropped_goes_in_as_timm_has_it(tmp_path: Path) -> None:
    arguments = {"img_size": [32, 80], "embed_dim": 24, "depth": 1, "num_heads": 3}
    network = redrawn(timm.create_model("vit_tiny_patch16_224", **arguments)).eval()
    network.pretrained_cfg = {**network.pretrained_cfg, "input_size": (3, 32, 80)}
    save_for_hf(network, str(tmp_path), model_args=arguments, safe_serialization=True)
    theirs = create_transform(**resolve_model_data_config(network))
    reads = vitrail.load(tmp_path).preprocessing
    for side in range(40, 400, 37):
        image = IMAGE.resize((9, 7)).resize((side, 441 - side))  # where noise meets a tie of rounding it may be 3
        assert levels(theirs(image), reads(image)) <= 1.01


def test_several_labels_at_once_get_no_softmax(tmp_path: Path) -> None:
    for problem in ("multi_label_classification", "regression"):
        config = ViTConfig(**SMALL, intermediate_size=48, num_labels=3, problem_type=problem)
        network = redrawn(ViTForImageClassification(config)).eval()
        network.save_pretrained(tmp_path / problem)
        reads = vitrail.data.Preprocessing((32, 32))
        for model in (
            vitrail.load(tmp_path / problem, preprocessing=reads),
            vitrail.convert(network, preprocessing=reads),
        ):
            assert isinstance(model.output, Numbers)
            assert problem in model.facts["class_names"]
        named = vitrail.load(tmp_path / problem, preprocessing=reads, classes=("a", "b", "c"))
        assert named.classes == ("a", "b", "c"), "asked for, they are classes"


def test_a_processor_that_names_no_kind_is_that_of_its_model(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"size": {"shortest_edge": 36}, "crop_size": 32, "do_center_crop": True}
    Dinov2Model(Dinov2Config(**SMALL)).save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(keys))
    assert vitrail.load(tmp_path).preprocessing == from_hugging_face(
        {**keys, "image_processor_type": "BitImageProcessor"}
    )
    assert from_hugging_face(keys, "vit") != from_hugging_face(keys, "dinov2")
    with must_raise(DataError):
        from_hugging_face(keys, "clip_vision_model")


def test_keys_of_a_processor_that_change_pixels_are_read_or_refused() -> None:
    half = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    square = {"size": 32, "default_to_square": True, "crop_size": 32, **half}
    theirs = CLIPImageProcessor(**{**square, "size": {"height": 32, "width": 32}})
    wanted = torch.tensor(np.asarray(theirs(IMAGE)["pixel_values"][0]))
    ours = from_hugging_face({**square, "image_processor_type": "CLIPImageProcessor"})
    assert levels(wanted, ours(IMAGE)) <= 1.01
    for fault in ({"do_pad": True}, {"size": {"shortest_edge": 32, "longest_edge": 40}}):
        with must_raise(DataError):
            from_hugging_face({"image_processor_type": "CLIPImageProcessor", **fault})


def test_grey_networks_of_others_open(tmp_path: Path) -> None:
    network = redrawn(
        timm.create_model("vit_tiny_patch16_224", in_chans=1, img_size=32, depth=1, embed_dim=24, num_heads=3)
    )
    assert vitrail.convert(network.eval()).preprocessing.mean == (0.5,)
    ViTForImageClassification(ViTConfig(**SMALL, intermediate_size=48, num_channels=1)).save_pretrained(tmp_path)
    keys = {"size": 32, "image_mean": [0.25], "image_std": [0.5], "image_processor_type": "ViTImageProcessor"}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(keys))
    assert vitrail.load(tmp_path).preprocessing.mean == (0.25,)


def changed(folder: Path, **keys: Any) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **keys}))
    return folder


def test_what_would_be_another_network_is_refused(tmp_path: Path) -> None:
    arguments = {"img_size": 32, "embed_dim": 24, "depth": 1, "num_heads": 3}
    network = redrawn(timm.create_model("vit_base_patch16_rpn_224", **arguments))
    save_file(network.state_dict(), tmp_path / "rpn.safetensors")
    with must_raise(DataError):
        vitrail.load(tmp_path / "rpn.safetensors", assume={"heads": 3, "mean": (0.5,), "std": (0.5,)})
    plain = redrawn(timm.create_model("vit_tiny_patch16_224", **arguments))
    save_for_hf(plain, str(tmp_path / "timm"), model_args=arguments, safe_serialization=True)
    with must_raise(DataError):
        vitrail.load(changed(tmp_path / "timm", model_args={**arguments, "global_pool": ""}))
    ViTForImageClassification(ViTConfig(**SMALL, intermediate_size=48, num_labels=3)).save_pretrained(tmp_path / "vit")
    reads = vitrail.data.Preprocessing((32, 32))
    with must_raise(DataError):
        vitrail.load(changed(tmp_path / "vit", quantization_config={"bits": 8}), preprocessing=reads)
    gaps = changed(tmp_path / "vit", quantization_config=None, id2label={"0": "a", "1": "b", "5": "c"})
    assert vitrail.load(gaps, preprocessing=reads).classes == ("0", "1", "2")
    with pytest.raises(UsageError):
        vitrail.load(gaps)


def test_a_variant_is_of_the_configuration_beside_it(tmp_path: Path) -> None:
    config = ViTConfig(**SMALL, intermediate_size=48, num_labels=2, id2label={0: "x", 1: "y"}, layer_norm_eps=1e-3)
    network = redrawn(ViTForImageClassification(config)).eval()
    network.save_pretrained(tmp_path, variant="fp16")
    (tmp_path / "model.safetensors").unlink(missing_ok=True)
    model = vitrail.load(tmp_path / "model.fp16.safetensors", preprocessing=vitrail.data.Preprocessing((32, 32)))
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.allclose(model.network(images), network(images).logits, atol=1e-5)
    assert model.classes == ("x", "y")


class Packed(torch.nn.Linear):
    """Keeps more than tensors, as quantised layers do."""

    def get_extra_state(self) -> str:
        return "qint8"


def test_live_modules_that_only_bear_a_name_are_refused_in_words() -> None:
    arguments = {"img_size": 32, "embed_dim": 24, "depth": 1, "num_heads": 3}
    without, whole = (timm.create_model("vit_tiny_patch16_224", **arguments) for _ in range(2))
    without.blocks = torch.nn.Sequential()
    whole.head = Packed(24, 1000)
    for module in (without, whole):
        with must_raise(UsageError):
            vitrail.convert(module)


def test_two_tokens_without_heads_are_asked_about(tmp_path: Path) -> None:
    arguments = {"img_size": 32, "embed_dim": 24, "depth": 1, "num_heads": 3, "num_classes": 0}
    network = redrawn(timm.create_model("deit_tiny_distilled_patch16_224", **arguments)).eval()
    save_file(network.state_dict(), tmp_path / "deit.safetensors")
    assume = {"heads": 3, "mean": (0.5,), "std": (0.5,)}
    with must_raise(UsageError):
        vitrail.load(tmp_path / "deit.safetensors", assume=assume)
    model = vitrail.load(tmp_path / "deit.safetensors", assume={**assume, "distillation_token": True})
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.allclose(model.network(images), network(images), atol=1e-5)
