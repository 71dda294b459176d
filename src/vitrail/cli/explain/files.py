"""The pictures that an explanation leaves beside its page, and what becomes of those of the explanation before.

For each picture a sheet, which shows everything, and every map by itself. `pictures.json` in their folder lists them
with their SHA-256. When the page is written again, a picture that the list names and the new explanation does not is
removed, if its bytes are still those that were written; nothing else is.
"""

import hashlib
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from PIL import Image

    from vitrail.pages.views import ExplainedPicture, ExplanationPage

LIST = "pictures.json"
FORBIDDEN = re.compile(r'[<>:"/\\|?*\x00-\x1f]')  # in the names of files, on some systems


class Files(NamedTuple):
    """What was written of one picture."""

    sheet: str
    maps: list[str]


def write_pictures(folder: Path, page: "ExplanationPage") -> list[Files]:
    """A sheet for each picture of the page, and one PNG for each of its maps; gives the files of each picture."""
    folder.mkdir(parents=True, exist_ok=True)
    before, sums, written = _listed(folder), {}, []
    for number, one in enumerate(page.pictures, start=1):
        files = []
        for name, drawn in _drawn(number, one, page):
            content = io.BytesIO()
            drawn.save(content, "PNG")
            (folder / name).write_bytes(content.getvalue())
            sums[name] = hashlib.sha256(content.getvalue()).hexdigest()
            files.append(str(folder / name))
        written.append(Files(files[0], files[1:]))
    _remove(folder, {name: known for name, known in before.items() if name not in sums}, set(sums))
    (folder / LIST).write_text(json.dumps(sums, indent=1) + "\n", encoding="utf-8")
    return written


def _drawn(number: int, one: "ExplainedPicture", page: "ExplanationPage") -> Iterator[tuple[str, "Image.Image"]]:
    """The sheet of a picture, then each map, with the names of their files."""
    from vitrail.pages.sheet import draw_map_file, draw_sheet

    stem = f"{number:03d}-{FORBIDDEN.sub('_', Path(one.name).stem)}"
    yield f"{stem}-sheet.png", draw_sheet(one, page)
    methods = [view.method for view in one.heats]
    for place, view in enumerate(one.heats, start=1):
        several = f"-{place}" if methods.count(view.method) > 1 else ""
        yield f"{stem}-{view.method}{several}.png", draw_map_file(view, one, page.one_scale)


def _listed(folder: Path) -> dict[str, str]:
    """What the explanation before says that it wrote; nothing where its list is missing or damaged."""
    try:
        content = json.loads((folder / LIST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(name): str(known) for name, known in content.items()} if isinstance(content, dict) else {}


def _remove(folder: Path, former: dict[str, str], kept: set[str]) -> None:
    """Remove files of this folder whose bytes are still those that were written; a disk may not tell A from a."""
    others = {name.casefold() for name in kept}
    for name, known in former.items():
        file = folder / name
        is_ours = Path(name).name == name and file.suffix == ".png" and file.is_file() and not file.is_symlink()
        if is_ours and name.casefold() not in others and hashlib.sha256(file.read_bytes()).hexdigest() == known:
            file.unlink()
