"""Models with the routes that they answer, by the code of the verbs."""

import base64
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from vitrail.data.images import NamedImage
from vitrail.deploy.server.names import DIGITS
from vitrail.deploy.server.worker import Query, Route, Served
from vitrail.errors import Hint, UsageError, VitrailError
from vitrail.model import Model, load
from vitrail.model.facts import origin_words
from vitrail.nn.networks import evaluating, weights_hash
from vitrail.tasks.calibration import COVERAGE
from vitrail.weights.assume import load_arguments


def answer_predict(model: Model, images: Sequence[NamedImage], query: Query) -> dict[str, Any]:
    """The list of `vitrail predict --json`."""
    from vitrail.jobs.answers import naming

    if query.get("top") is not None:
        model = naming(model, query["top"])
    rest = {**({"about_probabilities": model.about} if model.about else {}), "compute_dtype": "fp32"}
    together = 1 if model.device.type == "cpu" else len(images)  # on one core batches gain nothing
    with torch.inference_mode():  # of a ViT-Ti and an image 1.5 ms less than without gradients alone
        found = model.predict(images, coverage=query.get("coverage"), batch_size=together)
    return {"predictions": [{**one.to_dict(), **rest} for one in found]}


def answer_explain(model: Model, images: Sequence[NamedImage], query: Query) -> dict[str, Any]:
    """The object of `vitrail explain --json`, of one image; overlays are PNG in base64 where they are wanted."""
    from vitrail.explain.methods.table import DEFAULT, METHODS, USUAL
    from vitrail.explain.reporting.plan import ReportOptions, plan_report
    from vitrail.explain.reporting.report import explain_images
    from vitrail.pages.colour import overlay_of, png

    method = query.get("method") or DEFAULT
    if method not in (*METHODS, USUAL):  # a name of another kind would be imported
        problem = f"there is no method '{method[:50]}'; methods are {', '.join(METHODS)}"
        raise UsageError(problem, Hint({"method": DEFAULT}))
    tested = query.get("trust", True)
    wanted = ReportOptions(method, query.get("target"), query.get("contrast"), trust=tested)
    wanted = replace(wanted, precision="fp32") if tested else wanted
    report = explain_images(images, plan_report(model, wanted))
    found = report.to_dict()
    for one, row in zip(report, found["images"], strict=True):
        row["summary"] = list(one.view.summary)
        for view, own in zip(one.view.attributions, row["attributions"], strict=True):
            if query.get("overlay") and view.values.size:
                own["overlay"] = base64.b64encode(png(overlay_of(view, one.view), {"Title": view.title})).decode()
    return {name: found[name] for name in ("images", "left_out")}


def answer_embed(model: Model, images: Sequence[NamedImage], query: Query) -> dict[str, Any]:
    """The vectors of each image that `vitrail embed` writes, by the name of their pooling."""
    from vitrail.features.poolings import check_vit, describe_by

    with evaluating(model.network), torch.inference_mode():
        found = describe_by(check_vit(model.network))(model.tensor(images))
    values = {name: each.float().cpu().tolist() for name, each in found.items()}
    rows = [{name: each[row] for name, each in values.items()} for row in range(len(images))]
    return {"features": [{"file": one.name, **row} for one, row in zip(images, rows, strict=True)]}


def answer_similar(known: Any, model: Model, images: Sequence[NamedImage], query: Query) -> dict[str, Any]:
    """The object of `vitrail similar --json`, without where images agree: those of the file are not opened."""
    from vitrail.features.poolings import check_vit, read_by_head
    from vitrail.features.similar import KnownImages, Similar, SimilarImages, nearest_rows

    named = read_by_head(check_vit(model.network))
    vectors = torch.tensor([row[named] for row in answer_embed(model, images, {})["features"]])
    near = nearest_rows(torch.from_numpy(known.values[named]), vectors, query.get("neighbours") or 5)
    rows, found = KnownImages(known, None), []
    for one, cosines, places in zip(images, *(each.tolist() for each in near), strict=True):
        own = [rows.neighbour(model, at, max(0.0, 1 - by)) for by, at in zip(cosines, places, strict=True)]
        cells = [rows.cells(at, model.task.column) for at in places]
        found.append(SimilarImages(one.name, None, tuple(own), model.output.among(cells)))
    return Similar(named, True, False, len(known), tuple(found)).to_dict()


def open_served(name: str, path: str, stated: Mapping[str, Any], asked: Mapping[str, Any]) -> Served:
    """A model with its routes.

    Args:
        name: What it is called here.
        path: Of it.
        stated: What was typed of its weights, by name.
        asked: What the process is told: `threads`, `device`, whether it `explains`, and a file of `features`.

    Raises:
        VitrailError: It cannot be served; or it is alone, and the features are of another one.
    """
    torch.set_num_threads(asked["threads"])
    model = load(path, device=asked["device"], **load_arguments(stated))
    if model.reads_text:
        raise UsageError(f"the model in {path} reads texts, and a server is sent images", Hint(instead={path: ""}))
    routes = _explained(model) if asked["explains"] else _answered(model)
    if asked.get("features") and "embed" in routes:
        with nullcontext() if len(asked["models"]) == 1 else suppress(VitrailError):
            routes["similar"] = partial(answer_similar, _known(name, model, Path(asked["features"])), model)
    version, notes = weights_hash(model.network)[:DIGITS], origin_words(model.facts)
    return Served(name, version, routes, notes, _promises(model), model.device.type)


def _answered(model: Model) -> dict[str, Route]:
    """What it answers; features only where there is a ViT."""
    from vitrail.features.poolings import check_vit

    routes: dict[str, Route] = {"predict": partial(answer_predict, model)}
    with suppress(UsageError):
        check_vit(model.network)
        routes["embed"] = partial(answer_embed, model)
    return routes


def _explained(model: Model) -> dict[str, Route]:
    """The one route of a process that explains, if this model can be."""
    from vitrail.explain.reporting.plan import ReportOptions, plan_report

    with suppress(UsageError):
        plan_report(model, ReportOptions())
        return {"explain": partial(answer_explain, model)}
    return {}


def _known(name: str, model: Model, file: Path) -> Any:
    """Features of images, of the same model."""
    from vitrail.features.embed import identity
    from vitrail.features.file import check_same_model, read_features

    known = read_features(file)
    check_same_model(file, known.about, identity(model), name)
    return known


def _promises(model: Model) -> bool:
    """Whether predictions can have sets or intervals."""
    with suppress(VitrailError):
        model.output.promising(COVERAGE)
        return True
    return False
