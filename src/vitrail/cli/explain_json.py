"""The JSON of `vitrail explain`: a list with a dictionary for each picture, which has its maps in `heats`.

Each map says what it explains (`target`, `rather_than`, `logit`), its `values`, one for each square, and in `trust` how
far to trust it; `trust` is null with --no-trust. There:

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

So `score` and `paired` are two means of one thing: compare `paired` with the random maps, and take `score` with its
interval for the map alone. The rank is null for a map without signal, whose order is drawn by lot.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrail.cli.pictures import Files
    from vitrail.model import Prediction
    from vitrail.pages.views import ExplainedPicture, HeatView, TrustView


def explained_json(prediction: "Prediction", one: "ExplainedPicture", page: Path, files: "Files") -> dict[str, Any]:
    """What was said of one picture, and its maps."""
    return {
        "file": one.name,
        "label": prediction.label,
        "probability": prediction.probability,
        "true_label": one.true_label,
        "page": str(page),
        "sheet": files.sheet,
        "heats": heats_json(one, files),
    }


def heats_json(one: "ExplainedPicture", files: "Files") -> list[dict[str, Any]]:
    """The maps of a picture, each with how far to trust it."""
    return [_heat_json(view, file) for view, file in zip(one.heats, files.maps, strict=True)]


def _heat_json(view: "HeatView", file: str) -> dict[str, Any]:
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
        "trust": None if view.trust is None else _trust_json(view.trust),
    }


def _trust_json(trust: "TrustView") -> dict[str, Any]:
    from vitrail.pages.words import rank_of

    return {
        "verdict": trust.verdict,
        "reason": trust.reason,
        "sentence": trust.sentence,
        "score": trust.score,
        "interval": list(trust.interval),
        "paired": trust.paired,
        "rank": None if trust.faithful is None else rank_of(trust),
        "random_mean": sum(trust.random) / len(trust.random),
        "random_maps": len(trust.random),
        "oracle": trust.oracle,
        "evidence_p": trust.evidence,
        "faithful_p": trust.faithful,
        "before": trust.before,
        "covered": trust.covered,
        "covered_random": trust.covered_random,
        "squares": trust.squares,
        "composites": trust.composites,
        "surrogates": trust.surrogates,
        "fill": trust.fill,
    }
