"""A text for each image or text: teacher forcing, exact matches and edits, greedy, beam or sampled answers.

"Attention is all you need" (2017), sections 3.2.3 and 5.4: the network is given the ids so far and gives the logits of
the next one.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail import pages
from vitrail.data.columns import FIRST, PADDING, TEXT, Column, Match, Texts, Vocabulary
from vitrail.errors import DataError, counted
from vitrail.nn import Greedy, Search, generate
from vitrail.tasks.codec import NO_FACTS, Codec
from vitrail.tasks.task import (
    Example,
    Input,
    Measures,
    Metric,
    Metrics,
    Network,
    Objective,
    Result,
    Task,
    expect_codec,
    fraction_result,
)
from vitrail.text import ShortRepr, percent

if TYPE_CHECKING:
    from vitrail.data.augmentation import Augmentation
    from vitrail.data.batches import Batch
    from vitrail.data.columns import RawDataset, Samples

EMPTY = "(empty)"  # how people are shown a text without a token
EXAMPLE = "TextCodec(Vocabulary(tuple('01')))"
SHOWN = 12  # examples of each kind that are kept
MOST_TOKENS = 512  # of a text that a network learns to write, unless a configuration file says more

EXACT = Metric("accuracy", "exact match")


def teacher_forcing(label_smoothing: float = 0.0) -> Objective:
    """The objective: each id of the true text, from the true ids before it.

    The network is given the target without its last column and is to give the target without its first. Padding is
    neither learnt nor counted.

    Args:
        label_smoothing: Fraction of the target that is spread evenly over all ids, e: the loss of an id y is
            -(1 - e) log p(y) - e / v * sum_i log p(i).

    Returns:
        An objective: the summed loss in nats, the number of ids that were to be given (each end included), and
        `correct_tokens`: how many of them have the greatest logit.
    """

    def objective(network: Network, batch: "Batch") -> tuple[Float[Tensor, ""], int, Measures]:
        read, wanted = batch.targets[:, :-1], batch.targets[:, 1:]
        logits = network(batch.inputs, read).float()
        counts = wanted != PADDING
        loss = F.cross_entropy(
            logits.flatten(0, 1),
            wanted.flatten(),
            reduction="sum",
            ignore_index=PADDING,
            label_smoothing=label_smoothing,
        )
        correct = ((logits.detach().argmax(dim=-1) == wanted) & counts).sum().float()
        return loss, int(counts.sum()), {"correct_tokens": correct}

    return objective


@dataclass(frozen=True, repr=False)
class TextPrediction(ShortRepr):
    """The text that a model generates for one source.

    Attributes:
        name: The source: a file, "image", or the text itself.
        text: The generated text.
        probability: Of this very text, with its end where there is one; from 0 to 1.
        ids: The same text as ids, without begin and end.
        ended: False when the text was cut at the greatest length of the network.
        notes: Reasons to doubt the text, one sentence each.
    """

    name: str
    text: str
    probability: float
    ids: tuple[int, ...] = ()
    ended: bool = True
    notes: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """The text for people, who would not see an empty one."""
        return self.text or EMPTY

    @property
    def top(self) -> tuple[tuple[str, float], ...]:
        """The text with its probability."""
        return ((self.shown, self.probability),)

    def sentence(self) -> str:
        """That the text is empty; another one is the first of `top`."""
        return "" if self.text else EMPTY

    def brief(self) -> dict[str, Any]:
        """Text and probability."""
        return {"text": self.text, "probability": self.probability}

    def cells(self) -> tuple[str, ...]:
        """Source, text, probability."""
        return self.name, self.shown, percent(self.probability, 1)

    def row(self) -> dict[str, Any]:
        """Source, text, probability."""
        return {"input": self.name, "text": self.text, "probability": f"{self.probability:.6f}"}

    def to_dict(self) -> dict[str, Any]:
        """The same, with whether it ended and what to know."""
        return {"input": self.name, **self.brief(), "ended": self.ended, "notes": self.notes}


@final
@dataclass(frozen=True)
class TextCodec(Codec):
    """Texts, token by token.

    Args:
        vocabulary: The tokens, and their ids.
    """

    vocabulary: Vocabulary

    generates = True

    @property
    def outputs(self) -> int:
        """One logit for each id."""
        return self.vocabulary.outputs

    def match(self, column: Column) -> Match:
        """Texts as they are; every token must be known.

        Raises:
            DataError: A token is not known; names it.
        """
        if isinstance(column, Texts):
            self.vocabulary.check(column.values)
        return Match(column)

    def targets(self, values: Sequence[str]) -> Int[Tensor, "b t"]:
        """Ids: begin, the text, end, filled up with padding."""
        return torch.from_numpy(self.vocabulary.rows(values, framed=True))

    def describe(self) -> tuple[str, str]:
        """The first tokens."""
        return self.vocabulary.describe()

    def to_dict(self) -> dict[str, Any]:
        """The vocabulary."""
        return self.vocabulary.to_dict()

    def name(self, index: int) -> str:
        """The token of an id."""
        return self.vocabulary.decode([index])

    def answer(
        self, outputs: Any, names: Sequence[str], facts: Mapping[str, Any] = NO_FACTS, inputs: Tensor | None = None
    ) -> list[TextPrediction]:
        """The text of each source; `outputs` are those of `vitrail.nn.generate`."""
        longest = facts.get("longest_source", 0)
        sources = [0] * len(names)
        if inputs is not None and inputs.ndim == 2:
            sources = inputs.ne(PADDING).sum(dim=1).tolist()
        rows, answers = zip(names, sources, *(each.tolist() for each in outputs), strict=True), []
        for name, source, ids, length, log_probability, ended in rows:
            ids, notes = tuple(ids[:length]), []
            if longest and source > longest:
                notes.append(f"longer than all training sources ({counted(longest, 'token')}): expect errors")
            if not ended:
                notes.append(f"cut after {counted(length, 'token')}, the longest text of this model")
            text, probability = self.vocabulary.decode(ids), math.exp(min(0.0, log_probability))
            answers.append(TextPrediction(name, text, probability, ids, ended, tuple(notes)))
        return answers

    def error(self, outputs: Any, targets: Int[Tensor, "b t"]) -> Float[Tensor, " b"]:
        """1 where another text is written."""
        rows = zip(outputs.tokens.tolist(), outputs.lengths.tolist(), strict=True)
        written = [self.vocabulary.decode(ids[:length]) for ids, length in rows]
        wanted = [self.vocabulary.decode(row[1:]) for row in targets.tolist()]
        return torch.tensor([one != other for one, other in zip(written, wanted, strict=True)]).double()


@dataclass(frozen=True)
class SequenceMetrics(Metrics):
    """Lets a network write a text for each sample, and compares.

    Args:
        codec: Of what is written.
    """

    codec: TextCodec

    def answers(self, network: nn.Module, batch: "Batch") -> Mapping[str, Any]:
        """The loss by teacher forcing, and what is written."""
        loss, count, _ = teacher_forcing()(network, batch)
        tokens, wrong, written = int((batch.targets != PADDING).sum()) - 2 * len(batch), 0, []
        found = self.codec.answer(Sequences().outputs(network, batch.inputs), [""] * len(batch))
        split = self.codec.vocabulary.split
        for index, one, row in zip(batch.ids.tolist(), found, batch.targets[:, 1:].tolist(), strict=True):
            wanted = self.codec.vocabulary.decode(row)
            wrong += 0 if one.text == wanted else edit_distance(split(one.text) if one.text else [], split(wanted))
            written.append((index, "", wanted, one.text, one.probability))
        return {"loss": float(loss), "targets": count, "tokens": tokens, "edits": wrong, "written": written}

    def result(self, answers: Sequence[Mapping[str, Any]], name: Callable[[int], str]) -> Result:
        """The fraction of texts that are exactly right, the token error rate, both by length."""
        sums = {key: sum(each[key] for each in answers) for key in ("loss", "targets", "tokens", "edits")}
        written = [Example(*row) for each in answers for row in each["written"]]
        rate, right = sums["edits"] / max(1, sums["tokens"]), [one for one in written if one.right]
        surest = sorted(written, key=lambda one: one.probability or 0.0, reverse=True)
        unsure = [one for one in reversed(surest) if one.right][:SHOWN]
        mistakes, hits = ([one for one in surest if one.right == good][:SHOWN] for good in (False, True))
        count, exact = (Counter(len(one.truth) for one in some) for some in (written, right))  # by characters
        lengths = [{"length": n, "sequences": count[n], "exact": exact[n]} for n in sorted(count)]
        rows = [(f"{n['length']:,}", f"{n['sequences']:,}", percent(n["exact"] / n["sequences"], 1)) for n in lengths]
        return fraction_result(
            EXACT,
            np.array([not one.right for one in written], dtype=np.float64),
            "sequence",
            "written exactly right",
            sums["loss"] / max(1, sums["targets"]),
            {
                "exact": len(right),
                "tokens": sums["tokens"],
                "edit_distance": sums["edits"],
                "token_error_rate": rate,
                "by_length": lengths,
                "mistakes": [_to_dict(one, name) for one in mistakes],
                "right_answers": [_to_dict(one, name) for one in hits],
            },
            f"token error rate {percent(rate, 2)} (edit distance / length: {sums['edits']:,} / {sums['tokens']:,})",
            tables=(pages.Table("Length by length", ("length", "sequences", "exact"), tuple(rows)),),
            examples=tuple(replace(one, name=name(one.id), answer=one.answer or EMPTY) for one in mistakes + unsure),
            ids=np.array([one.id for one in written], dtype=np.int64),
            truths=np.array([one.truth for one in written], dtype=object),
            answers=np.array([one.answer for one in written], dtype=object),
            confidences=np.array([one.probability for one in written], dtype=np.float64),
        )


def _to_dict(one: Example, name: Callable[[int], str]) -> dict[str, Any]:
    """Plain values by name."""
    return {"source": name(one.id), "wanted": one.truth, "written": one.answer, "probability": one.probability}


def edit_distance(written: Sequence[str], wanted: Sequence[str]) -> int:
    """Fewest tokens to insert, remove or replace until `written` is `wanted` (Levenshtein, 1966)."""
    before = list(range(len(wanted) + 1))
    for row, one in enumerate(written, start=1):
        here = [row]
        for column, other in enumerate(wanted, start=1):
            here.append(min(before[column] + 1, here[-1] + 1, before[column - 1] + (one != other)))
        before = here
    return before[-1]


@final
@dataclass(frozen=True)
class Sequences(Task):
    """A text for each image or text."""

    name = "sequences"
    column = TEXT
    help = "a text for each image or text"
    metric = EXACT
    networks = ("Transformer", "ImageToSequence")
    counted = "tokens"
    measures = {"correct_tokens": "token_accuracy"}  # noqa: RUF012  # never changed
    smooths = True
    invariant = True
    searches = True

    def codec(self, raw: "RawDataset", splits: "Mapping[str, Samples]", separator: str = "") -> TextCodec:
        """The tokens of the training split; of a set that is made, those it is made of."""
        texts = splits["train"].column(self.column)
        if raw.classes is not None:
            return TextCodec(Vocabulary(raw.classes))
        if not isinstance(texts, Texts):
            raise DataError(f"the column {self.column} holds no texts", "Texts, one for each sample")
        return TextCodec(Vocabulary.of(texts.values, separator))

    def codec_from_dict(self, values: Mapping[str, Any]) -> TextCodec:
        """The vocabulary."""
        return TextCodec(Vocabulary.from_dict(values))

    def fit(self, network: Mapping[str, Any], output: Codec, splits: "Mapping[str, Samples]") -> dict[str, Any]:
        """The lengths of vocabularies, and of the longest text to be written."""
        vocabulary = expect_codec(output, TextCodec, EXAMPLE).vocabulary
        columns = {name: samples.column(self.column) for name, samples in splits.items()}
        texts = {name: column.values for name, column in columns.items() if isinstance(column, Texts)}
        lengths = {name: [len(vocabulary.split(text)) for text in some] for name, some in texts.items()}
        longest = max((length for some in lengths.values() for length in some), default=0)
        fitted = {"max_length": min(longest, MOST_TOKENS) + 1, **network}
        for name, some in lengths.items():
            for index, length in enumerate(some):
                if length > fitted["max_length"] - 1:
                    text = f"the {name} split: the text of {splits[name].name(index)}"
                    problem = f"{text} has {length} tokens, the network generates at most {fitted['max_length'] - 1}"
                    raise DataError(problem, f"max_length: {length + 1} in the section network, or remove the sample")
        ids = "vocab_size" if fitted["kind"] == "ImageToSequence" else "target_vocab_size"
        return {**fitted, ids: vocabulary.outputs}

    def objective(self, augmentation: "Augmentation") -> Objective:
        """Teacher forcing with the augmentation's label smoothing."""
        return teacher_forcing(augmentation.label_smoothing)

    def metrics(self, input: Input, output: Codec) -> SequenceMetrics:
        """Exact matches and what belongs to them, by greedy search."""
        return SequenceMetrics(expect_codec(output, TextCodec, EXAMPLE))

    def outputs(self, network: nn.Module, inputs: Tensor, search: Search | None = None) -> Any:
        """The ids that the network generates, with their probabilities."""
        return generate(network, inputs, search or Greedy())

    def chance_loss(self, output: Codec) -> float:
        """Of a network that finds every token, and the end, as likely as the others."""
        return math.log(output.outputs - FIRST + 1)

    def facts(self, input: Input, augmentation: "Augmentation", train: "Samples") -> dict[str, Any]:
        """The label smoothing, and the length of the longest source where texts are read."""
        longest = 0
        if isinstance(input, Vocabulary) and isinstance(train.inputs, Texts):
            longest = max(len(input.split(text)) for text in train.inputs.values)
        return {"label_smoothing": augmentation.label_smoothing, **({"longest_source": longest} if longest else {})}

    def about(self, output: Codec, facts: Mapping[str, Any]) -> str:
        """How far label smoothing holds probabilities down: a certain id gets 1 - e + e / v, of v ids."""
        smoothing = facts.get("label_smoothing", 0.0)
        most = f"{100 * (1 - smoothing + smoothing / output.outputs):.3g} %"
        words = (
            f"Trained with label smoothing {smoothing:g}, so even a certain token gets at most about {most}; the "
            "probability of a text is the product over its tokens and its end."
        )
        return words if smoothing else ""
