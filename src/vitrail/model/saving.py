"""A model as a folder of plain files, and its card, whose text stands in `card.jinja`.

`model.safetensors` holds the tensors, `config.json` the network, the task and the names of what it says under the key
`vitrail`, beside what timm and transformers read in it, `preprocessor_config.json` how images go in; with them lie the
background that explanations are tested with and what the network answers to composites of it, where there are such,
and `README.md`. Nothing in it is a pickle.
`config.json` comes last: with it the folder is a model.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from vitrail import weights
from vitrail.arguments import in_python, python_call, typed
from vitrail.data.background import card_text, write_background
from vitrail.data.preprocessing import to_hugging_face
from vitrail.data.tensor_files import seal_of, write_tensors
from vitrail.errors import UsageError
from vitrail.io import to_json, write_file
from vitrail.model.loading import (
    COMPOSITES,
    CONFIG,
    FAMILIAR,
    FEATURES,
    FORMAT,
    KEY,
    OWN_NETWORK,
    PREPROCESSOR,
    SEAL,
    WEIGHTS,
    own_objects_of,
)
from vitrail.model.model import Model, refresh_facts
from vitrail.nn import STANDARD, ImageToSequence, ViT, names_of
from vitrail.nn.networks import NETWORKS, config_to_dict, is_known
from vitrail.tasks import TASKS, Codec, Result
from vitrail.text import number

CARD = "README.md"
UNPICKLED = "unpickled"  # fact of this disk's cache
TIMM, CANNOT = "timm_and_transformers", "cannot open it: timm has no ViT with"
LICENCES = (  # what hubs call them; any other has its name beside `other`
    *("apache-2.0", "mit", "bsd-2-clause", "bsd-3-clause", "cc0-1.0", "cc-by-4.0", "cc-by-sa-4.0", "cc-by-nc-4.0"),
    *("cc-by-nc-sa-4.0", "gpl-3.0", "agpl-3.0", "lgpl-3.0", "mpl-2.0", "openrail", "apple-ascl", "apple-amlr", "other"),
)


@typed
def save(model: Model, folder: str | Path, *, card: str = "", network: str = "") -> Path:
    """Write a model folder; `load` reads it again.

    Files are written beside their place and renamed, so an interrupted save leaves the former files whole.

    Args:
        model: The model.
        folder: The folder; made if missing.
        card: The text of the README, such as `card_of(model, result)`; made from the model when empty.
        network: The name of a network of your own, which no configuration builds.

    Raises:
        UsageError: If the network is none of the library's and is not named, or its decoder has parts of its own.
    """
    kind, problem = type(model.network).__name__, ""
    if not network and not is_known(model.network):
        problem = f"{kind} is not one of the library's networks ({', '.join(NETWORKS)})"
    elif isinstance(model.network, ImageToSequence) and model.network.decoder_parts != STANDARD:
        problem = f"this decoder has parts of your own, which are not saved: {names_of(model.network.decoder_parts)}"
    if problem:
        raise UsageError(problem, f"save(model, folder, network='{kind}'), and load(folder, network=...) later")
    named = named_of(model, network)
    folder = Path(folder)
    keys: dict[str, Any] = {}
    if isinstance(model.network, ViT) and not network and (hub := model.output.hub) is not None:
        keys = weights.timm_keys(model.network.config, named["parts"], model.preprocessing, model.output.names)
        keys |= {"problem_type": hub.problem} if keys and hub.problem else {}
        lacks = weights.timm_misfit(model.network.config, named["parts"])
        facts = {name: fact for name, fact in model.facts.items() if name not in (TIMM, UNPICKLED)}
        model = replace(model, facts={**facts, **({TIMM: f"{CANNOT} {lacks}"} if lacks else {})})
    model = replace(model, facts=refresh_facts(model.facts, model.network))
    state = model.network.state_dict()  # what stands in two places of a network stands twice in the file
    write_tensors(folder / WEIGHTS, weights.to_timm(state, model.network.config) if keys else state)
    config = getattr(model.network, "config", None)
    patch = getattr(getattr(config, "encoder", config), "patch", None)  # of a network that reads images, if it has one
    size = None if model.background is None else patch or model.preprocessing.size
    write_background(folder, model.background, size)
    if model.composites and size is not None:
        write_tensors(folder / COMPOSITES, model.composites)
    else:
        (folder / COMPOSITES).unlink(missing_ok=True)
    if model.familiar is not None and size is not None:
        write_tensors(folder / FAMILIAR, {"pooled": model.familiar})
    else:
        (folder / FAMILIAR).unlink(missing_ok=True)
    own: dict[str, Any] = {
        "format": FORMAT,
        **named,
        "input": model.vocabulary.to_dict() if model.reads_text else None,
        "output": model.output.to_dict(),
        "facts": dict(model.facts),
        **({SEAL: seal_of(folder / WEIGHTS)} if "verified" in model.facts else {}),
    }
    if not model.reads_text:
        write_file(folder / PREPROCESSOR, to_json(to_hugging_face(model.preprocessing)))
    write_file(folder / CARD, card or card_of(model))
    write_file(folder / CONFIG, to_json({**keys, KEY: own}))
    return folder


def named_of(model: Model, network: str = "") -> dict[str, Any]:
    """Task, network and parts of a model, as its configuration names them; a network of one's own by `network`."""
    network = network or ("" if is_known(model.network) else type(model.network).__name__)
    own: dict[str, Any] = {} if model.task.name in TASKS else {"own_task": in_python(model.task)}
    if own and model.output.describes:
        own[FEATURES] = model.output.outputs
    return {
        "task": model.task.name,
        **own,
        "network": {"kind": OWN_NETWORK, "name": network} if network else config_to_dict(model.network.config),
        "parts": {} if network else names_of(model.network.parts),
    }


def answer_words(output: Codec, joined: Callable[[list[str]], str] = ", ".join) -> list[str]:
    """How outputs become answers, where a network alone does not say so, in sentences.

    Args:
        output: What they mean.
        joined: How a sentence names what each output has.
    """
    found = list[str]()
    for head in output.portable():
        if (temperature := head.get("temperature", 1)) != 1:
            found.append(f"probabilities are those of outputs divided by {number(temperature)} (the temperature)")
        if "thresholds" in head:
            each = zip(head["names"], head["thresholds"], strict=True)
            thresholds = joined([f"{name} {number(threshold)}" for name, threshold in each])
            found.append(f"a label is named from a probability on: {thresholds}")
        if "means" in head:
            each = zip(head["names"], head["means"], head["deviations"], strict=True)
            units = joined([f"{name} is {mean!r} + {deviation!r} * output" for name, mean, deviation in each])
            found.append(f"outputs are in standard deviations: {units}")
    return list(dict.fromkeys(found))


def _own_notes(model: Model, result: Result | None) -> list[str]:
    """What the card of a folder of this library says of answers, and of the figure."""
    output, notes = model.output, list[str]()
    if told := answer_words(output):
        notes.append(f"timm and transformers give the outputs of the network alone; here {'; '.join(told)}.")
    if any(head["kind"] == "number" for head in output.portable()):
        notes.append(f"{output.calibrated[0].upper()}{output.calibrated[1:]}.")
    return notes + list(result.notes if result is not None else ())


def card_of(
    model: Model,
    result: Result | None = None,
    *,
    library: str = "vitrail",
    usage: str = "",
    notes: Sequence[str] = (),
) -> str:
    """The README of a saved model: what it is, what it learnt from, how well it does, how to use it.

    Args:
        model: What is saved; its facts are shown.
        result: How well it does, where that was counted.
        library: In whose layout the folder is.
        usage: Python that uses it; with vitrail when empty.
        notes: What that library has no place for, in sentences.
    """
    from jinja2 import Template  # which nothing else here needs

    name, holds = model.output.describe()
    numbers = sum(parameter.numel() for parameter in model.network.parameters())
    facts = {fact.replace("_", " "): value for fact, value in model.facts.items()}
    text = Path(__file__).with_name("card.jinja").read_text(encoding="utf-8")
    return Template(text, trim_blocks=True, keep_trailing_newline=True).render(
        model=model,
        result=result,
        front=_front_matter(model, library),
        usage=usage,
        notes=notes or _own_notes(model, result),
        kind=type(model.network).__name__,
        facts={**facts, name: holds, "parameters": f"{numbers:,}"},
        opens=python_call("load", ['"."'], own_objects_of(named_of(model))),
        example=repr(model.example),
        cell=_cell,
        card_text=card_text,
    )


def _cell(value: object) -> str:
    """A value in a row of a table, whatever stands in it."""
    return " ".join(str(value).split()).replace("|", "\\|")


def _front_matter(model: Model, library: str) -> str:
    """What hubs read at the top of a card, for weights under a licence; empty where none is known."""
    licence = re.sub(r"[^a-z0-9.]+", "-", str(model.facts.get("licence", "")).lower()).strip("-")
    if licence in ("", "not-stated"):
        return ""
    origin = re.search(r"\bhf:([\w.-]+/[\w.-]+)", str(model.facts.get("origin", "")))
    values = {
        "license": licence if licence in LICENCES else "other",
        "license_name": "" if licence in LICENCES else licence,
        "library_name": library,
        "pipeline_tag": model.output.hub and model.output.hub.pipeline,
        "tags": ["vitrail", "vision-transformer"],
        "base_model": origin and origin[1],
    }
    stated = {name: value for name, value in values.items() if value}
    return f"---\n{yaml.safe_dump(stated, sort_keys=False)}---\n\n"
