"""A process that holds the models and answers, one request at a time: `python -m vitrail.deploy.server.worker NUMBER`.

NUMBER is that of a socket, through which frames come: first what to load, then requests. It decodes what
strangers send, so it may die of it, and the process that listens goes on.
"""

import base64
import io
import json
import logging
import os
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from PIL import Image

from vitrail.data.images import NamedImage
from vitrail.deploy.server.bodies import decode_body
from vitrail.deploy.server.names import DIGITS
from vitrail.deploy.server.pool import DROP, LENGTHS, Refusal, frame_of
from vitrail.errors import Hint, UsageError, VitrailError
from vitrail.io import plain
from vitrail.model import Model, load
from vitrail.model.model import origin_words
from vitrail.nn.networks import evaluating, weights_hash
from vitrail.tasks.calibration import COVERAGE
from vitrail.weights.assume import load_arguments
from vitrail.weights.places import is_foreign

BELOW = 10  # by how much a process that explains gives way to those that answer, of 19
FIRST = {"predict": ({}, 3), "explain": ({"trust": False}, 1)}  # what is asked of an image of noise, and how often
SIDES = 375, 500  # pixels of that image


class Dropped(BaseException):
    """Nobody waits for the answer any more: raised in the middle of it."""


@dataclass(frozen=True, eq=False)
class Served:
    """A model, with what it answers.

    Attributes:
        model: As it was loaded.
        name: What it is called here.
        version: The first digits of the hash of its weights.
        routes: What it answers.
        known: The features of images among which similar ones are looked for.
    """

    model: Model
    name: str
    version: str
    routes: Mapping[str, "Route"]
    known: Any = None


Query = Mapping[str, Any]
Route = Callable[[Served, Sequence[NamedImage], Query], dict[str, Any]]


def answer_predict(served: Served, images: Sequence[NamedImage], query: Query) -> dict[str, Any]:
    """The list of `vitrail predict --json`."""
    from vitrail.jobs.answers import naming

    model = served.model
    if query.get("top") is not None:
        model = naming(model, query["top"])
    rest = {**({"about_probabilities": model.about} if model.about else {}), "compute_dtype": "fp32"}
    together = 1 if model.device.type == "cpu" else len(images)  # on one core batches gain nothing
    found = model.predict(images, coverage=query.get("coverage"), batch_size=together)
    return {"predictions": [{**one.to_dict(), **rest} for one in found]}


def answer_explain(served: Served, images: Sequence[NamedImage], query: Query) -> dict[str, Any]:
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
    report = explain_images(images, plan_report(served.model, wanted))
    found = report.to_dict()
    for one, row in zip(report, found["images"], strict=True):
        row["summary"] = list(one.view.summary)
        for view, own in zip(one.view.attributions, row["attributions"], strict=True):
            if query.get("overlay") and view.values.size:
                own["overlay"] = base64.b64encode(png(overlay_of(view, one.view), {"Title": view.title})).decode()
    return {name: found[name] for name in ("images", "left_out")}


def answer_embed(served: Served, images: Sequence[NamedImage], query: Query) -> dict[str, Any]:
    """The vectors of each image that `vitrail embed` writes, by the name of their pooling."""
    from vitrail.features.poolings import check_vit, describe_by

    model = served.model
    with evaluating(model.network), torch.no_grad():
        found = describe_by(check_vit(model.network))(model.tensor(images))
    values = {name: each.float().cpu().tolist() for name, each in found.items()}
    rows = [{name: each[row] for name, each in values.items()} for row in range(len(images))]
    return {"features": [{"file": one.name, **row} for one, row in zip(images, rows, strict=True)]}


def answer_similar(served: Served, images: Sequence[NamedImage], query: Query) -> dict[str, Any]:
    """The object of `vitrail similar --json`, without where images agree: those of the file are not opened."""
    from vitrail.features.poolings import check_vit, read_by_head
    from vitrail.features.similar import KnownImages, Similar, SimilarImages, nearest_rows

    known, named = served.known, read_by_head(check_vit(served.model.network))
    vectors = torch.tensor([row[named] for row in answer_embed(served, images, {})["features"]])
    near = nearest_rows(torch.from_numpy(known.values[named]), vectors, query.get("neighbours") or 5)
    rows, found = KnownImages(known, None), []
    for one, cosines, places in zip(images, *(each.tolist() for each in near), strict=True):
        own = [rows.neighbour(served.model, at, max(0.0, 1 - by)) for by, at in zip(cosines, places, strict=True)]
        cells = [rows.cells(at, served.model.task.column) for at in places]
        found.append(SimilarImages(one.name, None, tuple(own), served.model.output.among(cells)))
    return Similar(named, True, False, len(known), tuple(found)).to_dict()


# ---- what is loaded


def open_models(asked: Mapping[str, Any]) -> dict[str, Served]:
    """The models that a process is told to load, by name.

    Raises:
        VitrailError: One of them cannot be served.
    """
    found, models = dict[str, Served](), asked["models"]
    foreign = {name for name, path in models.items() if is_foreign(path)} or models  # others state all themselves
    for name, path in models.items():
        model = load(path, device=asked["device"], **load_arguments(asked["options"] if name in foreign else {}))
        if model.reads_text:
            raise UsageError(f"the model in {path} reads texts, and a server is sent images", Hint(instead={path: ""}))
        served = Served(model, name, weights_hash(model.network)[:DIGITS], {})
        found[name] = _explained(served) if asked["explains"] else _answering(served, asked.get("features"))
    features = asked.get("features")
    if features and not any(each.known for each in found.values()):
        _read_known(next(iter(found.values())), features)  # which says why not
    return found


def _explained(served: Served) -> Served:
    """The model with its route, if it can be explained."""
    from vitrail.explain.reporting.plan import ReportOptions, plan_report

    try:
        plan_report(served.model, ReportOptions())
    except UsageError:
        return served
    return replace(served, routes={"explain": answer_explain})


def _answering(served: Served, features: str | None) -> Served:
    """The model with its routes, and with what is known of other images if those are of the same model."""
    from vitrail.features.poolings import check_vit

    try:
        check_vit(served.model.network)
    except UsageError:
        return replace(served, routes={"predict": answer_predict})
    routes: dict[str, Route] = {"predict": answer_predict, "embed": answer_embed}
    try:
        known = None if features is None else _read_known(served, features)
    except VitrailError:
        known = None
    return replace(served, routes=routes | ({} if known is None else {"similar": answer_similar}), known=known)


def _read_known(served: Served, features: str) -> Any:
    from vitrail.features.embed import identity
    from vitrail.features.file import check_same_model, read_features

    known = read_features(Path(features))
    check_same_model(Path(features), known.about, identity(served.model), served.name)
    return known


# ---- what is answered


def answer(models: Mapping[str, Served], header: Mapping[str, Any], body: bytes) -> tuple[dict[str, Any], Any]:
    """The status of a request, and its answer or what is refused of it; images are known by their hashes alone."""
    served, route, hashes = models[header["model"]], header["route"], list[str]()
    try:
        images = decode_body(header["type"], body, *([1] if route == "explain" else []))
        hashes = [one.fingerprint[:DIGITS] for one in images]
        found = served.routes[route](served, images, header["query"])
        return {"status": 200, "images": hashes}, {"model": served.name, "version": served.version, **found}
    except Refusal as error:
        status, problem, hint = error.status, error.problem, error.hint
    except VitrailError as error:
        status, problem, hint = 422, error.problem, _words(error.hint)
    except MemoryError:
        status, problem, hint = 413, "no memory is left for these images", "smaller images, or fewer"
    except Exception:
        traceback.print_exc()
        status, problem, hint = (
            500,
            "this request failed unexpectedly",
            "the log of the server says more",
        )
    return {"status": status, "images": hashes}, {"error": problem, "try": hint}


def _words(hint: Hint) -> str:
    """A hint as a client reads it: what was an option is a word of the query."""
    query = "?" + "&".join(f"{name}={value}" for name, value in hint.flags.items()) if hint.flags else ""
    without = f"the same without {' and '.join(hint.drop)}" if hint.drop else ""
    return query or without or hint.text or "another image"


class Answering:
    """Requests from a socket, in turn; a signal ends the one that is worked on, and no other."""

    def __init__(self, models: Mapping[str, Served]) -> None:
        self.models, self.working = models, False
        signal.signal(DROP, self._drop)

    def _drop(self, number: int, frame: object) -> None:
        if self.working:
            self.working = False
            raise Dropped

    def one(self, header: Mapping[str, Any], body: bytes) -> bytes:
        """The frame with the answer to a request."""
        try:
            self.working = True
            about, found = answer(self.models, header, body)
            self.working = False
        except Dropped:
            return frame_of({"dropped": True})
        words = json.dumps(plain(found), ensure_ascii=False).replace("<", "\\u003c").encode(errors="replace")
        return frame_of(about, words)


def read_frame(stream: BinaryIO | io.BufferedRWPair) -> tuple[dict[str, Any], bytes]:
    """The next frame; ends the process where there will be none."""
    lengths = stream.read(LENGTHS.size)
    if len(lengths) < LENGTHS.size:
        os._exit(0)
    words, size = LENGTHS.unpack(lengths)
    return json.loads(stream.read(words)), stream.read(size)


def work(number: int) -> None:
    """Load, say so, and answer until the other end is closed."""
    for stop in (signal.SIGINT, signal.SIGTERM, DROP):  # only the process that listens ends this one
        signal.signal(stop, signal.SIG_IGN)
    warnings.simplefilter("ignore")  # of Pillow on odd files
    logging.disable(logging.CRITICAL)  # of what parses forms, on odd ones
    stream = socket.socket(fileno=number).makefile("rwb")
    asked, _ = read_frame(stream)
    torch.set_num_threads(asked["threads"])
    try:
        models = open_models(asked)
        frame = frame_of(_first(models))
    except VitrailError as error:
        facts = {"problem": error.problem, "hint": plain(asdict(error.hint)), "exit_code": error.exit_code}
        models, frame = {}, frame_of({"error": facts})
    answering = Answering(models)
    if asked["explains"]:
        os.nice(BELOW)
    while True:
        stream.write(frame)
        stream.flush()
        frame = answering.one(*read_frame(stream))


def _first(models: Mapping[str, Served]) -> dict[str, Any]:
    """What a process says of its models, when each has answered an image of noise: it is warm then."""
    seconds, about, content = 0.0, dict[str, Any](), io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (*SIDES, 3), dtype=np.uint8)
    Image.fromarray(noise).save(content, "JPEG")
    for name, served in models.items():
        for route in served.routes.keys() & FIRST:
            (query, times), took = FIRST[route], list[float]()
            header = {"model": name, "route": route, "query": query, "type": "image/jpeg"}
            for _ in range(times):
                began = time.perf_counter()
                answer(models, header, content.getvalue())
                took.append(time.perf_counter() - began)
            seconds = max(seconds, min(took))
        notes = origin_words(served.model.facts)
        facts = {"version": served.version, "routes": [*served.routes], "sets": _promises(served.model)}
        about[name] = facts | {"notes": notes}
    device = next(iter(models.values())).model.device.type
    return {"models": about, "device": device, "seconds": seconds}


def _promises(model: Model) -> bool:
    """Whether predictions can have sets or intervals."""
    try:
        model.output.promising(COVERAGE)
    except VitrailError:
        return False
    return True


if __name__ == "__main__":
    work(int(sys.argv[1]))
