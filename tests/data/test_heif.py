"""HEIC and AVIF: upright once, by path and by bytes; a library is loaded for the first when it is met, or asked for."""

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image

from tests.cli.command import DATA, call
from tests.errors import must_raise
from vitrail.data.images import FileImages, open_image
from vitrail.data.packing import pack
from vitrail.data.sources import read
from vitrail.errors import DataError

PIXELS = np.zeros((32, 48, 3), np.uint8)
PIXELS[:16, :24], PIXELS[16:, 24:], PIXELS[:16, 24:] = (200, 30, 30), (30, 30, 200), (240, 240, 240)


def saved(kind: str, orientation: int | None = None) -> bytes:
    """An image in four colours, of which each orientation shows another."""
    if kind == "HEIF":
        from pillow_heif import register_heif_opener

        register_heif_opener()
    exif, content = Image.Exif(), io.BytesIO()
    if orientation is not None:
        exif[ExifTags.Base.Orientation] = orientation
    more = {"exif": exif.tobytes()} if orientation is not None else {}
    Image.fromarray(PIXELS).save(content, kind, quality=95, **more)
    return content.getvalue()


@pytest.mark.parametrize("kind", ["HEIF", "AVIF"])
@pytest.mark.parametrize("orientation", [None, *range(1, 9)])
def test_upright_once(kind: str, orientation: int | None, tmp_path: Path) -> None:
    """As the same image in a PNG, whatever the file is called."""
    (tmp_path / "a.jpg").write_bytes(saved(kind, orientation))
    (tmp_path / "a.png").write_bytes(saved("PNG", orientation))
    wanted = np.asarray(open_image(tmp_path / "a.png")).astype(int)
    for image in (open_image(tmp_path / "a.jpg"), FileImages([tmp_path / "a.jpg"]).read(0)[0]):
        assert image.mode == "RGB"
        found = np.asarray(image).astype(int)
        assert found.shape == wanted.shape
        assert np.abs(found - wanted).mean() < 4


def test_damaged_and_packed(tmp_path: Path) -> None:
    content = saved("HEIF", 6)
    for cut in (20, 64, len(content) // 2):
        (tmp_path / "cut.heic").write_bytes(content[:cut])
        with must_raise(DataError, named=r"cut\.heic"):
            open_image(tmp_path / "cut.heic")
    for name in ("a", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        (tmp_path / "photos" / name / f"{name}.heic").write_bytes(content)
    pack(str(tmp_path / "photos"), tmp_path / "packed")
    folder, packed = read(str(tmp_path / "photos")), read(str(tmp_path / "packed"))
    assert packed.splits["all"].images.content(0) == content
    assert packed.splits["all"].images.content_hash(0) == folder.splits["all"].images.content_hash(0)
    assert packed.splits["all"].images.open(0).size == (32, 48)


def test_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two lines say what to install; nothing else needs it."""
    for name in ("a", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(6):
            (tmp_path / "photos" / name / f"{number}.heic").write_bytes(saved("HEIF"))
    (tmp_path / "x.avif").write_bytes(saved("AVIF"))
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with must_raise(DataError, named="pillow-heif") as caught:
        open_image(tmp_path / "photos" / "a" / "1.heic")
    assert caught.value.hint.text == 'pip install "vitrail[heif]"'
    refused = call("train", tmp_path / "photos", "--out", tmp_path / "run")
    assert refused.code == DATA
    assert refused.err.splitlines()[-1].endswith('pip install "vitrail[heif]"')
    open_image(tmp_path / "x.avif")


def test_it_is_loaded_when_it_is_needed(tmp_path: Path) -> None:
    """And not before; a process of its own has not met one yet."""
    (tmp_path / "a.heic").write_bytes(saved("HEIF"))
    (tmp_path / "a.png").write_bytes(saved("PNG"))
    code = (
        "import sys; from vitrail.data.images import open_image; open_image('a.png'); "
        "assert 'pillow_heif' not in sys.modules; assert open_image('a.heic').size == (48, 32)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False).returncode == 0
