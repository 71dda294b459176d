"""What `vitrail explain` leaves: a page, and images beside it."""

import json
import os
import shutil
from pathlib import Path

import pytest
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
    short = " ".join(map(str, words)).replace(f"{tmp_path}/", "")  # no path of the machine stands on the page
    assert f"vitrail explain {digits_run.name} digits {short}" in text


def test_once_more_writes_its_own_images_again_and_touches_no_other_file(
    cli: Cli, photo_run: Path, photo: Path, tmp_path: Path
) -> None:
    page, folder = tmp_path / "page.html", tmp_path / "page"
    words = ("explain", photo_run, photo, "--no-trust", "--out", page)
    methods = ("raw_attention", "rollout", "generic_attention")
    assert cli(*words, "--compare", "--methods", ",".join(methods)).code == 0
    assert {path.name for path in folder.iterdir()} == {f"001-a_000-{part}.png" for part in methods}
    now, others = folder / "001-a_000-generic_attention.png", ["001-a_000-rollout.png", "002-mine-rollout.png"]
    for file in (now, *(folder / name for name in others)):
        shutil.copy(photo, file)
    assert cli(*words).code == 0
    assert now.read_bytes() != photo.read_bytes()
    assert all((folder / name).read_bytes() == photo.read_bytes() for name in others)
    assert (folder / "001-a_000-raw_attention.png").is_file()


def test_no_folder_is_named_where_no_image_has_a_map(
    cli: Cli, photo_run: Path, photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where none of several images holds evidence."""
    monkeypatch.setattr("vitrail.explain.reporting.report.write_overlays", lambda *given: [])
    answer = cli("explain", photo_run, photo, "--no-trust", "--out", tmp_path / "page.html")
    assert answer.code == 0
    assert (str(tmp_path / "page.html") in answer.out, str(tmp_path / "page\n") in answer.out) == (True, False)
    assert not (tmp_path / "page").exists()


@pytest.mark.skipif(os.name != "posix", reason="file names that are no text exist on POSIX only")
@pytest.mark.parametrize("name", ["写真".encode() * 40 + b".jpg", b"bad\xff\xfename.jpg"], ids=["long", "no-text"])
def test_whatever_an_image_is_called_its_maps_are_written(
    cli: Cli, photo_run: Path, photo: Path, tmp_path: Path, name: bytes
) -> None:
    image = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    shutil.copy(photo, image)
    for out, more in (
        ("page.html", ()),
        ("page2.html", ("--json",)),
        ("lines.jsonl", ()),
        ("lines2.jsonl", ("--json",)),
    ):
        answer = cli("explain", photo_run, image, "--no-trust", *more, "--out", tmp_path / out)
        assert answer.code == 0, answer.err
        (overlay,) = (tmp_path / out).with_suffix("").rglob("*.png")
        with Image.open(overlay) as drawn:
            assert str(tmp_path) not in drawn.info["Description"]
        if more:
            found = json.loads(answer.out)
            (row,) = found["images"] if out.endswith(".html") else found  # the lines
            assert row["file"] == str(image)
            assert (tmp_path / row["attributions"][0]["overlay"]).samefile(overlay)
    assert "<h2>" in (tmp_path / "page.html").read_text("utf-8")
