"""The JSON of `vitrail explain`."""

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
        "rank": rank_of(trust),
        "random_mean": sum(trust.random) / len(trust.random),
        "random_maps": len(trust.random),
        "oracle": trust.oracle,
        "evidence_p": trust.evidence,
        "faithful_p": trust.faithful,
        "fill": trust.fill,
        "squares": trust.squares,
    }
