"""The pictures that an explanation leaves beside its page, and what becomes of those of the explanation before.

`pictures.json` in their folder lists them with their SHA-256. When the page is written again, a picture that the list
names and the new explanation does not is removed, if its bytes are still those that were written; nothing else is.
"""

import hashlib
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitrail.pages.explanation_page import ExplainedPicture

LIST = "pictures.json"
LARGE = 448  # pixels of the longer side, about


def write_pictures(folder: Path, explained: list["ExplainedPicture"]) -> list[list[str]]:
    """One PNG for each picture and method, large enough to look at; gives the files of each picture."""
    folder.mkdir(parents=True, exist_ok=True)
    before, sums, written = _listed(folder), {}, []
    for number, one in enumerate(explained, start=1):
        files = []
        for name, content in _drawn(number, one):
            (folder / name).write_bytes(content)
            sums[name] = hashlib.sha256(content).hexdigest()
            files.append(str(folder / name))
        written.append(files)
    _remove(folder, {name: known for name, known in before.items() if name not in sums}, set(sums))
    (folder / LIST).write_text(json.dumps(sums, indent=1) + "\n", encoding="utf-8")
    return written


def _drawn(number: int, one: "ExplainedPicture") -> list[tuple[str, bytes]]:
    """The name and the bytes of each map of a picture."""
    from PIL import Image

    from vitrail.pages.colour import heat_picture

    files: list[tuple[str, bytes]] = []
    for view in one.heats:
        drawn = Image.fromarray(heat_picture(one.picture, view.values, view.signed))
        larger = max(1, round(LARGE / max(drawn.size)))
        drawn = drawn.resize((drawn.width * larger, drawn.height * larger), Image.Resampling.NEAREST)
        place = f"-{len(files) + 1}" if [other.method for other in one.heats].count(view.method) > 1 else ""
        content = io.BytesIO()
        drawn.save(content, "PNG")
        files.append((f"{number:03d}-{Path(one.name).stem}-{view.method}{place}.png", content.getvalue()))
    return files


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
