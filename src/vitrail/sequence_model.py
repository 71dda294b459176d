"""A model that writes: a network with the vocabularies, and the preprocessing where it reads pictures.

    model = vitrail.load("runs/latest")
    model.generate(["string.png"])[0].text

It holds as well what a reader of its answers has to know of its training: the label smoothing, and the length of the
longest source. How it is saved and loaded: `sequence_model_files.py`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, NoReturn

import torch
from PIL import Image
from torch import Tensor

from vitrail.data.preprocessing import Preprocessing
from vitrail.data.vocabulary import BEGIN, END, PADDING, Vocabulary
from vitrail.errors import DataError, UsageError, counted
from vitrail.model_files import opened
from vitrail.nn import (
    Greedy,
    ImageToSequence,
    ImageToSequenceConfig,
    Search,
    Transformer,
    TransformerConfig,
    generate,
    grid_of,
)

GREEDY = Greedy()
Source = str | Path | Image.Image
EMPTY = "(empty)"  # how people are shown a text without a token


class Written(NamedTuple):
    """What a model writes for one source."""

    name: str
    text: str
    probability: float  # that the network gives to this very text, its end included where there is one
    ids: tuple[int, ...]  # the same text as ids, without begin and end
    ended: bool  # False where the text was cut at the greatest length that the network writes
    notes: tuple[str, ...] = ()  # what makes the text doubtful, one sentence each

    @property
    def shown(self) -> str:
        """The text for people, who would not see an empty one."""
        return self.text or EMPTY


@dataclass(frozen=True, eq=False)
class SequenceModel:
    """A network that writes, with all that makes it usable.

    Attributes:
        network: Gives the logits of the ids that come next.
        vocabulary: Of what is written.
        source_vocabulary: Of what is read, where texts are; else None.
        preprocessing: What turns a picture into what the network expects, where pictures are read; else None.
        label_smoothing: Of its training: the share of each target that was spread evenly over all ids.
        longest_source: Tokens of the longest text that it learnt from; 0 where that is not known, or pictures are read.
    """

    network: Transformer | ImageToSequence
    vocabulary: Vocabulary
    source_vocabulary: Vocabulary | None = None
    preprocessing: Preprocessing | None = None
    label_smoothing: float = 0.0
    longest_source: int = 0

    def __post_init__(self) -> None:
        """Refuse parts that do not belong together."""
        config = self.network.config
        if not 0 <= self.label_smoothing < 1 or self.longest_source < 0:
            raise UsageError(
                f"label_smoothing {self.label_smoothing} and longest_source {self.longest_source} cannot be",
                "a share from 0 to below 1, and a number of tokens",
            )
        if (config.padding, config.begin, config.end) != (PADDING, BEGIN, END):
            raise UsageError(
                f"the network has the special ids {config.padding}, {config.begin}, {config.end}",
                f"padding={PADDING}, begin={BEGIN}, end={END}, as in every Vocabulary",
            )
        match config:
            case TransformerConfig():
                _same_length("vocabulary", self.vocabulary, config.target_vocabulary)
                _same_length("source_vocabulary", self.source_vocabulary, config.source_vocabulary)
            case ImageToSequenceConfig():
                _same_length("vocabulary", self.vocabulary, config.vocabulary)
                if self.preprocessing is None or self.preprocessing.channels != config.encoder.channels:
                    raise UsageError(
                        f"the network reads pictures of {config.encoder.channels} channels, the preprocessing makes "
                        f"{self.preprocessing.channels if self.preprocessing else 'none'}",
                        f"Preprocessing(channels={config.encoder.channels}, ...)",
                    )
                grid_of(self.preprocessing.size, config.encoder.patch)

    @property
    def reads_pictures(self) -> bool:
        """Whether a source is a picture; else it is a text."""
        return self.preprocessing is not None

    @property
    def reads(self) -> str:
        """What a source is, in a word."""
        return "pictures" if self.reads_pictures else "texts"

    @property
    def certainty(self) -> float:
        """The greatest probability of an id that training asks for: 1 - e + e / v, with label smoothing e and v ids."""
        return 1 - self.label_smoothing + self.label_smoothing / len(self.vocabulary)

    @property
    def about_probabilities(self) -> str:
        """What to know of the probability of a text, in a sentence; empty where it was trained without smoothing."""
        if not self.label_smoothing:
            return ""
        return (
            f"Trained with label smoothing {self.label_smoothing:g}, so even a certain token gets at most about "
            f"{100 * self.certainty:.3g} %; the probability of a text is the product over its tokens and its end."
        )

    @property
    def example(self) -> str:
        """A source as it may be typed, for cards and hints."""
        if self.source_vocabulary is None:
            return "picture.png"
        return self.source_vocabulary.separator.join(self.source_vocabulary.tokens[:4][::-1])

    def tensor(self, sources: Sequence[Source]) -> Tensor:
        """Sources as the network expects them, on its device: ids (b, s), or pictures (b, c, h, w).

        Raises:
            DataError: A picture cannot be read, or a text is empty or has an unknown token; names it.
            UsageError: A source is of the wrong kind.
        """
        device = next(self.network.parameters()).device
        if self.preprocessing is not None:
            pixels = torch.stack([self.preprocessing.to_uint8(opened(source)) for source in sources])
            return self.preprocessing.normalise(pixels.to(device))
        assert self.source_vocabulary is not None
        texts = []
        for source in sources:
            if not isinstance(source, str):
                raise UsageError(f"this model reads texts, got {type(source).__name__}", "a text, as str")
            texts.append(source)
        return torch.from_numpy(self.source_vocabulary.rows(texts, framed=False)).to(device)

    def generate(
        self, sources: Sequence[Source] | Source, search: Search = GREEDY, batch_size: int = 64
    ) -> list[Written]:
        """What the model writes for each source.

        Args:
            sources: Files or opened pictures, or texts; or a single one.
            search: How the next id is chosen.
            batch_size: How many go through the network at a time.

        Returns:
            One text for each source, in order.

        Raises:
            DataError: A source cannot be read; names it, an empty text by its place.
        """
        if isinstance(sources, str | Path | Image.Image):
            sources = [sources]
        if self.source_vocabulary is not None and "" in sources:
            raise DataError(
                f"text {list(sources).index('') + 1} of {len(sources)} is empty",
                f"at least one of {self.source_vocabulary.says()}",
            )
        written: list[Written] = []
        for first in range(0, len(sources), batch_size):
            some = sources[first : first + batch_size]
            names = [str(source) if isinstance(source, str | Path) else "picture" for source in some]
            written += self.write(self.tensor(some), names, search.from_row(first))
        return written

    def predict(self, pictures: object, *others: object) -> NoReturn:
        """Refuse: this model writes.

        Raises:
            UsageError: Always; names `generate`.
        """
        raise UsageError("this model writes texts, and predict is for classes", f"model.generate([{self.example!r}])")

    def write(self, inputs: Tensor, names: Sequence[str], search: Search = GREEDY) -> list[Written]:
        """As `generate`, for inputs that are tensors already."""
        found = generate(self.network, inputs, search)
        logs, ends = found.log_probability.tolist(), found.ended.tolist()
        rows = zip(names, found.tokens.tolist(), found.lengths.tolist(), logs, ends, self._doubts(inputs), strict=True)
        return [
            Written(
                name, self.vocabulary.decode(ids[:length]), math.exp(min(0.0, log)), tuple(ids[:length]), end, notes
            )
            for name, ids, length, log, end, notes in rows
        ]

    def _doubts(self, inputs: Tensor) -> list[tuple[str, ...]]:
        """What makes the text of each input doubtful: a source longer than any that was learnt from."""
        if self.reads_pictures or not self.longest_source:
            return [()] * len(inputs)
        note = f"longer than the longest of training ({counted(self.longest_source, 'token')}): expect errors"
        lengths = (inputs != PADDING).sum(dim=1).tolist()
        return [(note,) if length > self.longest_source else () for length in lengths]


def _same_length(name: str, vocabulary: Vocabulary | None, wanted: int) -> None:
    found = None if vocabulary is None else len(vocabulary)
    if found != wanted:
        raise UsageError(f"{name} has {found} ids, the network wants {wanted}", f"a vocabulary of {wanted - 3} tokens")
