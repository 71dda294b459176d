"""The JSON of `vitrail explain`: a list with a dictionary for each picture, which has its maps in `heats`.

Each map says what it explains (`target`, `rather_than`, `logit`), its `values`, one for each square, what it took
(`passes` of the network, `seconds` for one picture), with --compare its `deletion` and `insertion` and those of a
random order, and in `trust` how far to trust it; `trust` is null with --no-trust. There:

    verdict, reason, sentence   as on the page
    score, interval             mean fall of the explained number, in logits, with each of the ten covers at every step
    paired, rank                the same fall under the covers that the random maps met, and the place among these
    random_mean, random_maps    the mean of their falls, and how many they are
    oracle                      the fall for the true place; null where it is not known
    evidence_p, faithful_p      p of both questions; null where one could not be asked
    before                      the target's probability; of a contrast, that of the first class among the two
    covered, covered_random     the same with `squares` squares covered, in the map's order and in that of random maps
    squares                     the step at which these two differ most, of those up to a quarter of all squares
    composites, surrogates      with how many pictures without evidence, of each kind, the number was compared
    fill                        what covered squares
    precision                   in which the test was computed, fp32 or bf16; the same for all maps of a command

So `score` and `paired` are two means of one thing: compare `paired` with the random maps, and take `score` with its
interval for the map alone. The rank is null for a map without signal, whose order is drawn by lot.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrail.cli.explain.files import Files
    from vitrail.pages.views import ExplainedPicture, HeatView, TrustView

OTHERWISE = ("random", "evidence", "faithful")  # what a `TrustView` holds and JSON tells otherwise


def explained_json(answer: Mapping[str, Any], one: "ExplainedPicture", page: Path, files: "Files") -> dict[str, Any]:
    """What was said of one picture, and its maps.

    Args:
        answer: What the model says, and what is true, under the names that JSON has for it.
        one: The picture with its maps.
        page: Where the page is.
        files: What was written of this picture.
    """
    heats = [_heat_json(view, file) for view, file in zip(one.heats, files.maps, strict=True)]
    return {"file": one.name, **answer, "page": str(page), "sheet": files.sheet, "heats": heats}


def _heat_json(view: "HeatView", file: str) -> dict[str, Any]:
    from vitrail.explain.methods import METHODS

    return {
        "method": view.method,
        "target": view.target,
        "rather_than": view.rather_than,
        "logit": view.logit,
        "signed": view.signed,
        "class_specific": view.class_specific,
        "values": view.values.tolist(),
        "notes": list(view.notes),
        "parts": dict(view.parts) or None,
        "picture": file,
        "passes": METHODS[view.method].cost if view.method in METHODS else None,
        "seconds": view.seconds,
        **_areas_json(view),
        "trust": None if view.trust is None else _trust_json(view.trust),
    }


def _areas_json(view: "HeatView") -> dict[str, Any]:
    from vitrail.pages.views import AreasView

    names = [field.name for field in dataclasses.fields(AreasView)]
    return dict.fromkeys(names) if view.areas is None else dataclasses.asdict(view.areas)


def _trust_json(trust: "TrustView") -> dict[str, Any]:
    """What is known of it under the same names, but for the random maps and the two questions."""
    from vitrail.pages.words import rank_of

    told = {name: value for name, value in dataclasses.asdict(trust).items() if name not in OTHERWISE}
    return {
        **told,
        "rank": None if trust.faithful is None else rank_of(trust),
        "random_mean": sum(trust.random) / len(trust.random),
        "random_maps": len(trust.random),
        "evidence_p": trust.evidence,
        "faithful_p": trust.faithful,
    }
