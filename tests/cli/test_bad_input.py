"""Whatever is typed or lies on the disk: one line with the problem, one with what to try, the right exit code.

The first table is the conformance suite: (words, exit code, words of the problem, words of the hint). `{...}` stands
for one of the places that `places` prepares. No command may change a file that was there before.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import vitrail
from tests.cli.command import Answer, hashes
from tests.data.test_source import put_idx
from tests.photographs import make_photographs
from vitrail.errors import DataError, UsageError

USAGE, DATA = 2, 3

Case = tuple[str, int, str, str]
CASES: list[Case] = [
    # verbs and options
    ("trian digits", USAGE, "unknown verb 'trian'", "vitrail train"),
    ("xyz", USAGE, "unknown verb 'xyz'", "vitrail --help"),
    ("train", USAGE, "no data given", "vitrail train digits"),
    ("train digits --epoch 3", USAGE, "no option --epoch", "--epochs"),
    ("train digits --learning-rate 3", USAGE, "no option --learning-rate", "vitrail train --help"),
    ("train digits --batch_sise 3", USAGE, "no option --batch-sise", "--batch-size"),
    ("train digits more", USAGE, "no place for more", "vitrail train --help"),
    ("train digits -x", USAGE, "no place for -x", "vitrail train --help"),
    ("train digits --epochs", USAGE, "--epochs", "vitrail train --help"),
    ("train digits --epochs many", USAGE, "--epochs: wanted a whole number, got 'many'", "vitrail train --help"),
    ("train digits --lr fast", USAGE, "--lr: wanted a number, got 'fast'", "vitrail train --help"),
    ("train digits --resume yes", USAGE, "'yes' for argument '--resume'", "vitrail train --help"),
    ("train digits --precision fp8", USAGE, "'fp8' for argument '--precision'", "vitrail train --help"),
    ("train digits --resume auto", USAGE, "--resume auto needs the run", "--out"),
    ("evaluate", USAGE, "vitrail evaluate needs RUN", "vitrail evaluate --help"),
    ("predict", USAGE, "vitrail predict needs RUN", "vitrail predict --help"),
    ("predict {run}", USAGE, "no picture given", "vitrail predict {run} photo.jpg"),
    ("explain {run}", USAGE, "no picture given", "vitrail explain {run} photo.jpg"),
    # values that cannot be
    ("train digits --epochs 0", USAGE, "epochs must be at least 1, got 0", "--epochs 1"),
    ("train digits --epochs -3", USAGE, "epochs must be at least 1, got -3", "--epochs 1"),
    ("train digits --batch-size 0", USAGE, "batch_size must be at least 1, got 0", "--batch-size 1"),
    ("train digits --accumulate 0", USAGE, "accumulate must be at least 1, got 0", "accumulate 1"),
    ("train digits --lr -1", USAGE, "learning_rate must be", "--lr 0.001"),
    ("train digits --lr nan", USAGE, "learning_rate must be", "--lr 0.001"),
    ("train digits --threads 0", USAGE, "threads must be at least 1, got 0", "threads 1"),
    ("predict {run} {photo} --threads 0", USAGE, "threads must be at least 1, got 0", "--threads 1"),
    ("train digits --workers -1", USAGE, "workers must be at least 0, got -1", "workers 0"),
    ("train digits --device gpu", USAGE, "device 'gpu' is not there", "--device auto"),
    ("predict {run} {photo} --device cuda:99", USAGE, "cuda:99", "--device auto"),
    ("explain {run} {photo} --count 0", USAGE, "--count must be at least 1, got 0", "--count 4"),
    # recipe, size, method, target, split: the nearest is offered
    ("train digits --recipe fotos", USAGE, "unknown recipe 'fotos'", "--recipe photos"),
    ("train digits --recipe d0-minst", USAGE, "unknown recipe 'd0-minst'", "--recipe d0-mnist"),
    ("train digits --size B16", USAGE, "unknown size 'B16'", "B/16"),
    ("train digits --size Q/2", USAGE, "unknown size 'Q/2'", "/"),
    ("models XL/16", USAGE, "unknown size 'XL/16'", "L/16"),
    ("models s/16", USAGE, "unknown size 's/16'", "S/16"),
    ("explain {run} {photo} --method rolout", USAGE, "unknown method 'rolout'", "--method rollout"),
    ("explain {run} {photo} --method gradcam", USAGE, "unknown method 'gradcam'", "--method"),
    ("explain {run} {photo} --methods rollout", USAGE, "--methods chooses", "--compare --methods rollout"),
    ("explain {run} {photo} --compare --methods rolout", USAGE, "unknown method 'rolout'", "--methods rollout"),
    ("explain {run} {photo} --compare --methods ,", USAGE, "names no method", "--methods generic_attention"),
    ("explain {run} {photo} --compare --layer 1", USAGE, "--layer is for one method", "leave --layer out"),
    ("explain {run} {photo} --method rollout --layer 1", USAGE, "rollout has no --layer", "leave --layer out"),
    ("explain {run} {photo} --method raw_attention --layer 99", USAGE, "-6..5, got 99", "--layer -1"),
    ("explain {run} {photo} --method raw_attention --layer x", USAGE, "must be a number, got 'x'", "--layer -1"),
    ("explain {run} {photo} --method raw_attention --head 99", USAGE, "0..3, got 99", "--head 0"),
    ("explain {run} {photo} --rather-than feild", USAGE, "no class 'feild', it has beach", "--rather-than field"),
    ("explain {run} {photo} --target night --rather-than night", USAGE, "both 'night'", "--rather-than"),
    ("explain {run} {photo} --method rollout --rather-than night", USAGE, "cannot tell classes apart", "--method"),
    ("explain {run} {photo} --no-trust --masks {empty}", USAGE, "--masks is for the test", "one of the two"),
    ("explain {run} {photo} --no-trust --reference {photos}", USAGE, "--reference is for the test", "one of the two"),
    ("explain {run} {photo} --target feild", USAGE, "no class 'feild'", "--target field"),
    ("evaluate {run} digits --split tset", USAGE, "no split tset", "--split test"),
    ("evaluate {run} --split vaildation", USAGE, "no split vaildation", "--split validation"),
    # sizes that patches do not divide, channels
    ("train digits --size S/3", USAGE, "8x8 pixels (height x width) cannot be cut into patches of 3x3", "6x6 or 9x9"),
    ("train digits --image-size 9", USAGE, "cannot be cut into patches of 2x2", "8x8 or 10x10"),
    ("train digits --image-size 0", USAGE, "image_size must be", "image_size=224"),
    ("models S/17", USAGE, "cannot be cut into patches of 17x17", "221x221 or 238x238"),
    ("models S/16 --channels 0", USAGE, "channels must be", "channels"),
    ("models {run} --channels 4", USAGE, "has its own --channels", "vitrail models {run}"),
    # configuration files
    ("train digits --config {empty}/no.yaml", USAGE, "no configuration file", "config.yaml"),
    ("train digits --config {configs}/unknown.yaml", USAGE, "unknown key 'optimization.lrate'", "learning_rate"),
    ("train digits --config {configs}/broken.yaml", USAGE, "cannot be read as YAML", "line"),
    ("train digits --config {configs}/type.yaml", USAGE, "optimization.epochs", "mend"),
    ("train digits --config {configs}/list.yaml", USAGE, "must hold keys and values", "config.yaml"),
    # data
    ("train mnits", USAGE, "no data set or folder mnits", "mnist"),
    ("train {root}/phtos", DATA, "phtos does not exist", "photos"),
    ("train {root}/none/photos", DATA, "does not exist", "check the path"),
    ("train {empty}", DATA, "has no class folders and no pictures", "one folder per class"),
    ("train {one}", DATA, "has one class only (beach)", "add a class folder"),
    ("train {texts}", DATA, "has no pictures in its class folders", "one folder per class"),
    ("train {loose}", DATA, "but no class folders", "class"),
    ("train {photo}", DATA, "neither a folder nor a .csv or .jsonl manifest", "folder of class folders"),
    ("train {damaged}", DATA, "3 of ", "mend or move these files"),
    ("train mnist --data-root {empty}/nowhere", DATA, "does not exist", "mkdir"),
    ("train mnist --data-root {half}", DATA, "lacks train-labels-idx1-ubyte", "put the missing files"),
    ("train mnist-m --data-root {no_photographs}", DATA, "without any picture", "two photographs"),
    (
        "train mnist-m --data-root {half_mnist_m}",
        DATA,
        "and lacks mnist_m_train, mnist_m_test",
        "put the missing files",
    ),
    ("train {manifests}/columns.csv", DATA, "path", "path,label"),
    ("train {manifests}/missing.csv", DATA, "files are missing: no.jpg", "paths relative to"),
    ("train {manifests}/empty.csv", DATA, "line 2: the label is empty", "label"),
    ("evaluate {run} {root}/phtos", DATA, "phtos does not exist", "photos"),
    ("evaluate {run} {others}", DATA, "has no class of the model", "beach, field, night"),
    ("evaluate {run} {damaged} --strict", DATA, "3 pictures left out", "leave --strict out"),
    ("evaluate {run}/model", USAGE, "does not remember any data", "vitrail evaluate {run}/model DATA"),
    # pictures
    ("predict {run} {root}/no.jpg", DATA, "there is no picture", "try: "),
    ("predict {run} {photos}/beach/beach_0000.jpg", DATA, "there is no picture", "beach_000.jpg"),
    ("predict {run} {empty}", DATA, "holds no picture", "JPEG"),
    ("predict {run} {damaged}/beach/beach_000.jpg", DATA, "beach_000.jpg: is not a JPEG", "leave it out"),
    ("predict {run} {damaged}/field/field_000.jpg", DATA, "field_000.jpg: is empty", "leave it out"),
    ("predict {run} {damaged}/night/night_000.jpg", DATA, "night_000.jpg: cannot be decoded", "leave it out"),
    ("predict {run} {photo} {damaged}/night/night_000.jpg", DATA, "(1 other picture predicted)", "leave it out"),
    ("explain {run} {damaged}/beach/beach_000.jpg --out {new}/p.html", DATA, "beach_000.jpg: is not a JPEG", "another"),
    ("explain {run} {empty}", DATA, "holds no picture", "JPEG"),
    ("explain {run} {root}/nan.tif", DATA, "nan.tif: holds floating-point values", "another picture"),
    ("explain {run} {photo} --reference {empty}", DATA, "has no reference picture", "--reference with a folder"),
    ("explain {run} {photo} --reference {root}/nowhere", DATA, "there is no folder", "--reference with a folder"),
    ("explain {run} {photo} --reference {texts}/other.safetensors", DATA, "references are", "try: "),
    ("explain {run} {photo} --masks {root}/nowhere", DATA, "there is no folder", "--masks with a folder"),
    ("explain {run} {photo} --masks {empty}", DATA, "beach_001.png is missing", "one PNG for each picture"),
    ("explain {run} {photo} --masks {masks}/small", DATA, "has 5 x 5 pixels, and its picture", "own size"),
    ("explain {run} {photo} --masks {masks}/black", DATA, "is black all over", "not black"),
    ("explain {run} {photo} --masks {masks}/broken", DATA, "beach_001.png: is not a", "readable"),
    ("explain {run} {photo} --masks {masks}/thin --out {new}/p.html", DATA, "fills the most of no square", "leave"),
    ("explain {run} {photos} {photo}", USAGE, "is a whole set, and stands alone", "vitrail explain"),
    # runs and models
    ("evaluate {runs}/photo", DATA, "there is no run or model at {runs}/photo", "{run}"),
    ("predict {root}/nothing {photo}", DATA, "there is no run or model", "vitrail train digits"),
    ("predict {empty} {photo}", DATA, "holds no model", "vitrail train"),
    ("predict {unfinished} {photo}", DATA, "has not come to its end", "--out {unfinished} --resume auto"),
    ("train digits --out {run}", USAGE, "exists already", "--resume auto"),
    ("train digits --out {photos}", USAGE, "exists already", "another --out"),
    ("train digits --out {photo}", USAGE, "exists already", "another --out"),
    ("train digits --out {photos} --resume auto", USAGE, "holds no run", "another --out"),
    ("train {photos} --out {run} --resume auto --epochs 9", USAGE, "epochs: 1 -> 9", "leave these out"),
    ("train digits --out {run} --resume auto", USAGE, "data: ", "another --out"),
    # nothing of the user's is written over
    ("predict {run} {photo} --out {photo}", USAGE, "written as CSV", "--out"),
    ("predict {run} {photo} --out {manifests}/missing.csv", USAGE, "holds no predictions", "--out"),
    ("explain {run} {photo} --out {photo}", USAGE, "is an HTML page", ".html"),
    ("explain {run} {photo} --out {root}/mine.html", USAGE, "is no explanation by vitrail", "--out"),
    ("explain {run} {photo} --out {root}/photos.html", USAGE, "where the pictures would go, exists", "photos-2.html"),
]


def put_masks(root: Path, photo: Path) -> None:
    """Folders with a mask of the photograph that cannot be used."""
    with Image.open(photo) as picture:
        black = Image.new("L", picture.size)
    thin = black.copy()
    thin.putpixel((0, 0), 255)
    for name, mask in (("small", Image.new("L", (5, 5), 255)), ("black", black), ("thin", thin)):
        (root / name).mkdir()
        mask.save(root / name / f"{photo.stem}.png")
    (root / "broken").mkdir()
    (root / "broken" / f"{photo.stem}.png").write_text("no mask")


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders in every bad state, and one good run."""
    root = tmp_path_factory.mktemp("bad")
    names = (
        "photos",
        "damaged",
        "others",
        "empty",
        "one",
        "texts",
        "loose",
        "half",
        "no_photographs",
        "half_mnist_m",
        "manifests",
        "configs",
        "masks",
        "runs",
        "new",
    )
    place = {name: root / name for name in names} | {"root": root}
    for name in names:
        place[name].mkdir()
    make_photographs(place["photos"], ("beach", "field", "night"), per_class=10, seed=0)
    make_photographs(place["others"], ("x", "y"), per_class=2, seed=0)
    make_photographs(place["one"], ("beach",), per_class=3, seed=0)
    make_photographs(place["damaged"], ("beach", "field", "night"), per_class=10, seed=0)
    (place["damaged"] / "beach" / "beach_000.jpg").write_text("no picture")
    (place["damaged"] / "field" / "field_000.jpg").write_bytes(b"")
    cut = place["damaged"] / "night" / "night_000.jpg"
    cut.write_bytes(cut.read_bytes()[:400])
    for name in ("a", "b"):
        (place["texts"] / name).mkdir()
        (place["texts"] / name / "read.me").write_text("no picture")
    shutil.copy(place["photos"] / "beach" / "beach_000.jpg", place["loose"] / "p.jpg")
    (place["half"] / "train-images-idx3-ubyte").write_bytes(b"")
    put_idx(place["no_photographs"])
    (place["no_photographs"] / "photographs").mkdir()
    (place["half_mnist_m"] / "mnist_m_train_labels.txt").write_text("00000000.png 5\n")
    (place["manifests"] / "columns.csv").write_text("file,class\na.jpg,b\n")
    (place["manifests"] / "missing.csv").write_text("path,label\nno.jpg,b\n")
    (place["manifests"] / "empty.csv").write_text("path,label\na.jpg,\n")
    (place["configs"] / "unknown.yaml").write_text("optimization: {lrate: 0.1}\n")
    (place["configs"] / "broken.yaml").write_text("optimization: [\n")
    (place["configs"] / "type.yaml").write_text("optimization: {epochs: several}\n")
    (place["configs"] / "list.yaml").write_text("- a\n")
    put_masks(place["masks"], place["photos"] / "beach" / "beach_001.jpg")
    Image.fromarray(np.full((9, 9), np.nan, np.float32)).save(root / "nan.tif")
    save_file({"references": torch.zeros(3, 3, 9, 9, dtype=torch.uint8)}, place["texts"] / "other.safetensors")
    (root / "mine.html").write_text("<p>my own page</p>")
    run = place["runs"] / "photos-1"
    vitrail.train(str(place["photos"]), run, vitrail.TrainOptions(epochs=1, image_size=16, threads=1))
    unfinished = place["runs"] / "begun"
    unfinished.mkdir()
    shutil.copy(run / "config.yaml", unfinished)
    return place | {"unfinished": unfinished, "run": run, "photo": place["photos"] / "beach" / "beach_001.jpg"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].replace("{", "").replace("}", ""))
def test_two_lines_and_an_exit_code(
    case: Case,
    places: dict[str, Path],
    vitrail_says: Callable[..., Answer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words, code, problem, hint = (part.format(**places) if isinstance(part, str) else part for part in case)
    monkeypatch.chdir(tmp_path)
    before = hashes(places["root"])
    answer = vitrail_says(*str(words).split())
    assert str(problem) in answer.problem
    assert str(hint) in answer.hint
    assert answer.code == code
    assert hashes(places["root"]) == before
    assert list(tmp_path.iterdir()) == []  # nor was anything begun


def test_the_suite_can_fail(
    places: dict[str, Path], vitrail_says: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of another kind is no two lines of house style, and gets exit code 1."""
    monkeypatch.setattr("vitrail.cli.models.parse", lambda *_: 1 / 0)
    answer = vitrail_says("models")
    assert answer.code == 1
    with pytest.raises(AssertionError):
        _ = answer.problem
    assert "ZeroDivisionError" in answer.err
    assert "--debug" in answer.err.splitlines()[-1]


def test_a_traceback_only_with_debug(vitrail_says: Callable[..., Answer]) -> None:
    assert "Traceback" not in vitrail_says("models", "Q/1").err
    answer = vitrail_says("models", "Q/1", "--debug")
    assert "Traceback" in answer.err
    assert answer.err.splitlines()[-1].startswith("try: ")
    assert answer.code == 2


def damage(model: Path, how: str) -> None:
    """Bring a model folder into one bad state."""
    weights, config, preprocessor = (
        model / n for n in ("model.safetensors", "config.json", "preprocessor_config.json")
    )
    content = weights.read_bytes()
    match how:
        case "truncated":
            weights.write_bytes(content[: len(content) // 2])
        case "empty":
            weights.write_bytes(b"")
        case "flipped in the header":
            weights.write_bytes(content[:3] + bytes([content[3] ^ 0x7F]) + content[4:])
        case "one bit flipped in the numbers":
            weights.write_bytes(content[:-1000] + bytes([content[-1000] ^ 1]) + content[-999:])
        case "no weights":
            weights.unlink()
        case "no config":
            config.unlink()
        case "no preprocessing":
            preprocessor.unlink()
        case "config is no JSON":
            config.write_text(config.read_text()[:-20])
        case "config is a list":
            config.write_text("[]")
        case "another width" | "another class" | "another channel count" | "another kind":
            values = json.loads(config.read_text())
            if how == "another class":
                values["classes"].append("new")
            elif how == "another kind":
                values["model_type"] = "bert"
            else:
                key = {"another width": "width", "another channel count": "channels"}[how]
                values["network"][key] += 4 if key == "width" else 1
            config.write_text(json.dumps(values))
        case _:
            raise AssertionError(how)


DAMAGES = {
    "truncated": "model.safetensors is damaged",
    "empty": "model.safetensors is damaged",
    "flipped in the header": "model.safetensors is damaged",
    "one bit flipped in the numbers": "do not have the checksum",
    "no weights": "model.safetensors is missing",
    "no config": "holds no model",
    "no preprocessing": "preprocessor_config.json is missing",
    "config is no JSON": "config.json is damaged",
    "config is a list": "config.json is damaged",
    "another width": "tensors do not fit the network",
    "another class": "class names",
    "another channel count": "channels",
    "another kind": "is not of a vitrail model",
}


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("verb", ["predict", "evaluate", "explain", "models"])
def test_a_damaged_model(
    verb: str,
    how: str,
    places: dict[str, Path],
    vitrail_says: Callable[..., Answer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    run = shutil.copytree(places["run"], tmp_path / "run")
    damage(run / "model", how)
    before = hashes(tmp_path)
    answer = vitrail_says(verb, run, *([] if verb in ("evaluate", "models") else [places["photo"]]))
    assert DAMAGES[how] in answer.problem
    assert answer.code == 3
    assert answer.out == ""
    assert hashes(tmp_path) == before


@pytest.mark.parametrize("content", ["", "{", "[1, 2]", '{"name": "digits"}'])
def test_a_damaged_memory_of_the_data(
    content: str, places: dict[str, Path], vitrail_says: Callable[..., Answer], tmp_path: Path
) -> None:
    run = shutil.copytree(places["run"], tmp_path / "run")
    (run / "data.json").write_text(content)
    answer = vitrail_says("evaluate", run)
    assert "data.json is damaged" in answer.problem
    assert answer.code == 3
    way_out = answer.hint.partition("vitrail ")[2].replace("DATA", str(places["photos"])).split()
    assert vitrail_says(*way_out).code == 0


def test_data_that_is_gone(places: dict[str, Path], vitrail_says: Callable[..., Answer], tmp_path: Path) -> None:
    run = shutil.copytree(places["run"], tmp_path / "run")
    values = json.loads((run / "data.json").read_text())
    (run / "data.json").write_text(json.dumps(values | {"root": str(tmp_path / "moved")}))
    answer = vitrail_says("evaluate", run)
    assert "moved does not exist" in answer.problem
    assert answer.code == 3


def test_data_that_changed_is_no_ground_to_go_on(
    places: dict[str, Path], vitrail_says: Callable[..., Answer], tmp_path: Path
) -> None:
    data = shutil.copytree(places["photos"], tmp_path / "data")
    words = ("train", data, "--epochs", 1, "--image-size", 16, "--threads", 1, "--out", tmp_path / "run")
    assert vitrail_says(*words).code == 0
    (data / "beach" / "beach_000.jpg").unlink()
    before = hashes(tmp_path)
    answer = vitrail_says(*words, "--resume", "auto")
    assert "has changed since" in answer.problem
    assert answer.code == 3
    assert hashes(tmp_path) == before


def test_an_empty_class_is_reported_and_does_not_stop(
    places: dict[str, Path], vitrail_says: Callable[..., Answer], tmp_path: Path
) -> None:
    data = shutil.copytree(places["photos"], tmp_path / "data")
    for name in ("void", ".hidden", ".ipynb_checkpoints"):
        (data / name).mkdir()
    answer = vitrail_says("train", data, "--epochs", 1, "--image-size", 16, "--threads", 1, "--out", tmp_path / "run")
    assert answer.code == 0
    assert "without pictures: void" in answer.out
    assert ".ipynb_checkpoints" in answer.out
    assert vitrail.load(tmp_path / "run").classes == ("beach", "field", "night")


def test_one_picture_that_is_none_is_left_out_and_named(
    places: dict[str, Path], vitrail_says: Callable[..., Answer], tmp_path: Path
) -> None:
    data = shutil.copytree(places["photos"], tmp_path / "data")
    (data / "beach" / "beach_003.png").write_text("no picture")
    before = hashes(data)
    answer = vitrail_says("train", data, "--epochs", 1, "--image-size", 16, "--threads", 1, "--out", tmp_path / "run")
    assert answer.code == 0
    assert sum("beach_003.png" in line for line in answer.out.splitlines()) == 1
    assert hashes(data) == before


def test_pictures_of_every_channel_count_are_converted(
    places: dict[str, Path], vitrail_says: Callable[..., Answer], tmp_path: Path
) -> None:
    with Image.open(places["photo"]) as picture:
        for mode in ("1", "L", "LA", "P", "RGBA", "CMYK", "I;16"):
            picture.convert("L" if mode == "I;16" else mode).convert(mode).save(
                tmp_path / f"{mode.replace(';', '')}.tif"
            )
    answer = vitrail_says("predict", places["run"], tmp_path)
    assert answer.code == 0, answer.err
    assert len(answer.out.splitlines()) == 7


def test_a_tensor_of_the_wrong_shape_is_an_error(places: dict[str, Path]) -> None:
    network = vitrail.load(places["run"]).network
    height, width = network.config.image
    with pytest.raises(UsageError, match=r"images must be \(b, 3, h, w\)"):
        network(torch.zeros(1, 1, height, width))
    with pytest.raises(UsageError, match="cannot be cut"):
        network(torch.zeros(1, 3, height + 1, width))


def test_python_gets_the_same_two_lines(places: dict[str, Path]) -> None:
    with pytest.raises(DataError) as caught:
        vitrail.load(places["empty"])
    assert isinstance(caught.value, ValueError)
    assert str(caught.value).splitlines() == [caught.value.problem, f"try: {caught.value.hint}"]
