"""What is explained of outputs: one number for each sample, and how evidence for it is measured.

    ClassTarget       a class: its logit, or the difference of two; its odds among all classes are the effect
    OddsTarget        an output that is log-odds of its own, as of one of several labels; their rise is the effect
    OutputTarget      one of the outputs as it is, or with its sign turned
    FunctionTarget    any function of outputs (n, v) to numbers (n,), each row by itself
    SimilarityTarget  the cosine of outputs and a direction

It is always made of outputs, never of probabilities: a probability's gradient shrinks with p (1 - p), and a sure
network would have nothing to explain. An own codec returns one of these, or a `ChosenTarget` of its own.

An image without evidence reaches the number of a class where its own number for the class is as high, or that of the
class at the same rank: the highest is compared with the highest, since it was chosen among all, the second with the
second. The class alone is not enough: of a thousand classes, six in ten of those at ranks 101 to 200 of a photograph
pass that (benchmarks/LOG.md).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitrail.errors import Hint, UsageError

if TYPE_CHECKING:
    from vitrail.tasks.codec import Codec

OfLogits = Callable[[Tensor], Tensor]
Index = int | Sequence[int] | Tensor
Unit = Literal["nats", "cosine", "data"]  # of an effect; of data: that of the number that is explained
Kind = Literal["similarity", "number"]

FUNCTION = -1  # stands for the index where a function of the outputs is explained
NO_SURER = 1e-15  # than this, or 1 less this, is a probability taken to be: log-odds end at 35 nats
LEAST_RISE = 0.25  # of a cosine; benchmarks/LOG.md has what others of its kind let pass
TINY: dict[Unit, float] = {"nats": 0.1, "cosine": 0.01, "data": 0.1}
"""A drop beyond that of random maps that is less is called tiny; of data a part of the least effect."""


class Contrast(NamedTuple):
    """One output rather than another: the logit of `target` less that of `contrast`."""

    target: Index
    contrast: Index


Wanted = None | Index | Contrast | tuple[Index, Index] | OfLogits
"""What is to be explained, in plain values: None for the usual, an index, one for each sample, a pair, a function."""


@dataclass(frozen=True, eq=False)
class ChosenTarget(ABC):
    """What is explained of each of b samples; called with outputs, it is the function that methods differentiate.

    Attributes:
        target: (b,), index of the output; `FUNCTION` (-1) where a function of the outputs is explained.
        contrast: (b,), the output it is held against; None where there is none.
        kind: What a page calls it; None for a class or label.
        unit: Of the effect; None where there is none.
        has_probability: Whether the target has one.
        least: From which effect on there is evidence; None where that is not known, so that a map is "weak" at best.
    """

    target: Int[Tensor, "*b"]
    contrast: Int[Tensor, "*b"] | None = None

    kind: ClassVar[Kind | None] = "number"
    unit: ClassVar[Unit | None] = None
    has_probability: ClassVar[bool] = False
    least: ClassVar[Any] = None

    @property
    def plain(self) -> Wanted:
        """The same as methods take it: indices, a pair, or a function."""
        return self

    @abstractmethod
    def __call__(self, outputs: Float[Tensor, "*m b v"]) -> Float[Tensor, "*m b"]:
        """The number that is explained, of outputs of the same samples; axes may stand before the samples."""

    def named(self, sample: int, name: Callable[[int], str]) -> str:
        """What is explained of a sample, in words; `name` gives those of an output."""
        return name(int(self.target[sample]))

    def counted(self, outputs: Float[Tensor, "*m b v"]) -> Float[Tensor, "*m b"]:
        """The same from where it counts: what changes nothing in an answer is left out."""
        return self(outputs)

    def probability(self, outputs: Float[Tensor, "*m b v"]) -> Float[Tensor, "*m b"]:
        """The probability of the target; nan where it has none."""
        return torch.full(outputs.shape[:-1], torch.nan, device=outputs.device)

    def effect(self, outputs: Float[Tensor, "b v"], without: Float[Tensor, "count v"]) -> Float[Tensor, "b"]:
        """By how much samples raise it over the median without evidence, in `unit`; float64 on the CPU, nan if none."""
        return torch.full(outputs.shape[:1], torch.nan, dtype=torch.float64, device="cpu")

    def as_high_itself(
        self, outputs: Float[Tensor, "b v"], without: Float[Tensor, "count v"], distinct: int | None
    ) -> Bool[Tensor, "count b"]:
        """Which images without evidence reach the number of each sample by the same number of their own."""
        return reaches(self.counted(outputs), self.counted(without[:, None].expand(-1, len(outputs), -1)), distinct)

    def as_high(
        self, outputs: Float[Tensor, "b v"], without: Float[Tensor, "count v"], distinct: int | None
    ) -> Bool[Tensor, "count b"]:
        """Which of them reach it, by whatever number of theirs counts; `distinct` as of `reaches`."""
        return self.as_high_itself(outputs, without, distinct)

    def on_side(self, outputs: Float[Tensor, "b v"], without: Float[Tensor, "count v"]) -> "ChosenTarget":
        """The same where images without evidence decide on which side of them a number lies."""
        return self

    def in_data(self, sample: int, value: float) -> float:
        """A value of it as the data have it."""
        return value

    def select(self, samples: slice | Tensor) -> "ChosenTarget":
        """The targets of some of the samples."""
        against = None if self.contrast is None else self.contrast[samples]
        return replace(self, target=self.target[samples], contrast=against)

    def turned(self) -> "ChosenTarget | None":
        """The same with its sign turned: what lowers the number; None where that has no meaning."""
        return None

    def for_samples(self, outputs: Float[Tensor, "b v"]) -> "ChosenTarget":
        """The same for samples with these outputs, where it was made without any: `target` is one index then."""
        if not self.target.dim():
            return replace(self, target=self.target.to(outputs.device).expand(len(outputs)))
        every = self if len(self.target) == len(outputs) else self.select(torch.zeros(len(outputs), dtype=torch.long))
        return replace(every, target=every.target.to(outputs.device))


def reaches(own: Float[Tensor, "b"], theirs: Float[Tensor, "count b"], distinct: int | None) -> Bool[Tensor, "count b"]:
    """Which images without evidence are as high; what is not finite counts as high.

    Args:
        own: Numbers of the samples.
        theirs: Of the images without evidence.
        distinct: Of how many images these are put together, whose numbers are spread out for being few; None where
            they are not.
    """
    if distinct is not None:
        mean = theirs.mean(dim=0)
        theirs = mean + (theirs - mean) * ((distinct + 1) / (distinct - 1)) ** 0.5
    return ~(theirs < own)


@final
@dataclass(frozen=True, eq=False)
class ClassTarget(ChosenTarget):
    """One class among several, of which softmax makes probabilities; or one rather than another."""

    classes: int = field(kw_only=True)
    temperature: float = 1.0  # of probabilities alone

    kind: ClassVar[Kind | None] = None
    unit: ClassVar[Unit | None] = "nats"
    has_probability: ClassVar[bool] = True

    @property
    def least(self) -> float:  # pyrefly: ignore[bad-override]
        """The log of the number of classes: of many classes that takes a blind guess to even odds."""
        return math.log(self.classes)

    @property
    def plain(self) -> Wanted:
        """Indices, or a pair of them."""
        return self.target if self.contrast is None else (self.target, self.contrast)

    def __call__(self, outputs: Float[Tensor, "*m b v"]) -> Float[Tensor, "*m b"]:
        """The logit of the class, or the difference of two."""
        chosen = pick(outputs, self.target)
        return chosen if self.contrast is None else chosen - pick(outputs, self.contrast)

    def counted(self, outputs: Float[Tensor, "*m b v"]) -> Float[Tensor, "*m b"]:
        """A logit from the mean of all: softmax does not change when a constant is added to them, a difference too."""
        return self(outputs) if self.contrast is not None else self(outputs - outputs.mean(dim=-1, keepdim=True))

    def probability(self, outputs: Float[Tensor, "*m b v"]) -> Float[Tensor, "*m b"]:
        """Of the class; of a contrast that of the first class among the two."""
        warm = outputs / self.temperature
        return self(warm.softmax(dim=-1)) if self.contrast is None else self(warm).sigmoid()

    def effect(self, outputs: Float[Tensor, "b v"], without: Float[Tensor, "count v"]) -> Float[Tensor, "b"]:
        """Log-odds of the class against all others, also where it is held against one."""
        odds, theirs = (some.cpu().double().softmax(dim=1).logit(eps=NO_SURER) for some in (outputs, without))
        target = self.target.cpu()
        return odds.gather(1, target[:, None])[:, 0] - theirs[:, target].median(dim=0).values

    def as_high(
        self, outputs: Float[Tensor, "b v"], without: Float[Tensor, "count v"], distinct: int | None
    ) -> Bool[Tensor, "count b"]:
        """By the class itself or the one at the same rank; of a contrast, the difference has to be exceptional, too."""
        counts = without - without.mean(dim=-1, keepdim=True)
        by_rank, place = counts.sort(dim=1, descending=True).values, rank_of(outputs, self.target)
        theirs = torch.maximum(counts[:, self.target], by_rank[:, place])
        found = reaches(replace(self, contrast=None).counted(outputs), theirs, distinct)
        if self.contrast is None:
            return found
        pair = without[:, self.target] - without[:, self.contrast]
        theirs = torch.maximum(pair, by_rank[:, place] - by_rank[:, rank_of(outputs, self.contrast)])
        return found | reaches(self(outputs), theirs, distinct)


@final
@dataclass(frozen=True, eq=False)
class OddsTarget(ChosenTarget):
    """An output that is log-odds of its own, such as of one of several labels.

    Images without evidence are compared with it by its odds beside the doubt about the others: pieces of things make a
    network sure of some label, and leave it in doubt of others, where an image of whole things leaves none.
    Where it is not predicted, and was taken for being the highest of its sample (`among`), it was chosen among all: the
    highest of images without evidence is what it is compared with.
    """

    least: Float[Tensor, "*b"] = field(kw_only=True)  # pyrefly: ignore[bad-override]  # for each sample
    among: Bool[Tensor, "*b"] = field(kw_only=True)
    temperature: float = 1.0  # of probabilities alone

    kind: ClassVar[Kind | None] = None
    unit: ClassVar[Unit | None] = "nats"
    has_probability: ClassVar[bool] = True

    def __call__(self, outputs: Float[Tensor, "*m b v"]) -> Float[Tensor, "*m b"]:
        """The log-odds."""
        return pick(outputs, self.target)

    def probability(self, outputs: Float[Tensor, "*m b v"]) -> Float[Tensor, "*m b"]:
        """Of what the odds are of."""
        return self(outputs / self.temperature).sigmoid()

    def effect(self, outputs: Float[Tensor, "b v"], without: Float[Tensor, "count v"]) -> Float[Tensor, "b"]:
        """By how much the log-odds are higher."""
        theirs = without.cpu().double()[:, self.target.cpu()].median(dim=0).values
        return self(outputs).cpu().double() - theirs

    def as_high_itself(
        self, outputs: Float[Tensor, "b v"], without: Float[Tensor, "count v"], distinct: int | None
    ) -> Bool[Tensor, "count b"]:
        """By the same label."""
        return reaches(pick(beside_doubt(outputs), self.target), beside_doubt(without)[:, self.target], distinct)

    def as_high(
        self, outputs: Float[Tensor, "b v"], without: Float[Tensor, "count v"], distinct: int | None
    ) -> Bool[Tensor, "count b"]:
        """By the label itself, or where it was chosen among all by the highest."""
        found = beside_doubt(without)
        own = found[:, self.target]
        theirs = torch.where(self.among.to(own.device), found.amax(dim=1, keepdim=True), own)
        return reaches(pick(beside_doubt(outputs), self.target), theirs, distinct)

    def select(self, samples: slice | Tensor) -> "OddsTarget":
        """The targets of some of the samples."""
        some = samples.cpu() if isinstance(samples, Tensor) else samples
        return replace(self, target=self.target[samples], least=self.least[some], among=self.among[some])


@final
@dataclass(frozen=True, eq=False)
class OutputTarget(ChosenTarget):
    """One of the outputs as it is, or with its sign turned: what lowers it is explained then."""

    sign: int = 1

    def __call__(self, outputs: Float[Tensor, "*m b v"]) -> Float[Tensor, "*m b"]:
        """The output."""
        return self.sign * pick(outputs, self.target)

    def turned(self) -> "OutputTarget":
        """What lowers the output."""
        return replace(self, sign=-self.sign)

    def named(self, sample: int, name: Callable[[int], str]) -> str:
        """The output's name, with a minus where its sign is turned."""
        return f"{'-' * (self.sign < 0)}{super().named(sample, name)}"


@final
@dataclass(frozen=True, eq=False)
class FunctionTarget(ChosenTarget):
    """A function of the outputs; made by `of_function`."""

    function: OfLogits = field(kw_only=True)

    @property
    def plain(self) -> Wanted:
        """The function."""
        return self.function

    def __call__(self, outputs: Float[Tensor, "*m b v"]) -> Float[Tensor, "*m b"]:
        """Its numbers.

        Raises:
            UsageError: If the function does not give one number for each row.
        """
        rows = outputs.flatten(0, -2)
        numbers = self.function(rows)
        if not isinstance(numbers, Tensor) or numbers.shape != rows.shape[:1]:
            got = tuple(numbers.shape) if isinstance(numbers, Tensor) else type(numbers).__name__
            problem = f"a target function must return one number per row of logits ({len(rows)},), got {got}"
            raise UsageError(problem, "lambda logits: logits[:, 3]")
        return numbers.unflatten(0, outputs.shape[:-1])


@final
@dataclass(frozen=True, eq=False)
class SimilarityTarget(ChosenTarget):
    """How alike outputs are to those of another image: the cosine of the angle between them and a direction.

    A network that is half shuffled finds any two images alike, so a photograph's cosine may be exceptional there, and
    is hardly higher: the effect is the rise of the cosine over the median composite's.
    """

    direction: Float[Tensor, " v"] = field(kw_only=True)  # of length 1

    kind: ClassVar[Kind | None] = "similarity"
    unit: ClassVar[Unit | None] = "cosine"
    least: ClassVar[Any] = LEAST_RISE

    def __call__(self, outputs: Float[Tensor, "*m b v"]) -> Float[Tensor, "*m b"]:
        """The cosines, -1 to 1."""
        rows = outputs.flatten(0, -2)
        norms = rows.norm(dim=1).clamp(min=torch.finfo(rows.dtype).tiny)
        return (rows @ self.direction.to(rows) / norms).unflatten(0, outputs.shape[:-1])

    def effect(self, outputs: Float[Tensor, "b v"], without: Float[Tensor, "count v"]) -> Float[Tensor, "b"]:
        """The rise of the cosine."""
        own, theirs = (self(some.cpu().double()) for some in (outputs, without))
        return own - theirs.median()


# ---- making them


def choose_class(outputs: Float[Tensor, "b v"], wanted: Wanted = None, temperature: float = 1.0) -> ChosenTarget:
    """A class of each sample; of a network with one output that output, which has no odds.

    Args:
        outputs: Decide the top class, and the range of indices.
        wanted: None for each top class.
        temperature: What logits are divided by before they become probabilities.

    Raises:
        UsageError: If an index is none, there is not one per sample, or it is out of range; names the range.
    """
    count = outputs.shape[1]
    target, against = indices_of(outputs, wanted, outputs.argmax(dim=1))
    return OutputTarget(target) if count == 1 else ClassTarget(target, against, temperature, classes=count)


def choose_output(outputs: Float[Tensor, "b v"], wanted: Wanted = None) -> ChosenTarget:
    """One of the outputs of each sample as it is, the first when None; errors are those of `choose_class`."""
    target, against = indices_of(outputs, wanted, torch.zeros_like(outputs[:, 0], dtype=torch.long))
    if against is not None:
        problem = "a contrast compares classes, but this model has none"
        raise UsageError(problem, Hint(drop=["contrast"], python="target=0, without contrast"))
    return OutputTarget(target)


def turn_output(codec: "Codec", word: object) -> ChosenTarget | None:
    """What lowers an output, for its name behind a minus; None for any other word, and where nothing can be turned.

    Args:
        codec: Which knows the names, and what is explained of an output.
        word: As it was typed.

    Raises:
        UsageError: There is no such output.
    """
    if codec.choose is None or not isinstance(word, str) or word[:1] != "-" or word in codec.number_of:
        return None
    return codec.choose(torch.zeros(1, codec.outputs), codec.index(word[1:])).turned()


def of_function(outputs: Float[Tensor, "b v"], function: OfLogits) -> ChosenTarget:
    """A function of the outputs.

    Raises:
        UsageError: If it gives NaN or infinity where the outputs are finite, or not one number for each row.
    """
    none = torch.full(outputs.shape[:1], FUNCTION, device=outputs.device)
    chosen = FunctionTarget(none, function=function)
    finite = outputs.isfinite().all(dim=1)
    if broken := (finite & ~chosen(outputs.detach().clone()).isfinite()).nonzero()[:, 0].tolist():
        problem = f"the target function gives NaN or infinity for image {broken[0]} of {len(outputs)}"
        raise UsageError(problem, "lambda logits: logits[:, 3]")
    return chosen


def indices_of(
    outputs: Float[Tensor, "b v"], wanted: Wanted, usual: Int[Tensor, "b"]
) -> tuple[Int[Tensor, "b"], Int[Tensor, "b"] | None]:
    """The indices of outputs, and those that they are held against; errors are those of `choose_class`.

    Args:
        outputs: Decide the range of indices.
        wanted: What is to be explained.
        usual: The indices when that is None; they are not looked at, so that a graph can hold them.
    """
    if wanted is None:
        return usual, None
    if not isinstance(wanted, tuple):
        return _check_indices(outputs, wanted), None
    if len(wanted) != 2:
        problem = f"a tuple is a target and a contrast, so it needs two entries, got {len(wanted)}"
        raise UsageError(problem, "a list for one class per image, or (3, 5) for 3 rather than 5")
    chosen, against = (_check_indices(outputs, one) for one in wanted)
    if (chosen == against).any():
        same = int(chosen[chosen == against][0])
        raise UsageError(f"target and contrast are the same class, {same}", "two different classes")
    return chosen, against


def _check_indices(outputs: Float[Tensor, "b v"], wanted: object) -> Int[Tensor, "b"]:
    samples, count = outputs.shape
    problem, hint = f"target must be a class index of 0..{count - 1}", "target=None for the top class"
    try:
        chosen = torch.as_tensor(wanted, device=outputs.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"{problem}, got {wanted!r}", hint) from error
    if chosen.dtype == torch.bool or chosen.is_floating_point() or chosen.is_complex():
        raise UsageError(f"{problem}, got {chosen.dtype}", hint)
    if chosen.shape not in ((), (samples,)):
        hint = f"an integer tensor of shape ({samples},), each of 0..{count - 1}"
        raise UsageError(f"{problem}, or one for each of {samples} images, got shape {tuple(chosen.shape)}", hint)
    outside = (chosen < 0) | (chosen >= count)
    if outside.any():
        raise UsageError(f"{problem}, got {chosen[outside].flatten()[0].item()}", hint)
    return chosen.long().expand(samples).clone()


def beside_doubt(outputs: Float[Tensor, "*m v"]) -> Float[Tensor, "*m v"]:
    """Log-odds, less the log of the variance of how many of the other outputs are there: the sum of their p (1 - p)."""
    doubt = outputs.double().sigmoid() * (-outputs.double()).sigmoid()
    others = doubt.sum(dim=-1, keepdim=True) - doubt
    return outputs - others.clamp(min=NO_SURER).log()


def pick(outputs: Float[Tensor, "*m b v"], index: Int[Tensor, "b"]) -> Float[Tensor, "*m b"]:
    """One output of each sample."""
    return outputs.gather(-1, index[:, None].expand(*outputs.shape[:-1], 1))[..., 0]


def rank_of(outputs: Float[Tensor, "*m b v"], index: Int[Tensor, "b"]) -> Int[Tensor, "*m b"]:
    """At which rank an output stands among those of its sample: 0 of the highest."""
    return (outputs > pick(outputs, index)[..., None]).sum(dim=-1)
