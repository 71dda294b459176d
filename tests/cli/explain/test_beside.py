"""`vitrail explain`: what stands below the maps, on the page and as JSON, and no path of the machine on it."""

import json
from pathlib import Path

import torch

import vitrail
from tests.cli.command import DATA, USAGE, Cli, must_refuse
from tests.cli.planted import planted_model
from tests.pages.structure import Structure
from vitrail.data.images import hash_of
from vitrail.nn.networks import weights_hash


def test_what_a_run_knows_stands_on_the_page_and_in_the_json(
    cli: Cli, photo_run: Path, photo: Path, tmp_path: Path
) -> None:
    page = tmp_path / "p.html"
    words = ("explain", photo_run, photo, "--no-trust", "--out", page)
    found = json.loads(cli(*words, "--json").out)
    beside, made = found["images"][0]["beside"], found["made"]
    model = vitrail.load(photo_run)
    assert beside["fingerprint"] == hash_of(photo.read_bytes()).hex()
    assert (beside["learnt"], beside["bump"]) == (False, None)
    assert beside["sureness"]["low"] <= found["images"][0]["probability"] <= beside["sureness"]["high"]
    assert beside["sureness"]["images"] == 12  # all there are, since they are fewer than 30
    assert len(beside["nearest"]) == 3
    assert beside["second"] in "bc"
    assert made["weights"] == weights_hash(model.network)
    assert made["versions"]["torch"] == torch.__version__
    assert str(page) in made["command"]
    shown = page.read_text()
    text = " ".join(Structure(shown).text)
    for each in (beside["fingerprint"], made["weights"], f"--contrast {beside['second']}", made["date"][:10]):
        assert each in text
    assert shown.count('<div class="nearest">') == 1
    cli("explain", photo_run, photo, "--no-trust", "--out", tmp_path / "maps.jsonl")
    assert json.loads((tmp_path / "maps.jsonl").read_text())["beside"] == {**beside, "nearest": []}
    for path in (photo_run, photo, tmp_path):
        assert str(path.parent) not in shown
        assert path.name in shown or path is tmp_path


def test_training_images_leave_the_house_only_where_they_may(
    cli: Cli, photo_run: Path, photographs: Path, photo: Path, tmp_path: Path
) -> None:
    page, file = tmp_path / "p.html", tmp_path / "features.npz"
    words = ("explain", photo_run, photo, "--no-trust", "--out", page, "--json")
    assert json.loads(cli(*words, "--nearest", "none").out)["images"][0]["beside"]["nearest"] == []
    assert '<div class="nearest">' not in page.read_text()
    for data, count in (("abc", 36), ("bcd", 12)):  # of data that are split, those of the training
        file.unlink(missing_ok=True)
        vitrail.embed(photo_run, photographs / data, out=file)
        found = json.loads(cli(*words, "--nearest", file).out)
        assert {each["label"] for each in found["images"][0]["beside"]["nearest"]} <= set(data)
        assert str(count) in found["made"]["near"].split()
    assert file.name in page.read_text()
    other = vitrail.save(planted_model(), tmp_path / "model")
    must_refuse(cli("explain", other, photo, "--nearest", file, "--out", tmp_path / "q.html"), DATA, "features.npz")
    refused = cli("explain", photo_run, photo, "--nearest", file, "--out", tmp_path / "maps.jsonl")
    must_refuse(refused, USAGE, "--nearest")
