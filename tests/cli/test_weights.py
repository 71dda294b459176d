"""Pretrained weights at the terminal: what is typed of them changes the answer, and what is assumed is said."""

import json
import re
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn

import vitrail
from tests.cli.command import DATA, USAGE, Answer, call, must_be_understood, must_refuse, retyped
from tests.weights.families import ROWS
from tests.weights.redraw import redrawn
from vitrail.cli.args import WeightsOptions
from vitrail.data import images
from vitrail.data.images import open_image
from vitrail.model import confidence as asking
from vitrail.model.confidence import MOST
from vitrail.nn.cost import flops, parameters
from vitrail.runs.settings import read_yaml
from vitrail.weights.family import why_not_bare

NAMES = ("ant", "bee, with a comma", "chat noir", "d\u00e9j\u00e0 vu")


@pytest.fixture(scope="module")
def network() -> nn.Module:
    arguments: Any = {"embed_dim": 48, "depth": 2, "num_heads": 3, "img_size": 64, "num_classes": len(NAMES)}
    return redrawn(timm.create_model("vit_tiny_patch16_224", **arguments))


@pytest.fixture(scope="module")
def file(network: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights by themselves."""
    path = tmp_path_factory.mktemp("bare") / "bare.safetensors"
    save_file(network.state_dict(), path)
    return path


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    Image.effect_noise((90, 70), 60).convert("RGB").save(tmp_path / "photo.jpg")
    return tmp_path / "photo.jpg"


def shown(*words: object) -> dict[str, Any]:
    found = call("models", *words, "--json")
    assert found.code == 0, found.err
    return json.loads(found.out)


# ---- vitrail models


@pytest.mark.parametrize(
    ("row", "parts"),
    [
        ("timm SigLIP", {"pooling": "attention"}),
        ("transformers DINOv2 classifier", {"mlp": "swiglu", "pooling": "class_and_mean", "head": "of_two"}),
    ],
)
def test_a_network_with_parts_of_its_own_is_counted_as_it_is(row: str, parts: dict, tmp_path: Path) -> None:
    """A plain network of the same sizes is another one."""
    _, folder = ROWS[row].make(tmp_path)
    network = vitrail.load(folder, assume={"mean": 0.5, "std": 0.5}).network
    held = sum(parameter.numel() for parameter in network.parameters())
    found = shown(folder)
    assert found["parts"] == parts
    assert found["parameters"] == sum(layer["parameters"] for layer in found["layers"]) == held
    assert found["parameters"] != parameters(network.config)
    assert found["flops"] == sum(layer["flops"] for layer in found["layers"]) != flops(network.config)
    line = next(line for line in call("models", folder).out.splitlines() if line.startswith("different from the paper"))
    assert all(f"{slot} {name}" in line for slot, name in parts.items())
    assert "mean" not in line.replace("class_and_mean", "")


def test_every_option_of_weights_changes_what_models_says(file: Path, tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("\n".join(NAMES))
    known = {"mean": ("reads", "0.25"), "std": ("reads", "0.25"), "class_names": ("classes", "chat noir")}
    options = {"mean": "0.25", "std": "0.25", "class_names": tmp_path / "names.txt"}
    asked = (file, "--assume", "heads=3")
    before = shown(*asked, "--mean", 0.5, "--std", 0.5)
    for name, (key, word) in known.items():
        flag = "--" + name.replace("_", "-")
        after = shown(*asked, "--mean", 0.5, "--std", 0.5, flag, options[name])
        assert word in after[key]
        assert word not in before[key]
        assert {**before, **{each: after.get(each) for each in (key, "class_names")}} == {"class_names": None, **after}
    assert shown(*asked, "--image-size", "32x48")["config"]["image_size"] == [32, 48]
    assert shown(*asked, "--channels", 1)["config"]["channels"] == 1
    assert "12 of 16 bits" in shown(*asked, "--mean", 0.5, "--std", 0.5, "--bits", 12)["reads"]
    assert shown(file, "--assume", "heads=4")["config"]["heads"] == 4
    assert shown(file, "--assume", "heads=3,classes=7")["config"]["classes"] == 7
    assert "unknown" in shown(*asked)["reads"], "how images go in need not be known"
    for field in fields(WeightsOptions):
        if field.name not in ("image_size", "channels"):
            flag = "--" + field.name.replace("_", "-")
            must_refuse(call("models", "S/16", flag, options.get(field.name, "x")), USAGE, flag)
    must_refuse(call("models", *asked, "--classes", 3), USAGE, "--classes")


def must_lead_on(*words: object) -> Answer:
    """Whoever types what is offered gets an answer."""
    typed: list[str] | None = list(map(str, words))
    for _ in range(7):
        assert typed is not None
        must_be_understood(typed)
        found = call(*typed)
        if found.code == 0 or found.out:  # a check may fail
            return found
        assert found.code == USAGE, found.err
        typed = retyped(typed, found)
        typed = typed and [word.replace("heads=N", "heads=1") for word in typed]  # one that fits all
    raise AssertionError(found.err)


def test_a_file_is_asked_about_by_its_hints_alone(file: Path, photo: Path) -> None:
    must_lead_on("models", file)
    must_lead_on("predict", file, photo)
    must_lead_on("predict", file, photo, "--assume", "heads=5,headz=2", "--mean", 127, "--image-size", 50)


def test_the_doctor_is_told_as_the_others(file: Path) -> None:
    found = must_lead_on("doctor", file, "--image-size", 32, "--channels", 1, "--json")
    assert len(json.loads(found.out)["checks"]) == 11
    given = {"mean": 0.5, "std": 0.5, "class_names": "names.txt", "assume": "heads=3", "image_size": 32, "channels": 1}
    given["bits"] = 12
    assert given.keys() == {field.name for field in fields(WeightsOptions)}
    for name, value in given.items():
        must_refuse(call("doctor", f"--{name.replace('_', '-')}", value), USAGE, f"--{name}")


def test_a_teacher_is_told_as_the_others(file: Path, photographs: Path, tmp_path: Path) -> None:
    run, short = tmp_path / "run", ("--epochs", 1, "--threads", 1, "--image-size", 32)
    words = ("distill", photographs / "abc", "--teacher", file, *short, "--out", run)
    must_lead_on(*words, "--assume", "activation=gelu", "--mean", 0.5, "--std", 0.5)
    how = read_yaml(run / "config.yaml")["distillation"]
    assert how["teacher_assume"] == {"activation": "gelu", "heads": 1, "mean": [0.5], "std": [0.5]}
    assert how["fit_head"], "its classes have no names"
    assert "--assume" in (run / "command.txt").read_text()
    must_refuse(call(*words, "--resume", "auto", "--mean", 0.4), USAGE, "teacher_assume mean=0.5 mean=0.4")


@pytest.mark.soak
@pytest.mark.parametrize("name", ROWS)
def test_so_is_a_file_of_every_family_without_its_folder(name: str, photo: Path, tmp_path: Path) -> None:
    """By its hints alone, but for one whose tensors may be of a network that does not open."""
    (tmp_path / "made").mkdir()
    _, files = ROWS[name].make(tmp_path / "made")
    bare = shutil.copy(files / "model.safetensors" if files.is_dir() else files, tmp_path)
    if why := Path(bare).suffix == ".safetensors" and why_not_bare(load_file(bare)):
        must_refuse(call("predict", bare, photo), DATA, why)
    else:
        must_lead_on("predict", bare, photo)


def test_heads_that_a_norm_within_them_shows_need_not_be_said(tmp_path: Path, photo: Path) -> None:
    _, folder = ROWS["timm qk_norm=True"].make(tmp_path)
    bare = folder / "model.safetensors"
    (folder / "config.json").unlink()
    assert shown(bare)["config"]["heads"] == 3
    must_refuse(call("models", bare, "--assume", "heads=2"), USAGE, "heads")


# ---- what is assumed


def test_a_crop_that_nobody_said_is_said(file: Path, photo: Path, tmp_path: Path) -> None:
    words = ("--assume", "heads=3", "--mean", 0.5, "--std", 0.5)
    model = vitrail.load(file, assume={"heads": 3, "mean": 0.5, "std": 0.5})
    reads = model.preprocessing
    peer = timm.data.create_transform(
        (3, 64, 64), interpolation="bicubic", crop_pct=0.9, mean=(0.5,) * 3, std=(0.5,) * 3
    )
    with Image.open(photo) as image:
        torch.testing.assert_close(model.tensor([photo])[0], peer(image), rtol=0, atol=2.1 / 255)  # a level of 255
    for said in (
        model.facts["assumed"],
        shown(file, *words)["assumed"],
        call("predict", file, photo, *words).err,
        (vitrail.save(model, tmp_path / "saved") / "README.md").read_text(),
        vitrail.load(tmp_path / "saved").facts["assumed"],
    ):
        for fact in (reads.resize, str(reads.crop_pct), reads.interpolation):
            assert fact in said
    given = vitrail.load(file, assume={"heads": 3}, preprocessing=reads)
    assert reads.interpolation not in given.facts.get("assumed", "")


# ---- how images go in, where nobody says it


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Fifty images, of which one in the middle cannot be read."""
    (tmp_path / "many").mkdir()
    for number in range(50):
        Image.effect_noise((20, 20), 60).convert("RGB").save(tmp_path / "many" / f"{number:02}.png")
    (tmp_path / "many" / "25.png").write_bytes(b"none")
    return tmp_path / "many"


def test_a_pair_is_named_only_where_it_is_clearly_better(
    network: nn.Module, file: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    tensors["head.weight"].zero_()
    tensors["head.bias"].zero_()
    save_file(tensors, tmp_path / "unsure.safetensors")
    found = call("predict", tmp_path / "unsure.safetensors", folder, "--assume", "heads=3")
    must_refuse(found, USAGE, "0.25")  # of four classes, under each pair
    assert retyped(["predict"], found) is None, "no pair is offered"
    others: dict[str, tuple[float, float, float]] = {
        "--mean 0.5 --std 0.5": (0.81, 0.6, 0.75),
        "--mean 0.485,0.456,0.406 --std 0.229,0.224,0.225": (0.74, 0.81, 0.8),
        "--mean 0.48145466,0.4578275,0.40821073 --std 0.26862954,0.26130258,0.27577711": (0.6, 0.8, 0.81),
        "": (0.78, 0.74, 0.75),
    }
    for wanted, (half, imagenet, clip) in others.items():
        tops = {"0.5": half, "ImageNet's": imagenet, "CLIP's": clip}
        answers = {name: torch.full((24,), value) for name, value in tops.items()}
        monkeypatch.setattr(asking, "answer_under_pairs", lambda model, images, answers=answers: answers)
        found = call("predict", file, folder, "--assume", "heads=3")
        assert found.code == USAGE
        offered = retyped(["predict"], found)
        typed = ["predict", str(file), str(folder), "--assume", "heads=3"]
        assert offered == ([*typed, *wanted.split()] if wanted else None)


@pytest.mark.parametrize("verb", ["evaluate", "train", "distill"])
def test_every_verb_that_has_images_asks_them(
    verb: str, file: Path, photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing says how images go in, the likeliest pair is offered; a stated pair is doubted in words."""
    asked, data = list[tuple[float, ...]](), photographs / "abc"
    (tmp_path / "names.txt").write_text("\n".join(["none", *sorted(each.name for each in (data / "val").iterdir())]))
    (tmp_path / "all.csv").write_text(
        "path,label\n" + "".join(f"{each},{each.parent.name}\n" for each in sorted(data.rglob("*.*")))
    )
    words: dict[str, list[object]] = {
        "evaluate": ["evaluate", file, data, "--class-names", tmp_path / "names.txt"],
        "train": ["train", data, "--init", file, "--probe", "--dry-run"],
        "distill": ["distill", data, "--teacher", file, "--image-size", 32, "--epochs", 1, "--dry-run"],
    }

    def answers(model: vitrail.Model, given: images.Images | None) -> dict[str, torch.Tensor]:
        if given is None:  # a teacher that is opened once more, without its head
            return {}
        asked.append(model.preprocessing.mean)
        first = model.preprocessing.mean == (0.5,) * 3
        tops = {"0.5": 0.31, "ImageNet's": 0.87, "CLIP's": 0.62} if first else {"ImageNet's": 0.6, "CLIP's": 0.8}
        return {name: torch.full((24,), value) for name, value in tops.items()}

    monkeypatch.setattr(asking, "answer_under_pairs", answers)
    for typed in (words[verb], [tmp_path / "all.csv" if word == data else word for word in words[verb]]):
        found = call(*typed, "--assume", "heads=3")
        must_refuse(found, USAGE, "0.31 0.87 0.62")
        offered = retyped(list(map(str, typed)), found)
        assert offered is not None
        assert offered[-4:] == ["--mean", "0.485,0.456,0.406", "--std", "0.229,0.224,0.225"]
        led = call(*offered, "--assume", "heads=3")
        assert led.code == 0, led.err
        assert "0.48145466,0.4578275,0.40821073" in (led.out + led.err).replace("\n", "")
    assert asked == [(0.5,) * 3, (0.485, 0.456, 0.406)] * 2


def test_images_from_everywhere_in_a_folder_are_asked(
    file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = list[int]()

    def recorded(path: Path, content: bytes) -> Image.Image:
        image = open_image(path, content)
        read.append(int(path.stem))
        return image

    monkeypatch.setattr(images, "opened_apart", recorded)
    assert call("predict", file, folder, "--assume", "heads=3").code == USAGE
    assert len(set(read)) == len(read) == MOST
    assert [sum(first <= number < first + 10 for number in read) for first in range(0, 50, 10)] == pytest.approx(
        [MOST / 5] * 5, abs=1.5
    )


def test_half_of_what_is_needed(file: Path, photo: Path) -> None:
    words = ("predict", file, photo, "--assume", "heads=3")
    must_refuse(call(*words, "--mean", 0.5), USAGE, "std mean")
    must_refuse(call(*words, "--std", 0.5), USAGE, "mean std")
    must_refuse(call(*words[:3], "--assume", "heads=3,heads=4"), USAGE, "heads=3 heads=4")
    for asked in (words[:3], (*words[:3], "--assume", "heads=5")):  # a guess would open as another network
        assert not re.search(r"heads=\d", call(*asked).hint)


# ---- names of classes


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n  \n"])
@pytest.mark.parametrize("start", ["", "\ufeff", "\n"])
def test_a_file_of_names(start: str, end: str, file: Path, tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_bytes((start + "".join(f" {name}{end}" for name in NAMES)).encode())
    assert shown(file, "--assume", "heads=3", "--class-names", names)["classes"] == ", ".join(NAMES)


def test_names_that_cannot_be(file: Path, tmp_path: Path) -> None:
    names, words = (
        tmp_path / "names.txt",
        ("models", file, "--assume", "heads=3", "--class-names", tmp_path / "names.txt"),
    )
    must_refuse(call(*words), DATA, str(names))
    names.write_bytes(b"\xff\xfe\x00")
    must_refuse(call(*words), DATA, str(names))
    names.write_text("ant\n\nbee\nant\nbee\n")
    must_refuse(call(*words), DATA, f"{names} 1 4 ant")
    names.write_text("ant\nbee\n")
    must_refuse(call(*words), USAGE, "2 4")
    assert " 4 " in call(*words).hint
    assert shown(*words[1:], "--assume", "heads=3,classes=2")["classes"] == "ant, bee"
