"""`vitrail explain`: maps with verdicts, side by side or alone, with masks and references of a person's own."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.cli.command import ROOT, Answer
from tests.cli.planted import planted_model
from tests.pages.structure import Structure
from tests.photographs import make_photographs
from vitrail.data.readers.planted import planted_digits

Says = Callable[..., Answer]

VERDICTS = ("supported", "weak", "no better than random", "cannot tell")


def rows(answer: Answer) -> list[dict[str, Any]]:
    assert answer.code == 0, answer.err
    return json.loads(answer.out)


def test_a_verdict_stands_with_every_map(vitrail_says: Says, planted: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    words = ("explain", planted, "planted", "--count", 2, "--out", page)
    for row in rows(vitrail_says(*words, "--json")):
        (heat,) = row["heats"]
        trust = heat["trust"]
        assert trust["verdict"] in VERDICTS
        assert trust["reason"]
        assert trust["verdict"] in trust["sentence"].lower()
        assert trust["interval"][0] <= trust["score"] <= trust["interval"][1]
        assert trust["random_maps"] == 39
        assert trust["oracle"] is not None  # the place of a planted digit is known
        assert 0 < trust["evidence_p"] <= 1
        assert 1 / 40 <= trust["faithful_p"] <= 1
        assert trust["fill"] == "donor"
        assert 1 <= trust["squares"] <= 16  # a quarter of all
        assert all(0 <= trust[key] <= 1 for key in ("before", "covered", "covered_random"))
        assert trust["before"] == pytest.approx(row["probability"], abs=1e-5)
        assert trust["composites"] >= 99
        assert trust["surrogates"] >= 0
        assert 1 <= trust["rank"] <= 40
        with Image.open(row["sheet"]) as sheet:
            assert sheet.width > 1500
    text = page.read_text()
    assert text.count('class="trusted ') == 2
    assert "the true place" in text


def test_the_same_command_says_the_same(vitrail_says: Says, planted: Path, pictures: Path, tmp_path: Path) -> None:
    words = ("explain", planted, pictures, "--out", tmp_path / "p.html")
    shown = vitrail_says(*words)
    assert f"{pictures / '0.png'}: " in shown.out
    assert "the page" in shown.out
    first, second = (rows(vitrail_says(*words, "--json")) for _ in range(2))
    for row in first + second:
        assert row["heats"][0].pop("seconds") > 0
    assert first == second


def test_without_references_nothing_can_be_told(vitrail_says: Says, pictures: Path, tmp_path: Path) -> None:
    run = vitrail.save(planted_model(), tmp_path / "model")
    words = ("explain", run, pictures / "0.png", "--out", tmp_path / "p.html")
    (row,) = rows(vitrail_says(*words, "--json"))
    trust = row["heats"][0]["trust"]
    assert trust["verdict"] == "cannot tell"
    assert trust["evidence_p"] is None
    assert trust["fill"] == "own patches"
    answer = vitrail_says(*words)
    assert "--reference DIR names some" in answer.err
    assert 'class="frame hatched"' in (tmp_path / "p.html").read_text()


def test_references_of_a_persons_own(vitrail_says: Says, planted: Path, pictures: Path, tmp_path: Path) -> None:
    run, folder = vitrail.save(planted_model(), tmp_path / "model"), tmp_path / "references"
    folder.mkdir()
    for number, pixels in enumerate(planted_digits("validation", 40).pixels):
        Image.fromarray(pixels).save(folder / f"{number}.png")
    for place in (folder, planted):  # pictures, or another model that carries some
        out = tmp_path / f"by-{place.name}.html"
        words = ("--reference", place, "--out", out, "--json")
        (row,) = rows(vitrail_says("explain", run, pictures / "0.png", *words))
        assert row["heats"][0]["trust"]["fill"] == "donor"
        assert row["heats"][0]["trust"]["evidence_p"] is not None


def test_references_of_another_size(vitrail_says: Says, planted: Path, photo_run: Path, photo: Path) -> None:
    answer = vitrail_says("explain", photo_run, photo, "--reference", planted)
    assert answer.code == 3
    assert "references are" in answer.problem
    assert "32 x 32" in answer.problem
    assert "delete" not in answer.hint  # it is another run's file


def test_no_trust_leaves_only_the_maps(vitrail_says: Says, planted: Path, pictures: Path, tmp_path: Path) -> None:
    page = tmp_path / "p.html"
    (row,) = rows(vitrail_says("explain", planted, pictures / "0.png", "--no-trust", "--out", page, "--json"))
    assert row["heats"][0]["trust"] is None
    assert "These maps were not tested." in page.read_text()
    assert Path(row["sheet"]).is_file()


def test_methods_side_by_side_on_one_scale(vitrail_says: Says, planted: Path, pictures: Path, tmp_path: Path) -> None:
    page, some = tmp_path / "p.html", "generic_attention, rollout,generic_attention"
    words = ("--compare", "--methods", some, "--out", page, "--json")
    (row,) = rows(vitrail_says("explain", planted, pictures / "0.png", *words))
    assert [heat["method"] for heat in row["heats"]] == ["generic_attention", "rollout"]
    assert all(heat["trust"]["verdict"] in VERDICTS for heat in row["heats"])
    text = page.read_text()
    assert text.count("Of the map&#x27;s total.") + text.count("Of the map's total.") == 2
    assert "All maps of a picture have one colour scale" in text
    assert text.count("This method cannot tell classes apart") == 1
    answer = vitrail_says("explain", planted, pictures / "0.png", *words[:-3], "--out", page)
    table = [re.split(r" {2,}", line.strip()) for line in answer.out.splitlines()]
    assert ["verdict", "fall", "deletion", "insertion", "time"] in table
    shown = ("Generic attention", "Attention rollout", "A random order")
    first, second, random = (next(line for line in table if line[0] == name) for name in shown)
    assert first[1] in VERDICTS
    assert second[1] == "class-blind"
    found = row["heats"][0]
    assert first[3:5] == [f"{found['deletion']:.2f}", f"{found['insertion']:.2f}"]
    assert random[2:] == [f"{found['random_deletion']:.2f}", f"{found['random_insertion']:.2f}"]
    assert f"<td>{found['deletion']:.2f}</td><td>{found['insertion']:.2f}</td>" in text
    assert (found["passes"], row["heats"][1]["passes"]) == ("3", "1")


def test_one_class_rather_than_another(vitrail_says: Says, photo_run: Path, photo: Path, tmp_path: Path) -> None:
    def heat(*words: object) -> dict[str, Any]:
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        answer = vitrail_says("explain", photo_run, photo, "--no-trust", "--out", tmp_path / "out", "--json", *words)
        return rows(answer)[0]["heats"][0]

    a, c, contrast = heat("--target", "a"), heat("--target", "c"), heat("--rather-than", "c")
    assert (contrast["target"], contrast["rather_than"]) == ("a", "c")
    assert contrast["logit"] == pytest.approx(a["logit"] - c["logit"], abs=1e-4)
    assert contrast["values"] != a["values"]
    assert "why <b>a</b> rather than <b>c</b>" in next((tmp_path / "out").glob("*.html")).read_text()
    words = ("explain", photo_run, photo, "--no-trust", "--compare", "--methods", "generic_attention,legrad")
    answer = vitrail_says(*words, "--rather-than", "c", "--out", tmp_path / "several")
    assert answer.out.startswith("explained: the class that the model chose rather than c\n")
    answer = vitrail_says(*words, "--target", "c", "--out", tmp_path / "several")
    assert answer.out.startswith("explained: c\n")
    answer = vitrail_says("explain", photo_run, photo, "--rather-than", "a", "--out", tmp_path / "other")
    assert answer.code == 2
    assert answer.problem == "vitrail: the model takes every picture for 'a', which has nothing to be held against"
    assert f"left out: the model takes {photo} for 'a'" in answer.err


def test_the_layer_and_the_head_asked_for(vitrail_says: Says, planted: Path, pictures: Path, tmp_path: Path) -> None:
    def values(*words: object) -> list[list[float]]:
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        words = ("--method", "raw_attention", "--no-trust", "--out", tmp_path / "out", "--json", *words)
        return rows(vitrail_says("explain", planted, pictures / "0.png", *words))[0]["heats"][0]["values"]

    assert values() == values("--layer", -1) == values("--layer", 1) != values("--layer", 0)
    assert values("--head", 0) != values("--head", 1)
    mean = (np.array(values("--head", 0)) + np.array(values("--head", 1))) / 2
    np.testing.assert_allclose(values(), mean, atol=1e-6)


def test_a_mask_gives_the_score_of_the_true_place(
    vitrail_says: Says, photo_run: Path, photo: Path, tmp_path: Path
) -> None:
    with Image.open(photo) as picture:
        width, height = picture.size
    mask = Image.new("L", (width, height))
    mask.paste(255, (0, 0, width, height // 2))
    mask.save(tmp_path / f"{photo.stem}.png")
    words = ("--reference", photo.parent, "--out", tmp_path / "p.html", "--json")
    (without,) = rows(vitrail_says("explain", photo_run, photo, *words))
    (row,) = rows(vitrail_says("explain", photo_run, photo, "--masks", tmp_path, *words))
    assert without["heats"][0]["trust"]["oracle"] is None
    assert row["heats"][0]["trust"]["oracle"] is not None


def test_names_with_markup_appear_as_text(vitrail_says: Says, tmp_path: Path) -> None:
    data, bad = tmp_path / "data", "<img src=x onerror=alert(1)>"
    make_photographs(data, (bad, "b & c"), per_class=10, seed=0)
    vitrail.train(str(data), tmp_path / "run", vitrail.TrainOptions(epochs=1, image_size=16, threads=1))
    photo = tmp_path / "<script>alert(2)<_script> & '\".jpg"
    shutil.copy(next((data / bad).iterdir()), photo)
    page = tmp_path / "page.html"
    for more in ((), ("--rather-than", "b & c", "--target", bad, "--compare", "--methods", "generic_attention")):
        answer = vitrail_says("explain", tmp_path / "run", photo, "--out", page, *more)
        assert answer.code == 0, answer.err
        structure = Structure(page.read_text())
        assert structure.elements["script", ()] == 1
        assert not any(tag == "img" for tag, _ in structure.elements)
        assert any(bad in text for text in structure.text)
        assert any("<script>alert(2)" in text for text in structure.text)


def test_the_parts_of_a_score_reach_a_person_and_add_up(
    vitrail_says: Says, planted: Path, pictures: Path, tmp_path: Path
) -> None:
    words = ("explain", planted, pictures, "--method", "conservative", "--no-trust", "--out", tmp_path / "p.html")
    for row in rows(vitrail_says(*words, "--json")):
        (heat,) = row["heats"]
        assert {"squares", "positions", "class token", "biases of the head"} <= set(heat["parts"])
        assert heat["parts"]["squares"] == pytest.approx(np.sum(heat["values"]), abs=1e-4)
        assert sum(heat["parts"].values()) == pytest.approx(heat["logit"], abs=1e-4)
    answer = vitrail_says(*words)
    assert answer.out.count("Of the score ") == 2
    assert (tmp_path / "p.html").read_text().count("Of the score ") == 2
    (row, _) = rows(vitrail_says(*words, "--json", "--method", "rollout"))
    assert row["heats"][0]["parts"] is None


def test_the_parts_of_a_contrast_add_up_to_it(vitrail_says: Says, photo_run: Path, photo: Path, tmp_path: Path) -> None:
    words = ("--target", "a", "--rather-than", "c", "--method", "conservative", "--no-trust")
    (row,) = rows(vitrail_says("explain", photo_run, photo, *words, "--out", tmp_path / "p.html", "--json"))
    heat = row["heats"][0]
    assert sum(heat["parts"].values()) == pytest.approx(heat["logit"], abs=1e-4)
    assert "Of the difference " in (tmp_path / "p.html").read_text()


def test_a_comparison_says_first_that_one_may_not_choose(
    vitrail_says: Says, planted: Path, pictures: Path, tmp_path: Path
) -> None:
    words = ("explain", planted, pictures / "0.png", "--out", tmp_path / "p.html")
    some = vitrail_says(*words, "--compare", "--methods", "generic_attention,rollout,legrad")
    assert some.out.startswith("3 maps were tested. Of maps that are random, one in twenty")
    assert "maps were tested" not in vitrail_says(*words).out
    assert "maps were tested" not in vitrail_says(*words, "--compare", "--no-trust").out


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("--method", "nonsense"), "--method generic_attention"),
        (("--method", "no-such-thing"), "--method generic_attention"),
        (("--method", "rolout"), "--method rollout"),
        (("--method", "conservativ"), "--method conservative"),
        (("--method", "shap"), "--method kernel_shap"),
        (("--method", "raw_attention", "--layer", "7"), "--layer -1"),
        (("--method", "raw_attention", "--layer", "last"), "--layer -1"),
        (("--method", "raw_attention", "--head", "9"), "--head 0"),
        (("--method", "head_view", "--layer", "-1", "--head", "9"), "--head 0"),
        (("--method", "grad_cam", "--layer", "9"), "--layer blocks.1.norm1"),
    ],
)
def test_a_hint_can_be_typed_as_it_is(
    words: tuple[str, ...], hint: str, vitrail_says: Says, planted: Path, pictures: Path, tmp_path: Path
) -> None:
    command = ("explain", planted, pictures / "0.png", "--no-trust", "--out", tmp_path / "p.html")
    answer = vitrail_says(*command, *words)
    assert (answer.code, answer.hint) == (2, f"try: {hint}")
    if hint != "--method kernel_shap":  # which takes long
        assert vitrail_says(*command, *words, *hint.split()).code == 0  # what is typed last counts


def test_few_references_are_named_at_once(vitrail_says: Says, planted: Path, pictures: Path, tmp_path: Path) -> None:
    words = ("explain", planted, pictures / "0.png", "--out", tmp_path / "p.html", "--reference")
    answer = vitrail_says(*words, pictures)
    assert "has 2 reference pictures, and a verdict needs 10" in answer.err.splitlines()[0]
    assert "Cannot tell: 2 different reference pictures are too few" in answer.out
    assert "a verdict needs" not in vitrail_says(*words, planted).err


def test_the_headline_names_the_folder_and_not_where_it_lies(
    vitrail_says: Says, planted: Path, pictures: Path, tmp_path: Path
) -> None:
    page, link = tmp_path / "p.html", tmp_path / "latest"
    link.symlink_to(planted)
    for run in (planted, link):
        vitrail_says("explain", run, pictures / "0.png", "--no-trust", "--out", page)
        text = page.read_text()
        assert "<h1>What planted looked at</h1>" in text
        assert f"<b>{run}</b>" in text


def test_the_target_asked_for(vitrail_says: Says, photo_run: Path, photo: Path, tmp_path: Path) -> None:
    def heat(target: str) -> dict:
        out = tmp_path / f"{target}.html"
        words = ("--target", target, "--no-trust", "--out", out, "--json")
        return json.loads(vitrail_says("explain", photo_run, photo, *words).out)[0]

    a, b = heat("a")["heats"][0], heat("b")["heats"][0]
    assert (a["target"], b["target"]) == ("a", "b")
    assert a["values"] != b["values"]
    assert heat("a")["label"] == heat("b")["label"] == "a"


def test_every_key_of_a_verdict_is_in_the_docs(
    vitrail_says: Says, planted: Path, pictures: Path, tmp_path: Path
) -> None:
    (row,) = rows(vitrail_says("explain", planted, pictures / "0.png", "--out", tmp_path / "p.html", "--json"))
    told = (ROOT / "docs" / "explaining.md").read_text().partition("## For other programs")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in told.splitlines() if line.startswith("| `")]
    assert sorted(re.findall(r"`(\w+)`", " ".join(cells))) == sorted(row["heats"][0]["trust"])
