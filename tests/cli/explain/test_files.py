"""What `vitrail explain` leaves: a page, images beside it, and of those of before no more than its own."""

import hashlib
import json
import shutil
from pathlib import Path

from PIL import Image

from tests.cli.command import Cli
from vitrail.explain import METHODS


def test_a_page_and_images_are_written(cli: Cli, digits_run: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    words = ("--count", 3, "--compare", "--methods", "rollout,generic_attention", "--no-trust", "--out", page)
    answer = cli("explain", digits_run, "digits", *words)
    assert answer.code == 0
    assert {str(page), str(tmp_path / "page")} <= set(answer.out.split())
    images = sorted((tmp_path / "page").glob("*.png"))
    assert len(images) == 6
    for file in images:
        with Image.open(file) as drawn:
            assert drawn.size == (448, 448)
            assert drawn.info["Title"] in {METHODS[name].title for name in ("rollout", "generic_attention")}
    text = page.read_text()
    assert text.count('<section class="case"') == 3
    assert f"vitrail explain {digits_run} digits {' '.join(map(str, words))}" in text


def test_once_more_takes_away_the_images_of_before_and_nothing_else(
    cli: Cli, photo_run: Path, photo: Path, tmp_path: Path
) -> None:
    page, folder = tmp_path / "page.html", tmp_path / "page"
    words = ("explain", photo_run, photo, "--no-trust", "--out", page)
    methods = ("raw_attention", "rollout", "generic_attention")
    assert cli(*words, "--compare", "--methods", ",".join(methods)).code == 0
    names = {path.name for path in folder.glob("*.png")}
    assert names == {f"001-a_000-{part}.png" for part in methods}
    assert set(json.loads((folder / "images.json").read_text())) == names
    mine = folder / "002-mine-rollout.png"
    shutil.copy(photo, mine)  # never listed
    shutil.copy(photo, folder / "001-a_000-raw_attention.png")  # listed, and changed since
    before = json.loads((folder / "images.json").read_text())
    outside = tmp_path / "outside.png"
    outside.write_bytes(b"an image")
    before["../outside.png"] = hashlib.sha256(b"an image").hexdigest()  # a list that reaches elsewhere
    (folder / "images.json").write_text(json.dumps(before))
    assert cli(*words).code == 0
    left = {path.name for path in folder.iterdir()}
    now = ["001-a_000-generic_attention.png"]
    assert left == {mine.name, "001-a_000-raw_attention.png", "images.json", *now}
    assert outside.is_file()
    assert list(json.loads((folder / "images.json").read_text())) == now
    (folder / "images.json").write_text("{")  # a damaged list: nothing is known, nothing goes
    assert cli(*words, "--method", "rollout").code == 0
    assert {path.name for path in folder.iterdir()} == left | {"001-a_000-rollout.png"}
