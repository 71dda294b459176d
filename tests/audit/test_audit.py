"""An audit as a whole: what hangs on a mark is named, what does not is not, and a stopped audit goes on."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from shutil import copy
from typing import Any

import pytest

import vitrail
from tests.audit.marked import MARKED, digits, hanging, honest
from tests.errors import must_raise
from tests.shared_runs import run_of
from vitrail.audit import EDITS, Audit, sampling
from vitrail.audit.rules import read_rules
from vitrail.audit.swaps import mean_effect
from vitrail.data.layout import AS_FOUND
from vitrail.errors import UsageError
from vitrail.statistics import LEVEL
from vitrail.tasks import MultiLabel, MultiLabels, Regression, Standardized

FEW = tuple(edit for edit in EDITS if edit.name in ("upper-left", "lower-right", "top", "centre"))


@pytest.fixture(scope="module", autouse=True)
def every_class() -> Iterator[None]:
    """All classes are asked, however few images get a verdict."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sampling, "PASSES", 10**9)
        yield


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Audit, Path]:
    folder = tmp_path_factory.mktemp("audit") / "parts"
    model = hanging()
    return audited(model, True, folder), folder


def audited(model: vitrail.Model, marked: bool, folder: Path | None = None, count: int = 2) -> Audit:
    return vitrail.audit.audit(model, digits(marked), count=count, method="occlusion", edits=FEW, folder=folder)


def test_the_mark_is_named_where_the_network_hangs_on_it(found: tuple[Audit, Path]) -> None:
    audit, _ = found
    (one,) = audit.named
    assert (one.label, one.part) == (str(MARKED), "upper-left")
    # put on 18 logits, taken out 18 logits, where the class is alone; what is left of that in odds is more than 10
    assert one.effect > 10 > LEVEL > one.adjusted
    assert one.recall == 1
    assert one.elsewhere is not None
    assert one.elsewhere > 0.9 > one.without  # of 12 images one may meet a place beside the mark
    assert audit.parts[str(MARKED)]["upper-left"] > 10 > 2 > abs(audit.parts["1"]["lower-right"])
    proofs = one.to_dict(audit.names.__getitem__)["proofs"]
    assert [each["put_on"] > 0 < min(each["taken_out"], each["added"]) for each in proofs] == [True] * 10
    assert one.taken > 0.9 > 0.1 > one.taken_otherwise == one.taken_before
    assert [one.words in sentence for sentence in audit.sentences] == [False, False, True]
    page = audit.page()
    assert page.count('role="img"') == 3 * len(proofs)  # as it is, without the part, and another with it
    area, images = audit.pictures[one.label, one.part]
    assert area[:8, :8].all()
    assert area.sum() == 64
    for own, without, other in images:
        assert own[:4, :4].min() == other[:4, :4].min() == 255 > 200 > without[:4, :4].mean()
    assert one.words in page
    assert one.interval[0] < one.effect < one.interval[1]
    assert one.intervals[0] == one.intervals[2] == (pytest.approx(1 / (1 + 1.96**2 / one.images), abs=1e-3), 1.0)


def test_the_patch_that_decides_is_found_in_a_larger_area_and_measured_on_the_other_half(tmp_path: Path) -> None:
    edges = [edit for edit in EDITS if edit.name in ("left", "right")]
    found = vitrail.audit.audit(hanging(), digits(True), count=1, method="occlusion", edits=edges, folder=tmp_path)
    (one,) = found.named
    assert (one.part, one.patch) == ("left", "the patch in row 1 and column 1")
    lines = [json.loads(line) for line in (tmp_path / "second-patches.jsonl").read_text("utf-8").splitlines()]
    name = "left, row 1, column 1"
    assert {tuple(line["swaps"]) for line in lines} == {(name,)}
    assert one.patch_effect == mean_effect(lines, name) > 10
    assert one.inside in found.page()
    first = [json.loads(line) for line in (tmp_path / "first-patches.jsonl").read_text("utf-8").splitlines()]
    effects = {part: mean_effect(first, part) for part in first[0]["swaps"]}
    assert len(effects) == 8
    assert max(effects, key=effects.__getitem__) == name
    halves = [{line["trio"][0] for line in some} for some in (first, lines)]
    assert not halves[0] & halves[1]


def test_of_several_labels_the_one_that_hangs_on_the_mark_is_named() -> None:
    model = hanging()
    names = model.output.names
    several = replace(model, output=MultiLabels(names, thresholds=(1 - 1e-6,) * len(names)), task=MultiLabel())
    data = [(image, [label] if number % 3 else [label, "9"]) for number, (image, label) in enumerate(digits(True))]
    found = vitrail.audit.audit(several, data, count=4, method="occlusion", edits=FEW[:2])
    rates = {key: {one.name: one.images for one in found.verdicts[key]} for key in ("class", "prediction")}
    assert sum(rates["class"].values()) == sum(rates["prediction"].values()) == 4
    assert {*rates["class"]} <= {*names}  # the label that was explained, not all that an image has
    assert rates["prediction"].get("right", 0) >= 3
    (one,) = found.named
    assert (one.label, one.part, one.patch) == (str(MARKED), "upper-left", "")
    assert set(found.asked) == {"1", "3", "7", "9"}
    assert one.effect > 10
    assert one.recall == 1
    assert one.elsewhere is not None
    assert one.elsewhere > 0.9 > one.without  # of 12 images one may meet a place beside the mark


def test_of_numbers_no_class_is_known_though_they_are_read_as_words(tmp_path: Path) -> None:
    names = [f"{number}.png" for number in range(3)]
    for name, (image, _) in zip(names, digits(False), strict=False):
        image.save(tmp_path / name)
    rows = ["path,number", *(f"{name},{value}" for name, value in zip(names, (1, 0, 300), strict=True))]
    (tmp_path / "counts.csv").write_text("\n".join(rows))
    model = replace(hanging(), output=Standardized(("number",), (3.0,), (2.0,)), task=Regression())
    samples = sampling.open_split(model, str(tmp_path / "counts.csv"), None, None, AS_FOUND).samples
    assert len(samples) == 3
    assert (sampling.known_labels(model, samples) == -1).all()


def test_labels_of_another_kind_and_images_that_taught_are_told_and_broken_ones_are_replaced(tmp_path: Path) -> None:
    model = honest()
    for number, (image, label) in enumerate(digits(False)[:24]):
        (tmp_path / "set" / label).mkdir(parents=True, exist_ok=True)
        file = tmp_path / "set" / label / f"{number:02}.png"
        image.save(file)
        if number % 3:
            file.write_bytes(b"no image")
    several = replace(model, output=MultiLabels(model.output.names), task=MultiLabel())
    (note,) = sampling.open_split(several, str(tmp_path / "set"), None, None, AS_FOUND).notes[-1:]
    assert "label" in note
    samples = sampling.open_split(model, str(tmp_path / "set"), None, None, AS_FOUND).samples
    chosen = sampling.choose_explained(model, samples, 5, float("inf"))
    assert len([*sampling.readable_images(samples, chosen)]) == 5 < len(chosen)
    assert len(sampling.choose_explained(model, samples, 100, float("inf"))) == 24
    run = run_of("photos")
    for split, told in ((None, 0), ("train", 1)):
        opened = sampling.open_split(vitrail.load(run), None, None, split, AS_FOUND)
        assert [note == sampling.TAUGHT for note in opened.notes].count(True) == told


def test_where_the_passes_reach_for_one_class_it_is_asked_beside_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "PASSES", 500)
    model = honest()
    samples = sampling.open_split(model, digits(False), None, None, AS_FOUND).samples
    chosen = sampling.choose_searched(model, samples, 3, float("inf"), FEW)
    (label,) = chosen.asked
    assert chosen.asked[label][0] == sampling.SIZES[-1][0]
    assert len(chosen.left) == 2
    assert len(chosen.notes) == 1
    assert all(model.output.name(each) in chosen.notes[0] for each in chosen.left)
    small = [pair for number, pair in enumerate(digits(False)) if pair[1] != "7" or number % 24 == 0]
    chosen = sampling.choose_searched(
        model, sampling.open_split(model, small, None, None, AS_FOUND).samples, 3, 1e9, FEW
    )
    assert [[f"“{label}”" in note for label in "37"] for note in chosen.notes] == [[False, True], [True, False]]
    chosen = sampling.choose_searched(model, samples, 3, float("inf"), FEW)
    for half, count in zip(chosen.halves, chosen.asked[label], strict=True):
        assert len(half) == count
        assert {trio.label for trio in half} == {label}
        assert all(label not in trio.others for trio in half)


def test_a_trio_takes_two_others_so_that_of_two_small_classes_none_is_asked() -> None:
    model = honest()
    for labels, asked in (("13", 0), ("137", 3)):
        data = [pair for number, pair in enumerate(digits(False)) if pair[1] in labels and number % 5]
        samples = sampling.open_split(model, data, None, None, AS_FOUND).samples
        chosen = sampling.choose_searched(model, samples, 100, float("inf"), FEW)
        assert (len(chosen.asked), len(chosen.left), len(chosen.notes)) == (asked, len(labels) - asked, asked == 0)
        for half in chosen.halves:
            for label in chosen.asked:
                rows = [row for trio in half if trio.label == label for row in trio[:3]]
                assert len(rows) == len(set(rows)) >= 3 * sampling.LEAST_SIZE


def test_copies_in_a_small_plan_are_replaced_by_other_images_of_the_class() -> None:
    model, data = honest(), digits(False)
    copied = [row for row, (_, label) in enumerate(data) if label == "1"][:5]
    data = [(data[copied[0]][0] if row in copied else image, label) for row, (image, label) in enumerate(data)]
    samples = sampling.open_split(model, data, None, None, AS_FOUND).samples
    counts = [24] * 3
    passes = next(each for each in range(10**5) if sampling.fitting_classes(counts, each, FEW, sampling.SIZES[-1]) == 3)
    chosen = sampling.choose_searched(model, samples, 100, float(passes), FEW)
    assert all(first == sampling.LEAST_SIZE < 9 <= second for first, second in chosen.asked.values())
    assert (len(chosen.asked), chosen.left) == (3, ())


def test_nothing_is_named_of_an_honest_network() -> None:
    audit = audited(honest(), marked=False)
    assert (audit.named, len(audit.asked), audit.left, audit.supported.images) == ((), 3, (), 2)
    assert audit.figures["shortcuts"].interval == (0, 0)


def test_a_class_that_was_not_searched_is_told_and_no_rule_holds_of_it(
    found: tuple[Audit, Path], tmp_path: Path
) -> None:
    audit, _ = found

    def written(values: dict[str, Any]) -> Path:
        file = tmp_path / f"{len([*tmp_path.iterdir()])}.json"
        file.write_text(json.dumps(values))
        return file

    asked = {label: count for label, count in audit.asked.items() if label != str(MARKED)}
    some = replace(audit, asked=asked, left=(str(MARKED),), shortcuts=())
    (rule,) = read_rules("shortcuts<=0")
    assert rule.failure(some.figures)
    assert not rule.failure(replace(some, left=()).figures)
    assert f"“{MARKED}”" in some.sentences[2]
    one = audit.shortcuts[0]
    tests = (replace(one, named=False),) * 4  # with six images no sign test passes four times 5 %
    few = replace(some, left=(), asked={"1": (6, 6), "3": (6, 64)}, shortcuts=tests)
    assert few.figures["shortcuts"].interval == (0, 1)
    assert rule.failure(few.figures)
    before, none = json.loads(json.dumps(audit.to_dict())), replace(audit, shortcuts=())
    notes = [
        set(now.since(written(then)).notes) - set(now.notes)
        for now, then in ((audit, before), (none, before), (audit, none.to_dict()))
    ]
    assert [len(each) for each in notes] == [0, 1, 1]
    assert all(audit.named[0].words in note for each in notes for note in each)
    shares = {name for name in before["figures"] if name in some.figures and name != "shortcuts"}
    assert {
        each.name for each in some.since(written(before)).changes
    } == shares  # a number of classes is no share of images
    assert "supported" in shares
    for name in ("weights", "images", "labels and groups"):
        other = replace(audit, fingerprints={**audit.fingerprints, name: "another"})
        (note,) = set(other.since(written(before)).notes) - set(other.notes)
        assert name in note
    old = {"weights": audit.fingerprints["weights"], "data": audit.fingerprints["images"]}  # as once
    assert audit.since(written({**before, "fingerprints": old})).notes == audit.notes
    others = {**before, "fingerprints": {**old, "data": "another"}}
    (note,) = set(audit.since(written(others)).notes) - set(audit.notes)
    assert "images" in note
    cooler = replace(audit, options={**audit.options, "calibration": "logits / 2"})
    (note,) = set(cooler.since(written(before)).notes) - set(cooler.notes)
    assert "calibration" in note


def test_it_goes_on_where_it_was_stopped_and_refuses_another(found: tuple[Audit, Path]) -> None:
    audit, folder = found
    lines = {file.name: file.read_bytes() for file in folder.glob("*.jsonl")}
    assert set(lines) == {"maps.jsonl", "first.jsonl", "second.jsonl"}  # a corner is one patch here
    (folder / "second.jsonl").unlink()
    model = hanging()
    again = audited(model, True, folder)
    same = [{key: value for key, value in each.to_dict().items() if key != "made"} for each in (audit, again)]
    assert json.dumps(same[0]) == json.dumps(same[1])
    assert {file.name: file.read_bytes() for file in folder.glob("*.jsonl")} == lines
    with pytest.raises(UsageError):
        audited(model, True, folder, count=3)
    (folder.parent / "none begun").mkdir()
    copy(folder / "job.json", folder.parent / "none begun")
    assert audited(model, True, folder.parent / "none begun", count=1).supported.images == 1
    with pytest.raises(UsageError):
        audited(honest(), True, folder)
    others = [(image, label.translate(str.maketrans("13", "31"))) for image, label in digits(True)]
    with must_raise(UsageError, "labels"):
        vitrail.audit.audit(model, others, count=2, method="occlusion", edits=FEW, folder=folder)
