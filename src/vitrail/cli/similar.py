"""`vitrail similar IMAGE DATA --model M`: the nearest images, as lines and as a page that shows where they agree."""

from pathlib import Path

from vitrail.cli.args import Similar
from vitrail.cli.embed import shown_progress
from vitrail.cli.output import print_json, print_table, say, warn
from vitrail.cli.sources import files_of, load_on
from vitrail.cli.weights import typed_hints
from vitrail.data.readers.folder import EXTENSIONS
from vitrail.errors import UsageError
from vitrail.features.similar import Similar as Found, similar
from vitrail.io import check_writable, free_name, other_out
from vitrail.jobs.passes import LARGE_BATCH
from vitrail.pages.html import is_page
from vitrail.pages.similar_page import KIND, write_similar_page


def run(typed: Similar, command: str) -> int:
    """Look for neighbours, write the page, and say which they are."""
    page = _page_at(typed.out)
    check_writable(page)
    if Path(typed.images).suffix.lower() in EXTENSIONS:
        files_of([typed.images])  # says what is there where it is not
    images = [name for name in (typed.data, typed.images) if Path(name).is_dir()]
    model = load_on(typed.model, typed.device, typed.threads, LARGE_BATCH, typed, images)
    with shown_progress() as progress, typed_hints(typed):
        found = similar(
            typed.images,
            typed.data,
            model,
            count=typed.count,
            pooling=typed.pooling,
            queries=typed.queries,
            data_root=typed.data_root,
            progress=progress,
        )
    write_similar_page(page, found.page(typed.model, typed.data, command))
    if typed.json:
        print_json({"model": typed.model, "data": typed.data, **found.to_dict(), "page": str(page)})
    else:
        _tell(found)
        say("")
        say(f"the page  {page}")
    for note in found.notes:
        warn(note)
    return 0


def _tell(found: Found) -> None:
    """Each image that was asked about, with a line for each neighbour."""
    for one in found.found:
        say(one.name if one.label is None else f"{one.name} ({one.label})")
        print_table([(each.name, each.label or "", f"{each.distance:.3f}") for each in one.neighbours], left=2)


def _page_at(out: Path | None) -> Path:
    """Where the page goes; nothing but a page of neighbours is ever written over.

    Raises:
        UsageError: That place is taken, or its ending is that of another kind of file.
    """
    if out is None:
        return free_name(Path("similar.html"))
    if out.is_dir():
        return free_name(out / "similar.html")
    if out.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"neighbours are shown on an HTML page, not {out}", f"--out {out.with_suffix('.html')}")
    if out.exists() and not is_page(out.read_text(encoding="utf-8", errors="replace"), KIND):
        raise UsageError(f"{out} exists and is no page of neighbours by vitrail", other_out(out))
    return out
