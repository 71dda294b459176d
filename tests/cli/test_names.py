"""Names that other systems write: classes in NFD, and names of folders and files that are no UTF-8, in every verb."""

import csv
import json
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.cli.command import Cli
from vitrail.model import save
from vitrail.nn import ViT, ViTConfig

LATIN = "caf\udce9"  # as Python has a name in Latin-1
TINY = "network: {width: 16, depth: 1, heads: 2, mlp_dim: 32, image_size: 16, patch_size: 8}\n"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two classes, one of which has a name that is no UTF-8, as one of its files has."""
    random = np.random.default_rng(0)
    for label, colour in ((LATIN, 200), ("green", 40)):
        (tmp_path / "data" / label).mkdir(parents=True)
        for number in range(8):
            pixels = np.clip(random.normal(colour, 20, (16, 16, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "data" / label / f"{number}{LATIN * (number == 0)}.png")
    return tmp_path / "data"


def test_every_verb_reads_and_writes_such_names(data: Path, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY)
    run, packed = tmp_path / "run", tmp_path / "packed"
    fast = ("--epochs", 1, "--threads", 1, "--precision", "fp32")
    assert cli("train", data, "--out", run, "--config", tmp_path / "tiny.yaml", *fast).code == 0
    name = "caf\u00e9"
    assert vitrail.load(run).classes == (name, "green")
    commands = [
        ("data", "pack", data, "--out", packed),
        ("evaluate", run),
        ("evaluate", run, data, "--strict", "--json"),
        ("evaluate", run, packed),
        ("predict", run, data, "--out", tmp_path / "p.csv"),
        ("embed", run, data, "--out", tmp_path / "e.npz"),
        ("explain", run, data / LATIN, data / "green", "--no-trust", "--out", tmp_path / "m.jsonl"),
        ("explain", run, data, "--no-trust", "--target", LATIN, "--out", tmp_path / "e.html"),
        ("explain", run, data, "--no-trust", "--target", name, "--out", tmp_path / "f.html"),
        ("train", packed, "--out", tmp_path / "again", "--init", run, *fast),
        ("distill", data, "--teacher", run, "--out", tmp_path / "small", "--config", tmp_path / "tiny.yaml", *fast),
        ("train", "--config", run / "config.yaml", "--out", tmp_path / "same"),
    ]
    for command in commands:
        answer = cli(*command)
        assert answer.code == 0, (command, answer.err)
        if "--json" in command:
            assert json.loads(answer.out)["images"] == 2
    for file in tmp_path.rglob("*"):
        if file.suffix in {".json", ".jsonl", ".yaml", ".csv", ".txt", ".md", ".html"}:
            text = file.read_text(encoding="utf-8", errors="strict")
            assert file.suffix != ".json" or json.loads(text)
    rows = list(csv.DictReader((tmp_path / "p.csv").read_text(encoding="utf-8").splitlines()))
    assert len(rows) == 16
    assert sum(ascii(LATIN)[1:-1] in row["file"] for row in rows) == 9, "files keep their own bytes"
    lines = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {line["file"] for line in lines} == {str(file) for file in data.rglob("*.png")}


@torch.no_grad()
def test_a_model_whose_names_are_in_nfd_knows_folders_in_nfd_and_nfc(cli: Cli, tmp_path: Path) -> None:
    """Its head always answers the second class: 8 of 16 are right, and none is left out."""
    names = [unicodedata.normalize("NFD", "café"), "日本"]
    network = ViT(ViTConfig(width=16, depth=1, heads=2, mlp_dim=32, image_size=16, patch_size=8, classes=2))
    network.head.weight.normal_()
    network.head.bias.copy_(torch.tensor([0.0, 99.0]))
    model = vitrail.Model(network.eval(), vitrail.Preprocessing((16, 16)), vitrail.Classes(tuple(names)))
    save(model, tmp_path / "model")
    for form in ("NFD", "NFC"):
        for name in names:
            folder = tmp_path / form / unicodedata.normalize(form, name)
            folder.mkdir(parents=True)
            for number in range(8):
                Image.new("RGB", (16, 16), (number, 0, 0)).save(folder / f"{number}.png")
        found = json.loads(cli("evaluate", tmp_path / "model", tmp_path / form, "--json").out)
        assert (found["images"], found["accuracy"]) == (16, 0.5), form
        target = unicodedata.normalize(form, "café")
        words = ("--no-trust", "--target", target, "--json", "--out", tmp_path / "page.html")
        shown = cli("explain", tmp_path / "model", folder / "0.png", *words)
        assert shown.code == 0, shown.err
