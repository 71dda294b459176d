"""What a report leaves on disk: the page, and an overlay of each attribution.

The overlays lie in a folder beside the page that has its name; `images.json` there lists them with their SHA-256.
When the page is written again, an overlay that the list names and the new report does not is removed, if its bytes are
still those that were written; nothing else is. The text chunks of a PNG state what it shows, with its verdict.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from vitrail.errors import UsageError
from vitrail.io import free_name, write_file
from vitrail.pages.colour import overlay_of, png
from vitrail.pages.explanation_page import KIND
from vitrail.pages.html import is_page
from vitrail.pages.views import ImageView

LIST = "images.json"
FORBIDDEN = re.compile(r'[<>:"/\\|?*\x00-\x1f]')  # in the names of files, on some systems


class Saved(NamedTuple):
    """The files of a report: the page, and of each image the overlays of its attributions."""

    page: Path
    overlays: list[list[str]]


# ---- where it goes


def page_at(out: Path | None) -> Path:
    """Where the page goes; nothing but a page of an explanation is ever written over.

    Raises:
        UsageError: If that place is taken, or its ending is that of another kind of file.
    """
    if out is None:
        return _free(Path("explanation.html"))
    if out.is_file() and not out.suffix:
        raise UsageError(
            f"{out} is a file; an explanation is written to an HTML page, or to a folder for it", f"--out {out}.html"
        )
    if out.is_dir() or not out.suffix:
        return _free(out / "explanation.html")
    if out.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"an explanation is an HTML page, not {out.name}", f"--out {out.with_suffix('.html')}")
    if out.exists() and not is_page(out.read_text(encoding="utf-8", errors="replace"), KIND):
        raise UsageError(f"{out} exists and is not an explanation by vitrail", f"--out {_free(out)}")
    if out.with_suffix("").exists() and not out.exists():
        raise UsageError(f"{out.with_suffix('')}, the folder for the images, exists", f"--out {_free(out)}")
    return out


def _free(page: Path) -> Path:
    """The page, or the first with a number for which neither it nor its folder of images exists."""
    return free_name(page, lambda free: free.exists() or free.with_suffix("").exists())


# ---- the overlays


def write_overlays(folder: Path, images: Sequence[ImageView]) -> list[list[str]]:
    """One PNG for each attribution of each image; returns the files of each image."""
    before, sums, written = _listed(folder), dict[str, str](), []
    for number, one in enumerate(images, start=1):
        files = []
        for name, content in overlays_of(number, one):
            write_file(folder / name, content)
            sums[name] = hashlib.sha256(content).hexdigest()
            files.append(str(folder / name))
        written.append(files)
    _remove(folder, {name: known for name, known in before.items() if name not in sums}, set(sums))
    write_file(folder / LIST, json.dumps(sums, indent=1) + "\n")
    return written


def overlays_of(number: int, one: ImageView) -> Iterator[tuple[str, bytes]]:
    """The overlay of each attribution of an image as a file, with its name."""
    stem = f"{number:03d}-{FORBIDDEN.sub('_', Path(one.name).stem)}"
    methods = [view.method for view in one.attributions]
    for place, view in enumerate(one.attributions, start=1):
        several = f"-{place}" if methods.count(view.method) > 1 else ""
        against = "" if view.contrast is None else f" rather than {view.contrast}"
        tested = "not tested" if view.trust is None else view.trust.sentence
        texts = {"Title": view.title, "Description": f"{one.name}: {view.target}{against}", "Comment": tested}
        yield f"{stem}-{view.method}{several}.png", png(overlay_of(view, one), texts)


def _listed(folder: Path) -> dict[str, str]:
    """What the report before wrote, by its list; nothing where its list is missing or damaged."""
    try:
        content = json.loads((folder / LIST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(name): str(known) for name, known in content.items()} if isinstance(content, dict) else {}


def _remove(folder: Path, former: dict[str, str], written: set[str]) -> None:
    """Remove files of this folder whose bytes are still those that were written; a disk may not tell A from a."""
    others = {name.casefold() for name in written}
    for name, known in former.items():
        file = folder / name
        is_ours = Path(name).name == name and file.suffix == ".png" and file.is_file() and not file.is_symlink()
        if is_ours and name.casefold() not in others and hashlib.sha256(file.read_bytes()).hexdigest() == known:
            file.unlink()
