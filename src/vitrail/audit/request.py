"""What is audited, and whether a folder holds the jobs of the same audit, so that they go on."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.audit.edits import Edit
from vitrail.audit.sampling import SearchedImages
from vitrail.data.columns import GROUP, Samples
from vitrail.data.masks import mask_places
from vitrail.errors import UsageError, all_of
from vitrail.explain.reporting.plan import ReportOptions
from vitrail.io import other_out, read_json, to_json, write_file
from vitrail.jobs.precision import identity_of
from vitrail.model import Model

JOB, LOCK = "job.json", "lock"
MASKS = "masks"  # in the job: of them there is a hash
FORMAT = 5  # of the lines of jobs


class AuditRequest(NamedTuple):
    """What is audited, on what, and how; and what is known by its content."""

    model: Model
    samples: Samples
    wanted: ReportOptions
    edits: tuple[Edit, ...]
    masks: Path | None
    known: Mapping[str, Any]

    def labels_hash(self) -> str:
        """A hash of the label and the group of every image, in hexadecimal digits; of no names, where none has one."""
        samples, name = self.samples, self.model.task.column
        column = samples.column(name if name in samples.columns else None)
        about = (samples.labels or (), column.digest(), [*samples.units()] if GROUP in samples.columns else [])
        return hashlib.blake2b(repr(about).encode("utf-8", "replace"), digest_size=16).hexdigest()


def explained_images(
    folder: Path, asked: AuditRequest, make: Callable[[], list[int]], limits: Sequence[Any]
) -> list[int]:
    """Which images are explained: as it was chosen when these jobs were started, else as it is chosen now, and written.

    Raises:
        UsageError: Jobs of another audit lie there, or something else.
    """
    job = {
        "format": FORMAT,
        **identity_of(asked.model),
        "images": asked.samples.images.digest().hex(),
        "labels or groups": asked.labels_hash(),
        "precision": asked.wanted.precision,
        **asked.known,
        "parts": [edit.entry(asked.model.preprocessing.size) for edit in asked.edits],
        "limits (--count, --max-time)": list(limits),
    }
    file, job = folder / JOB, json.loads(to_json(job))
    nothing: dict[str, Any] = {"job": {}, "explained": []}
    before = read_json(file, f"another folder; or rm -r {folder}") if file.is_file() else nothing
    stored = before["job"]
    differing = [name for name in job | stored if stored.get(name) != job.get(name) and name != MASKS]
    if not differing and stored.get(MASKS) != masks_hash(asked, before["explained"]):
        differing = [MASKS]
    if differing:
        if folder.is_dir() and {each.name for each in folder.iterdir()} - {file.name, LOCK}:
            problem = f"{folder}, the folder for the parts of the audit, exists"
            if stored:
                problem = f"{folder} is of an audit with other {all_of(differing)}"
            raise UsageError(problem, other_out(folder))
        explained = make()
        write_file(file, to_json({"job": {**job, MASKS: masks_hash(asked, explained)}, "explained": explained}))
        return explained
    return before["explained"]


def masks_hash(asked: AuditRequest, rows: Sequence[int]) -> str:
    """A hash of the names, sizes and times of the masks of images, which changes when one is written.

    Args:
        asked: What is audited; the hash is empty without a folder of masks.
        rows: Of the images that are explained; no other mask is read.
    """
    if asked.masks is None:
        return ""
    places = (place for row in rows for place in mask_places(asked.samples.name(row), asked.masks))
    masks = ((file.relative_to(asked.masks), file.stat()) for file in places if file.is_file())
    about = sorted((str(name), known.st_size, known.st_mtime_ns) for name, known in masks)
    return hashlib.blake2b(repr(about).encode("utf-8", "replace"), digest_size=16).hexdigest()


def searched_images(folder: Path, make: Callable[[], SearchedImages]) -> SearchedImages:
    """Which images are searched, where it is written which are explained: as it was chosen, else as it is now."""
    file = folder / JOB
    stored = read_json(file, f"another folder; or rm -r {folder}")
    if "searched" not in stored:
        stored["searched"] = vars(make())
        write_file(file, to_json(stored))
    return SearchedImages.of(stored["searched"])
