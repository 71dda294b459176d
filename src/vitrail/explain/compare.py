"""Methods side by side: the same images, the same target, each map with how far to trust it.

Deletion and insertion, the two scores by which other tools score a map, stand beside the verdict with those of random
maps, and do not enter it: what a value is worth depends on the image, the network and the fill, and only random maps
show how far one could fall or rise. They are made of the verdict's own passes and few more (`scores/faithfulness.py`),
so they are coarse; `benchmarks/scores` has them in any number of steps and draws.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vitrail.arguments import typed
from vitrail.explain.attribution import Attribution
from vitrail.explain.forward import Grid, WithGrid, check_explainable, forward_pass, last_output, with_grid
from vitrail.explain.inside.tokens import Sinks, output_names, sinks_of, with_sink_notes
from vitrail.explain.methods import ALL, MethodLike, methods_of
from vitrail.explain.scores.faithfulness import Areas
from vitrail.explain.scores.perturb import at_a_time, compute_logits
from vitrail.explain.target import Target, choose_target, codec_of
from vitrail.explain.verdict import Explainable, PreparedTest, Trust, TrustOptions, network_and_background, prepare
from vitrail.jobs.precision import PrecisionOption
from vitrail.nn import ViT
from vitrail.nn.twin import wide
from vitrail.nn.vit import Images, Tokens
from vitrail.tasks.target import ChosenTarget
from vitrail.text import ShortRepr


@dataclass(frozen=True, eq=False)
class FirstPass:
    """What one pass of images as they are gives to targets, tests and caveats alike.

    Attributes:
        logits: (b, v).
        tokens: (b, n, d), behind the last block; another readout makes other logits of them. None without tokens.
        sinks: Of each image; None without tokens.
    """

    logits: Float[Tensor, "b v"]
    tokens: Tokens | None = None
    sinks: Sinks | None = None

    def select(self, images: list[int]) -> "FirstPass":
        """The same of some of the images."""
        tokens = None if self.tokens is None else self.tokens[images]
        return FirstPass(self.logits[images], tokens, None if self.sinks is None else self.sinks.select(images))


def first_pass(network: WithGrid, images: Images) -> FirstPass:
    """The pass that all else shares; its record is large, and is not kept. Errors are those of `forward_pass`."""
    if not isinstance(network, ViT):
        return FirstPass(compute_logits(network, len(images), images.__getitem__, at_a_time(images)))
    forward = forward_pass(network, images, None, *output_names(network), "logits")
    return FirstPass(forward.record["logits"], forward.record[last_output(network)], sinks_of(forward))


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(ShortRepr):
    """What several methods give for the same images; entries are in the order of `methods`.

    Attributes:
        chosen: What they explain.
        methods: Their names.
        attributions: One attribution for each.
        trusts: How far to trust each, with its deletion and insertion (`drops.areas`); empty where not tested.
        random_areas: Deletion and insertion of random maps, in the mean over the maps; None where not measured.
        seconds: What each map took for all images together, scores not counted.
        bump: (b,), the score of a bump in the middle of the image, which looks at nothing, as of a map; nan where
            nothing was tested, None where it was not asked for.
    """

    chosen: ChosenTarget
    methods: tuple[str, ...]
    attributions: tuple[Attribution, ...]
    trusts: tuple[Trust, ...]
    random_areas: Areas | None
    seconds: tuple[float, ...]
    bump: Float[Tensor, "b"] | None = None

    def _repr_html_(self) -> str:
        """A column of maps for each method, for a notebook."""
        maps = "".join(f'<div style="max-width:15em">{each._repr_html_()}</div>' for each in self.attributions)
        return f'<div style="display:flex;flex-wrap:wrap;gap:1.2em">{maps}</div>'

    def fractions(self) -> Float[Tensor, "methods b rows columns"]:
        """All maps on one scale: each patch's fraction of its map's total size, with its sign; 0 for an empty map.

        Methods have units of their own, which nothing converts into one another. Fractions can be compared: uniform
        maps have 1 / patches everywhere, and a map with everything in one patch has 1 there.
        """
        values = torch.stack([attribution.values for attribution in self.attributions])
        total = values.abs().sum(dim=(2, 3), keepdim=True)
        return torch.where(total > 0, values / total, 0.0)


@typed
def compare(
    model: Explainable | nn.Module,
    images: Images,
    methods: MethodLike | Sequence[MethodLike] = ALL,
    target: Target = None,
    *,
    grid: Grid = None,
    background: Float[Tensor, "r c h w"] | None = None,
    masks: Bool[Tensor, "b rows columns"] | None = None,
    scored: bool = True,
    areas: bool = True,
    precision: PrecisionOption = "auto",
    seed: int = 0,
    full: bool = False,
    bump: bool = False,
    first: FirstPass | None = None,
    test: PreparedTest | None = None,
) -> Comparison:
    """Explain the same images by each of the methods.

    Args:
        model: A network in eval mode with its background; or any network by itself, tested with `background`.
        images: (b, c, h, w), as the network reads them.
        methods: Names out of `METHODS`, or methods of your own, each under a name of its own; "all" for those that
            `methods_of` does not leave out.
        target: What is explained, see `vitrail.explain.target`.
        grid: (rows, columns) of patches, for any network; those of a ViT when None.
        background: See `trust`.
        masks: See `trust`.
        scored: Whether each map is also scored, which takes far longer than the maps.
        areas: Whether deletion and insertion, the scores of other tools, come with the verdict of a tested map; 14 more
            passes.
        precision: Of the scores' passes, see `trust`.
        seed: Of the scores.
        full: Test the maps of images without evidence, too, see `trust`.
        bump: Whether a bump in the middle, which looks at nothing, is scored beside the maps; 25 more passes.
        first: What `first_pass` gave of these images, where that is known already.
        test: What `prepare` made of them and the target, where their evidence was asked for already.

    Raises:
        UsageError: If no method is named, one is unknown, or one that was named cannot answer.
    """
    network = with_grid(network_and_background(model, background)[0], grid, images)
    check_explainable(network, images, False)
    patches, has_tokens = math.prod(network.grid(images)), isinstance(network, ViT)
    named, _ = methods_of(methods, isinstance(target, tuple), patches, has_tokens)
    first = first_pass(network, images) if first is None else first
    # once for all, so that no rounding lets two methods explain two classes
    chosen = choose_target(first.logits, target, codec_of(model)) if test is None else test.masked.chosen
    attributions, seconds = [], []
    for method in named:
        began = time.perf_counter()
        attribution = method.function(network, images, chosen.plain)
        seconds.append(time.perf_counter() - began)
        attribution = replace(attribution, size=attribution.size or (images.shape[-2], images.shape[-1]))
        attributions.append(attribution if first.sinks is None else with_sink_notes(attribution, first.sinks))
    maps = Comparison(chosen, tuple(each.name for each in named), tuple(attributions), (), None, tuple(seconds))
    if not scored:
        return maps
    if test is None:
        options = TrustOptions(background, masks, precision, seed, full)
        test = prepare(model, images, chosen, options, grid=grid, logits=wide(first.logits))
    trusts = tuple(test.evaluate(attribution, areas) for attribution in attributions)
    at_random = zip(*(one.drops.random_areas for one in trusts), strict=True)
    means = Areas(*(torch.stack(each).nanmean(dim=0) for each in at_random)) if areas else None
    return replace(maps, trusts=trusts, random_areas=means, bump=test.bump() if bump else None)
