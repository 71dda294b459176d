"""`vitrail explain`: maps with verdicts, side by side or alone, with masks and background of a person's own.

A verdict takes a second or two, so one comparison is made once and many tests look at it; where a test is about
something else than verdicts, it asks for none.
"""

import html
import json
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.cli.command import DATA, USAGE, Answer, Cli, call, must_refuse, retyped
from tests.cli.planted import planted_model
from tests.pages.structure import Structure
from tests.photographs import make_photographs
from tests.shared_runs import once
from vitrail.data.sets.planted import planted_digits

PROBABILITIES = ("probability_unmasked", "probability_masked", "probability_masked_random")
VERDICTS = ("supported", "weak", "no better than random", "cannot tell")


def rows(answer: Answer) -> list[dict[str, Any]]:
    assert answer.code == 0, answer.err
    return json.loads(answer.out)["images"]


@dataclass(frozen=True)
class Compared:
    """A comparison of two methods on one image, asked for as JSON and for people."""

    json: Answer
    text: Answer
    page: str

    @property
    def attributions(self) -> list[dict[str, Any]]:
        (row,) = rows(self.json)
        return row["attributions"]


@pytest.fixture(scope="module")
def compared(planted: Path, images: Path) -> Compared:
    def make(folder: Path) -> None:
        some = "generic_attention, rollout,generic_attention"
        words = (
            "explain",
            planted,
            images / "0.png",
            "--compare",
            "--full",
            "--methods",
            some,
            "--out",
            folder / "p.html",
        )
        both = {"json": asdict(call(*words, "--json")), "text": asdict(call(*words))}
        (folder / "answers.json").write_text(json.dumps(both))

    folder = once("compared", make)
    both = json.loads((folder / "answers.json").read_text())
    return Compared(Answer(**both["json"]), Answer(**both["text"]), (folder / "p.html").read_text())


# ---- verdicts


def test_a_verdict_stands_with_every_map(cli: Cli, planted: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    for row in rows(cli("explain", planted, "planted", "--count", 2, "--full", "--out", page, "--json")):
        (attribution,) = row["attributions"]
        trust = attribution["trust"]
        assert trust["verdict"] in VERDICTS
        assert trust["reason"]
        assert trust["verdict"] in trust["sentence"].lower()
        assert trust["interval"][0] <= trust["score"] <= trust["interval"][1]
        assert trust["random_maps"] in (24, 49)
        assert trust["oracle"] is not None  # the place of a planted digit is known
        assert 0 < trust["evidence_p"] <= 1
        assert (1 / 50 if trust["random_maps"] == 49 else 1 / 25) <= trust["faithful_p"] <= 1
        assert trust["fill"] == "background"
        assert 1 <= trust["patches"] <= 16  # a quarter of all
        assert all(0 <= trust[key] <= 1 for key in PROBABILITIES)
        assert trust["probability_unmasked"] == pytest.approx(row["probability"], abs=1e-5)
        assert trust["composites"] == 499
        assert trust["surrogates"] >= 0
        assert 1 <= trust["rank"] <= 1 + trust["random_maps"]
        with Image.open(attribution["overlay"]) as drawn:
            assert drawn.size == (448, 448)
            assert drawn.info["Comment"] == trust["sentence"]
    assert page.read_text().count('class="trusted ') == 2


def test_without_evidence_the_test_ends_and_says_so(cli: Cli, photo_run: Path, photo: Path, tmp_path: Path) -> None:
    """A tiny network finds nothing in a photograph; no number of a map is made up, and --full changes no verdict."""
    words = ("explain", photo_run, photo, "--background", photo.parent, "--out", tmp_path / "p.html", "--json")
    (short,), (full,) = (rows(cli(*words, *more)) for more in ((), ("--full",)))
    ended, whole = (row["attributions"][0]["trust"] for row in (short, full))
    assert ended["verdict"] == whole["verdict"] == "cannot tell"
    assert ended["reason"] == whole["reason"]
    unknown = ("score", "interval", "rank", "random_mean", "faithful_p", *PROBABILITIES[1:])
    assert [ended[name] for name in unknown] == [None] * len(unknown)
    assert all(whole[name] is not None for name in unknown)
    assert (ended["random_maps"], ended["surrogates"]) == (0, 0)
    for more in ((), ("--compare",)):
        shown, page = cli(*words[:-1], *more).out, (tmp_path / "p.html").read_text()
        summary = html.unescape(re.search(r'<p class="plain">(.*?)</p>', page)[1]).replace("\u00a0", " ")
        why = summary.partition(". ")[2].partition(". ")[0]
        assert why
        assert why in shown, "the terminal has the reason of the page's summary"
        assert ended["sentence"] not in shown
        assert ended["reason"] not in shown
    assert "--full" in page
    assert "nan" not in re.sub(r"<script.*?</script>|<style.*?</style>|data:[^\"]*", "", page, flags=re.S).lower()


def test_methods_side_by_side_on_one_scale(compared: Compared) -> None:
    first, second = compared.attributions
    assert [first["method"], second["method"]] == ["generic_attention", "rollout"]
    assert {first["trust"]["verdict"], second["trust"]["verdict"]} <= set(VERDICTS)
    assert (first["cost"], second["cost"]) == ("3", "1")
    table = [re.split(r" {2,}", line.strip()) for line in compared.text.out.splitlines()]
    shown, other, random = (
        next(row for row in table if row[0] == title)
        for title in ("Generic attention", "Attention rollout", "Random maps")
    )
    assert other.pop(1) == "class-agnostic"
    assert len(shown) == len(other) == 8
    for row, attribution in ((shown, first), (other, second)):
        trust = attribution["trust"]
        assert row[1] == trust["verdict"]
        for column, value in ((2, trust["score"]), (3, trust["random_mean"])):  # each map has random maps of its own
            assert float(row[column].replace("−", "-")) == pytest.approx(value, abs=0.005)
        assert int(row[6]) == trust["passes"] == 1 + trust["surrogates"] + 5 * trust["random_maps"] + 25
        for kind, column in (("deletion", 4), ("insertion", 5)):
            assert row[column] == f"{attribution[kind]:.2f}"
            assert random[column - 3] == f"{attribution[f'random_{kind}']:.2f}"
            assert f"<td>{attribution[kind]:.2f}</td>" in compared.page
        assert f"{trust['composites']} composites" in compared.text.out
        assert f">{trust['passes']}:" in compared.page
    figure, table = (re.findall(rf"<{part}.*?</{part}>", compared.page, re.S) for part in ("figcaption", "th"))
    assert sum("class-agnostic" in each for each in figure) == sum("class-agnostic" in each for each in table) == 1


def test_a_comparison_says_first_that_one_may_not_choose(compared: Compared) -> None:
    assert compared.text.out.startswith("2 maps ")


def test_the_same_command_says_the_same(
    cli: Cli, compared: Compared, planted: Path, images: Path, tmp_path: Path
) -> None:
    """Alone as in a comparison."""
    (row,) = rows(cli("explain", planted, images / "0.png", "--full", "--json", "--out", tmp_path / "p.html"))
    for key in ("values", "logit", "trust"):
        assert row["attributions"][0][key] == compared.attributions[0][key]


def test_no_trust_leaves_only_the_maps(cli: Cli, planted: Path, images: Path, tmp_path: Path) -> None:
    page = tmp_path / "p.html"
    (row,) = rows(cli("explain", planted, images / "0.png", "--no-trust", "--out", page, "--json"))
    assert row["attributions"][0]["trust"] is None
    assert 'class="trusted ' not in page.read_text()
    assert Path(row["attributions"][0]["overlay"]).is_file()


# ---- what fills masked patches, and where the evidence lies


def test_without_background_images_nothing_can_be_told(cli: Cli, images: Path, tmp_path: Path) -> None:
    run = vitrail.save(planted_model(), tmp_path / "model")
    page = tmp_path / "p.html"
    (row,) = rows(cli("explain", run, images / "0.png", "--out", page, "--json"))
    trust = row["attributions"][0]["trust"]
    assert (trust["verdict"], trust["evidence_p"], trust["fill"]) == ("cannot tell", None, "own patches")
    assert "hatched" in page.read_text()


def test_background_images_of_a_persons_own(cli: Cli, planted: Path, images: Path, tmp_path: Path) -> None:
    run, folder = vitrail.save(planted_model(), tmp_path / "model"), tmp_path / "background"
    folder.mkdir()
    for number, pixels in enumerate(planted_digits("validation", 40).pixels):
        Image.fromarray(pixels).save(folder / f"{number}.png")
    for place in (folder, planted):  # images, or another model that carries some
        out = tmp_path / f"by-{place.name}.html"
        answer = cli("explain", run, images / "0.png", "--background", place, "--out", out, "--json")
        (row,) = rows(answer)
        assert row["attributions"][0]["trust"]["fill"] == "background"
        assert row["attributions"][0]["trust"]["evidence_p"] is not None
        assert answer.err == ""


def test_few_background_images_are_named_at_once(cli: Cli, planted: Path, images: Path, tmp_path: Path) -> None:
    words = ("--background", images, "--out", tmp_path / "p.html", "--json")
    answer = cli("explain", planted, images / "0.png", *words)
    assert rows(answer)[0]["attributions"][0]["trust"]["verdict"] == "cannot tell"
    assert str(images) in answer.err.splitlines()[0]
    assert {"2", "10"} <= set(re.findall(r"\d+", answer.err.splitlines()[0].replace(str(images), "")))


def test_background_images_of_another_size(cli: Cli, planted: Path, photo_run: Path, photo: Path) -> None:
    answer = cli("explain", photo_run, photo, "--background", planted)
    must_refuse(answer, DATA, "32 x 32")
    assert "delete" not in answer.hint  # it is another run's file


def test_a_mask_gives_the_score_of_the_true_place(cli: Cli, photo_run: Path, photo: Path, tmp_path: Path) -> None:
    with Image.open(photo) as image:
        width, height = image.size
    mask = Image.new("L", (width, height))
    mask.paste(255, (0, 0, width, height // 2))
    mask.save(tmp_path / f"{photo.stem}.png")
    words = ("--background", photo.parent, "--full", "--out", tmp_path / "p.html", "--json")
    (without,) = rows(cli("explain", photo_run, photo, *words))
    (row,) = rows(cli("explain", photo_run, photo, "--masks", tmp_path, *words))
    assert without["attributions"][0]["trust"]["oracle"] is None
    assert row["attributions"][0]["trust"]["oracle"] is not None


# ---- what is explained


def attribution_of(answer: Answer) -> dict[str, Any]:
    (row,) = rows(answer)
    (attribution,) = row["attributions"]
    return attribution


def test_one_class_rather_than_another(cli: Cli, photo_run: Path, photo: Path, tmp_path: Path) -> None:
    page = tmp_path / "p.html"
    words = ("explain", photo_run, photo, "--no-trust", "--out", page)
    a, c = (attribution_of(cli(*words, "--json", "--target", name)) for name in "ac")
    contrast = attribution_of(cli(*words, "--json", "--contrast", "c"))
    assert (a["target"], c["target"]) == ("a", "c")
    assert a["values"] != c["values"]
    assert (contrast["target"], contrast["contrast"]) == ("a", "c")
    assert contrast["logit"] == pytest.approx(a["logit"] - c["logit"], abs=1e-4)
    assert contrast["values"] != a["values"]
    assert re.search("<b>a</b> [a-z ]*<b>c</b>", page.read_text())
    several = (*words, "--compare", "--methods", "generic_attention,legrad")
    for more in (("--contrast", "c"), ("--target", "c")):
        assert more[1] in cli(*several, *more).out.splitlines()[0].split()
    answer = cli(*words, "--contrast", "a")
    must_refuse(answer, USAGE, "a")
    assert str(photo) in answer.err


def test_the_layer_and_the_head_asked_for(cli: Cli, planted: Path, images: Path, tmp_path: Path) -> None:
    def values(*words: object) -> list[list[float]]:
        words = ("--method", "raw_attention", "--no-trust", "--out", tmp_path / "p.html", "--json", *words)
        return attribution_of(cli("explain", planted, images / "0.png", *words))["values"]

    assert values() == values("--option", "layer=-1") == values("--option=layer=1") != values("--option", "layer=0")
    first, second = values("--option", "head=0"), values("--option", "head=1")
    assert first != second
    mean = (np.array(first) + np.array(second)) / 2
    np.testing.assert_allclose(values(), mean, atol=1e-6)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("--method", "nonsense"), "--method generic_attention"),
        (("--method", "conservativ"), "--method conservative"),
        (("--method", "shap"), "--method kernel_shap"),
        (("--method", "raw_attention", "--option", "layer=7"), "--option layer=-1"),
        (("--method", "raw_attention", "--option", "layer=last"), "--option layer=-1"),
        (("--method", "head_view", "--option", "layer=-1", "--option", "head=9"), "--option head=none"),
        (("--method", "grad_cam", "--option", "layer=9"), "--option layer=blocks.1.norm1"),
        (("--method", "smooth_grad", "--option", "noise=-1"), "--option noise=0.15"),
    ],
)
def test_a_hint_can_be_typed_as_it_is(
    words: tuple[str, ...], hint: str, cli: Cli, planted: Path, images: Path, tmp_path: Path
) -> None:
    command = ("explain", planted, images / "0.png", "--no-trust", "--out", tmp_path / "p.html")
    answer = cli(*command, *words)
    again = retyped([*map(str, command), *words], answer)
    assert answer.code == USAGE
    assert again is not None
    assert hint in " ".join(again)
    assert len(again) == len(command) + len(words), "it stands in place of what was wrong"
    if hint != "--method kernel_shap":  # which takes long
        assert cli(*again).code == 0


# ---- the page


def test_names_with_markup_appear_as_text(cli: Cli, tmp_path: Path) -> None:
    data, bad = tmp_path / "data", "<img src=x onerror=alert(1)>"
    make_photographs(data, (bad, "b & c"), per_class=10, seed=0)
    vitrail.train(str(data), tmp_path / "run", vitrail.TrainOptions(epochs=1, image_size=16, threads=1))
    photo = tmp_path / "<script>alert(2)<_script> & '\".jpg"
    shutil.copy(next((data / bad).iterdir()), photo)
    page = tmp_path / "page.html"
    for more in (("--no-trust",), ("--contrast", "b & c", "--target", bad, "--compare", "--methods", "legrad")):
        answer = cli("explain", tmp_path / "run", photo, "--out", page, *more)
        assert answer.code == 0, answer.err
        structure = Structure(page.read_text())
        assert structure.elements["script", ()] == 1
        assert not any(tag == "img" for tag, _ in structure.elements)
        assert any(bad in text for text in structure.text)
        assert any("<script>alert(2)" in text for text in structure.text)


def test_the_parts_of_a_score_reach_a_person_and_add_up(cli: Cli, planted: Path, images: Path, tmp_path: Path) -> None:
    words = ("explain", planted, images, "--method", "conservative", "--no-trust", "--out", tmp_path / "p.html")
    attributions = [attribution for row in rows(cli(*words, "--json")) for attribution in row["attributions"]]
    for attribution in attributions:
        assert {"patches", "positions", "class token", "biases of the head"} <= set(attribution["parts"])
        assert attribution["parts"]["patches"] == pytest.approx(np.sum(attribution["values"]), abs=1e-4)
        assert sum(attribution["parts"].values()) == pytest.approx(attribution["logit"], abs=1e-4)
    told = cli(*words).out
    for text in (told, (tmp_path / "p.html").read_text()):
        assert len(re.findall(r"patches −?\d", text)) == len(attributions) == 2
    other = rows(cli(*words, "--json", "--method", "rollout"))
    assert all(attribution["parts"] is None for row in other for attribution in row["attributions"])


def test_the_parts_of_a_contrast_add_up_to_it(cli: Cli, photo_run: Path, photo: Path, tmp_path: Path) -> None:
    words = ("--target", "a", "--contrast", "c", "--method", "conservative", "--no-trust")
    attribution = attribution_of(cli("explain", photo_run, photo, *words, "--out", tmp_path / "p.html", "--json"))
    assert sum(attribution["parts"].values()) == pytest.approx(attribution["logit"], abs=1e-4)


def test_the_headline_names_the_folder_and_not_where_it_lies(
    cli: Cli, planted: Path, images: Path, tmp_path: Path
) -> None:
    page, link = tmp_path / "p.html", tmp_path / "latest"
    link.symlink_to(planted)
    for run in (planted, link):
        assert cli("explain", run, images / "0.png", "--no-trust", "--out", page).code == 0
        text, _, command = page.read_text().partition("<h2>How it was made")
        headline = text.partition("<h1>")[2].partition("</h1>")[0]
        assert headline.split()[-1] == planted.name
        assert f"<b>{planted.name}</b>" in text
        assert f"vitrail explain {run.name} 0.png" in command
        for path in (run, images, tmp_path):
            assert str(path) not in page.read_text()
