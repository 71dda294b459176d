"""The jobs of an audit: does a network look at the right thing, over a whole set, and what else speaks for a class?

    found = vitrail.audit.audit(model, "photos")
    found.supported        of how many images the explanation is supported, with its interval
    found.areas            where the evidence is: border, mask, background, each beside an area elsewhere
    found.named            parts of the image that speak for a class by themselves
    found.save("audit.html")

Each of its jobs goes on where it was stopped: verdicts on a sample that is drawn class by class (`maps.jsonl`); every
part of the catalogue on the first half of the images of each class (`first.jsonl`); what that proposes on the second
half (`second.jsonl`); and single patches of what was named, on both (`first-patches.jsonl`, `second-patches.jsonl`).
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from vitrail.arguments import typed
from vitrail.audit.areas import area_drops, check_usable_masks, shares
from vitrail.audit.edits import EDITS, Edit, check_edits
from vitrail.audit.notes import areas_notes, unclear_notes, unread_notes, untested_notes
from vitrail.audit.patches import with_patches
from vitrail.audit.places import propose, seen_places
from vitrail.audit.request import LOCK, AuditRequest, explained_images, searched_images
from vitrail.audit.result import Audit, ProofPictures
from vitrail.audit.sampling import (
    SearchedImages,
    choose_explained,
    choose_searched,
    kinds_of,
    known_labels,
    open_split,
    passes_in,
    readable_images,
)
from vitrail.audit.shortcuts import Shortcut, tested_parts
from vitrail.audit.swaps import lines_by_class, mean_effect, spread_of, swap_job
from vitrail.data.columns import ALL, GROUP, Samples
from vitrail.data.dataset import Split
from vitrail.data.images import NamedImage
from vitrail.data.layout import AS_FOUND, Layout
from vitrail.data.masks import check_any_mask
from vitrail.data.sources import Data
from vitrail.errors import UsageError
from vitrail.explain.methods import DEFAULT, MethodLike
from vitrail.explain.reporting.job import explain_all, known_by
from vitrail.explain.reporting.plan import ReportOptions, patch_grid, plan_report
from vitrail.explain.reporting.report import rates
from vitrail.explain.reporting.stored_maps import check_maps
from vitrail.io import locked
from vitrail.jobs.cluster import Cluster
from vitrail.jobs.precision import PrecisionOption
from vitrail.model import Model, load
from vitrail.nn.networks import weights_hash
from vitrail.pages.image_views import MadeView, Rates
from vitrail.text import short_paths

COUNT = 100  # images with a verdict, unless more are asked for
NEVER = " (measured, never named)"  # behind a part that may well hold the thing itself
OUTLINE = 56  # cells across an image, of the line around a part


@typed
def audit(
    model: str | Path | Model,
    data: Data | Split | None = None,
    *,
    masks: str | Path | None = None,
    count: int = COUNT,
    method: MethodLike = DEFAULT,
    edits: Sequence[Edit] = EDITS,
    data_root: str | Path | None = None,
    layout: Layout = AS_FOUND,
    split: str | None = None,
    background: str | Path | None = None,
    precision: PrecisionOption = "auto",
    max_seconds: float | None = None,
    folder: str | Path | None = None,
    cluster: Cluster | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Audit:
    """Audit a model on data: how often its explanations hold, where the evidence is, and which parts are shortcuts.

    Args:
        model: A run or model folder, other weights, or a loaded model.
        data: As for `evaluate`, or a split that is open already; the data of the run when None. Without labels there
            are rates of predictions only.
        masks: A folder with a mask of some images, where the thing is.
        count: Images that get a verdict, drawn class by class.
        method: That explains, by name or as a function.
        edits: The catalogue in which shortcuts are looked for.
        data_root: Folder of the named sets.
        layout: Columns and groups of the data, where they are named.
        split: Name of the split; test, else validation, else all samples when None.
        background: What replaces masked patches; the model's own when None.
        precision: Of the passes of verdicts.
        max_seconds: So much time at most: fewer images and classes are asked.
        folder: Where its jobs write, so that the same call goes on where it was stopped; a temporary one when None.
        cluster: Where else to compute, by workers of Ray.
        progress: Called with images done, and all: five times over, for verdicts, every part and what that proposes,
            and both once more for single patches of what was named.

    Raises:
        UsageError: There are no data, or something else lies in the folder.
        DataError: The model, the data or the masks cannot be used.
    """
    model = model if isinstance(model, Model) else load(model)
    if model.reads_text or model.output.generates or model.output.choose is None:
        problem = f"an audit is of models that answer images by classes or numbers, not of the task {model.task.name}"
        raise UsageError(problem, f"vitrail evaluate {model.loaded_from or 'RUN'}")
    check_edits(edits, model.preprocessing.size)
    root = None if data_root is None else Path(data_root)
    opened = data if isinstance(data, Split) else open_split(model, data, root, split, layout)
    samples, notes = opened.samples, opened.notes
    if masks is not None:
        check_any_mask(samples.images.names(), Path(masks))
    side = min(model.preprocessing.size)
    small = [edit.words for edit in edits if side < edit.least]
    edits = tuple(edit for edit in edits if side >= edit.least)
    wanted = ReportOptions(method, background=None if background is None else str(background), precision=precision)
    plan = plan_report(model, wanted)
    stored = [each for each in plan.methods if each.folder is not None]
    check_maps(stored, samples.images.names(), model.preprocessing.size, patch_grid(model))
    notes = (*notes, *(each.about for each in stored))
    made = AuditRequest(
        model, samples, wanted, edits, None if masks is None else Path(masks).absolute(), known_by(plan)
    )
    begin = time.perf_counter()

    def passes() -> float:
        return passes_in(model, samples, None if max_seconds is None else begin + max_seconds - time.perf_counter())

    with TemporaryDirectory() as place:
        where = Path(folder or place)
        with locked(where, where / LOCK):
            first = partial(choose_explained, model, samples, count)
            explained = explained_images(where, made, lambda: first(passes()), [count, max_seconds])
            lines = verdict_job(made, explained, where, cluster, progress)
            second = partial(choose_searched, model, samples, len(explained))
            searched = searched_images(where, lambda: second(passes(), edits))
            tried, shortcuts = shortcut_jobs(made, searched, where, cluster, progress)
    if small and searched.asked:
        notes = (*notes, f"Not tried, since images of {side} pixels are too small for it: {', '.join(small)}.")
    found = found_by(made, explained, searched, lines, tried, shortcuts)
    return replace(found, data=short_paths(opened.name), split=opened.split, notes=(*notes, *found.notes))


def classes_with_images(model: Model, samples: Samples) -> list[str]:
    """The classes that an audit of these can have rates of; any, of models that explain one of several labels."""
    if model.output.limits is not None:
        return [*model.output.names]
    there = {kind for kinds in set(kinds_of(model, samples)) for kind in kinds if kind < model.output.outputs}
    return [*map(model.output.name, sorted(there))]


# ---- the jobs


def verdict_job(
    asked: AuditRequest,
    explained: Sequence[int],
    folder: Path,
    cluster: Cluster | None,
    progress: Callable[[int, int], None],
) -> list[dict[str, Any]]:
    """The verdicts on these rows, a line each; as they were found where that is done.

    Raises:
        DataError: No image could be tested, or no mask can be used.
    """
    maps = folder / "maps.jsonl"
    if not maps.exists():
        images = asked.samples.select(np.array(explained, np.int64))
        if asked.masks is not None:
            readable = (NamedImage(images.name(row), one) for row, one in readable_images(images, range(len(images))))
            check_usable_masks(readable, plan_report(asked.model, asked.wanted), asked.masks)
        measures = {"areas": partial(area_drops, masks=asked.masks)}
        explain_all(images, asked.model, maps, asked.wanted, measures=measures, cluster=cluster, progress=progress)
    return [json.loads(line) for line in maps.read_text("utf-8").splitlines()]


def shortcut_jobs(
    asked: AuditRequest,
    searched: SearchedImages,
    folder: Path,
    cluster: Cluster | None,
    progress: Callable[[int, int], None],
) -> tuple[list[dict[str, Any]], list[Shortcut]]:
    """What every part did on the first half, a line for each trio, and what was tested on the second."""
    model, edits, job = asked.model, asked.edits, partial(swap_job, cluster=cluster, progress=progress)
    first, second = searched.halves
    every = {label: [edit.name for edit in edits] for label in searched.asked}
    tried = job(asked, folder / "first.jsonl", first, every)
    size = model.preprocessing.size
    proposed = propose(seen_places(tried, edits, size))
    tested = job(asked, folder / "second.jsonl", [trio for trio in second if trio.label in proposed], proposed)
    shortcuts = tested_parts(tested, proposed, edits, model.output.name, size)
    return tried, with_patches(asked, searched, folder, shortcuts, job)


# ---- what they found


def found_by(
    asked: AuditRequest,
    explained: Sequence[int],
    searched: SearchedImages,
    lines: Sequence[Mapping[str, Any]],
    tried: Sequence[Mapping[str, Any]],
    shortcuts: Sequence[Shortcut],
) -> Audit:
    """What the jobs found, as a value.

    Args:
        asked: What was audited.
        explained: Rows of the images with a verdict.
        searched: The images in which shortcuts were looked for.
        lines: Of the explained images.
        tried: Of the first half, what every part did.
        shortcuts: What was tested on the second.
    """
    model, samples, name = asked.model, asked.samples, asked.model.output.name
    drops = [line["areas"] for line in lines if line.get("areas")]
    notes = [
        *searched.notes,
        *untested_notes(asked, tried),
        *unread_notes(lines),
        *unclear_notes(lines),
        *areas_notes(asked, drops),
    ]
    weights, now = weights_hash(model.network), datetime.now().astimezone().isoformat(timespec="minutes")
    return Audit(
        model=short_paths(model.loaded_from) or "a model in memory",
        data="",
        split=ALL,
        images=len(samples),
        drawn=len(explained),
        verdicts=verdict_rates(lines, model, samples, explained),
        areas=shares(drops),
        shortcuts=tuple(shortcuts),
        parts={
            name(label): {edit.name: mean_effect(own, edit.name) for edit in asked.edits}
            for label, own in lines_by_class(tried).items()
        },
        spread={name(label): spread_of(own, asked.edits) for label, own in lines_by_class(tried).items()},
        catalogue=tuple(edit.words + NEVER * edit.expected for edit in asked.edits) if searched.asked else (),
        asked={name(label): counts for label, counts in searched.asked.items()},
        left=tuple(map(name, searched.left)),
        notes=tuple(notes),
        names={row: samples.name(row) for one in shortcuts for proof in one.proofs for row in (proof.own, proof.other)},
        made=MadeView(now, {"vitrail": version("vitrail"), "torch": torch.__version__}, weights),
        options={
            "method": ", ".join(each.name for each in plan_report(model, asked.wanted).methods),
            "masks": short_paths(str(asked.masks)) if asked.masks else "none",
            "calibration": "none" if model.output.temperature == 1 else f"logits / {model.output.temperature:.3g}",
        },
        fingerprints={
            "weights": weights,
            "images": samples.images.digest().hex()[:12],
            "labels and groups": asked.labels_hash()[:12],
        },
        pictures={(one.label, one.part): pictures_of(one, asked) for one in shortcuts if one.named},
    )


def verdict_rates(
    lines: Sequence[Mapping[str, Any]], model: Model, samples: Samples, rows: Sequence[int]
) -> dict[str, tuple[Rates, ...]]:
    """Rates of verdicts: of all, of each class and group, and of right and wrong predictions.

    The class of an image is the true one; of several labels the one that was explained, which is right if it is there.

    Args:
        lines: Of images, in the order of the rows; one without a verdict counts nowhere.
        model: That answers.
        samples: All.
        rows: Of the images.
    """
    found = dict[str, dict[str, list[str]]]()
    groups = samples.column(GROUP) if GROUP in samples.columns else None
    known = known_labels(model, samples.select(np.array(rows, np.int64)))
    for row, line, there in zip(rows, lines, known, strict=True):
        if "attributions" not in line:
            continue
        verdict, explained = line["attributions"][0]["trust"]["verdict"], line["attributions"][0]["target"]
        places, truth = {"all": "all"}, [model.output.name(number) for number in np.flatnonzero(there == 1).tolist()]
        if (there >= 0).any():
            right, one = explained in truth, model.output.limits is None
            places["prediction"] = "right" if right else "wrong"
            places |= {"class": truth[0] if one else explained} if truth or not one else {}
        if groups is not None:
            places["group"] = groups.word(row)
        for key, name in places.items():
            found.setdefault(key, {}).setdefault(name, []).append(verdict)
    every = {key: tuple(rates(name, own) for name, own in sorted(names.items())) for key, names in found.items()}
    return {"all": (rates("all", []),), **every}


def pictures_of(one: Shortcut, asked: AuditRequest) -> ProofPictures:
    """Where a shortcut lies, and of each proof the image as it is, without the part, and the other one with it."""
    (edit,) = (edit for edit in asked.edits if edit.name == one.part)
    found, shape = list[tuple[np.ndarray, ...]](), asked.model.preprocessing
    for proof in one.proofs:
        own, other = asked.model.tensor([asked.samples.images.open(row) for row in (proof.own, proof.other)]).split(1)
        pixels = shape.to_pixels(torch.cat([own, edit.mix(own, other), edit.mix(other, own)])).cpu()
        found.append(tuple(one[0].numpy() if len(one) == 1 else one.permute(1, 2, 0).numpy() for one in pixels))
    area = edit.area(OUTLINE, OUTLINE).numpy() if edit.area is not None else None
    return ProofPictures(area, tuple(found))
