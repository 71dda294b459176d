"""The lessons run as notebooks, their pages show code and pictures, and the numbers of D0, D1 and D3 are right.

The numbers of D2 and D4 are held in `test_d2.py` and `test_d4.py`. D3, the shortest, runs in `make test`; the others
run in `make soak`.
"""

import base64
import io
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
PATHS = [ROOT / "lessons" / "what_is_a_vit.py", *sorted((ROOT / "lessons").glob("d[0-9]_*.py"))]
SHOWN = re.compile(r"^!\[(.*)\]\(\.\./images/(lessons/[\w-]+\.png)\)$", re.MULTILINE)
EACH = [
    pytest.param(path, id=path.stem, marks=() if path.stem.startswith("d3") else pytest.mark.soak) for path in PATHS
]


def near(value: float, tolerance: float = 1e-5) -> Any:
    return pytest.approx(value, abs=tolerance)


def test_one_stands_before_five(runner: ModuleType) -> None:
    assert [path.stem[:2] for path in PATHS] == ["wh", "d0", "d1", "d2", "d3", "d4"]
    assert runner.LESSONS == PATHS


@pytest.mark.parametrize("path", EACH)
def test_each_lesson_runs(path: Path, lesson: Callable[[str], dict[str, Any]]) -> None:
    said = lesson(path.stem.split("_")[0])
    assert len(said["results"]) > 10
    assert "".join(said["outputs"]).count("\n") >= len(said["results"])
    drawn = [picture for picture in said["pictures"] if picture]
    shown = SHOWN.findall((ROOT / "docs" / "lessons" / f"{path.stem}.md").read_text())
    assert [says for says, _ in drawn] == [says for says, _ in shown]
    for _, file in drawn:
        image = Image.open(io.BytesIO(base64.b64decode(file)))
        assert len(image.convert("RGB").getcolors(10_000) or ()) > 5  # not an empty frame


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_each_page_shows_the_lesson(path: Path, runner: ModuleType) -> None:
    page = (ROOT / "docs" / "lessons" / f"{path.stem}.md").read_text()
    position = 0
    for cell in runner.cells(path.read_text()):
        shown = cell.source if cell.is_text else f"```python no-run\n{cell.source}\n```"
        assert shown in page[position:], f"make pages: line {cell.line} of {path.name} is not on its page"
        position = page.index(shown, position) + len(shown)
    printed = re.findall(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(printed) >= 5
    assert len(SHOWN.findall(page)) >= 3


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_each_notebook_is_its_lesson(path: Path, runner: ModuleType) -> None:
    file = path.with_suffix(".ipynb")
    text = file.read_text()
    assert text == runner.notebook(path.read_text(), path.stem, runner.address()), "make pages"
    assert file.stat().st_size < 200_000
    cells = json.loads(text)["cells"]
    assert len({cell["id"] for cell in cells}) == len(cells) == len(runner.cells(path.read_text())) + 1
    outputs = [each for cell in cells for each in cell.get("outputs", ())]
    page = (ROOT / "docs" / "lessons" / f"{path.stem}.md").read_text()
    drawn = [base64.b64decode(each["data"]["image/png"]) for each in outputs if "data" in each]
    assert drawn == [(IMAGES / picture).read_bytes() for _, picture in SHOWN.findall(page)]
    printed = re.findall(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert ["".join(each["text"]) for each in outputs if "text" in each] == printed
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    links = [link for text in texts for link in re.findall(r"\]\(([^)#:]+)\)", text)]
    assert [link for link in links if not (file.parent / link).exists()] == []
    elsewhere = runner.notebook(path.read_text(), path.stem, "https://github.com/someone/something")
    assert 'REPOSITORY = "https://github.com/someone/something"' in "".join(json.loads(elsewhere)["cells"][1]["source"])


def test_a_notebook_by_itself_says_what_to_do(
    runner: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = json.loads(runner.notebook((PATHS[0]).read_text(), PATHS[0].stem))["cells"]
    get = "".join(found[1]["source"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as alone:
        exec(get, {})
    assert "REPOSITORY" in str(alone.value)
    (tmp_path / "lesson.py").touch()
    exec(get, {})
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit) as without:
        exec(get, {})
    assert "'..[photos]'" in str(without.value)


def test_the_gallery_has_every_picture_and_all_are_small(runner: ModuleType) -> None:
    page = (ROOT / "docs" / "gallery.md").read_text()
    assert page == runner.gallery(runner.address()), "make pages"
    files = [
        file for path in PATHS for _, file in SHOWN.findall((ROOT / "docs" / "lessons" / f"{path.stem}.md").read_text())
    ]
    assert re.findall(r"^!\[.+\]\(images/(.+)\)$", page, re.MULTILINE) == files
    assert {f"lessons/{file.name}" for file in (IMAGES / "lessons").iterdir()} == set(files)
    assert sum(file.stat().st_size for file in IMAGES.rglob("*.*")) < 1_000_000
    linked = runner.gallery("https://github.com/someone/something")
    colab = "https://colab.research.google.com/github/someone/something/blob/HEAD/lessons"
    assert [f"{colab}/{path.stem}.ipynb" in linked for path in PATHS] == [True] * len(PATHS)


def test_cells_are_found_and_a_changed_page_would_be_seen(runner: ModuleType) -> None:
    text = "# %% [markdown]\n# # Title\n#\n# words\n\n# %%\nx = 1  # %% no cell\nprint(x)\n"
    cells = runner.cells(text)
    assert [(cell.is_text, cell.line) for cell in cells] == [(True, 2), (False, 7)]
    assert cells[0].source == "# Title\n\nwords"
    assert cells[1].source == "x = 1  # %% no cell\nprint(x)"
    page = runner.page(text, ["", "1\n"], [None, ("a line", "d9-1.png")])
    assert "# Title\n\nwords" in page
    shown = "```python no-run\nx = 1  # %% no cell\nprint(x)\n```\n\n```text\n1\n```"
    assert f"{shown}\n\n![a line](../images/lessons/d9-1.png)" in page


def test_a_lesson_that_fails_is_told(runner: ModuleType, tmp_path: Path) -> None:
    lesson = tmp_path / "d9_broken.py"
    lesson.write_text("# %% [markdown]\n# words\n\n# %%\nRESULTS = {}\n\n\n# %%\nraise ValueError('at the end')\n")
    with pytest.raises(RuntimeError, match=r"(?s)d9_broken\.py.*line 9"):
        runner.run(lesson, quiet=True)


@pytest.mark.soak
def test_without_mnist_the_digits_stand_in(tmp_path: Path) -> None:
    """Where no folder holds MNIST, pictures come from scikit-learn, and one sentence says so."""
    (tmp_path / "lessons").mkdir()
    (tmp_path / "lessons" / "lesson.py").write_text((ROOT / "lessons" / "lesson.py").read_text())
    code = (
        "from lesson import pictures; images, labels, source = pictures('test', 50); "
        "print(source, tuple(images.shape), labels.dtype, 0 <= images.min() and images.max() <= 1)"
    )
    environment = {**os.environ, "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    environment.pop("VITRAIL_DATA", None)
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=tmp_path / "lessons", env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    *sentence, line = done.stdout.splitlines()
    assert len(sentence) == 1
    assert line == "digits (50, 1, 28, 28) torch.int64 tensor(True)"


@pytest.mark.parametrize("target", ["lessons", "notebooks", "pages"])
def test_make_knows_the_target(target: str) -> None:
    answer = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr


@pytest.mark.soak
def test_what_is_a_vit(what: dict[str, Any], mnist_root: Path) -> None:
    block = 2 * 2 * 48 + 4 * (48 * 48 + 48) + 48 * 96 + 96 + 96 * 48 + 48
    assert what["parameters"] == (49 * 48 + 48) + 48 + 17 * 48 + 2 * block + 2 * 48 + (48 * 10 + 10)
    assert what["tokens"] == [17, 48]
    assert what["positions.without"] == 0.0
    assert what["positions.with"] > 0.1
    assert what["sum"] == near(1.0)
    assert what["after"] > 70 > 30 > what["before"]
    assert what["supported.untrained"] == 0
    if what["data"] == "mnist":
        assert what["replaced.occlusion"] < what["replaced.chance"] - 0.2
        assert what["replaced.attention"] > what["replaced.occlusion"] + 0.2
        assert what["supported.occlusion"] > what["supported.attention"]


@pytest.mark.soak
def test_d0(d0: dict[str, Any]) -> None:
    assert (d0["parameters"], d0["parameters.right"]) == (1642, 1994)
    assert d0["parameters.right"] - d0["parameters"] == 2 * (4 * (8 * 8 + 8) - 2 * 3 * (4 * 4 + 4)) + 2 * 8
    assert d0["sliced_heads"] == 0.0
    assert d0["sliced_heads.right"] > 0.05
    assert (d0["sliced_heads.weights"], d0["sliced_heads.weights.right"]) == (2 * 3 * 4 * 4, 4 * 8 * 8)
    assert d0["double_softmax"] == near(math.log(1 + 9 / math.e))
    assert d0["double_softmax.right"] == near(0.0)
    assert d0["double_softmax.gradient"] < 1e-15
    assert d0["double_softmax.gradient.right"] == near(1.0)
    assert (d0["no_last_norm"], d0["no_last_norm.right"]) == (near(10.0, 1e-4), near(1.0, 1e-3))
    assert d0["loops.harmless"] < 1e-6
    assert d0["position_table.harmless"] < 1e-6
    assert d0["patches.harmless"] == 0.0
    assert d0["patches_on_cpu"].startswith("cpu")
    assert d0["patches_on_cpu.right"] == "meta"
    assert (d0["patches_on_cpu.type"], d0["patches_on_cpu.type.right"]) == ("float32", "float64")
    assert (d0["sizes"], d0["sizes.right"]) == (3, 0)
    assert d0["mean_of_means"] == near(1 / 79)
    assert d0["mean_of_means.right"] == near(16 / 10_000)
    assert d0["compose"].startswith("TypeError")
    assert d0["compose.right"] == "no error"


@pytest.mark.soak
def test_d0_learns_better_in_its_right_form(d0: dict[str, Any], mnist_root: Path) -> None:
    if d0["data"] == "mnist":
        assert d0["trained"] > 15  # it learns: that is why nobody looks
        assert d0["trained.logits"] > d0["trained"] + 5
        assert d0["trained.right"] > d0["trained"] + 5


@pytest.mark.soak
def test_d1(d1: dict[str, Any]) -> None:
    assert d1["parameters"] == 87_006_184
    assert d1["parameters.right"] == 86_567_656
    assert d1["parameters"] - d1["parameters.right"] == 768 * 768 + 768 - 198 * 768
    assert 1e-3 < d1["fresh_tokens"] < 2e-2
    assert d1["fresh_tokens.right"] == 0.0
    assert (d1["fresh_tokens.learnt"], d1["fresh_tokens.learnt.right"]) == (0, 198 * 768)
    assert (d1["blind"], d1["blind.right"]) == (True, False)
    assert d1["blind.gradient"] == 0.0
    assert d1["blind.gradient.right"] > 1e-3
    assert (d1["batch_attention"], d1["batch_attention.gradient"]) == (near(0.0), 0.0)
    assert d1["batch_attention.right"] > 0.1
    assert d1["batch_attention.leak"] > 0.1
    assert d1["batch_attention.leak.right"] < 1e-5
    assert d1["lost_identity"] == near(math.sqrt(768), 1e-3)
    assert d1["lost_identity.right"] == near(100.0, 1e-3)
    assert d1["relu"] == near(0.5, 0.05)
    assert d1["relu.right"] < 1e-3
    assert d1["relu.apart"] == near(0.17, 1e-3)
    assert d1["second_map"] < 1e-4
    assert d1["second_map.parameters"] == 2 * d1["second_map.parameters.right"] == 2 * (768 * 768 + 768)
    assert d1["heads.parameters"] == 0
    assert d1["heads"] > 0.01
    assert d1["heads.right"] is True
    assert d1["probabilities"] == near(math.log(1 + 999 / math.e))
    assert d1["probabilities.right"] == near(0.0)
    assert d1["hard_coded"].startswith("RuntimeError: ")
    assert d1["hard_coded.right"] == "no error"
    assert (d1["image_size"], d1["image_size.right"]) == (0, 192 * 768)


@pytest.mark.soak
def test_d1_blind_networks_learn_nothing(d1: dict[str, Any], mnist_root: Path) -> None:
    if d1["data"] == "mnist":
        assert d1["trained"] < 25
        assert d1["trained.right"] > 55


def test_d3(d3: dict[str, Any]) -> None:
    assert d3["parameters.right"] == 86_567_656
    assert d3["late_scale"] == near(768**-0.5)
    assert d3["late_scale.head"] == near(96**-0.5)
    assert d3["late_scale.right"] == near(1.0)
    assert d3["late_scale.largest"] > 10 * d3["late_scale.largest.right"]
    assert d3["late_scale.network"] > 0.1
    assert d3["late_scale.parameters"] == 0
    assert d3["mask"].startswith("AttributeError: ")
    assert d3["mask.thrown_away"] > 0.1
    assert d3["mask.right"] == 0.0
    assert d3["patches"] > 1
    assert d3["patches.right"] < 1e-5
    assert d3["patches.order"] > 1
    assert (d3["patches.learnt"], d3["patches.learnt.right"]) == (0, 193 * 192)
    assert d3["patches.back"] == d3["separate_maps.back"] == 0.0
    assert d3["fused_order"] > 0.5
    assert d3["fused_order.right"] < 1e-4
    assert d3["separate_maps.right"] < 1e-5
    assert d3["in_place.harmless"] < 1e-6
    assert (d3["in_place"], d3["in_place.right"]) == (near(1.0), 0.0)
    assert d3["in_place.dropout"] == "no error"
    assert d3["in_place.sigmoid"].startswith("RuntimeError: ")
    assert d3["no_name"] == "SyntaxError"
    assert d3["mean"] == near(1 / 197, 1e-7)
    assert d3["mean.few"] == near(1 / 17, 1e-7)
    assert d3["mean.right"] == 0.0
    assert d3["mean.network"] > 0.01
    assert d3["norm_of_mean"] > 0.1
