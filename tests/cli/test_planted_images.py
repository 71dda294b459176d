"""Planted images by their names: what shows two digits or none is looked at, and neither learnt nor counted."""

import json
from pathlib import Path

import numpy as np
import pytest

import vitrail
from tests.cli.command import DATA, USAGE, Cli, must_be_understood, must_refuse, retyped
from tests.explain.planted_lab import NETWORKS, load_planted
from vitrail.cli.explain import read_images
from vitrail.cli.inputs import planted_root
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.readers.planted import parse_planted, planted_digits, planted_images, planted_test_images

RUN = NETWORKS / "mean-0"


def test_images_without_a_digit_have_no_evidence(cli: Cli, tmp_path: Path) -> None:
    answer = cli("explain", RUN, "planted:empty", "--count", 2, "--out", tmp_path / "p.html", "--json")
    assert answer.code == 0, answer.err
    rows = json.loads(answer.out)
    assert [row["file"] for row in rows] == [f"planted-empty/test/{i}" for i in (0, 1000)]
    for row in rows:
        trust = row["attributions"][0]["trust"]
        assert trust["verdict"] == "cannot tell"
        assert "no evidence" in trust["sentence"]
        assert (trust["oracle"], row["true_label"]) == (None, None)  # no place is the true one


def test_two_digits_are_both_the_true_place(cli: Cli, tmp_path: Path) -> None:
    answer = cli("explain", RUN, "planted:double", "--count", 2, "--full", "--out", tmp_path / "p.html", "--json")
    assert answer.code == 0, answer.err
    assert all(row["attributions"][0]["trust"]["oracle"] is not None for row in json.loads(answer.out))
    made = planted_digits("test", 2000, "double")
    for one in read_images(load_planted("mean-0"), str(RUN), ["planted:double"], 3, None, [])[0]:
        index, first, second = (int(each) for each in one.name.rsplit("/", 1)[1].split("-"))
        assert [first, second] == made.labels[index].tolist()
        np.testing.assert_array_equal(np.asarray(one.image), made.pixels[index])
        assert one.mask is not None
        np.testing.assert_array_equal(np.asarray(one.mask) > 0, made.masks(1)[index].any(axis=0))
        assert (np.asarray(one.mask) > 0).sum() == 2 * 64


def test_rectangles_have_their_masks() -> None:
    """Through the labelled road, of a model whose images have that size; no other model's."""
    config = vitrail.ViTConfig(
        image_size=(16, 24), patch_size=4, channels=1, classes=10, width=16, depth=1, heads=2, mlp_dim=32
    )
    other = load_planted("mean-0")
    preprocessing = Preprocessing((16, 24), channels=1, mean=(0.5,), std=(0.5,))
    model = vitrail.Model(vitrail.ViT(config).eval(), preprocessing, vitrail.Classes(other.classes))
    truth = planted_images(parse_planted("planted:2x3"), "test")
    for one in read_images(model, "", ["planted:2x3"], 4, None, [])[0]:
        index = int(one.name.rsplit("/", 1)[1])
        assert one.mask is not None
        np.testing.assert_array_equal(np.asarray(one.mask) > 0, truth.masks(1)[index, 0])
        assert one.label == str(truth.labels[index, 0])
    assert all(one.mask is None for one in read_images(other, str(RUN), ["planted:2x3"], 2, None, [])[0])


def test_predictions_of_planted_images(cli: Cli, tmp_path: Path) -> None:
    for name in ("planted", "planted:double", "planted:empty,2x3"):
        answer = cli("predict", RUN, name, "--count", 3, "--json")
        assert answer.code == 0, answer.err
        chosen = parse_planted(name)
        numbers = [number * chosen.count("test") // 3 for number in range(3)]
        shown = planted_test_images(chosen, numbers)
        wanted = load_planted("mean-0").predict([one.image for one in shown])
        rows = json.loads(answer.out)
        assert [row["file"] for row in rows] == [one.name for one in shown]
        assert [row["label"] for row in rows] == [one.label for one in wanted]
    out = tmp_path / "p.csv"
    assert cli("predict", RUN, "planted:empty", "--out", out).code == 0
    assert len(out.read_text().splitlines()) == 2001


@pytest.mark.parametrize(
    ("words", "code", "given"),
    [
        (("evaluate", RUN, "planted:double"), None, "planted:double"),
        (("train", "planted:empty"), None, "planted:empty"),
        (("explain", RUN, "planted:emty"), USAGE, "emty single empty double"),
        (("predict", RUN, "planted:emty"), USAGE, "emty single empty double"),
        (("predict", RUN, "planted", "a.png"), USAGE, "planted"),
        (("predict", RUN, "planted", "--count", 0), USAGE, "--count 0"),
        (("explain", RUN, "planted:empty", "a.png"), USAGE, "planted:empty"),
    ],
)
def test_what_cannot_be_done(words: tuple, code: int | None, given: str, cli: Cli) -> None:
    answer = cli(*words)
    must_refuse(answer, code or answer.code, given)
    assert answer.code in (USAGE, DATA)
    again = retyped([*map(str, words)], answer)
    if again is not None:
        must_be_understood(again)


def test_mnist_is_looked_for_where_the_run_read_it(tmp_path: Path) -> None:
    digits, photos = tmp_path / "mnist", tmp_path / "photos"
    for name, root, wanted in (
        ("planted:mnist", digits, digits),
        ("mnist", digits, digits),
        ("photos", photos, None),  # nothing is to be downloaded into a person's folder
        ("planted:2x3", Path("scikit-learn"), None),
    ):
        run = tmp_path / f"run-{name.replace(':', '-')}"
        for folder in (run, digits, photos):
            folder.mkdir(exist_ok=True)
        values = {"name": name, "root": str(root), "images": {}, "split_seed": 0, "fingerprint": ""}
        (run / "data.json").write_text(json.dumps(values))
        assert planted_root(str(run), None) == wanted
    assert planted_root(str(tmp_path), None) is None
