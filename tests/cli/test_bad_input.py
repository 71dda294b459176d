"""Whatever is typed or lies on the disk: one line with the problem, one with what to try, the right exit code.

The first table is the conformance suite: (words, exit code, what the problem must name). `{...}` stands for one of the
places that `places` prepares. No command may change a file that was there before, and a hint that is a command is one
that can be typed.
"""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import vitrail
from tests.cli.command import DATA, USAGE, Cli, must_be_understood, must_refuse, retyped
from tests.errors import must_raise
from tests.photographs import make_photographs
from tests.shared_runs import once, stamps
from vitrail.errors import DataError, UsageError

Case = tuple[str, int, str]
CASES: list[Case] = [
    # verbs and options
    ("trian digits", USAGE, "trian"),
    ("xyz", USAGE, "xyz"),
    ("train", USAGE, ""),
    ("train digits --epoch 3", USAGE, "--epoch"),
    ("train digits --learning-rate 3", USAGE, "--learning-rate"),
    ("train digits --batch_sise 3", USAGE, "--batch-sise"),
    ("train digits more", USAGE, "more"),
    ("train digits -x", USAGE, "-x"),
    ("train digits --epochs", USAGE, "--epochs"),
    ("train digits --epochs many", USAGE, "--epochs many"),
    ("train digits --lr fast", USAGE, "--lr fast"),
    ("train digits --resume yes", USAGE, "--resume yes auto never anyway"),
    ("train digits --precision fp8", USAGE, "--precision fp8 bf16"),
    ("train digits --resume auto", USAGE, "--resume"),
    ("evaluate", USAGE, "evaluate RUN"),
    ("predict", USAGE, "predict RUN"),
    ("predict {run}", USAGE, ""),
    ("explain {run}", USAGE, ""),
    # values that cannot be
    ("train digits --epochs 0", USAGE, "epochs 0"),
    ("train digits --epochs -3", USAGE, "epochs -3"),
    ("train digits --batch-size 0", USAGE, "batch-size 0"),
    ("train digits --accumulate 0", USAGE, "accumulate 0"),
    ("train digits --lr -1", USAGE, "-1"),
    ("train digits --lr nan", USAGE, "nan"),
    ("train digits --logit-adjustment inf", USAGE, "inf"),
    ("train digits --class-weights {root}/nowhere", USAGE, "{root}/nowhere"),
    ("train digits --threads 0", USAGE, "threads 0"),
    ("predict {run} {photo} --threads 0", USAGE, "threads 0"),
    ("predict {run} {photo} --mean 0.5 0.5 0.5", USAGE, "{run} mean"),
    ("evaluate {run} --assume heads=3 --std 0.5", USAGE, "{run} heads std"),
    ("train digits --workers -1", USAGE, "workers -1"),
    # options that would have no effect
    ("train digits --workers 2", USAGE, "--workers 2 digits"),
    ("train digits --class-weights auto --balance", USAGE, "class-weights balance"),
    ("train sort-digits --balance", USAGE, "balance sequences"),
    ("train digits --data-root {empty}", USAGE, "--data-root digits"),
    ("train {photos} --out {run} --resume auto --data-root {empty}", USAGE, "--data-root"),
    ("train {photos} --out {run} --resume auto --config {configs}/other.yaml", USAGE, "{run} 1 9 pad 0.5"),
    ("train digits --config {configs}/texts.yaml", USAGE, "separator digits"),
    ("train digits --config {configs}/made.yaml", USAGE, "counts digits"),
    ("evaluate {run} --data-root {empty}", USAGE, "--data-root"),
    ("predict {run} {photo} --data-root {empty}", USAGE, "--data-root"),
    ("explain {run} {photo} --data-root {empty}", USAGE, "--data-root {photo}"),
    ("explain {run} {photo} --count 2", USAGE, "--count 2"),
    ("train digits --device gpu", USAGE, "device gpu cpu"),
    ("predict {run} {photo} --device cuda:99", USAGE, "device cuda:99"),
    ("explain {run} {photo} --count 0", USAGE, "--count 0"),
    # recipe, size, method, target, split: the nearest is offered
    ("train digits --recipe fotos", USAGE, "fotos"),
    ("train digits --size B16", USAGE, "B16"),
    ("train digits --size Q/2", USAGE, "Q/2"),
    ("models XL/16", USAGE, "XL/16"),
    ("models s/16", USAGE, "s/16"),
    ("explain {run} {photo} --method rolout", USAGE, "rolout rollout"),
    ("explain {run} {photo} --methods rollout", USAGE, "--methods --compare"),
    ("explain {run} {photo} --compare --methods rolout", USAGE, "rolout rollout"),
    ("explain {run} {photo} --compare --methods ,", USAGE, "--methods"),
    ("explain {run} {photo} --compare --option layer=1", USAGE, "--option"),
    ("explain {run} {photo} --method rollout --option layer=1", USAGE, "rollout layer fusion"),
    ("explain {run} {photo} --method raw_attention --option layer=99", USAGE, "layer 99"),
    ("explain {run} {photo} --method raw_attention --option layer=x", USAGE, "layer x"),
    ("explain {run} {photo} --method raw_attention --option head=99", USAGE, "head 99"),
    ("explain {run} {photo} --contrast feild", USAGE, "feild beach field night"),
    ("explain {run} {photo} --target night --contrast night", USAGE, "--target --contrast night"),
    ("explain {run} {photo} --method rollout --contrast night", USAGE, "rollout"),
    ("explain {run} {photo} --no-trust --masks {empty}", USAGE, "--masks --no-trust"),
    ("explain {run} {photo} --no-trust --background {photos}", USAGE, "--background --no-trust"),
    ("explain {run} {photo} --target feild", USAGE, "feild beach field night"),
    ("evaluate {run} digits --split tset", USAGE, "tset train validation test"),
    ("evaluate {run} --split vaildation", USAGE, "vaildation train validation"),
    # sizes that patches do not divide, channels
    ("train digits --size S/3", USAGE, "8x8 3x3"),
    ("train digits --image-size 9", USAGE, "9x9 2x2"),
    ("train digits --image-size 0", USAGE, "image-size 0"),
    ("train digits --image-size 0x5", USAGE, "image-size 0x5"),
    ("models S/17", USAGE, "224x224 17x17"),
    ("models S/16 --channels 0", USAGE, "channels 0"),
    ("models {run} --channels 4", USAGE, "{run} --channels"),
    # configuration files
    ("train digits --config {empty}/no.yaml", USAGE, "{empty}/no.yaml"),
    ("train digits --config {configs}/unknown.yaml", USAGE, "unknown.yaml optimization.lrate"),
    ("train digits --config {configs}/broken.yaml", USAGE, "broken.yaml YAML"),
    ("train digits --config {configs}/type.yaml", USAGE, "type.yaml optimization.epochs several"),
    ("train digits --config {configs}/list.yaml", USAGE, "list.yaml"),
    # data
    ("train mnits", USAGE, "mnits"),
    ("train {root}/phtos", DATA, "{root}/phtos"),
    ("train {root}/none/photos", DATA, "{root}/none/photos"),
    ("train {empty}", DATA, "{empty}"),
    ("train {one}", DATA, "beach"),
    ("train {texts}", DATA, "{texts}"),
    ("train {loose}", DATA, "{loose}"),
    ("train {photo}", DATA, "{photo} .csv .jsonl"),
    ("train {damaged}", DATA, "3 27 beach_000.jpg field_000.jpg night_000.jpg"),
    ("train mnist --data-root {empty}/nowhere", DATA, "{empty}/nowhere"),
    ("train mnist --data-root {half}", DATA, "{half} train-labels-idx1-ubyte"),
    ("train mnist-m --data-root {no_photographs}", DATA, "{no_photographs}/photographs"),
    ("train mnist-m --data-root {half_mnist_m}", DATA, "mnist_m_train_labels.txt mnist_m_train mnist_m_test"),
    ("train {manifests}/columns.csv", DATA, "columns.csv path weather"),
    ("train {manifests}/missing.csv", DATA, "missing.csv no.jpg"),
    ("train {manifests}/twice.csv", DATA, "twice.csv path"),
    ("predict {run} {manifests}/commas.tsv", DATA, "commas.tsv 2 ../loose/p.jpg,b"),
    ("evaluate {run} {manifests}/semicolons.tsv", DATA, "semicolons.tsv separators"),
    ("train {manifests}/empty.csv", DATA, "empty.csv 2 label"),
    ("evaluate {run} {root}/phtos", DATA, "{root}/phtos"),
    ("evaluate {run} {others}", DATA, "{others}"),
    ("evaluate {run} {damaged} --strict", DATA, "3"),
    ("evaluate {run}/model", USAGE, "{run}/model"),
    # images
    ("predict {run} {root}/no.jpg", DATA, "{root}/no.jpg"),
    ("predict {run} {photos}/beach/beach_0000.jpg", DATA, "beach_0000.jpg"),
    ("predict {run} {empty}", DATA, "{empty}"),
    ("predict {run} {damaged}/beach/beach_000.jpg", DATA, "beach_000.jpg"),
    ("predict {run} {damaged}/field/field_000.jpg", DATA, "field_000.jpg 0"),
    ("predict {run} {damaged}/night/night_000.jpg", DATA, "night_000.jpg"),
    ("predict {run} {photo} {damaged}/night/night_000.jpg", DATA, "night_000.jpg 1"),
    ("explain {run} {damaged}/beach/beach_000.jpg --out {new}/p.html", DATA, "beach_000.jpg"),
    ("explain {run} {empty}", DATA, "{empty}"),
    ("explain {run} {root}/nan.tif", DATA, "nan.tif"),
    ("explain {run} {photo} --background {empty}", DATA, "{empty}"),
    ("explain {run} {photo} --background {root}/nowhere", DATA, "{root}/nowhere"),
    ("explain {run} {photo} --background {texts}/other.safetensors", DATA, "other.safetensors 9 16"),
    ("explain {run} {photo} --masks {root}/nowhere", DATA, "{root}/nowhere"),
    ("explain {run} {photo} --masks {empty}", DATA, "{photo} {empty}/beach_001.png"),
    ("explain {run} {photo} --masks {masks}/small", DATA, "small/beach_001.png 5"),
    ("explain {run} {photo} --masks {masks}/black", DATA, "black/beach_001.png"),
    ("explain {run} {photo} --masks {masks}/broken", DATA, "broken/beach_001.png"),
    ("explain {run} {photo} --masks {masks}/thin --out {new}/p.html", DATA, "{photo} 8"),
    ("explain {run} {photos} {photo}", USAGE, "{photos}"),
    # features
    ("embed", USAGE, "embed RUN"),
    ("embed {photos}", USAGE, ""),
    ("embed {run} {photos}", USAGE, "--out"),
    ("embed {run} {photos} --out x.csv", USAGE, "x.csv"),
    ("embed {run} {photos} --out {photo}", USAGE, "{photo}"),
    ("embed {run} {photos} --out x.npz --split tset", USAGE, "tset"),
    ("embed {run} {photos} --out x.npz --workers -1", USAGE, "--workers -1"),
    ("embed {run} digits --out x.npz --workers 1", USAGE, "workers digits"),
    ("embed {run} {photos} --out x.npz --data-root {empty}", USAGE, "--data-root"),
    ("embed {run} {photos} --out {photo}/x.npz", USAGE, "{photo}/x.npz"),
    ("embed {run} {empty} --out x.npz", DATA, "{empty}"),
    ("embed {root}/nothing {photos} --out x.npz", DATA, "{root}/nothing"),
    ("similar {photo} {photos}", USAGE, ""),
    ("similar {run} {photo}", USAGE, "similar DATA"),
    ("similar {run} {photo} {photos} --neighbours 0", USAGE, "--neighbours 0"),
    ("similar {run} {photo} {photos} --pooling flat", USAGE, "flat"),
    ("similar {run} {photo} {photos} --out {photo}", USAGE, "{photo}"),
    ("similar {run} {photo} {photos} --out {root}/mine.html", USAGE, "{root}/mine.html"),
    ("similar {run} {root}/no.jpg {photos}", DATA, "{root}/no.jpg"),
    ("similar {run} {photo} {empty}", DATA, "{empty}"),
    ("similar {run} {photo} {photo}", DATA, "{photo}"),
    ("embed {run} {damaged}/night/night_000.jpg --out x.npz", DATA, "night_000.jpg"),
    # runs and models
    ("evaluate {runs}/photo", DATA, "{runs}/photo"),
    ("predict {root}/nothing {photo}", DATA, "{root}/nothing"),
    ("predict {empty} {photo}", DATA, "{empty} weights"),
    ("predict {unfinished} {photo}", DATA, "{unfinished}"),
    ("train digits --out {run}", USAGE, "{run}"),
    ("train digits --out {photos}", USAGE, "{photos}"),
    ("train digits --out {photo}", USAGE, "{photo}"),
    ("train digits --out {photos} --resume auto", USAGE, "{photos} config.yaml"),
    ("train {photos} --out {run} --resume auto --batch-size 9", USAGE, "{run} batch_size 9"),
    ("train digits --out {run} --resume auto", USAGE, "{run} data digits"),
    # nothing of the user's is written over
    ("predict {run} {photo} --out {photo}", USAGE, "{photo} .csv"),
    ("predict {run} {photo} --out {manifests}/missing.csv", USAGE, "{manifests}/missing.csv"),
    ("explain {run} {photo} --out {photo}", USAGE, "HTML"),
    ("explain {run} {photo} --out {root}/mine.html", USAGE, "{root}/mine.html"),
    ("explain {run} {photo} --out {root}/photos.html", USAGE, "{root}/photos"),
]
BLAMED = [
    ("--epochs 0", "{file} --epochs 20"),
    ("--lr -1 --json", "{file} --lr 0.001 --json"),
    ("--threads 0", "{file} --threads 1"),
    ("--weight-decay -1 --lora 2", "{file} --weight-decay 0.05 --lora 2"),
    ("--lora 2", "{file} --lora 2 --init auto"),
    ("--workers 2", "{file}"),
    ("--verdicts -1", "{file} --verdicts 24"),
    ("--image-size 9", None),
]
"""Values on the command line that are wrong, beside a configuration file that is right; and what is to be typed."""
NEAREST = [
    ("trian digits", "vitrail train digits"),
    ("train digits --epoch 3", "vitrail train digits --epochs 3"),
    ("train digits --recipe d0-minst", "vitrail train digits --recipe d0-mnist"),
    ("models XL/16", "vitrail models L/16"),
    ("explain {run} {photo} --method rolout", "vitrail explain {run} {photo} --method rollout"),
    ("explain {run} {photo} --target feild", "vitrail explain {run} {photo} --target field"),
    ("evaluate {run} digits --split tset", "vitrail evaluate {run} digits --split test"),
    ("train mnits", "vitrail train mnist"),
    ("train {root}/phtos", "vitrail train {root}/photos"),
    ("predict {run} {photos}/beach/beach_0000.jpg", "vitrail predict {run} {photos}/beach/beach_000.jpg"),
    ("evaluate {runs}/photo", "vitrail evaluate {run}"),
]
"""The whole hint is what lies nearest to what was typed."""


def put_masks(root: Path, photo: Path) -> None:
    """Folders with a mask of the photograph that cannot be used."""
    with Image.open(photo) as image:
        black = Image.new("L", image.size)
    thin = black.copy()
    thin.putpixel((0, 0), 255)
    for name, mask in (("small", Image.new("L", (5, 5), 255)), ("black", black), ("thin", thin)):
        (root / name).mkdir()
        mask.save(root / name / f"{photo.stem}.png")
    (root / "broken").mkdir()
    (root / "broken" / f"{photo.stem}.png").write_text("no mask")


def put_mnist(root: Path) -> None:
    """The four files of MNIST, of ten images that are black."""
    for name in ("train", "t10k"):
        for file, shape in ((f"{name}-images-idx3-ubyte", (10, 28, 28)), (f"{name}-labels-idx1-ubyte", (10,))):
            head = bytes((0, 0, 8, len(shape))) + np.array(shape, dtype=">u4").tobytes()
            (root / file).write_bytes(head + bytes(int(np.prod(shape))))


FOLDERS = [
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
]


def put_places(root: Path) -> None:
    """Folders in every bad state, and one good run."""
    place = {name: root / name for name in FOLDERS}
    for folder in place.values():
        folder.mkdir()
    make_photographs(place["photos"], ("beach", "field", "night"), per_class=10, seed=0)
    make_photographs(place["others"], ("x", "y"), per_class=2, seed=0)
    make_photographs(place["one"], ("beach",), per_class=3, seed=0)
    make_photographs(place["damaged"], ("beach", "field", "night"), per_class=10, seed=0)
    (place["damaged"] / "beach" / "beach_000.jpg").write_text("no image")
    (place["damaged"] / "field" / "field_000.jpg").write_bytes(b"")
    cut = place["damaged"] / "night" / "night_000.jpg"
    cut.write_bytes(cut.read_bytes()[:400])
    for name in ("a", "b"):
        (place["texts"] / name).mkdir()
        (place["texts"] / name / "read.me").write_text("no image")
    shutil.copy(place["photos"] / "beach" / "beach_000.jpg", place["loose"] / "p.jpg")
    (place["half"] / "train-images-idx3-ubyte").write_bytes(b"")
    put_mnist(place["no_photographs"])
    (place["no_photographs"] / "photographs").mkdir()
    (place["half_mnist_m"] / "mnist_m_train_labels.txt").write_text("00000000.png 5\n")
    (place["manifests"] / "columns.csv").write_text("weather,class\nfine,b\n")
    (place["manifests"] / "twice.csv").write_text("path,path,label\nno.jpg,no.jpg,b\n")
    (place["manifests"] / "commas.tsv").write_text("path\tlabel\n../loose/p.jpg,b\n")
    (place["manifests"] / "semicolons.tsv").write_text("path;label\n../loose/p.jpg,b\n")
    (place["manifests"] / "good.csv").write_text("path\n../loose/p.jpg\n")
    (place["manifests"] / "missing.csv").write_text("path,label\nno.jpg,b\n")
    (place["manifests"] / "empty.csv").write_text("path,label\n../loose/p.jpg,\n")
    (place["configs"] / "unknown.yaml").write_text("optimization: {lrate: 0.1}\n")
    (place["configs"] / "broken.yaml").write_text("optimization: [\n")
    (place["configs"] / "type.yaml").write_text("optimization: {epochs: several}\n")
    (place["configs"] / "other.yaml").write_text("optimization: {epochs: 9, clip_grad_norm: 0.5}\nresize: pad\n")
    (place["configs"] / "texts.yaml").write_text("separator: ' '\n")
    (place["configs"] / "made.yaml").write_text("counts: {train: 7}\n")
    (place["configs"] / "list.yaml").write_text("- a\n")
    put_masks(place["masks"], place["photos"] / "beach" / "beach_001.jpg")
    Image.fromarray(np.full((9, 9), np.nan, np.float32)).save(root / "nan.tif")
    save_file({"background": torch.zeros(3, 3, 9, 9, dtype=torch.uint8)}, place["texts"] / "other.safetensors")
    (root / "mine.html").write_text("<p>my own page</p>")
    run = place["runs"] / "photos-1"
    vitrail.train(str(place["photos"]), run, vitrail.TrainOptions(epochs=1, image_size=16, threads=1))
    (place["runs"] / "begun").mkdir()
    shutil.copy(run / "config.yaml", place["runs"] / "begun")


@pytest.fixture(scope="module")
def places() -> dict[str, Path]:
    """The paths of all that `put_places` makes, by name; none of it may ever change."""
    root = once("bad-input", put_places)
    runs = {"run": root / "runs" / "photos-1", "unfinished": root / "runs" / "begun"}
    named = {"root": root, "photo": root / "photos" / "beach" / "beach_001.jpg"}
    return {name: root / name for name in FOLDERS} | runs | named


def words_of(text: str, places: dict[str, Path]) -> list[str]:
    return [word.format(**places) for word in text.split()]


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].replace("{", "").replace("}", ""))
def test_two_lines_and_an_exit_code(
    case: Case, places: dict[str, Path], cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, code, given = words_of(case[0], places), case[1], case[2].format(**places)
    monkeypatch.chdir(tmp_path)
    before = stamps(places["root"])
    answer = cli(*words)
    must_refuse(answer, code, given)
    assert stamps(places["root"]) == before
    assert list(tmp_path.iterdir()) == []  # nor was anything begun
    again = retyped(words, answer)
    if again is not None:
        must_be_understood(again)


@pytest.mark.usefixtures("as_a_user")
def test_an_export_has_no_network_and_other_files_of_its_ending_are_none(
    places: dict[str, Path], cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    entry = b"\x0a\x07vitrail\x12\x02{}"
    Path("model.onnx").write_bytes(b"\x08\x0a" + b"r" + bytes([len(entry)]) + entry)
    Path("junk.onnx").write_text("no graph of vitrail")
    Path("nothing.onnx").write_bytes(b"")
    verbs = "models {}", "train digits --init {}", "explain {} {photo}", "export {} --to onnx"
    for verb in verbs:
        words = verb.format("model.onnx", **places).split()
        must_refuse(cli(*words), USAGE, "model.onnx")
        for name in ("junk.onnx", "nothing.onnx"):
            must_refuse(cli(*verb.format(name, **places).split()), DATA, name)
    with must_raise(UsageError, "model.onnx"):
        vitrail.train("digits", init="model.onnx")


@pytest.mark.parametrize(("text", "hint"), NEAREST, ids=[text for text, _ in NEAREST])
def test_the_nearest_is_offered(text: str, hint: str, places: dict[str, Path], cli: Cli) -> None:
    answer = cli(*words_of(text, places))
    assert answer.hint == hint.format(**places)


@pytest.mark.parametrize(("typed", "wanted"), BLAMED, ids=[typed for typed, _ in BLAMED])
def test_a_file_is_not_blamed_for_an_option(typed: str, wanted: str | None, cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "part.yaml"
    file.write_text("network: {width: 32, depth: 2, heads: 2, mlp_dim: 64}\n")
    answer = cli("train", "digits", "--config", file, *typed.split())
    must_refuse(answer, USAGE, typed.split()[1] if wanted else "9x9")
    assert str(file) not in answer.problem
    if wanted is not None:
        assert answer.hint == f"vitrail train digits --config {wanted.format(file=file)}"


@pytest.mark.parametrize(
    ("content", "given"),
    [
        ("optimization: {epochs: 0}", "epochs 0"),
        ("optimization: {lora: 3}", "lora"),
        ("keep: probe", "keep"),
        ("initial: {source: {run}, probe: true}\nkeep: tuned\nresize: crop", "keep"),
        ("network: {width: 30, heads: 7}", "30 7"),
    ],
)
def test_an_option_is_not_blamed_for_a_file(
    content: str, given: str, places: dict[str, Path], cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "part.yaml").write_text(content.replace("{run}", str(places["run"])))
    answer = cli("train", places["photos"], "--config", tmp_path / "part.yaml", "--seed", 3)
    must_refuse(answer, USAGE, f"{tmp_path / 'part.yaml'} {given}")
    assert f"--{given.split()[0]}" not in answer.problem


@pytest.mark.parametrize(
    ("content", "key"),
    [
        ("lr: 0.1", "optimization.learning_rate"),
        ("optimization: {lr: 0.1}", "optimization.learning_rate"),
        ("network: {widht: 8}", "network.width"),
        ("weight_decy: 0", "optimization.weight_decay"),
        ("datta: x", "data"),
        ("image_size: 8", "network.image_size"),
    ],
)
def test_a_key_that_is_none_leads_to_the_nearest_wherever_it_stands(
    content: str, key: str, cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "part.yaml").write_text(content)
    answer = cli("train", "digits", "--config", tmp_path / "part.yaml")
    must_refuse(answer, USAGE, str(tmp_path / "part.yaml"))
    assert answer.hint == key


@pytest.mark.parametrize(
    ("text", "more"),
    [
        ("models XL/16", ""),
        ("explain {run} {photo} --method raw_attention --option layer=99 --no-trust", "--out p.html"),
        ("explain {run} {photo} --target feild --no-trust", "--out p.html"),
        ("evaluate {run} digits --split tset", ""),
        ("predict {run} {photo} --threads 0", ""),
        ("predict {run} {photos}/beach/beach_0000.jpg", ""),
        ("models {root}/runs/photoss-1", ""),
        ("models {root}/runs", ""),
        ("train {photos} --size L16", "--out {run} --resume auto"),
        ("evaluate {run} digts --split tset", ""),
        ("predict {run} {manifests}/good.csv {photo}", ""),
        ("distill {photos} --teacher {root}/runs/photoss-1 --student Ti/16 --image-size 32 --dry-run", "--epochs 0"),
    ],
)
def test_a_hint_that_is_typed_leads_on(
    text: str, more: str, places: dict[str, Path], cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Really run, where that is cheap: an option goes behind the others, a name replaces the one it resembles."""
    monkeypatch.chdir(tmp_path)
    words = words_of(f"{text} {more}", places)
    answer = cli(*words)
    again = retyped(words, answer)
    assert again not in (None, words)
    second = cli(*again)
    assert second.code == 0 or second.problem != answer.problem, second.err


def test_the_suite_can_fail(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of another kind is no two lines of house style, and gets exit code 1."""
    monkeypatch.setattr("vitrail.cli.models.run_models", lambda *_: 1 / 0)
    answer = cli("models")
    assert answer.code == 1
    with pytest.raises(AssertionError):
        _ = answer.problem
    assert "ZeroDivisionError" in answer.err
    assert "--debug" in answer.err.splitlines()[-1]
    monkeypatch.undo()
    refused = cli("models", "Q/1")
    for code, given in ((DATA, "Q/1"), (USAGE, "Q/2")):
        with pytest.raises(AssertionError):
            must_refuse(refused, code, given)
    with pytest.raises(UsageError):
        must_be_understood(["models", "--no-such-option"])


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")]
)
def test_memory_that_runs_out_is_no_bug(error: Exception, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr("vitrail.cli.models.run_models", fails)
    answer = cli("models", "S/16")
    assert (answer.code, answer.out) == (1, "")
    assert "memory" in answer.problem
    assert "--debug" not in answer.hint


def test_a_traceback_only_with_debug(cli: Cli) -> None:
    assert "Traceback" not in cli("models", "Q/1").err
    answer = cli("models", "Q/1", "--debug")
    assert "Traceback" in answer.err
    assert answer.err.splitlines()[-1].startswith("try: ")
    assert answer.code == USAGE


# ---- models and runs that are damaged


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
            ours = values["vitrail"]
            if how == "another class":
                ours["output"]["classes"].append("new")
            elif how == "another kind":
                del values["vitrail"]
            else:
                key = {"another width": "width", "another channel count": "channels"}[how]
                ours["network"][key] += 4 if key == "width" else 1
            config.write_text(json.dumps(values))
        case _:
            raise AssertionError(how)


DAMAGES = {
    "truncated": "model.safetensors",
    "empty": "model.safetensors",
    "flipped in the header": "model.safetensors",
    "one bit flipped in the numbers": "model.safetensors",
    "no weights": "model.safetensors",
    "no config": "{run}",
    "no preprocessing": "preprocessor_config.json",
    "config is no JSON": "config.json",
    "config is a list": "config.json",
    "another width": "config.json width",
    "another class": "{run} 4 3",
    "another channel count": "channels",
    "another kind": "{run}",
}
"""What is damaged, and what the problem must name."""


@pytest.mark.parametrize(
    ("verb", "how"),
    [*(("predict", how) for how in DAMAGES), *((verb, "truncated") for verb in ("evaluate", "explain", "models"))],
)
def test_a_damaged_model(
    verb: str, how: str, places: dict[str, Path], cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = shutil.copytree(places["run"], tmp_path / "run")
    damage(run / "model", how)
    before = stamps(tmp_path)
    answer = cli(verb, run, *([] if verb in ("evaluate", "models") else [places["photo"]]))
    must_refuse(answer, DATA, DAMAGES[how].format(run=run))
    assert answer.out == ""
    assert stamps(tmp_path) == before


@pytest.mark.parametrize("content", ["", "{", "[1, 2]", '{"name": "digits"}'])
def test_a_damaged_memory_of_the_data(content: str, places: dict[str, Path], cli: Cli, tmp_path: Path) -> None:
    run = shutil.copytree(places["run"], tmp_path / "run")
    (run / "data.json").write_text(content)
    answer = cli("evaluate", run)
    must_refuse(answer, DATA, "data.json")
    if content == "":
        way_out = answer.hint.replace("DATA", str(places["photos"])).partition(": ")[2].split()
        assert cli("evaluate", *way_out).code == 0


def test_data_that_is_gone(places: dict[str, Path], cli: Cli, tmp_path: Path) -> None:
    run = shutil.copytree(places["run"], tmp_path / "run")
    values = json.loads((run / "data.json").read_text())
    (run / "data.json").write_text(json.dumps(values | {"root": str(tmp_path / "moved")}))
    must_refuse(cli("evaluate", run), DATA, str(tmp_path / "moved"))


def test_data_that_changed_is_no_ground_to_go_on(places: dict[str, Path], cli: Cli, tmp_path: Path) -> None:
    data = shutil.copytree(places["photos"], tmp_path / "data")
    words = ("train", data, "--epochs", 1, "--image-size", 16, "--threads", 1, "--out", tmp_path / "run")
    assert cli(*words).code == 0
    (data / "beach" / "beach_000.jpg").unlink()
    before = stamps(tmp_path)
    must_refuse(cli(*words, "--resume", "auto"), DATA, str(data))
    assert stamps(tmp_path) == before


# ---- data that has something odd, and is used


def test_what_can_be_left_out_is_left_out_and_named(places: dict[str, Path], cli: Cli, tmp_path: Path) -> None:
    """Empty class folders, hidden ones, and one image that is none."""
    data = shutil.copytree(places["photos"], tmp_path / "data")
    for name in ("void", ".hidden", ".ipynb_checkpoints"):
        (data / name).mkdir()
    (data / "beach" / "beach_003.png").write_text("no image")
    before = stamps(data)
    answer = cli("train", data, "--epochs", 1, "--image-size", 16, "--threads", 1, "--out", tmp_path / "run")
    assert answer.code == 0, answer.err
    for name in ("void", ".ipynb_checkpoints", "beach_003.png"):
        assert sum(name in line for line in answer.out.splitlines()) == 1, name
    assert vitrail.load(tmp_path / "run").classes == ("beach", "field", "night")
    assert stamps(data) == before


def test_images_of_every_channel_count_are_converted(places: dict[str, Path], cli: Cli, tmp_path: Path) -> None:
    with Image.open(places["photo"]) as image:
        for mode in ("1", "L", "LA", "P", "RGBA", "CMYK", "I;16"):
            of_mode = image.convert("L" if mode == "I;16" else mode)
            if mode == "I;16":  # with values in all bits
                of_mode = Image.fromarray(np.asarray(of_mode).astype(np.uint16) * 257)
            of_mode.save(tmp_path / f"{mode.replace(';', '')}.tif")
    answer = cli("predict", places["run"], tmp_path)
    assert answer.code == 0, answer.err
    assert len(answer.out.splitlines()) == 7


# ---- the same in Python


def test_a_tensor_of_the_wrong_shape_is_an_error(places: dict[str, Path]) -> None:
    network = vitrail.load(places["run"]).network
    height, width = network.config.image
    with pytest.raises(UsageError, match=r"\(b, 3, h, w\)"):
        network(torch.zeros(1, 1, height, width))
    with pytest.raises(UsageError, match=f"{height + 1}"):
        network(torch.zeros(1, 3, height + 1, width))


def test_python_gets_the_same_two_lines(places: dict[str, Path]) -> None:
    with pytest.raises(DataError) as caught:
        vitrail.load(places["empty"])
    assert isinstance(caught.value, ValueError)
    assert str(caught.value).splitlines() == [caught.value.problem, f"try: {caught.value.hint!s}"]


def test_python_gets_python_not_the_words_of_a_shell(places: dict[str, Path], tmp_path: Path) -> None:
    for call in (
        lambda: vitrail.train(None),
        lambda: vitrail.load(tmp_path / "none"),
        lambda: vitrail.evaluate(replace(vitrail.load(places["run"]), loaded_from="")),
        lambda: vitrail.load(places["root"] / "runs" / "photoss-1"),
    ):
        with pytest.raises(ValueError, match="try: ") as caught:
            call()
        assert not re.search(r"vitrail [a-z]|--|#", str(caught.value)), caught.value
