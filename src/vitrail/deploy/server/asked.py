"""What may be asked of the routes, and what OpenAPI says of their answers."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from vitrail.deploy.server.pool import Refusal

TEXTS = json.loads(Path(__file__).with_name("openapi.json").read_text())


class Error(BaseModel):
    """What every refusal is."""

    error: str = Field(description="What was given, and what was wanted.")
    hint: str = Field(alias="try", description="What to try.")


class Asked(BaseModel, extra="forbid"):
    """What may stand behind the question mark of every route; descriptions and examples are told where it is wrong."""

    model: str | None = Field(None, description="Of several models the one that answers.")


class AskedPredict(Asked):
    """The same of predictions."""

    top: int | None = Field(None, ge=1, description="How many classes are named, a whole number from 1.", examples=[5])
    coverage: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="How often the set holds the true class, a number between 0 and 1.",
        examples=[0.9],
    )


class AskedExplain(Asked):
    """The same of explanations."""

    method: str | None = Field(None, description="As of vitrail explain.")
    target: str | None = Field(None, description="The class that is explained.")
    contrast: str | None = Field(None, description="A class that it is held against.")
    trust: bool = Field(True, description="Whether maps are tested, true or false.", examples=["false"])
    overlay: bool = Field(
        False,
        description="Whether the map over the image comes, too (PNG in base64), true or false.",
        examples=["true"],
    )


class AskedSimilar(Asked):
    """The same of similar images."""

    neighbours: int = Field(5, ge=1, le=100, description="How many, a whole number from 1 to 100.", examples=[5])


ROUTES = {"predict": AskedPredict, "explain": AskedExplain, "embed": Asked, "similar": AskedSimilar}
Responses = dict[int | str, dict[str, Any]]  # as FastAPI takes them, by status


def shown_as_json(texts: Mapping[int, Mapping[str, Any]]) -> Responses:
    """Schemas and examples of the JSON of each status."""
    shown = {status: {key: one[key] for key in one.keys() & {"schema", "example"}} for status, one in texts.items()}
    return {status: {"content": {"application/json": one}} for status, one in shown.items()}


REFUSALS: Responses = {
    status: {**found, "model": Error, "description": TEXTS["errors"][str(status)]["description"]}
    for status, found in shown_as_json({int(status): one for status, one in TEXTS["errors"].items()}).items()
}


def query_refusal(route: str, fault: Mapping[str, Any]) -> Refusal:
    """What is wrong behind the question mark, by the first fault that pydantic has found."""
    name, fields = str(fault["loc"][-1])[:50], ROUTES[route].model_fields
    if name not in fields:
        problem = f"?{name} is nothing that /{route} knows; it knows {', '.join(fields)}"
        return Refusal(422, problem, f"the same without {name}")
    words, (example,) = str(fields[name].description), fields[name].examples or [""]
    problem = f"?{name}={str(fault['input'])[:50]} is not what it can be: {words[0].lower()}{words[1:-1]}"
    return Refusal(422, problem, f"?{name}={example}")
