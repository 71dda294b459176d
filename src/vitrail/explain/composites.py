"""Composites: what a network answers to images put together of its background's patches; computed once, and stored.

    RUN/model/composites.safetensors               of a trained model, beside its background
    ~/.cache/vitrail/composites/KEY.safetensors    of all others: of a background of one's own, of another precision

Composites serve all images of a network, so all of them are made at once. In a file their logits have a name made of
all that decides them (`key_of`): the network and its numbers, the background, the size of the images, the seed and the
precision. What is stored of anything else has another name, and is never taken. The name in the cache is made of torch
and of the processor or GPU as well; what a model carries is the same wherever it is opened.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from vitrail.data.background import FEW
from vitrail.data.tensor_files import read_tensors, write_tensors
from vitrail.errors import DataError
from vitrail.explain.methods.generic_attention import generic_attention
from vitrail.explain.scores.perturb import (
    Precision,
    at_a_time,
    from_background,
    in_precision,
    keys_of,
    logits_of,
    seed_of,
    stream,
)
from vitrail.io import user_cache
from vitrail.jobs.precision import chosen_for
from vitrail.model import Model
from vitrail.nn import ViT
from vitrail.nn.networks import weights_hash
from vitrail.nn.vit import Images
from vitrail.runtime import device_name

COMPOSITES = 499  # of a network, once
MOST_OF_TRAINING, PASSES = 0.1, 3  # composites of a training's passes; of these, for a sample
CHOSEN = 16  # background images by which a precision is chosen
REPLACED = 0.1  # fraction of a background image's patches


def different(background: Float[Tensor, "r c h w"]) -> int:
    """How many of the background images are not copies of another."""
    return len(set(keys_of(background)))


@torch.no_grad()
def composites_of(
    network: ViT, background: Float[Tensor, "r c h w"], seed: int, numbers: Sequence[int] = range(COMPOSITES)
) -> Float[Tensor, "count v"]:
    """Logits of images put together of patches of background images.

    Args:
        network: In eval mode.
        background: As the network reads them.
        seed: The same seed gives the same composites.
        numbers: Which ones.
    """
    rows, columns = network.grid(background)
    patch = (background.shape[2] // rows, background.shape[3] // columns)
    fill = from_background(background)

    def make(some: Tensor) -> Images:
        return fill.make(background[:1], patch, len(some), seed_of(seed, "composites", numbers[int(some[0])]))[:, 0]

    return logits_of(network, len(numbers), make, at_a_time(background))


def key_of(network: ViT, background: Float[Tensor, "r c h w"], seed: int, precision: Precision) -> str:
    """All that decides the logits of composites, as a name.

    Args:
        network: In fp32, whatever the precision: with its numbers, and all that it is built of.
        background: As the network reads it.
        seed: Of the composites.
        precision: In which the network is computed.
    """
    content = background.detach().cpu().contiguous().numpy().tobytes()
    return _digest(
        network=weights_hash(network),
        config=repr(network.config),
        parts=repr(network),
        background=hashlib.sha256(content).hexdigest(),
        size=list(background.shape[1:]),
        dtype=str(background.dtype),
        count=COMPOSITES,
        seed=seed,
        precision=precision,
    )


def _digest(**values: object) -> str:
    return hashlib.blake2b(json.dumps(values).encode(), digest_size=16).hexdigest()


def composite_logits(
    network: ViT,
    background: Float[Tensor, "r c h w"],
    seed: int,
    precision: Precision,
    stored: Mapping[str, Tensor] | None = None,
) -> Float[Tensor, "count v"]:
    """Logits of the composites of a background: those that are stored, or computed now and stored from then on.

    Args:
        network: In eval mode, in fp32.
        background: Whose patches they are put together of, as the network reads it.
        seed: Of the composites.
        precision: In which the network is computed.
        stored: What a model carries, see `Model.composites`.
    """
    key, device = key_of(network, background, seed, precision), background.device
    if (found := (stored or {}).get(key)) is not None and len(found) == COMPOSITES:
        return found.to(device)
    name = _digest(key=key, torch=torch.__version__, machine=device_name(device))
    file = user_cache() / "composites" / f"{name}.safetensors"
    with suppress(DataError, OSError, KeyError):
        found = read_tensors(file, "")[key]
        if len(found) == COMPOSITES:
            return found.to(device)
    made = composites_of(in_precision(network, precision), background, seed)
    with suppress(OSError):  # no home, or a full disk: they are computed again next time
        write_tensors(file, {key: made})
    return made


@torch.no_grad()
def with_composites(model: Model, run: Path, samples: int) -> Model:
    """A trained model that carries what it answers to composites, so that no verdict computes that again.

    It is in the precision that is chosen for verdicts (`vitrail.jobs.precision`), and for the seed that they have.

    Args:
        model: With its network in eval mode. Without a background, or with one of too few images, it is returned as
            it is.
        run: Where it is trained, and where the choice of a precision is stored.
        samples: How many went through the network in training, forward and backward, which is about three passes each.
            Where composites would be more than a tenth of that, the model is returned as it is, whatever the machine;
            the first verdict computes them then.
    """
    network, background = model.network, model.background_images
    if model.background is None or background is None or not isinstance(network, ViT) or different(background) < FEW:
        return model
    if MOST_OF_TRAINING * PASSES * samples < COMPOSITES:
        return model
    precision = chosen_for(model, background[:CHOSEN], run).precision
    made = composites_of(in_precision(network, precision), background, 0)
    return replace(model, composites={key_of(network, background, 0, precision): made.cpu()})


def without_evidence(
    network: ViT, images: Float[Tensor, "r c h w"], background: UInt8[Tensor, "r c h w"], seed: int = 0
) -> UInt8[Tensor, "r c h w"]:
    """The background, with the patches that the network's explanation names replaced by those of others.

    Background images are put together of patches of many training images, each at its own place. Some of these patches
    still show a piece of what the network looks for, and a test against such images finds less evidence than there is.
    So the tenth of the patches of each background image that the network's own explanation names is replaced: another
    image's patch, from the same place, stands there instead. It is done once, by the trained network, and stored; a
    network whose weights are scrambled later meets the same background, and is not helped by a choice that another
    network made.

    Args:
        network: In eval mode, trained.
        images: The background as the network reads them.
        background: The same, values 0..255.
        seed: Decides which image stands in.

    Returns:
        As many images; every patch is still where it stood in a training image.
    """
    if len(background) < 2:  # a patch needs another to stand in for it
        return background
    values = torch.cat([generic_attention(network, some).values for some in images.split(at_a_time(images))]).cpu()
    _, rows, columns = values.shape
    flat = values.flatten(1)
    first = flat.argsort(dim=1, descending=True)[:, : max(1, round(REPLACED * rows * columns))]
    named = torch.zeros_like(flat, dtype=torch.bool).scatter_(1, first, True)
    named &= flat > flat.amin(dim=1, keepdim=True)  # a map without signal names nothing
    cleaned, (down, across) = background.clone(), (background.shape[2] // rows, background.shape[3] // columns)
    random = stream(seed, "lending")
    for patch in range(rows * columns):
        clean = (~named[:, patch]).nonzero()[:, 0]
        if not len(clean):
            continue
        row, column = divmod(patch, columns)
        place = (..., slice(row * down, (row + 1) * down), slice(column * across, (column + 1) * across))
        for one in named[:, patch].nonzero()[:, 0].tolist():
            other = int(clean[torch.randint(len(clean), (1,), generator=random, device="cpu")])
            cleaned[one][place] = background[other][place]
    return cleaned
