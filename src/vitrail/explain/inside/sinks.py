"""Sinks: patches whose tokens the network uses as scratch paper.

"Vision transformers need registers" (Darcet et al., 2023), section 2: large networks turn some patches, mostly of dull
background, into tokens of very large norm, which hold something about the whole image and little about their place.
Attention goes there, and so do maps: a bright patch on a sink does not mean that this place matters. A patch counts as
a sink after a block when

    |h_l[i]| > median + threshold * MAD        over the patches of its image,   MAD = median | |h| - median |

and |h_l[i]| is at least twice the median. The first condition is a robust outlier. Alone it calls 0.2 to 1.4 % of all
patches of small networks sinks that have none (three networks, 400 images of planted digits: the largest norm is 1.05
to 1.26 times the median); with the second it is 0.02 % at most. The norms at which sinks stand out differ from network
to network, so nothing is compared between networks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitrail.errors import UsageError
from vitrail.explain.attribution import Attribution
from vitrail.explain.forward import ForwardPass, forward_pass
from vitrail.explain.methods.method import check_option
from vitrail.nn.twin import wide
from vitrail.nn.vit import Images, ViT

LEAST = 2.0  # times the median
NAMED = 6  # patches that a note names


@dataclass(frozen=True, eq=False)
class Sinks:
    """The sinks of each image, after every block.

    Attributes:
        norms: (layers, b, rows, columns), length of each patch's token.
        cut_off: (layers, b), the norm above which a patch is a sink.
        found: (layers, b, rows, columns), which are.
    """

    norms: Float[Tensor, "l b rows columns"]
    cut_off: Float[Tensor, "l b"]
    found: Bool[Tensor, "l b rows columns"]

    @property
    def count(self) -> Int[Tensor, "l b"]:
        """How many after each block."""
        return self.found.sum(dim=(2, 3))

    @property
    def anywhere(self) -> Bool[Tensor, "b rows columns"]:
        """Patches that are sinks after any block."""
        return self.found.any(dim=0)

    def select(self, images: Tensor) -> "Sinks":
        """Those of some of the images."""
        return Sinks(self.norms[:, images], self.cut_off[:, images], self.found[:, images])

    def notes(self) -> tuple[tuple[str, ...], ...]:
        """For each image nothing, or one sentence that names its sinks."""
        return tuple(_note(self.found[:, image]) for image in range(self.found.shape[1]))


@torch.inference_mode(False)
def find_sinks(network: ViT, images: Images, threshold: float = 6.0) -> Sinks:
    """Look for patches of outlying norm after every block.

    Args:
        network: In eval mode; left as it is.
        images: (b, c, h, w), any size that the patches divide.
        threshold: How many median absolute deviations above the median a sink stands.

    Raises:
        UsageError: If the network is in training mode, or if images or threshold do not fit.
    """
    check_option("threshold", threshold, threshold > 0, "above 0", 6.0)
    return sinks_of(forward_pass(network, images, None, *output_names(network)), threshold)


def output_names(network: ViT) -> list[str]:
    """What a record must hold for `sinks_of`: the tokens behind every block."""
    return [f"blocks.{index}.output" for index in range(network.config.depth)]


def sinks_of(forward: ForwardPass, threshold: float = 6.0) -> Sinks:
    """The sinks of a forward pass, see `find_sinks`.

    Args:
        forward: Whose record has `output_names`.
        threshold: As of `find_sinks`.
    """
    patches = [wide(forward.record[name])[:, forward.prefix :] for name in output_names(forward.network)]
    norms = torch.stack([each.norm(dim=-1) for each in patches])
    middle = norms.median(dim=-1).values
    spread = (norms - middle[..., None]).abs().median(dim=-1).values
    cut_off = torch.maximum(middle + threshold * spread, LEAST * middle)
    found = norms > cut_off[..., None]
    return Sinks(norms.unflatten(2, forward.grid), cut_off, found.unflatten(2, forward.grid))


def with_sink_notes(attribution: Attribution, sinks: Sinks) -> Attribution:
    """The attribution, with a note for every image in which these sinks were found.

    Args:
        attribution: Of any method.
        sinks: Of the same images.

    Raises:
        UsageError: If the attribution is not of these images.
    """
    return _with_notes(attribution, sinks, sinks.notes())


@torch.inference_mode(False)
def without_sinks(attribution: Attribution, sinks: Sinks) -> Attribution:
    """The attribution with zero on all sinks, to see the rest; a note has their number.

    Args:
        attribution: Of any method.
        sinks: Of the same images.

    Raises:
        UsageError: If the attribution is not of these images.
    """
    counts = sinks.anywhere.sum(dim=(1, 2)).tolist()
    notes = [(f"sinks taken out: {count}",) if count else () for count in counts]
    attribution = _with_notes(attribution, sinks, notes)
    return replace(attribution, values=attribution.values.masked_fill(sinks.anywhere, 0))


def _note(found: Bool[Tensor, "l rows columns"]) -> tuple[str, ...]:
    """Nothing, or the sentence; rows and columns count from 1, as on a page, and blocks from 0, as everywhere."""
    places = [f"row {row + 1} column {column + 1}" for row, column in found.any(dim=0).nonzero().tolist()]
    if not places:
        return ()
    named = "; ".join(places[:NAMED]) + (f"; and {len(places) - NAMED} more" if len(places) > NAMED else "")
    after = found.any(dim=(1, 2)).nonzero()[:, 0].tolist()
    where = f"block {after[0]}" if len(after) == 1 else f"blocks {after[0]} to {after[-1]}"
    are, tokens = (
        ("1 patch is a sink", "its token") if len(places) == 1 else (f"{len(places)} patches are sinks", "their tokens")
    )
    return (
        f"{are} ({named}): after {where} the network uses {tokens} as scratch space, so values there mean little "
        "about those patches",
    )


def _with_notes(attribution: Attribution, sinks: Sinks, notes: Sequence[tuple[str, ...]]) -> Attribution:
    if sinks.found.shape[1:] != attribution.values.shape:
        raise UsageError(
            f"an attribution of shape {tuple(attribution.values.shape)} is not of these images, whose patches are "
            f"{tuple(sinks.found.shape[1:])}",
            "the attribution and the sinks of the same images",
        )
    return replace(attribution, notes=tuple(one + more for one, more in zip(attribution.notes, notes, strict=True)))
