"""What other engines need to serve a model: templates that lie beside this file, filled in."""

import json
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from string import Template
from typing import Any

from vitrail.errors import Hint, UsageError, as_word
from vitrail.options import Engine, ServeOptions
from vitrail.weights.places import is_onnx

FILES = {"ray": "app.py", "docker": "Dockerfile", "k8s": "deployment.yaml", "triton": "config.pbtxt"}  # are written
PORT, CORES, QUEUE = 8000, 2, 4  # where nothing else is typed; cores are replicas of Ray, too
GRACE = 11  # times the seconds for an answer: an explanation has ten times as many
OWN = "timeout", "queue", "explainers", "device", "threads"  # options that a server in a container gets as typed
TYPES = {"tensor(uint8)": "TYPE_UINT8", "tensor(float)": "TYPE_FP32"}  # of ONNX, as Triton writes them


def deployment(
    engine: Engine, models: Mapping[str, str], options: ServeOptions, stated: Mapping[str, Any]
) -> dict[str, str | Path]:
    """What is to be written, by its place in a folder: a text, or the file that is copied there.

    Args:
        engine: What will serve.
        models: Paths of models, by the names that they have there.
        options: How they are served.
        stated: What was typed of their weights, by name.

    Raises:
        UsageError: A model is no file or folder here, has no export where one is needed, or a name that no file can
            have; or something was typed of weights of exports.
    """
    for name, path in models.items():
        if engine != "ray" and (name in ("", ".", "..") or "/" in name):
            problem = f"of each model a file gets its name, which '{name}' cannot be"
            raise UsageError(problem, Hint(instead={f"{name}={path}": f"model={path}"}))
    typed = {name: value for name, value in stated.items() if value is not None}
    if typed and engine == "triton":
        raise UsageError("an export states itself how it is read", Hint(drop=[*typed]))
    places = {name: _place(engine, path) for name, path in models.items()}
    inside = {name: f"/models/{name}{place.suffix * is_onnx(place)}" for name, place in places.items()}
    files = {name: value.expanduser().resolve() for name, value in typed.items() if isinstance(value, Path)}
    there = {name: f"/stated/{name}.txt" for name in files}
    copied = {inside[name]: place for name, place in places.items()} | {there[name]: files[name] for name in files}
    context = "" if engine == "ray" else os.path.commonpath([place.parent for place in copied.values()])
    copies = ([os.path.relpath(place, context or None), to] for to, place in copied.items())
    port, cores, queue = options.port or PORT, options.workers or CORES, options.queue or QUEUE
    kept = {each.name: each.default for each in fields(ServeOptions)}
    words = ["vitrail", "serve", "--host=0.0.0.0", f"--port={port}", f"--workers={cores}"]
    words += [f"--{name}={getattr(options, name)}" for name in OWN if getattr(options, name) != kept[name]]
    words += _flags(typed | there)
    values = {
        "called": _line(", ".join(models)),
        "checked": _line(shlex.join([*_flags(typed), *(f"{name}={path}" for name, path in models.items())])),
        "app": "vitrail-" + (re.sub("[^a-z0-9]+", "-", next(iter(models)).lower()).strip("-")[:40].strip("-") or "x"),
        "context": _line(shlex.quote(context)),
        "copies": "\n".join(f"COPY --chown=10001 {json.dumps(pair)}" for pair in copies),
        "words": json.dumps([*words, *(f"{name}={place}" for name, place in inside.items())]),
        "gibibytes": cores + options.explainers + 1,
        "grace": round(GRACE * options.timeout),
        "models": {name: str(place) for name, place in places.items()},
        "stated": {**stated, **{name: str(file) for name, file in files.items()}},
        "ongoing": queue + 1,
    }
    bound = f"[{options.host}]" if ":" in options.host else options.host
    values = vars(options) | values | {"port": port, "cores": cores, "queue": queue, "bound": bound}
    text, file = Template(Path(__file__).with_name(f"{engine}.txt").read_text("utf-8")), FILES[engine]
    if engine != "triton":
        return {file: text.substitute(values)}
    found = dict[str, str | Path]()
    for name, place in places.items():
        found[f"{name}/{file}"] = text.substitute(values, name=json.dumps(name, ensure_ascii=False), **_tensors(place))
        found[f"{name}/1/model.onnx"] = place
    return found


def _flags(typed: Mapping[str, Any]) -> list[str]:
    """Options as they are typed."""
    return [f"--{name.replace('_', '-')}={as_word(value)}" for name, value in typed.items()]


def _place(engine: Engine, path: str) -> Path:
    """What is served of a model: a file or folder, without the run around it; of Ray also a name.

    Raises:
        UsageError: It is none of this machine, or has no export where one is needed.
    """
    place = Path(path).expanduser().resolve()
    if engine == "ray":
        return place if place.exists() else Path(path)
    inner = place / ("export/model.onnx" if engine == "triton" else "model")
    place = inner if inner.exists() or (engine == "triton" and not is_onnx(place)) else place
    if not place.exists():
        problem = f"{path} has no export here" if engine == "triton" else f"{path} is no file or folder here"
        raise UsageError(problem, f"vitrail export {shlex.quote(path)} --to onnx  # and serve what it writes")
    return place


def _tensors(file: Path) -> dict[str, str]:
    """What an export declares of its inputs and outputs, but for the first side, which is the batch."""
    from vitrail.model.contract import open_session

    session, found = open_session(file, 1), dict[str, str]()
    for kind, tensors in (("inputs", session.get_inputs()), ("outputs", session.get_outputs())):
        rows = list[str]()
        for each in tensors:
            sides = ", ".join(str(side if isinstance(side, int) else -1) for side in each.shape[1:])
            rows.append(f'  {{ name: "{each.name}", data_type: {TYPES[each.type]}, dims: [ {sides} ] }}')
        found[kind] = ",\n".join(rows)
    return found


def _line(text: str) -> str:
    """As it stands in a comment, which ends with its line."""
    return "".join(each if each.isprintable() else "?" for each in text)
