"""A model: a network together with what makes it usable, as one value, whatever its task.

What is done with a model is a function of the library whose first argument is a model. The main ones are methods, too
(`AsMethod`): `model.embed(data)` is `vitrail.embed(model, data)`. They stand in parts above this one, which imports
none of them: each is found by its public name when it is first asked for.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor, nn

import vitrail
from vitrail import nn as networks, weights
from vitrail.arguments import typed
from vitrail.data.background import background_misfit, photographs
from vitrail.data.columns import Vocabulary
from vitrail.data.images import NamedImage, open_image
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sources import Items, format_of, is_passed, read_images
from vitrail.data.tensor_files import digest_of
from vitrail.errors import DataError, UsageError, check_count, check_kinds, located, some_of
from vitrail.model.facts import NAMES, UNVERIFIED
from vitrail.model.familiar import UNLIKE, Noting, is_unlike
from vitrail.nn import ViT, evaluating
from vitrail.nn.embedding import Size
from vitrail.runtime import pick_device
from vitrail.tasks import Codec, Prediction, Task
from vitrail.tasks.classify import Classification
from vitrail.tasks.task import Input, check_model_fit

Source = str | Path | bytes | Image.Image | np.ndarray | Tensor
BORROWS = "borrows"  # fact of a model without classes whose images are of the kind of ImageNet's
CLASSIFY = Classification()
Options = ParamSpec("Options")
Answer = TypeVar("Answer")


class AsMethod(Generic[Options, Answer]):
    """A public function of a model as a method of it, with all its arguments; of the class it is the function itself.

    Args:
        find: Gives the function.
    """

    def __init__(self, find: "Callable[[], Callable[Concatenate[Model, Options], Answer]]") -> None:
        self.find = find

    def __get__(self, model: "Model | None", owner: type) -> Callable[Options, Answer]:
        function: Any = self.find()
        return function if model is None else MethodType(function, model)


@typed
@dataclass(frozen=True, eq=False)
class Model:
    """A network with all that it needs to be used, whatever its task.

    Attributes:
        network: A module that returns logits.
        input: What turns a source into a tensor: the preprocessing of images, or the vocabulary of texts.
        output: The codec: classes in the order of the logits, a vocabulary, or the codec of a task of your own.
        task: What was learnt.
        background: (r, c, h, w) uint8 images that explanations are tested with, put together from patches of training
            images; see `vitrail.data.background`. When None, a model of ImageNet's classes uses photographs that come
            with vitrail. Predictions do not need them.
        composites: Logits of composites of the background, by what decides them; see `vitrail.explain.evidence`.
            They save time: what is stored of another network is never taken.
        familiar: (m, d) what the head reads of some training images, by which `predict` notes images that are unlike
            them (`vitrail.model.familiar`); None where that is not known.
        facts: Its training and origin, by name, in plain values.
        loaded_from: What `vitrail.load` opened, a path or a name; empty for a model that was made in memory.

    Raises:
        UsageError: The parts do not belong together.
    """

    network: Any
    input: Input
    output: Codec
    task: Task = CLASSIFY
    background: UInt8[Tensor, "r c h w"] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    composites: Mapping[str, Float[Tensor, "count v"]] = field(default_factory=dict)
    familiar: Float[Tensor, "m d"] | None = None
    loaded_from: str = ""

    def __post_init__(self) -> None:
        """Refuse parts that do not belong together."""
        check_kinds(network=(self.network, nn.Module), task=(self.task, Task))
        config = getattr(self.network, "config", None)
        check_model_fit(config, self.input, self.output)
        if self.background is not None and (problem := background_misfit(self.background, self.preprocessing)):
            raise UsageError(problem, "background=None, or images made by preprocessing.to_uint8")

    explain = AsMethod(lambda: vitrail.explain.report)
    evaluate = AsMethod(lambda: vitrail.evaluate)
    embed = AsMethod(lambda: vitrail.embed)
    similar = AsMethod(lambda: vitrail.similar)
    save = AsMethod(lambda: vitrail.save)

    def summary(self) -> tuple[str, dict[str, str]]:
        """What it is, in a line; then its network, what goes in and comes out, and what is known of its weights."""
        numbers = sum(parameter.numel() for parameter in self.network.parameters())
        kind, words = self.output.describe()
        words = some_of(self.output.names, 5) if self.output.names else words
        height, width = (0, 0) if self.reads_text else self.preprocessing.size
        known = self.facts.get("verified") or self.facts.get("data") or "nothing is known of them"
        title = f"Model of the task {self.task.name} ({self.task.help}), {self.loaded_from or 'made in memory'}"
        return title, {
            "network": f"{type(self.network).__name__} with {numbers:,} parameters on {self.device}",
            "input": "a text" if self.reads_text else f"an image, brought to {height} x {width} pixels",
            "output": f"{self.output.outputs} {kind}: {words}",
            "weights": str(known),
        }

    def __repr__(self) -> str:
        """In five lines."""
        title, rows = self.summary()
        return "\n".join([title, *(f"  {name:<9} {words}" for name, words in rows.items())])

    def _repr_html_(self) -> str:
        """The same as a small table, for a notebook."""
        from vitrail.pages.render import facts_html  # which a prediction does not need

        return facts_html(*self.summary())

    @typed
    def to(self, device: str | torch.device) -> "Model":
        """Move the network to another device, as torch does: it is the same network, and this same model.

        Args:
            device: `cpu`, `cuda`, `cuda:1`, `mps`; `auto` takes an accelerator if there is one.

        Raises:
            UsageError: There is no such device.
        """
        self.network.to(pick_device(str(device)))
        return self

    @property
    def preprocessing(self) -> Preprocessing:
        """How an image becomes what the network expects.

        Raises:
            UsageError: The model reads texts.
        """
        if not isinstance(self.input, Preprocessing):
            raise UsageError("this model reads texts, which have no preprocessing", "model.input, its vocabulary")
        return self.input

    @property
    def vocabulary(self) -> Vocabulary:
        """How a text becomes what the network expects.

        Raises:
            UsageError: The model reads images.
        """
        if not isinstance(self.input, Vocabulary):
            raise UsageError("this model reads images, which have no vocabulary", "model.preprocessing")
        return self.input

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names, in the order of the logits.

        Raises:
            UsageError: The model has another output.
        """
        if not self.output.names:
            raise UsageError(f"the task {self.task.name} has no classes", "model.output, the codec of its outputs")
        return self.output.names

    @property
    def reads_text(self) -> bool:
        """Whether a source is a text; else it is an image."""
        return isinstance(self.input, Vocabulary)

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return next(self.network.parameters()).device

    @property
    def about(self) -> str:
        """What to know of its probabilities, in a sentence or two; empty where there is nothing."""
        rare = self.facts.get("rare_classes")
        shifted = f"Trained with {rare}: the probabilities of rare classes are mostly too high." * bool(rare)
        return " ".join(filter(None, (self.task.about(self.output, self.facts), shifted)))

    @property
    def example(self) -> str:
        """A source as an example, for cards and hints."""
        if self.reads_text:
            return self.vocabulary.separator.join(self.vocabulary.tokens[:4][::-1])
        return "image.png"

    @property
    def borrows_background(self) -> bool:
        """Whether the photographs that come with vitrail serve as its background: it has none, and ImageNet's classes.

        Images of other kinds differ from any photograph, whatever they show, so these would support anything.
        """
        if self.background is not None:
            return False
        return bool(self.facts.get(BORROWS)) or bool(weights.wordnet_ids(self.output.names))

    @property
    def background_images(self) -> Float[Tensor, "r c h w"] | None:
        """The background as the network expects it, on its device; None where there is none."""
        pixels = self.background
        if self.borrows_background:
            pixels = photographs(self.preprocessing)
        return None if pixels is None else self.preprocessing.normalise(pixels).to(self.device)  # one device's bits

    @typed
    def tensor(self, sources: Source | NamedImage | Iterable[Source | NamedImage]) -> Tensor:
        """Sources as the network expects them, on its device: images (b, c, h, w), or ids (b, s).

        Raises:
            DataError: An image cannot be read, or a text is empty or has an unknown token; names it.
            UsageError: A source is of the wrong kind.
        """
        sources = list(each_of(sources))
        if not sources:
            raise UsageError("there is nothing to make a tensor of", "model.tensor(['photo.jpg'])")
        if not self.reads_text:
            pixels = torch.stack([_pixels(self.preprocessing, source) for source in sources])
            return self.preprocessing.normalise(pixels).to(self.device)  # one device's bits, which decide what is drawn
        texts = []
        for source in sources:
            if not isinstance(source, str):
                raise UsageError(f"this model reads texts, got {type(source).__name__}", "a text, as str")
            texts.append(source)
        return torch.from_numpy(self.vocabulary.rows(texts, framed=False)).to(self.device)

    @typed
    def predict(
        self,
        sources: Source | NamedImage | Iterable[Source | NamedImage] | Items,
        *,
        search: "networks.Search | None" = None,
        coverage: float | None = None,
        batch_size: int = 64,
    ) -> list[Prediction]:
        """A prediction for each source.

        Args:
            sources: Texts; or opened images (`NamedImage` has a name), bytes of files, pixels (see
                `data.preprocessing.image_of`) and what names images: files, a folder, a list, a named set; or a single
                one; or an object, as `vitrail.train` takes it. Any iterable of these is read once, a batch at a time,
                so a generator may go through more than memory holds.
            search: How the next token is chosen, for a model that generates text; greedy when None.
            coverage: With each prediction a set of classes that holds the true one so often, 0 to 1, or of numbers
                intervals; None for no set, and intervals of 90 %. Needs a calibrated model.
            batch_size: The number of sources that go through the network at a time.

        Returns:
            One prediction for each text or image, in order, of the class that the task has for it.

        Raises:
            DataError: A source cannot be read; the message names it. Or a coverage is wanted of a model without it.
            UsageError: A search was passed, and the task has none; or the batch size is not at least 1; or it is no
                coverage.
        """
        output = self.output.promising(coverage)
        if search is not None and not (self.task.searches and isinstance(search, networks.Search)):
            what = f"got {type(search).__name__}" if self.task.searches else f"and the task {self.task.name} has none"
            raise UsageError(f"search is for models that generate text, {what}", "model.predict(sources) without it")
        check_count("batch_size", batch_size, 64)
        named = (each for number, source in enumerate(each_of(sources), 1) for each in self._named(source, number))
        predictions = list[Prediction]()
        with evaluating(self.network):
            while some := list(islice(named, batch_size)):
                names, opened = zip(*some, strict=True)
                here = None if search is None else search.from_row(len(predictions))
                inputs = self.tensor(opened)
                predictions += self.answer(output, inputs, names, here)
        return predictions

    def answer(
        self, output: Codec, inputs: Tensor, names: Sequence[str], search: "networks.Search | None" = None
    ) -> Sequence[Prediction]:
        """A prediction for each input, with a note where it is unlike anything in training.

        Args:
            output: The codec, as it is to answer.
            inputs: As the network reads them, which is in eval mode.
            names: Of each.
            search: As of `predict`.
        """
        if self.familiar is None:
            return self.task.predict(self.network, output, inputs, names, search, self.facts)
        noting = Noting(self.network)
        found = self.task.predict(noting, output, inputs, names, search, self.facts)
        far = is_unlike(torch.cat(noting.pooled), self.familiar).tolist()
        return [
            replace(one, notes=(*one.notes, UNLIKE)) if is_far else one  # pyrefly: ignore[bad-specialization]
            for one, is_far in zip(found, far, strict=True)
        ]

    def _named(self, source: Source | NamedImage, number: int) -> Iterator[tuple[str, Source | NamedImage]]:
        """What a source is, or each of the images that it names, opened when it is its turn; its name first."""
        if self.reads_text and isinstance(source, str) and not source:
            raise DataError(f"text {number} is empty", f"at least one of {self.vocabulary.describe()[1]}")
        if isinstance(source, NamedImage):
            yield source.name, source
        elif self.reads_text or not isinstance(source, str | Path) or format_of(str(source)) is None:
            yield (str(source) if isinstance(source, str | Path) else "image"), source
        else:
            for samples in read_images(source, flat=True).splits.values():
                for row, name in enumerate(samples.images.names()):
                    yield name, NamedImage(name, samples.images.open(row))


def each_of(sources: Any) -> Iterator[Source | NamedImage]:
    """Each of some sources, in turn; the only one where it is no iterable; of pixels each image, (n, ...)."""
    if isinstance(sources, np.ndarray | Tensor):
        yield from [sources] if sources.ndim in (2, 3) else sources
    elif isinstance(sources, str | Path | bytes | Image.Image | NamedImage):
        yield sources
    elif is_passed(sources):
        for samples in read_images(sources).splits.values():
            yield from (NamedImage(name, samples.images.open(row)) for row, name in enumerate(samples.inputs.names()))
    else:
        yield from sources


def _pixels(reads: Preprocessing, source: object) -> UInt8[Tensor, "c h w"]:
    """An image as it is read; an error names it."""
    image = source.image if isinstance(source, NamedImage) else open_image(source)
    name = source.name if isinstance(source, NamedImage) else source
    with located(name) if isinstance(name, str | Path) else nullcontext():
        return reads.to_uint8(image)


# ---- for images of another size, and with other weights


def resize_model(
    model: Model, image_size: int | Size | None = None, channels: int | None = None, warning: bool = False
) -> Model:
    """The model for images of another size, or for grey ones, as its facts then state; see `vitrail.weights.adapt`.

    Args:
        model: Is not changed, and is returned where nothing is to be changed.
        image_size: (height, width) in pixels; one number means a square.
        channels: 1, of a network for 3; or those that it has.
        warning: Whether the rule by which positions are resized is not known.

    Raises:
        UsageError: It reads no images by a ViT of the library, or the patches do not divide the size.
    """
    if not isinstance(model.network, ViT):
        problem = f"only a ViT has an image size, but this network is {type(model.network).__name__}"
        raise UsageError(problem, "load without image_size= and channels=")
    before = model.network.config
    network, reads = weights.adapt_network(model.network, model.preprocessing, image_size, channels)
    if network is model.network and reads == model.preprocessing:
        return model
    background = model.background if reads == model.preprocessing else None  # its images have the size of before
    facts, how = dict(model.facts), []
    carried = weights.resize_words(before, network.config, not warning)
    if before.image != network.config.image:
        size = "{} x {}".format(*network.config.image)
        how.append(f"its positions were resized for images of {size}" if carried else f"it was made to read {size}")
    if carried:
        facts["resized"] = "; then ".join(filter(None, (facts.get("resized"), carried)))
    if before.channels != network.config.channels:
        facts["grey"] = f"the kernels of the patch embedding, summed over {before.channels} channels into one"
        how.append("its patch embedding was converted to grey images")
    if how and facts.get("verified", UNVERIFIED) != UNVERIFIED:
        facts["verified"] += f"{' and' if 'changed_weights' in facts else ', before'} {' and '.join(how)}"
    if how and "verified_weights" in facts:
        facts["changed_weights"] = digest_of(network.state_dict())
    return replace(
        model, network=network, input=reads, background=background, facts=facts, composites={}, familiar=None
    )


def refresh_facts(facts: Mapping[str, Any], network: nn.Module) -> dict[str, Any]:
    """The facts of a network; if they are of other numbers than it has, these are not verified, as a fact states.

    A hash of all numbers takes 20 ms for a ViT-Ti and 0.3 s for a B/16: a file that is as it was saved needs none.
    """
    if "verified" not in facts:
        return dict(facts)
    wanted = facts.get("changed_weights", facts.get("verified_weights"))
    if wanted is not None and wanted == digest_of(network.state_dict()):
        return dict(facts)
    found = {name: fact for name, fact in facts.items() if name not in NAMES} | {"verified": UNVERIFIED}
    if wanted is not None:
        since = "read" if facts["verified"] == UNVERIFIED else "verified"
        found["weights"] = "; ".join(filter(None, (facts.get("weights"), f"they have changed since they were {since}")))
    return found
