"""Images of 16 bits that a camera of 12 wrote: a training measures it and says so, a prediction asks for it."""

import io
import json
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.cli.command import DATA, USAGE, Cli, must_refuse
from tests.cli.test_elongated import TINY
from vitrail.data.images import FileImages, evenly
from vitrail.training.configuration.resolve import _depths

FAST = ("--epochs", 20, "--threads", 1, "--precision", "fp32")


def put(folder: Path, values: np.ndarray, bits: int) -> Path:
    folder.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.rint(values / 255 * (2**bits - 1)).astype(np.uint16)).save(folder)
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two classes, dark and bright, of 12 bits; the first image is as dark as one of 8 bits."""
    random = np.random.default_rng(0)
    for label, least in (("dark", 0), ("bright", 150)):
        for number in range(20):
            values = random.integers(least, least + 100, (16, 16)).astype(float)
            put(tmp_path / "data" / label / f"{number:02d}.png", values * (0.1 if not number + least else 1), 12)
    (tmp_path / "tiny.yaml").write_text(TINY)
    return tmp_path / "data"


def test_a_training_measures_it(data: Path, cli: Cli, tmp_path: Path) -> None:
    run, words = tmp_path / "run", (data, "--config", tmp_path / "tiny.yaml", *FAST)
    answer = cli("train", *words, "--out", run, "--json")
    assert json.loads(answer.out)["accuracy"] == 1.0
    assert vitrail.load(run).preprocessing.bits == 12
    assert [note for note in json.loads((run / "data.json").read_text())["notes"] if "12 bits" in note]
    assert cli("predict", run, data / "dark" / "00.png").code == 0, "a dark image of the same camera"
    assert json.loads(cli("evaluate", run, "--split", "train", "--json").out)["images"] == 36
    bright = put(tmp_path / "bright.png", np.full((16, 16), 255.0), 16)
    must_refuse(cli("predict", run, bright), DATA, f"{bright} 16 bits")
    assert cli("predict", run, bright, "--bits", 16).code == 0
    assert cli("train", *words, "--out", tmp_path / "stated", "--bits", 14, "--epochs", 1).code == 0
    assert vitrail.load(tmp_path / "stated").preprocessing.bits == 14
    tuned = ("train", data, "--init", run, "--out", tmp_path / "tuned", *FAST, "--epochs", 1)
    assert cli(*tuned).code == 0
    assert vitrail.load(tmp_path / "tuned").preprocessing.bits == 12
    wrong = cli("train", *words, "--bits", 13)
    must_refuse(wrong, USAGE, "bits 13")
    assert len(wrong.err.splitlines()) == 2, "refused before anything is chosen"
    assert wrong.hint == shlex.join(["vitrail", "train", *map(str, words), "--bits", "12"])
    (tmp_path / "bits.yaml").write_text(f"{TINY}bits: 13\n")
    must_refuse(cli("train", data, "--config", tmp_path / "bits.yaml"), USAGE, "bits 13")


def test_a_prediction_asks_for_it(data: Path, cli: Cli, tmp_path: Path) -> None:
    run, plain = tmp_path / "run", tmp_path / "plain"
    for number in range(20):
        for label in ("dark", "bright"):
            values = np.asarray(Image.open(data / label / f"{number:02d}.png")) / 4095 * 255
            (plain / label).mkdir(parents=True, exist_ok=True)
            Image.fromarray(values.round().astype(np.uint8)).save(plain / label / f"{number:02d}.png")
    assert cli("train", plain, "--out", run, "--config", tmp_path / "tiny.yaml", *FAST).code == 0
    file = data / "bright" / "05.png"
    refused = cli("predict", run, file)
    must_refuse(refused, DATA, f"{file} bits 12")
    assert cli(*shlex.split(refused.hint, comments=True)[1:]).code == 0, "as it is typed"
    found = json.loads(cli("predict", run, file, "--bits", 12, "--json").out)
    assert found[0]["label"] == "bright"
    for verb, out in (
        ("evaluate", ()),
        ("embed", ("--out", tmp_path / "f.npz")),
        ("predict", ("--out", tmp_path / "p.csv")),
    ):
        refused = cli(verb, run, data, *out)
        must_refuse(refused, DATA, "bits 12")
        again = cli(*shlex.split(refused.hint, comments=True)[1:])
        assert again.code == 0 or "--bits 12" in again.hint, again.err
    assert json.loads(cli("evaluate", run, data, "--bits", 12, "--json").out)["accuracy"] == 1.0
    assert vitrail.load(run, bits=12).predict(file)[0].label == "bright"
    packed = tmp_path / "packed"  # scaled to 8 pixels, all bits are kept
    assert cli("data", "pack", data, "--out", packed, "--shorter-side", 8).code == 0
    assert json.loads(cli("evaluate", run, packed, "--bits", 12, "--json").out)["images"] == 40


def test_a_single_one_among_photographs_is_read_by_every_verb(cli: Cli, tmp_path: Path) -> None:
    """It lies where no sample of 64 of the 130 sees it; a moved copy is known by its bytes, whatever is stated."""
    random = np.random.default_rng(1)
    for label, least in (("dark", 0), ("bright", 150)):
        (tmp_path / "data" / "train" / label).mkdir(parents=True)
        (tmp_path / "data" / "val" / label).mkdir(parents=True)
        for number in range(65):
            values = random.integers(least, least + 100, (16, 16)).astype(np.uint8)
            place = tmp_path / "data" / ("train" if number < 50 else "val") / label / f"{number:02d}.jpg"
            Image.fromarray(values).save(place)
    odd = put(tmp_path / "data/train/bright/07b.png", random.integers(150, 250, (16, 16)).astype(float), 12)
    every = sorted(tmp_path.glob("data/train/*/*"))
    sampled = {every[row] for row in np.linspace(0, len(every) - 1, 64).astype(int)}
    assert odd not in sampled
    assert odd not in evenly(every, 64)
    (tmp_path / "tiny.yaml").write_text(TINY)
    run = tmp_path / "run"
    assert cli("train", tmp_path / "data", "--config", tmp_path / "tiny.yaml", *FAST, "--out", run).code == 0
    assert vitrail.load(run).preprocessing.bits == 12
    assert json.loads((run / "data.json").read_text()).get("skipped", []) == []
    assert json.loads(cli("predict", run, odd, "--json").out)[0]["label"] == "bright"
    assert cli("explain", run, odd, "--out", tmp_path / "e.html").code == 0
    assert json.loads(cli("evaluate", run, "--split", "train", "--json").out)["images"] == 101
    copy = shutil.copytree(tmp_path / "data" / "train", tmp_path / "moved")
    for stated in ((), ("--bits", 14), ("--bits", 16)):
        told = json.loads(cli("evaluate", run, copy, *stated, "--json").out)["trained_on"]
        assert (told["images"], told["ties"]["content"]) == (101, 101), stated


def test_a_single_one_among_thousands_of_files_is_found(tmp_path: Path) -> None:
    """By the first bytes of each, in any format that can have 16 bits."""
    deep = Image.fromarray(np.arange(64, dtype=np.uint16).reshape(8, 8) * 64)
    for kind, place in (("PNG", 777), ("TIFF", 1501), ("PPM", 0)):
        held, files = io.BytesIO(), [tmp_path / kind / f"{number}.{kind.lower()}" for number in range(1600)]
        Image.new("L", (8, 8)).save(held, kind)
        files[0].parent.mkdir()
        for file in files:
            file.write_bytes(held.getvalue())
        assert _depths([FileImages(files)]) == []
        deep.save(files[place])
        assert _depths([FileImages(files)]) in ([12], [16])


def test_how_many_images_may_be_unreadable_is_an_option(cli: Cli, tmp_path: Path) -> None:
    for label, colour in (("a", 50), ("b", 200)):
        for number in range(20):
            file = put(tmp_path / "data" / label / f"{number:02d}.png", np.full((16, 16), float(colour)), 16)
            if number in (3, 4):
                file.write_bytes(b"no image")
    (tmp_path / "tiny.yaml").write_text(TINY)
    words = ("train", tmp_path / "data", "--config", tmp_path / "tiny.yaml", *FAST, "--epochs", 1)
    must_refuse(cli(*words, "--out", tmp_path / "refused"), DATA, "03.png")
    answer = cli(*words, "--out", tmp_path / "run", "--unreadable", 0.25)
    assert answer.code == 0, answer.err
    assert len(json.loads((tmp_path / "run" / "data.json").read_text())["skipped"]) == 4
    must_refuse(cli(*words, "--unreadable", 1.5), USAGE, "unreadable 1.5")
