"""What a report leaves on disk, and what JSON has of it: the page, an overlay of each attribution, and their numbers.

The overlays lie in a folder beside the page that has its name; `images.json` there lists them with their SHA-256.
When the page is written again, an overlay that the list names and the new report does not is removed, if its bytes are
still those that were written; nothing else is. A PNG says in its text chunks what it shows, with its verdict.

The JSON is an object for each image, which has its attributions in `attributions`. Each says what it explains
(`explains`, which is class, contrast, similarity, number or token; `target`, `contrast`, and in `logit` the number
itself: a logit, the difference of two, a cosine, or a number of the model's), its `values`, one for each patch, what
it took (`passes` of the network, `seconds` for one image), with --compare its `deletion` and `insertion` and those of
a random order, and in `trust` how far to trust it; `trust` is null with --no-trust. There:

    verdict, reason, sentence   as on the page
    score, interval             mean fall of the explained number, with each of the five fills at every step; null, as
                                all falls, where the test ended with an image without evidence (--full goes on)
    rank                        one more than the random maps that do as well under the same fills
    random_mean, random_maps    the mean of their falls, and how many they are
    oracle                      the fall for the true place; null where it is not known
    evidence_p, faithful_p      p of both questions; null where one could not be asked
    effect, least_effect        by how much the log-odds of the class, or the cosine of a similarity, lie above those of
                                the middle composite, and from how much on there is evidence; null for any other number:
                                there `evidence_p` alone decides, and "weak" is the best verdict
    effect_unit                 of both: nats, cosine, or null
    before                      the target's probability; of a contrast, that of the first class among the two; null for
                                a similarity and a number
    masked, masked_random       the same with `patches` patches masked, in the map's order and in that of random maps
    patches                     the step at which these two differ most, of those up to a quarter of all patches
    composites, surrogates      with how many images without evidence, of each kind, the number was compared
    fill                        what filled masked patches
    precision                   in which the test was computed, fp32 or bf16; the same for all maps of a command

The rank is null for a map without signal, whose order is drawn by lot.
"""

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.errors import UsageError
from vitrail.io import free_name, write_file
from vitrail.pages.colour import overlay_of, png
from vitrail.pages.explanation_page import KIND
from vitrail.pages.html import is_page
from vitrail.pages.trust import rank_of
from vitrail.pages.views import AreasView, AttributionView, ImageView, TrustView

LIST = "images.json"
FORBIDDEN = re.compile(r'[<>:"/\\|?*\x00-\x1f]')  # in the names of files, on some systems
OTHERWISE = ("random", "random_maps", "evidence", "faithful")  # what a `TrustView` holds and JSON has otherwise


class Saved(NamedTuple):
    """What was written of a report: the page, and of each image the overlays of its attributions."""

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
        raise UsageError(f"{out} is a file, and an explanation is a page or a folder for one", f"--out {out}.html")
    if out.is_dir() or not out.suffix:
        return _free(out / "explanation.html")
    if out.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"an explanation is an HTML page, not {out.name}", f"--out {out.with_suffix('.html')}")
    if out.exists() and not is_page(out.read_text(encoding="utf-8", errors="replace"), KIND):
        raise UsageError(f"{out} exists and is no explanation by vitrail", f"--out {_free(out)}")
    if out.with_suffix("").exists() and not out.exists():
        raise UsageError(f"{out.with_suffix('')}, where the images would go, exists", f"--out {_free(out)}")
    return out


def _free(page: Path) -> Path:
    """The page, or the first with a number for which neither it nor its folder of images exists."""
    return free_name(page, lambda free: free.exists() or free.with_suffix("").exists())


# ---- the overlays


def write_overlays(folder: Path, images: Sequence[ImageView], one_scale: bool) -> list[list[str]]:
    """One PNG for each attribution of each image; gives the files of each image."""
    before, sums, written = _listed(folder), dict[str, str](), []
    for number, one in enumerate(images, start=1):
        files = []
        for name, content in overlays_of(number, one, one_scale):
            write_file(folder / name, content)
            sums[name] = hashlib.sha256(content).hexdigest()
            files.append(str(folder / name))
        written.append(files)
    _remove(folder, {name: known for name, known in before.items() if name not in sums}, set(sums))
    write_file(folder / LIST, json.dumps(sums, indent=1) + "\n")
    return written


def overlays_of(number: int, one: ImageView, one_scale: bool) -> Iterator[tuple[str, bytes]]:
    """The overlay of each attribution of an image as a file, with its name."""
    stem = f"{number:03d}-{FORBIDDEN.sub('_', Path(one.name).stem)}"
    methods = [view.method for view in one.attributions]
    for place, view in enumerate(one.attributions, start=1):
        several = f"-{place}" if methods.count(view.method) > 1 else ""
        against = "" if view.contrast is None else f" rather than {view.contrast}"
        told = "not tested" if view.trust is None else view.trust.sentence
        texts = {"Title": view.title, "Description": f"{one.name}: {view.target}{against}", "Comment": told}
        yield f"{stem}-{view.method}{several}.png", png(overlay_of(view, one, one_scale), texts)


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


# ---- what JSON has


def image_json(answer: Mapping[str, Any], one: ImageView, files: Sequence[str] | None = None) -> dict[str, Any]:
    """What the model said of one image, and its attributions.

    Args:
        answer: What the model says, and what is true, under the names that JSON has for it.
        one: The image with its attributions.
        files: The overlay of each attribution, where these were written.
    """
    names = [None] * len(one.attributions) if files is None else list(files)
    rows = [_attribution_json(view, file) for view, file in zip(one.attributions, names, strict=True)]
    return {"file": one.name, **answer, "attributions": rows}


def _attribution_json(view: AttributionView, file: str | None) -> dict[str, Any]:
    no_areas = dict.fromkeys(field.name for field in dataclasses.fields(AreasView))
    return {
        "method": view.method,
        "explains": view.explains,
        "target": view.target,
        "contrast": view.contrast,
        "logit": view.logit,
        "signed": view.signed,
        "class_specific": view.class_specific,
        "values": view.values.tolist(),
        "notes": list(view.notes),
        "parts": dict(view.parts) or None,
        "overlay": file,
        "passes": view.passes,
        "seconds": view.seconds,
        **(no_areas if view.areas is None else dataclasses.asdict(view.areas)),
        "trust": None if view.trust is None else trust_json(view.trust),
    }


def trust_json(trust: TrustView) -> dict[str, Any]:
    """What is known of it under the same names, but for the random maps and the two questions."""
    told = {name: value for name, value in dataclasses.asdict(trust).items() if name not in OTHERWISE}
    return {
        **told,
        "rank": None if trust.faithful is None else rank_of(trust),
        "random_mean": sum(trust.random) / len(trust.random) if trust.random else None,
        "random_maps": trust.random_maps,
        "evidence_p": trust.evidence,
        "faithful_p": trust.faithful,
    }
