"""Where an explanation goes: a page, and a folder of pictures beside it that has the page's name."""

import tempfile
from pathlib import Path

from vitrail.errors import UsageError


def folder_name(run: str) -> str:
    """A run's name in a headline: that of its folder, also where it is reached by a link; its path stands elsewhere."""
    return Path(run).resolve().name or run


def page_at(out: Path | None) -> Path:
    """Where the page goes; nothing but a page of an explanation is ever written over.

    Raises:
        UsageError: If that place is taken, or its ending is that of another kind of file.
    """
    if out is None:
        return _free(Path("explanation.html"))
    if out.is_file() and not out.suffix:
        raise UsageError(f"{out} is a file, and an explanation is a page or a folder for one", f"--out {out}.html")
    if out.is_dir() or not out.suffix:
        return _free(out / "explanation.html")
    if out.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"an explanation is an HTML page, not {out.name}", f"--out {out.with_suffix('.html')}")
    if out.exists() and not _is_explanation(out):
        raise UsageError(f"{out} exists and is no explanation by vitrail", f"--out {_free(out)}")
    if out.with_suffix("").exists() and not out.exists():
        raise UsageError(f"{out.with_suffix('')}, where the pictures would go, exists", f"--out {_free(out)}")
    return out


def check_writable(page: Path) -> None:
    """Refuse a place where nothing can be written, before anything is computed; leaves nothing there.

    Raises:
        UsageError: If the folder cannot be made, or nothing can be written into it.
    """
    there = next(folder for folder in page.absolute().parents if folder.exists())
    try:
        with tempfile.TemporaryDirectory(dir=there):
            pass
    except OSError as error:
        problem = f"{page} cannot be written: {there}: {error.strerror}"
        raise UsageError(problem, "--out with a page in a folder of yours") from error


def _is_explanation(page: Path) -> bool:
    from vitrail.pages.explanation_page import KIND
    from vitrail.pages.html import is_page

    return is_page(page.read_text(encoding="utf-8", errors="replace"), KIND)


def _free(page: Path) -> Path:
    """The page, or the first with a number for which neither it nor its folder of pictures exists."""
    free, number = page, 2
    while free.exists() or free.with_suffix("").exists():
        free, number = page.with_stem(f"{page.stem}-{number}"), number + 1
    return free
