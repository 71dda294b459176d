"""Other people's weights before they are a model: where they lie, what network they are, and who vouches for them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from vitrail.errors import DataError, UsageError, VitrailError
from vitrail.model.vouch import NOBODY, NOBODY_HEAD
from vitrail.weights import convert as conversion
from vitrail.weights.assume import STATISTICS, Contradiction, checked
from vitrail.weights.convert import Converted
from vitrail.weights.files import read
from vitrail.weights.known import Known, known
from vitrail.weights.names import Found, find
from vitrail.weights.unpickle import TAUGHT


@dataclass(frozen=True, eq=False)
class Origin:
    """Foreign weights before they are a model: nothing is known yet of how images go in.

    Attributes:
        found: Their files.
        converted: Their network, and how it was made.
        known: Who vouches for them; None where nobody does.
        assume: What the user states of them, by name.
        below: Who vouches for all below a head that was made anew.
        doubt: Whether nothing says by whose rule their positions are resized.
    """

    found: Found
    converted: Converted
    known: Known | None
    assume: Mapping[str, Any]
    doubt: bool = False
    below: Known | None = None

    @property
    def vouched(self) -> str:
        """Who vouches for the answers, in words."""
        if self.known is not None:
            return f"{self.known.name}: same answers as {self.known.by} (largest difference {self.known.gap:.0e})"
        if self.converted.gap is not None:
            return f"same answers as the live network (largest difference {self.converted.gap:.0e})"
        if self.below is not None and not self.converted.network.config.classes:
            row = self.below
            return f"{row.name} without its head: what that reads, and how images go in, as {row.by} had them"
        if self.below is not None:
            return f"{NOBODY_HEAD}; {self.below.name} below it, and how images go in, as {self.below.by} had them"
        return NOBODY

    @property
    def licence(self) -> str:
        """Of the weights, as the library or the lab states it."""
        return (self.known.licence if self.known else str(self.found.facts.get("licence") or "")) or "not stated"


def look_at(name: str | Path, assume: Mapping[str, Any] | None = None) -> Origin:
    """The network of the weights that a name means, and who vouches for it; see `vitrail.load` for errors."""
    said, found = checked(assume), find(name)
    weights, rest = read(found.weights), {key: value for key, value in said.items() if key != "classes"}
    rule = {"position_resize": "dinov2"} if weights.average == TAUGHT else {}  # DINO's own, which DINOv2 kept
    with of_a_stranger(found):
        try:
            converted = conversion.from_tensors(
                weights.tensors, {**rule, **rest}, str(name), found.config, any_head="classes" in said
            )
        except Contradiction as error:
            if error.name in rest:  # a person's word, and not the file
                raise UsageError(error.problem, error.hint) from error
            raise
        row = known(converted.network, any(key not in STATISTICS for key in rest))
        if weights.average:
            average = f"{weights.average}, an average over training that the checkpoint holds beside its weights"
            converted = replace(converted, changed={"weights": average})
        doubt = found.config is None and row is None and "position_resize" not in converted.facts
        return _headed(Origin(found, converted, row, said, doubt))


def look_at_live(module: nn.Module, assume: Mapping[str, Any] | None = None) -> Origin:
    """The same of a live network, proved to answer as it does; see `vitrail.convert` for errors."""
    module, said = conversion.unwrapped(module), checked(assume)
    converted = conversion.convert(module, {key: value for key, value in said.items() if key != "classes"})
    config: Any = getattr(module, "pretrained_cfg", None)
    beside = {"pretrained_cfg": dict(config)} if isinstance(config, Mapping) else None
    called = f"a live {type(module).__module__.partition('.')[0]} {type(module).__name__}"
    return _headed(Origin(Found(Path(called), called, beside), converted, known(converted.network), said))


def _headed(origin: Origin) -> Origin:
    """With a head for the classes that the user states; for a new one nobody vouches, whoever does for all below it."""
    converted, row, classes = origin.converted, origin.known, origin.assume.get("classes")
    if classes is None or classes == converted.network.config.classes:
        return origin
    beside = {"preprocessing": row.preprocessing, "licence": row.licence} if row else {}
    found = replace(origin.found, facts={**origin.found.facts, "classes": (), **beside})
    if found.config and "label_names" in found.config:
        found = replace(found, config={**found.config, "label_names": ()})
    return replace(origin, found=found, converted=conversion.with_head(converted, classes), known=None, below=row)


@contextmanager
def of_a_stranger(found: Found) -> Iterator[None]:
    """What a configuration says may be of any kind and size: whatever breaks on it is one line."""
    try:
        yield
    except VitrailError:
        raise
    except Exception as error:
        problem = f"{found.origin}: what comes with its tensors cannot be used ({type(error).__name__}: {error})"
        raise DataError(problem, "the files as their hub has them") from error
