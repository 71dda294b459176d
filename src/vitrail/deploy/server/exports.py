"""Exports, answered by the reader that goes out beside them, which needs no torch."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from vitrail.data.images import NamedImage, convert_mode, upright
from vitrail.deploy.server.names import DIGITS
from vitrail.deploy.server.worker import Query, Served
from vitrail.errors import Hint, UsageError, raised_as
from vitrail.model.contract import OUTPUTS, PIXELS, WRITTEN, open_session, read_contract, version_of
from vitrail.model.facts import origin_words

READER = Path(__file__).parents[1] / "predict.py.txt"


@cache
def reader() -> Any:
    """The program that answers images where vitrail is not."""
    found = ModuleType("reader")
    exec(compile(READER.read_text("utf-8"), READER.name, "exec"), vars(found))
    return found


def open_export(name: str, path: str, stated: Mapping[str, Any], threads: int) -> Served:
    """An export with its one route.

    Args:
        name: What it is called here.
        path: The file.
        stated: What was typed of weights, by name; nothing can be.
        threads: Of a request.

    Raises:
        UsageError: Something was typed, or onnxruntime is not installed.
        DataError: The file is missing, damaged or somebody else's.
    """
    if typed := [option for option, value in stated.items() if value is not None]:
        raise UsageError(
            f"{path} is an export, in which all is fixed, so {typed[0]} cannot be stated", Hint(drop=typed)
        )
    session = open_session(path, threads)
    contract = read_contract(session.get_modelmeta().custom_metadata_map, path)
    with raised_as(UsageError, f"{path} cannot be served", WRITTEN, (LookupError, TypeError, ValueError)):
        reader().read_contract(session)
        sets, notes = bool(contract["answer"][0].get("limits")), origin_words(contract["facts"])

    def predict(images: Sequence[NamedImage], query: Query) -> dict[str, Any]:
        return {"predictions": [answer_image(session, contract, each, query) for each in images]}

    return Served(name, version_of(contract, path)[:DIGITS], {"predict": predict}, notes, sets)


def answer_image(session: Any, contract: Mapping[str, Any], image: NamedImage, query: Query) -> dict[str, Any]:
    """What `vitrail predict --json` says of an image."""
    reads = contract["input"]
    flat = convert_mode(upright(image.image), reads["channels"], tuple(reads["pad_value"]), reads.get("bits"))
    pixels = np.asarray(reader().resize(flat, reads, contract["longest"])).reshape(1, *reads["size"], -1)
    (outputs,) = session.run([OUTPUTS], {PIXELS: pixels})
    try:
        (said,) = reader().answer(outputs, contract, query.get("coverage"), query.get("top") or 5)
    except ValueError as error:
        problem, _, hint = str(error).partition("\ntry: ")
        raise UsageError(problem, hint) from error
    about = {"about_probabilities": contract["about"]} if contract.get("about") else {}
    return {"file": image.name, **said, **about, "compute_dtype": "fp32"}
