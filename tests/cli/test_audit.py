"""`vitrail audit`: its JSON, exit codes of rules, earlier audits, masks of some images, and images without labels."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.cli.command import DATA, USAGE, Cli, must_refuse
from tests.photographs import make_photographs
from tests.shared_runs import run_of
from vitrail.audit.sampling import open_split
from vitrail.data.layout import AS_FOUND
from vitrail.io import AUDIT, is_page
from vitrail.model import load
from vitrail.text import percent, points

AGENTS = Path(__file__).resolve().parents[2] / "AGENTS.md"


def test_an_audit_of_labelled_images(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = str(run_of("photos"))
    make_photographs(tmp_path / "photos", ("a", "b", "c"), per_class=14, seed=9)
    (tmp_path / "masks").mkdir()
    monkeypatch.chdir(tmp_path)
    for file in sorted((tmp_path / "photos" / "a").iterdir())[:6]:
        with Image.open(file) as image:
            mask = np.zeros((image.height, image.width), np.uint8)
        mask[: len(mask) // 2] = 255
        Image.fromarray(mask).save(tmp_path / "masks" / f"{file.stem}.png")
    words = ("audit", run, "photos", "--count", "6", "--method", "rollout", "--masks", "masks")
    answer = cli(*words, "--json")
    assert answer.code == 0, answer.err
    found = json.loads(answer.out)
    (row,) = re.findall(r"^\| `audit` .*\| (.+) \|$", AGENTS.read_text("utf-8"), re.MULTILINE)
    assert set(found) == set(re.findall(r"`(\w+)`", row))
    assert found["page"] == "audit.html"
    assert is_page(Path("audit.html").read_text("utf-8"), AUDIT)
    assert json.loads(Path("audit.json").read_text("utf-8")) == {key: found[key] for key in found if key != "page"}
    counts = {one["name"]: one["images"] for one in found["verdicts"]["class"]}
    assert counts == {"a": 2, "b": 2, "c": 2}
    assert (found["split"], found["images"]) == ("all", 42)
    assert {*found["asked"]} <= {"a", "b", "c"}
    assert 0 < found["figures"]["supported"]["interval"][1] <= 1

    rules = "shortcuts<=3,supported: a>=0,supported>=1"
    with monkeypatch.context() as patched:
        patched.setattr("vitrail.audit.job.open_split", None)  # the data are open already, for the rule of a class
        failed = cli(*words, "--out", "audit.html", "--fail-under", rules, "--against", "audit.json")
    assert failed.code == 1
    assert "supported>=1" in failed.problem
    again = json.loads(Path("audit.json").read_text("utf-8"))
    assert {key: again[key] for key in ("verdicts", "shortcuts", "parts")} == {
        key: found[key] for key in ("verdicts", "shortcuts", "parts")
    }
    assert not any(each["clear"] or each["difference"] for each in again["changes"])
    assert again["changes"]
    assert "shortcuts" in again["figures"]
    assert not any(each["name"] == "shortcuts" for each in again["changes"])
    other = float(found["figures"]["supported"]["value"] < 0.5)
    then = found["figures"] | {"supported": {"value": other, "interval": [other, other], "images": 6}}
    Path("earlier.json").write_text(json.dumps(found | {"figures": then}))
    told = cli(*words, "--out", "audit.html", "--against", "earlier.json")
    assert told.code == 0, told.err
    (change,) = (each for each in json.loads(Path("audit.json").read_text("utf-8"))["changes"] if each["clear"])
    (line,) = (line for line in told.out.splitlines() if line.startswith("changed: "))
    shares = [percent(each) for each in (change["before"], change["now"])]
    gaps = [points(each) for each in (change["difference"], *change["interval"])]
    assert re.findall(r"[\d.]+ %(?!:)", line) == shares
    assert re.findall(r"[+−][\d.]+", line) == gaps
    assert all(each in Path("audit.html").read_text("utf-8") for each in (*shares, *gaps))
    base = ("audit", run, "photos", "--out")
    must_refuse(cli(*base, "audit.html", "--method", "rollout", "--count", "7"), USAGE, "audit")
    must_refuse(cli(*base, "audit.html", "--count", "6"), USAGE, "audit")
    must_refuse(cli(*base, "photos/audit.html"), USAGE, "photos")
    shutil.copytree("masks", "others")
    for number, mask in enumerate(Path("others").iterdir()):
        mask.rename(f"others/{number} of none.png")
    for folder in ("others", "nowhere"):
        refused = cli("audit", run, "photos", "--out", "mask.html", "--masks", folder)
        must_refuse(refused, DATA, folder)
        assert not Path("mask").exists()
    shutil.copytree("photos", "two", ignore=shutil.ignore_patterns("c"))
    for data, name in (("photos", "d"), ("two", "c")):
        refused = cli("audit", run, data, "--out", "rule.html", "--fail-under", f"border<1,supported:{name}>0.7")
        must_refuse(refused, USAGE, f"supported:{name}")
        assert not Path("rule").exists()
    for file in (tmp_path / "photos" / "a").iterdir():
        file.write_bytes(b"no image")
    (note,) = (each for each in broken(cli, run) if file.suffix in each)
    (name,) = re.findall(r"a/\S+(?=: )", note)
    assert note.count(Path(name).name) == 1


def broken(cli: Cli, run: str) -> list[str]:
    """The notes where the images of a class cannot be read."""
    answer = cli("audit", run, "photos", "--count", "3", "--method", "rollout", "--out", "broken.html", "--json")
    assert answer.code == 0, answer.err
    return json.loads(answer.out)["notes"]


def test_images_without_labels_and_few_of_them(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = str(run_of("photos"))
    for number, file in enumerate(make_photographs(tmp_path / "made", ("a",), per_class=3, seed=9)):
        (tmp_path / "plain").mkdir(exist_ok=True)
        shutil.copy(file, tmp_path / "plain" / f"{number}{file.suffix}")
    monkeypatch.chdir(tmp_path)
    answer = cli("audit", run, "plain", "--count", "2", "--method", "rollout", "--json")
    assert answer.code == 0, answer.err
    found = json.loads(answer.out)
    assert ({*found["verdicts"]}, found["asked"], found["shortcuts"]) == ({"all"}, {}, [])
    assert (found["split"], found["images"]) == ("all", 3)
    assert len(found["notes"]) >= 2
    must_refuse(cli("audit", run, "plain", "--split", "tset", "--out", "split.html"), USAGE, "tset")
    nobody_looked = cli("audit", run, "plain", "--count", "2", "--method", "rollout", "--fail-under", "shortcuts<=0")
    assert nobody_looked.code == 1
    (tmp_path / "plain" / "0.jpg").write_bytes(b"no image")
    left = cli("audit", run, "plain", "--count", "3", "--method", "rollout", "--json", "--out", "other.html")
    assert left.code == 0, left.err
    assert json.loads(left.out)["verdicts"]["all"][0]["images"] == 2
    must_refuse(cli("audit", run, "plain", "--against", "other.html"), DATA, "other.html")
    for file in (tmp_path / "plain").iterdir():
        file.write_bytes(b"no image")
    for limit in ((), ("--max-time", "1m")):
        must_refuse(cli("audit", run, "plain", "--out", "none.html", *limit), DATA, "plain")


def test_of_the_own_data_of_a_run_those_that_did_not_teach_it(cli: Cli, tmp_path: Path) -> None:
    run = run_of("photos")
    images = json.loads((run / "data.json").read_text("utf-8"))["images"]
    held_out = "test" if "test" in images else "validation"
    answer = cli(
        "audit", str(run), "--count", "2", "--method", "rollout", "--json", "--out", str(tmp_path / "own.html")
    )
    assert answer.code == 0, answer.err
    found = json.loads(answer.out)
    assert (found["split"], found["images"]) == (held_out, images[held_out])


def test_other_data_than_the_own_are_asked_whole_though_the_run_has_cut_its_validation_split(tmp_path: Path) -> None:
    run = shutil.copytree(run_of("photos"), tmp_path / "run")
    facts = json.loads((run / "data.json").read_text("utf-8"))
    facts |= {"parts": "whole", "images": {name: count for name, count in facts["images"].items() if name != "test"}}
    (run / "data.json").write_text(json.dumps(facts), encoding="utf-8")
    make_photographs(tmp_path / "photos", ("a", "b", "c"), per_class=14, seed=9)
    found = open_split(load(run), str(tmp_path / "photos"), None, None, AS_FOUND)
    assert (found.split, len(found.samples)) == ("all", 42)
