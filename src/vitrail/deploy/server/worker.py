"""A process that holds the models and answers, one request at a time; it imports torch only for what needs it.

Through a socket come frames: first what to load, then requests. It decodes what strangers send, so it may die of it,
and the process that listens goes on. All such processes are forked from one, which has imported what they need.
"""

import gc
import io
import json
import logging
import os
import resource
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlencode

import numpy as np
from PIL import Image

from vitrail.data.images import NamedImage
from vitrail.deploy.server.bodies import decode_body
from vitrail.deploy.server.names import DIGITS
from vitrail.deploy.server.pool import DROP, LENGTHS, Refusal, frame_of
from vitrail.errors import Hint, UsageError, VitrailError, out_of_memory
from vitrail.io import plain
from vitrail.weights.places import is_foreign, is_onnx

BELOW = 10  # by how much a process that explains gives way to those that answer, of 19
TESTED = 25  # times as long takes a map that is tested, about
FIRST = {"predict": ({}, 3, 1), "explain": ({"trust": False}, 1, TESTED)}  # asked of an image of noise, and how often
SIDES = 375, 500  # pixels of that image
DECODING = 2**31  # bytes that decoding may add to a process: 50 megapixels of JPEG 2000 take 1.25 * 2**30
MOST_DATA = resource.getrlimit(resource.RLIMIT_DATA)  # of this process, when nobody changes it


class Dropped(BaseException):
    """Nobody waits for the answer any more: raised in the middle of it."""


@dataclass(frozen=True, eq=False)
class Served:
    """A model, with what it answers.

    Attributes:
        name: What it is called here.
        version: The first digits of the hash of its weights.
        routes: What it answers.
        notes: What whoever starts the server is told of it.
        sets: Whether predictions can have sets or intervals.
        device: Where it computes.
    """

    name: str
    version: str
    routes: Mapping[str, "Route"]
    notes: Sequence[str]
    sets: bool
    device: str = "cpu"


Query = Mapping[str, Any]
Route = Callable[[Sequence[NamedImage], Query], dict[str, Any]]


def open_models(asked: Mapping[str, Any]) -> dict[str, Served]:
    """The models that a process is told to load, by name; torch is imported if one of them is no export.

    Raises:
        VitrailError: One of them cannot be served.
    """
    found, models, features = dict[str, Served](), asked["models"], asked.get("features")
    foreign = {name for name, path in models.items() if is_foreign(path)} or models  # others state all themselves
    for name, path in models.items():
        stated = asked["options"] if name in foreign else {}
        if is_onnx(path):
            from vitrail.deploy.server.exports import open_export

            found[name] = open_export(name, path, stated, asked["threads"])
        else:
            from vitrail.deploy.server.models import open_served

            found[name] = open_served(name, path, stated, asked)
    if features and not any("similar" in each.routes for each in found.values()):
        raise UsageError(f"{features} has the features of no model here", "vitrail embed MODEL IMAGES --out FILE")
    return found


# ---- what is answered


def answer(models: Mapping[str, Served], header: Mapping[str, Any], body: bytes) -> tuple[dict[str, Any], Any]:
    """The status of a request, and its answer or what is refused of it; images are known by their hashes alone."""
    served, route, hashes = models[header["model"]], header["route"], list[str]()
    try:
        with limited_memory():
            images = decode_body(header["type"], body, *([1] if route == "explain" else []))
        hashes = [one.fingerprint[:DIGITS] for one in images]
        found = served.routes[route](images, header["query"])
        return {"status": 200, "images": hashes}, {"model": served.name, "version": served.version, **found}
    except Refusal as error:
        status, problem, hint = error.status, error.problem, error.hint
    except Exception as error:
        if out_of_memory(error.__cause__ or error):
            status, problem, hint = 413, "no memory is left for these images", "smaller images, or fewer"
        elif isinstance(error, VitrailError):
            status, problem, hint = 422, error.problem, _words(error.hint)
        else:
            traceback.print_exc()
            status, problem, hint = 500, "this request failed unexpectedly", "the log of the server says more"
    return {"status": status, "images": hashes}, {"error": problem, "try": hint}


@contextmanager
def limited_memory() -> Iterator[None]:
    """Whatever an image declares, it takes `DECODING` bytes at most: Linux counts what can be written to."""
    if sys.platform == "linux":  # torch reserves what it never writes to, so an end of addresses would not do
        there = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize() + DECODING
        soft, hard = MOST_DATA
        resource.setrlimit(resource.RLIMIT_DATA, (there if soft < 0 else min(soft, there), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, MOST_DATA)


def _words(hint: Hint) -> str:
    """A hint as a client reads it: what was an option is a word of the query."""
    query = f"?{urlencode(hint.flags)}" if hint.flags else ""
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


def work(stream: BinaryIO | io.BufferedRWPair) -> None:
    """Say who one is, load, say so, and answer until the other end is closed."""
    signal.signal(DROP, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    warnings.simplefilter("ignore")  # of Pillow on odd files
    logging.disable(logging.CRITICAL)  # of what parses forms, on odd ones
    stream.write(frame_of({"pid": os.getpid()}))
    stream.flush()
    asked, _ = read_frame(stream)
    try:
        models = open_models(asked)
        frame = frame_of(_first(models))
    except VitrailError as error:
        facts = {"problem": error.problem, "hint": plain(asdict(error.hint)), "exit_code": error.exit_code}
        models, frame = {}, frame_of({"error": facts})
    answering = Answering(models)
    if asked.get("explains"):
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
            (query, times, longer), took = FIRST[route], list[float]()
            header = {"model": name, "route": route, "query": query, "type": "image/jpeg"}
            for _ in range(times):
                began = time.perf_counter()
                answer(models, header, content.getvalue())
                took.append(time.perf_counter() - began)
            seconds = max(seconds, longer * min(took))
        facts = {"version": served.version, "routes": [*served.routes], "sets": served.sets, "notes": served.notes}
        about[name] = facts
    return {"models": about, "device": next(iter(models.values())).device, "seconds": seconds}


def fork(number: int, imported: str) -> None:
    """Import what answers once, then fork a process for each socket that comes through that of this number.

    Only a signal that cannot be ignored, and the end of the process that listens, end this one.
    """
    for stop in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):  # of the last: nothing is left of those that end
        signal.signal(stop, signal.SIG_IGN)
    if sys.platform == "linux":  # elsewhere a copy may not use what was begun before it was made
        import_module(imported)
        gc.freeze()
    channel = socket.socket(fileno=number)
    while True:
        word, handles, *_ = socket.recv_fds(channel, 1, 1)
        if not word:
            os._exit(0)
        if os.fork() == 0:
            channel.close()
            try:
                work(socket.socket(fileno=handles[0]).makefile("rwb"))
            except ConnectionError:  # nobody is there any more
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        os.close(handles[0])
