"""A model as every process of a job opens it, and its precision: chosen once by timed passes, replayed by all.

    RUN/inference.json                     of the model of a run
    ~/.cache/vitrail/inference/KEY.json    of any other

bf16 is taken where it is faster and answers alike, else fp32. Below `LEAST` images it is fp32: to look would take
longer. What was chosen for another network, size of images, device, machine or torch is chosen anew. Batches need no
choice: on a processor each is one thread's, whose number changes no bit.
"""

import hashlib
import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from vitrail.data.images import Images
from vitrail.errors import DataError, Hint, UsageError, check_choice, counted
from vitrail.io import read_json, to_json, user_cache, write_file
from vitrail.jobs.parts import Compute, IdRange, Ids, answer_in_order, batch_of, loader_of, split_into_batches
from vitrail.model import Model, load
from vitrail.nn import ViT, evaluating, in_bf16
from vitrail.nn.networks import is_known, weights_hash
from vitrail.runtime import (
    BF16_LEAST_GAIN,
    device_name,
    in_order,
    multiplies_bf16,
    pick_device,
    processor_kind,
    threads_set,
    time_bf16,
)

Precision = Literal["fp32", "bf16"]


@dataclass(frozen=True)
class Opening:
    """What a worker loads a model by; plain values.

    Args:
        path: As for `vitrail.load`, found from any folder.
        device: As `--device` takes it.
        more: To `vitrail.load`: what is assumed of pretrained weights, and the size of images.
        known: What the model was known by where the job was started; nothing is compared when empty.
        precision: In which it is computed.
    """

    path: str
    device: str
    more: Mapping[str, Any]
    known: Mapping[str, str]
    precision: Precision = "fp32"

    def load(self) -> Model:
        """The model, on its device.

        Raises:
            DataError: It is missing, damaged, or another one.
        """
        model = load(self.path, device=pick_device(self.device), **self.more)
        if self.known and identity_of(model) != self.known:
            problem = f"{self.path} on {socket.gethostname()} is not the model that the job was started with"
            raise DataError(problem, "a path that leads to the same model on all machines of the cluster")
        return cast_model(model, self.precision)

    def compute(self, by: Callable[[Model, Any, Sequence[IdRange]], Iterator[Any]], option: Any) -> Compute:
        """The model, loaded, and what is done with it: `by`, which also gets an option, range by range."""
        return partial(by, self.load(), option)


def cast_model(model: Model, precision: Precision) -> Model:
    """The model as it computes many images: the same, or one that multiplies in bf16."""
    return model if precision == "fp32" else replace(model, network=in_bf16(model.network))


def identity_of(model: Model) -> dict[str, str]:
    """What a model is known by: hashes of its weights, of all else that decides its answers, and of code."""
    from vitrail.jobs.own_code import own_code  # what is answered at once needs no identity
    from vitrail.model.saving import named_of

    described = to_json({**named_of(model), "input": model.input.to_dict(), "output": model.output.to_dict()})
    parts = vars(model.network.parts).values() if is_known(model.network) else ()
    return {
        "weights": weights_hash(model.network),
        "model": hashlib.blake2b(described.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest(),
        "code": own_code([*map(type, (model.task, model.output, *model.network.modules())), *parts]),
    }


PrecisionOption = Literal["auto", "fp32", "bf16"]
Labels = Callable[[Ids], Int64[Tensor, " b"]]

LEAST = 256  # images of a job for which it is chosen
BF16_LEAST_WIDTH = 192  # of a network for which it is chosen; narrower ones are quick in either
SHARE, FEWEST, MOST = 4, 64, 512  # answered in both for the choice: one of so many images of the job, within these;
# where labels are at hand the most, since accuracy is counted, and a choice that was made without them is made again
MARGIN = 0.05  # between the two most probable classes in fp32, from which on no other answer is taken
LOST = 0.002  # of accuracy, at most


@dataclass(frozen=True)
class Choice:
    """How a model is computed, and why.

    Attributes:
        precision: Of matrix products; all else is fp32.
        gain: How many times as fast bf16 was; 0 where nothing was timed.
        images: How many were answered in both.
        changed: How many of them bf16 answers otherwise: another class first, or numbers that are far.
        margin: The largest difference in fp32 of the two most probable classes, of an image that changed.
        lost: Accuracy in fp32 less that in bf16; None where no labels were at hand.
    """

    precision: Precision
    gain: float = 0.0
    images: int = 0
    changed: int = 0
    margin: float = 0.0
    lost: float | None = None

    def sentence(self) -> str:
        """What to know of it; empty where nothing is."""
        if not self.images:
            return ""
        alike = f"of {counted(self.images, 'image')} {self.changed} got another prediction"
        alike += f", from a margin of at most {self.margin:.3f}" if self.changed else ""
        alike += "" if self.lost is None else f", accuracy lost {100 * self.lost:.2f} points"
        if self.precision == "bf16":
            fast = f"{self.gain:.1f} times as fast as fp32 (timed; --precision fp32 is exact)"
            return f"computed in bf16, {fast}: {alike}"
        return f"computed in fp32: bf16 is {self.gain:.1f} times as fast, but {alike}"


FP32 = Choice("fp32")


def check_precision(precision: str, network: nn.Module) -> None:
    """Refuse a precision that is not known, or in which a network cannot be computed.

    Raises:
        UsageError: Names what can be.
    """
    check_choice("precision", precision, PrecisionOption)
    if precision == "bf16" and not isinstance(network, ViT):
        problem = f"bf16 is for ViTs, but this network is {type(network).__name__}"
        raise UsageError(problem, Hint({"precision": "fp32"}))


def choose_precision(
    model: Model,
    splits: Sequence[Images],
    precision: PrecisionOption = "auto",
    labels: Labels | None = None,
) -> Choice:
    """The choice for a job: the one that is demanded, the one that is stored, or a new one, which is stored then.

    Args:
        model: In fp32; the choice for one that was loaded from a run is stored there.
        splits: All images of the job.
        precision: "auto" for the faster that answers alike.
        labels: Of images of the only split, in the model's numbers, where they are known.

    Raises:
        UsageError: The network cannot be computed in that precision.
    """
    check_precision(precision, model.network)
    if precision != "auto":
        return Choice(precision)
    count = sum(map(len, splits))
    if count < LEAST or not may_gain(model):
        return FP32
    place, of = choice_file(model)
    known = labels if len(splits) == 1 else None
    if (before := stored_choice(place, of)) is not None:
        enough = 2 * before.images >= FEWEST and (known is None or before.lost is not None)
        if before.precision == "fp32" or enough:
            return before
    images, reads = max(splits, key=len), model.preprocessing
    wanted = min(len(images), MOST if known is not None else max(FEWEST, min(MOST, count // SHARE)))
    batches = split_into_batches(np.linspace(0, len(images) - 1, wanted).astype(np.int64), model.device)
    loader = loader_of(images, reads, model.device, None)
    passes = answer_in_order(
        lambda ids, pixels: (pixels, None if known is None else known(ids)), loader, reads, model.device, batches
    )
    return store_choice(place, of, _choose(model, (found for _, found in passes if found is not None)))


def settle_precision(
    model: Model,
    splits: Sequence[Images],
    precision: PrecisionOption,
    started: Precision | None,
    notify: Callable[[str], object],
) -> Precision:
    """The precision of a job: that of a part of it that is done, or the choice.

    Args:
        model: In fp32.
        splits: All images of the job.
        precision: "auto" leaves it open.
        started: In which the job was started, if it continues.
        notify: Called with the reason of a choice.
    """
    if precision == "auto" and started is not None:
        return started
    choice = choose_precision(model, splits, precision)
    if choice.images:
        notify(choice.sentence())
    return choice.precision


def choose_precision_for(model: Model, images: Float[Tensor, "b c h w"]) -> Choice:
    """The same for images that are passed many times, each somewhat changed: explanations.

    A choice that was made on few images is replaced where a job has more of them.

    Args:
        model: In fp32.
        images: As the network expects them.
    """
    if not may_gain(model):
        return FP32
    place, of = choice_file(model)
    batches = ((some, None) for some in images.split(batch_of(model.device)))
    return stored_choice(place, of) or store_choice(place, of, _choose(model, batches))


def may_gain(model: Model) -> bool:
    """Whether bf16 can pay, and answers can be held against each other."""
    if not isinstance(model.network, ViT) or model.network.config.width < BF16_LEAST_WIDTH:
        return False
    if not multiplies_bf16(model.device):
        return False
    return all(weight.dtype == torch.float32 for weight in model.network.parameters())


# ---- the choice


Targets = Int64[Tensor, " b"] | None


def _choose(model: Model, batches: Iterator[tuple[Float[Tensor, "b c h w"], Targets]]) -> Choice:
    """Time both on the first batch, then hold their answers to all against each other.

    Args:
        model: In fp32.
        batches: Images as the network expects them, and their classes where known.
    """
    network, half = model.network, in_bf16(model.network)

    def both(pixels: Tensor, targets: Targets) -> tuple[Tensor, Tensor, Targets]:
        with torch.no_grad():  # which each thread has for itself
            return network(pixels).float().cpu(), half(pixels).float().cpu(), targets

    with suppress(RuntimeError, StopIteration), torch.no_grad(), evaluating(network), evaluating(half):
        first = next(batches)
        gain = _gain(network, half, first[0])
        if gain < BF16_LEAST_GAIN:
            return Choice("fp32", gain)
        tasks = (partial(both, *each) for each in chain([first], batches))
        threads = torch.get_num_threads() if model.device.type == "cpu" else 1
        return _compare(model, gain, list(in_order(tasks, threads)))
    return FP32  # no image can be read, or a part of one's own multiplies both kinds of numbers


def _gain(network: nn.Module, half: nn.Module, images: Tensor) -> float:
    """How many times as fast bf16 is, on one thread of a processor, as batches are computed."""
    networks = {"fp32": network, "bf16": half}
    with threads_set(1):
        full, other = time_bf16(lambda each, count: time_pass(lambda: networks[each](images[:count])), len(images))
    return full / other


def time_pass(forward: Callable[[], Any]) -> float:
    """Seconds of one pass on a device that is warm and idle; to read a number waits for a device that works ahead."""
    forward().float().sum().item()  # the first takes longer
    began = time.perf_counter()
    forward().float().sum().item()
    return time.perf_counter() - began


def _compare(model: Model, gain: float, rows: Sequence[tuple[Tensor, Tensor, Targets]]) -> Choice:
    """The choice by the answers in both precisions, each (b, outputs), and the classes."""
    full, half = (torch.cat(side).double() for side in list(zip(*rows, strict=True))[:2])
    known = [targets for _, _, targets in rows if targets is not None]
    labels = torch.cat(known) if known else None
    output, lost = model.output, None
    same, margins = output.agree(full, half)
    alike = bool((same | (margins < MARGIN)).all()) and bool(half.isfinite().all())
    if labels is not None and output.error is not None and output.is_wrong:
        lost = float(output.error(half, labels).mean() - output.error(full, labels).mean())
        alike = alike and lost <= LOST
    margin = float(margins[~same].nan_to_num().max()) if not bool(same.all()) else 0.0
    return Choice("bf16" if alike else "fp32", gain, len(full), int((~same).sum()), margin, lost)


# ---- where it is stored


def choice_file(model: Model) -> tuple[Path, dict[str, str]]:
    """Where the choice for a model is stored, and what it is of."""
    known, torch_is = identity_of(model), torch.__version__
    of = {**known, "device": model.device.type, "machine": device_name(model.device), "torch": torch_is}
    if model.device.type == "cpu":  # a guest may see no more than its maker's name
        of["kind"] = processor_kind()
    folder = Path(model.loaded_from).expanduser()
    if model.loaded_from and (folder / "config.yaml").is_file():
        return folder / "inference.json", of
    key = hashlib.blake2b(json.dumps(of).encode(), digest_size=16).hexdigest()
    return user_cache() / "inference" / f"{key}.json", of


def stored_choice(place: Path, of: Mapping[str, str]) -> Choice | None:
    """The choice that is there, if it is of the same; None where there is none that can be read."""
    try:
        found = read_json(place, "")
        return Choice(**found["choice"]) if found["of"] == dict(of) else None
    except (DataError, KeyError, TypeError):
        return None


def store_choice(place: Path, of: Mapping[str, str], choice: Choice) -> Choice:
    """Store a choice, where that is possible."""
    with suppress(OSError):  # a run of somebody else, or no home: it is chosen again next time
        write_file(place, to_json({"of": dict(of), "choice": asdict(choice)}))
    return choice
