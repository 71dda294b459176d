"""What is audited, and whether a folder holds the jobs of the same audit, so that they go on."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.audit.edits import Edit
from vitrail.audit.sampling import ChosenImages, known_labels, trio_of
from vitrail.data.columns import Samples
from vitrail.errors import UsageError
from vitrail.explain.reporting.plan import ReportOptions
from vitrail.io import other_out, read_json, to_json, write_file
from vitrail.jobs.precision import identity_of
from vitrail.model import Model

LOCK = "lock"  # of the folder


class AuditRequest(NamedTuple):
    """What is audited, on what, and how; and what stored maps are known by."""

    model: Model
    samples: Samples
    wanted: ReportOptions
    edits: tuple[Edit, ...]
    masks: Path | None
    maps: Mapping[str, Any]


def chosen_images(
    folder: Path, asked: AuditRequest, make: Callable[[], ChosenImages], limits: Sequence[Any]
) -> ChosenImages:
    """Which images are asked: as it was chosen when these jobs were started, else as it is chosen now, and written.

    Raises:
        UsageError: Jobs of another audit lie there, or something else.
    """
    units = repr([*asked.samples.units()]).encode("utf-8", "replace")
    job = {
        **identity_of(asked.model),
        "images": asked.samples.images.digest().hex(),
        "labels or groups": hashlib.blake2b(
            known_labels(asked.model, asked.samples).tobytes() + units, digest_size=16
        ).hexdigest(),
        "options (--method, --background, --precision)": {
            name: str(value) for name, value in vars(asked.wanted).items()
        },
        "parts": [edit.entry(asked.model.preprocessing.size) for edit in asked.edits],
        "masks": str(asked.masks),
        **asked.maps,
        "limits (--count, --max-time)": list(limits),
    }
    file, job = folder / "job.json", json.loads(to_json(job))
    before = read_json(file, f"another folder; or rm -r {folder}") if file.is_file() else None
    if before is None or before["job"] != job:
        if folder.is_dir() and {each.name for each in folder.iterdir()} - {file.name, LOCK}:
            problem = f"{folder}, the folder for the parts of the audit, exists"
            if before is not None:
                differing = [name for name in job if before["job"].get(name) != job[name]]
                problem = f"{folder} is of an audit with other {' and '.join(differing)}"
            raise UsageError(problem, other_out(folder))
        chosen = make()
        write_file(file, to_json({"job": job, "chosen": vars(chosen)}))
        return chosen
    chosen = before["chosen"]
    halves = tuple([trio_of(trio) for trio in half] for half in chosen["halves"])
    asked_of = {int(label): tuple(counts) for label, counts in chosen["asked"].items()}
    return ChosenImages(chosen["explained"], halves, asked_of, tuple(chosen["left"]), tuple(chosen["notes"]))  # pyrefly: ignore[bad-argument-type]
