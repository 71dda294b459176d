"""The features of an image, as a network without a classification head returns them.

Such networks come from elsewhere (DINO, MAE, CLIP, SigLIP), or from a task of your own that learns without a column of
the data. What is explained of them is one of the numbers, or how alike an image is to another.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, final

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.data.columns import Column, Match
from vitrail.errors import UsageError
from vitrail.tasks.codec import NO_FACTS, Codec, Hub, Outputs
from vitrail.tasks.task import Metric, Task
from vitrail.text import ShortRepr

if TYPE_CHECKING:
    from vitrail.tasks.target import ChosenTarget

SHOWN = 4  # numbers in a line for people
ABOUT_ONE = (
    "The network has one output, and its meaning is not stated: the number is reported as it is. If the network was "
    "trained with binary cross-entropy, the probability is 1 / (1 + exp(-number))."
)


@final
@dataclass(frozen=True)
class Numbers(Codec):
    """The codec of features: numbers without names.

    Args:
        count: How many.
    """

    count: int

    describes = True
    hub = Hub("image-feature-extraction")

    @property
    def outputs(self) -> int:
        """That many."""
        return self.count

    def match(self, column: Column) -> Match:
        """As it is: no column says what these numbers are to be."""
        return Match(column)

    def targets(self, values: Any) -> Float[Tensor, "b 0"]:
        """None for each sample."""
        return torch.zeros(len(values), 0)

    def describe(self) -> tuple[str, str]:
        """How many."""
        return "features", "one number for each image" if self.count == 1 else f"{self.count} numbers for each image"

    def to_dict(self) -> dict[str, Any]:
        """The count."""
        return {"features": self.count}

    def portable(self) -> list[dict[str, Any]]:
        """The numbers themselves."""
        return [{"kind": "vector", "names": [], "count": self.count}]

    def answer(
        self, outputs: Outputs, names: Sequence[str], facts: Mapping[str, Any] = NO_FACTS, inputs: Tensor | None = None
    ) -> "list[FeaturePrediction]":
        """The numbers of each image."""
        return [FeaturePrediction(name, row) for name, row in zip(names, outputs.float().cpu(), strict=True)]

    def choose(self, outputs: Outputs, wanted: Any = None) -> "ChosenTarget":
        """One of the numbers of each image."""
        from vitrail.tasks.target import choose_output  # of explanations alone

        return choose_output(outputs, wanted)


@dataclass(frozen=True, eq=False, repr=False)
class FeaturePrediction(ShortRepr):
    """The features of one image.

    Attributes:
        name: The file, or "image".
        features: (v,), fp32 on the CPU.
        notes: Empty.
        top: Empty.
    """

    name: str
    features: Float[Tensor, " v"]
    notes: tuple[str, ...] = ()
    top: tuple[tuple[str, float], ...] = ()

    def brief(self) -> dict[str, Any]:
        """The numbers."""
        return {"features": self.features.tolist()}

    def sentence(self) -> str:
        """What the model returns, in words, without the numbers where they are many."""
        if len(self.features) == 1:
            return f"The model's output is {float(self.features[0]):.4g}: one number, and no class."
        return f"The model returns {len(self.features)} numbers, and no class."

    def cells(self) -> tuple[str, ...]:
        """How many numbers there are, how long they are as a vector, and the first of them; the one where it is one."""
        if len(self.features) == 1:
            return self.name, f"{float(self.features[0]):.4g}"
        some = "  ".join(f"{value:.3g}" for value in self.features[:SHOWN].tolist())
        return self.name, f"{len(self.features)} numbers", f"length {float(self.features.norm()):.3g}", f"({some} ...)"

    def row(self) -> dict[str, Any]:
        """File, then a column for each number."""
        return {"file": self.name, **{f"f{i}": f"{value:.7g}" for i, value in enumerate(self.features.tolist())}}

    def to_dict(self) -> dict[str, Any]:
        """The numbers."""
        return {"file": self.name, "features": self.features.tolist()}


@final
@dataclass(frozen=True)
class Features(Task):
    """The numbers of an image; there is nothing to learn and nothing to count."""

    name = "features"
    column = None
    trains = False
    help = "numbers for each image"
    metric = Metric("none", "nothing", fraction=False)

    def codec(self, *_: Any, separator: str = "") -> NoReturn:  # pyrefly: ignore[bad-override]
        """Refused."""
        problem = "this network returns numbers for images, and there are no true numbers to compare them with"
        raise UsageError(problem, "predict or embed, which need no true values; or a classifier")

    objective = metrics = codec  # pyrefly: ignore[bad-override]  # refused, too

    def codec_from_dict(self, values: Mapping[str, Any]) -> Numbers:
        """The count."""
        return Numbers(int(values["features"]))

    def about(self, output: Codec, facts: Mapping[str, Any]) -> str:
        """What one number may be, of which nothing says what it is."""
        return ABOUT_ONE if output.outputs == 1 else ""
