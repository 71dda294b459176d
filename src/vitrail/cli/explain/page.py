"""What an explanation leaves: where its page may go, the pictures beside it, and what JSON tells of them.

For each picture a sheet, which shows everything, and every map by itself. `pictures.json` in their folder lists them
with their SHA-256. When the page is written again, a picture that the list names and the new explanation does not is
removed, if its bytes are still those that were written; nothing else is.

The JSON is a list with a dictionary for each picture, which has its maps in `heats`. Each map says what it explains
(`explains`, which is class, contrast, similarity, number or token; `target`, `rather_than`, and in `logit` the number
itself: a logit, the difference of two, a cosine, or a number of the model's), its `values`, one for each square, what
it took (`passes` of the network, `seconds` for one picture), with --compare its `deletion` and `insertion` and those of
a random order, and in `trust` how far to trust it; `trust` is null with --no-trust. There:

    verdict, reason, sentence   as on the page
    score, interval             mean fall of the explained number, with each of the five covers at every step; null, as
                                all falls, where the test ended with a picture without evidence (--full goes on)
    paired, rank                the same fall under the covers that the random maps met, and the place among these
    random_mean, random_maps    the mean of their falls, and how many they are
    oracle                      the fall for the true place; null where it is not known
    evidence_p, faithful_p      p of both questions; null where one could not be asked
    effect, least_effect        by how much the log-odds of the class, or the cosine of a similarity, lie above those of
                                the middle composite, and from how much on there is evidence; null for any other number:
                                there `evidence_p` alone decides, and "weak" is the best verdict
    effect_unit                 of both: nats, cosine, or null
    before                      the target's probability; of a contrast, that of the first class among the two; null for
                                a similarity and a number
    covered, covered_random     the same with `squares` squares covered, in the map's order and in that of random maps
    squares                     the step at which these two differ most, of those up to a quarter of all squares
    composites, surrogates      with how many pictures without evidence, of each kind, the number was compared
    fill                        what covered squares
    precision                   in which the test was computed, fp32 or bf16; the same for all maps of a command

So `score` and `paired` are two means of one thing: compare `paired` with the random maps, and take `score` with its
interval for the map alone. The rank is null for a map without signal, whose order is drawn by lot.
"""

import dataclasses
import hashlib
import io
import json
import re
import shlex
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from vitrail.errors import UsageError
from vitrail.io import free_name, write_file
from vitrail.pages.explanation_page import KIND
from vitrail.pages.html import is_page
from vitrail.pages.sheet import draw_map_file, draw_sheet
from vitrail.pages.views import AreasView, ExplainedPicture, ExplanationPage, HeatView, TrustView
from vitrail.pages.words import rank_of

LIST = "pictures.json"
FORBIDDEN = re.compile(r'[<>:"/\\|?*\x00-\x1f]')  # in the names of files, on some systems
OTHERWISE = ("random", "twins", "evidence", "faithful")  # what a `TrustView` holds and JSON tells otherwise


class Files(NamedTuple):
    """What was written of one picture."""

    sheet: str
    maps: list[str]


# ---- where it goes


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
    if out.exists() and not is_page(out.read_text(encoding="utf-8", errors="replace"), KIND):
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
        raise UsageError(problem, shlex.join(["--out", str(Path.home() / page.name)])) from error


def _free(page: Path) -> Path:
    """The page, or the first with a number for which neither it nor its folder of pictures exists."""
    return free_name(page, lambda free: free.exists() or free.with_suffix("").exists())


# ---- the pictures


def write_pictures(folder: Path, page: ExplanationPage) -> list[Files]:
    """A sheet for each picture of the page, and one PNG for each of its maps; gives the files of each picture."""
    before, sums, written = _listed(folder), {}, []
    for number, one in enumerate(page.pictures, start=1):
        files = []
        for name, drawn in drawn_files(number, one, page):
            content = as_png(drawn)
            write_file(folder / name, content)
            sums[name] = hashlib.sha256(content).hexdigest()
            files.append(str(folder / name))
        written.append(Files(files[0], files[1:]))
    _remove(folder, {name: known for name, known in before.items() if name not in sums}, set(sums))
    write_file(folder / LIST, json.dumps(sums, indent=1) + "\n")
    return written


def as_png(drawn: Image.Image) -> bytes:
    """A picture as a file."""
    content = io.BytesIO()
    drawn.save(content, "PNG", compress_level=4, compress_type=zlib.Z_DEFAULT_STRATEGY)  # half the usual time
    return content.getvalue()


def drawn_files(number: int, one: ExplainedPicture, page: ExplanationPage) -> Iterator[tuple[str, Image.Image]]:
    """The sheet of a picture, then each map, with the names of their files."""
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


# ---- what JSON tells


def explained_json(answer: Mapping[str, Any], one: ExplainedPicture, page: Path, files: Files) -> dict[str, Any]:
    """What was said of one picture, and its maps.

    Args:
        answer: What the model says, and what is true, under the names that JSON has for it.
        one: The picture with its maps.
        page: Where the page is.
        files: What was written of this picture.
    """
    heats = [_heat_json(view, file) for view, file in zip(one.heats, files.maps, strict=True)]
    return {"file": one.name, **answer, "page": str(page), "sheet": files.sheet, "heats": heats}


def _heat_json(view: HeatView, file: str) -> dict[str, Any]:
    no_areas = dict.fromkeys(field.name for field in dataclasses.fields(AreasView))
    return {
        "method": view.method,
        "explains": view.explains,
        "target": view.target,
        "rather_than": view.rather_than,
        "logit": view.logit,
        "signed": view.signed,
        "class_specific": view.class_specific,
        "values": view.values.tolist(),
        "notes": list(view.notes),
        "parts": dict(view.parts) or None,
        "picture": file,
        "passes": view.passes,
        "seconds": view.seconds,
        **(no_areas if view.areas is None else dataclasses.asdict(view.areas)),
        "trust": None if view.trust is None else _trust_json(view.trust),
    }


def _trust_json(trust: TrustView) -> dict[str, Any]:
    """What is known of it under the same names, but for the random maps and the two questions."""
    told = {name: value for name, value in dataclasses.asdict(trust).items() if name not in OTHERWISE}
    return {
        **told,
        "rank": None if trust.faithful is None else rank_of(trust),
        "random_mean": sum(trust.random) / len(trust.random) if trust.random else None,
        "random_maps": trust.twins,
        "evidence_p": trust.evidence,
        "faithful_p": trust.faithful,
    }
