"""`--method FOLDER`: maps by the names of images, from whatever folder; and what is no map of an image."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vitrail
from tests.cli.command import DATA, USAGE, Answer, Cli, must_refuse
from tests.errors import must_raise
from tests.shared_runs import hashes
from vitrail.errors import DataError, UsageError
from vitrail.explain.methods import method_of
from vitrail.explain.methods.table import from_anywhere
from vitrail.explain.reporting import job
from vitrail.explain.reporting.plan import ReportOptions, plan_report
from vitrail.explain.reporting.stored_maps import check_maps, read_map
from vitrail.jobs import parts
from vitrail.tasks.multilabel import MultiLabels

PATCHES = np.arange(64, dtype=np.float32).reshape(8, 8)


def rows(answer: Answer) -> list[dict[str, Any]]:
    return json.loads(answer.out)["images"]


@pytest.fixture
def maps(tmp_path: Path) -> Path:
    """A map of patches, and one of pixels."""
    (tmp_path / "maps").mkdir()
    np.save(tmp_path / "maps" / "0.npy", PATCHES)
    np.save(tmp_path / "maps" / "1.png.npy", np.kron(PATCHES[::-1], np.ones((4, 4), np.float16)))
    return tmp_path / "maps"


def test_maps_of_a_folder_are_explanations_beside_others(
    cli: Cli, planted: Path, images: Path, maps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(maps.parent)
    both = images / "0.png", images / "1.png"
    words = ("explain", planted, *both, "--no-trust", "--compare", "--methods", "./maps,rollout", "--json")
    found = rows(cli(*words))
    assert [[each["method"] for each in row["attributions"]] for row in found] == [["maps", "rollout"]] * 2
    values = [np.array(row["attributions"][0]["values"]) for row in found]
    assert np.array_equal(values[0], PATCHES)
    assert np.array_equal(values[1], PATCHES[::-1] * 16)
    page = Path("explanation.html").read_text("utf-8")
    assert method_of("./maps").about in page
    assert str(maps) not in page
    assert method_of("maps").summary in " ".join(cli("explain", "--method", "maps", "--help").out.split())
    (maps / "1.png.npy").unlink()
    some = cli("explain", planted, *both, "--no-trust", "--method", "maps", "--json")
    assert (some.code, len(rows(some))) == (DATA, 1)
    assert "1.png" in some.err
    out = ("explain", planted, images, "--no-trust", "--method", "maps", "--out", "lines.jsonl")
    assert cli(*out).code == DATA
    lines = [json.loads(line) for line in Path("lines.jsonl").read_text("utf-8").splitlines()]
    assert [sorted(set(line) & {"attributions", "problem"}) for line in lines] == [["attributions"], ["problem"]]
    with must_raise(UsageError, "maps"):
        model = vitrail.load(planted)
        vitrail.explain.compare(model, model.tensor([both[0]]), "maps", scored=False)


def test_a_job_knows_its_maps_by_their_content_and_from_any_folder(
    cli: Cli, planted: Path, images: Path, maps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(maps.parent)
    assert from_anywhere(["maps", "rollout"]) == [str(maps), "rollout"]
    assert from_anywhere("rollout") == "rollout"
    monkeypatch.setattr(job, "ROWS", 1)
    (many := maps.parent / "many").mkdir()
    for number in range(3):
        shutil.copy(images / f"{number % 2}.png", many / f"{number}.png")
        (maps / f"{number}.png.npy").unlink(missing_ok=True)
        np.save(maps / f"{number}.npy", PATCHES + number)
    words = ("explain", planted, many, "--threads", 1, "--no-trust", "--method")
    assert cli(*words, "maps", "--out", "whole/x.jsonl").code == 0
    lines = [json.loads(line) for line in Path("whole/x.jsonl").read_text("utf-8").splitlines()]
    assert [np.min(line["attributions"][0]["values"]) for line in lines] == [0, 1, 2]
    write, count = parts.PartFiles.write, [0]

    def dying(self: parts.PartFiles, *given: Any) -> None:
        count[0] += 1
        if count[0] == 2:
            raise KeyboardInterrupt
        write(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts.PartFiles, "write", dying)
        assert cli(*words, "maps", "--out", "x/x.jsonl").code == 130
    out = ("--out", maps.parent / "x" / "x.jsonl")
    monkeypatch.chdir(many)
    np.save(maps / "2.npy", PATCHES + 3)
    must_refuse(cli(*words, maps, *out), USAGE, "maps")
    np.save(maps / "2.npy", PATCHES + 2)
    assert cli(*words, maps, *out).code == 0
    assert hashes(maps.parent / "x") == hashes(maps.parent / "whole")


WRONG = {
    "nan": np.where(PATCHES > 3, np.nan, PATCHES),
    "large": np.full((8, 8), 1e300),
    "shape": np.zeros((16, 16)),
    "turned": PATCHES[None],
    "words": np.full((8, 8), "a"),
    "complex": PATCHES * 1j,
    "scalar": np.array(3.0),
}


def test_what_is_no_map_of_an_image_is_refused(maps: Path, tmp_path: Path) -> None:
    for name, values in WRONG.items():
        np.save(maps / f"{name}.npy", values)
    np.save(maps / "pickled.npy", np.array([{"a": 1}], object), allow_pickle=True)
    (maps / "empty.npy").write_bytes(b"")
    (maps / "cut.npy").write_bytes((maps / "0.npy").read_bytes()[:-1])
    (maps / "zip.npy").write_bytes(b"PK\x03\x04")
    for name in (*WRONG, "pickled", "empty", "cut", "zip", "absent"):
        with must_raise(DataError, name):
            read_map(maps, f"{name}.png", (32, 32), (8, 8))
    for name, kind in (("ones", bool), ("bytes", np.uint8), ("longs", np.int64)):
        np.save(maps / f"{name}.npy", (PATCHES > 3).astype(kind))
        one = read_map(maps, f"{name}.png", (32, 32), (8, 8))
        assert np.array_equal(one, PATCHES > 3)


def test_names_lead_to_maps_inside_of_the_folder_alone(maps: Path, tmp_path: Path) -> None:
    methods = [method_of(str(maps))]
    (maps / "b").mkdir()
    np.save(maps / "b" / "0.npy", PATCHES + 1)
    np.save(tmp_path / "out.npy", PATCHES)

    def least(name: str) -> float:
        return float(read_map(maps, name, (32, 32), (8, 8)).min())

    assert [least(name) for name in ("0.png", "a/0.png", "a/b/0.png", str(tmp_path / "b" / "0.png"))] == [0, 0, 1, 1]
    for outside in ("../out.png", str(tmp_path / "out.png"), "..", "x" * 300 + ".png", "a\0b"):
        with pytest.raises(DataError):
            least(outside)
    check_maps(methods, ["a/0.png", "b/0.png"], (32, 32), (8, 8))
    with must_raise(DataError, r"a/0\.png .*c/0\.png"):
        check_maps(methods, ["a/0.png", "c/0.png"], (32, 32), (8, 8))
    np.save(maps / "b" / "0.npy", np.ones((3, 3)))  # of some it is said where they are used, of all at once
    check_maps(methods, ["b/0.png", "a/0.png"], (32, 32), (8, 8))
    with must_raise(DataError, r"b/0\.png"):
        check_maps(methods, ["b/0.png"], (32, 32), (8, 8))
    with must_raise(DataError, r"a/0\.png"):
        check_maps(methods, ["a/0.png", "b/0.png"], (64, 64), (4, 4))


def test_of_several_labels_a_stored_map_is_of_the_most_probable(maps: Path, planted: Path) -> None:
    model = replace(vitrail.load(planted), output=MultiLabels(tuple("0123456789"), (0.1,) * 10))
    plan = plan_report(model, ReportOptions([str(maps), "rollout"], trust=False))
    assert (plan.top_labels, plan_report(model, ReportOptions("rollout")).top_labels) == (1, 5)
    with must_raise(UsageError, "top_labels"):
        plan_report(model, ReportOptions(str(maps), top_labels=2))


def test_folders_and_options_that_do_not_go_together(
    cli: Cli, planted: Path, images: Path, maps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(maps.parent)
    Path("nothing").mkdir()
    words = ("explain", planted, images / "0.png", "--method")
    for folder in ("./absent", "nothing"):
        must_refuse(cli(*words, folder), DATA, Path(folder).name)
        must_refuse(cli("audit", planted, images, "--method", folder), DATA, Path(folder).name)
    must_refuse(cli(*words, "absent"), USAGE, "absent")  # which is no folder, so the name of a method
    for option, value in (("target", "3"), ("contrast", "3"), ("similar-to", images / "1.png")):
        must_refuse(cli(*words, "maps", f"--{option}", value), USAGE, option)
    must_refuse(cli(*words, "maps", "--option", "power=2"), USAGE, "power")
    shutil.copytree(maps, "rollout")
    shutil.copytree(maps, Path("other") / "maps")
    names = [method_of(folder).name for folder in ("./rollout", "maps", "rollout")]
    assert names == ["maps_rollout", "maps", "rollout"]
    compared = ("explain", planted, images / "0.png", "--compare", "--methods", "maps,other/maps")
    must_refuse(cli(*compared), USAGE, "maps")
