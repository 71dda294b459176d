"""Methods side by side: the same pictures, the same target, each map with how far to trust it."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vitrail.explain.heat import Heat
from vitrail.explain.target import OfLogits, Target
from vitrail.explain.trusting import Explainable, Trust, trust
from vitrail.nn.vit import Images


@dataclass(frozen=True, eq=False)
class Comparison:
    """What several methods say of the same pictures; entries are in the order of `methods`.

    Attributes:
        methods: Their names.
        heats: One heat for each.
        trusts: How far to trust each; empty when that was not asked for.
        seconds: What each map took for all pictures together, scores not counted.
    """

    methods: tuple[str, ...]
    heats: tuple[Heat, ...]
    trusts: tuple[Trust, ...]
    seconds: tuple[float, ...]

    def shares(self) -> Float[Tensor, "methods b rows columns"]:
        """All maps on one scale: each patch's share of its map's total size, with its sign; 0 for an empty map.

        Methods have units of their own, which nothing converts into one another. Shares can be compared: uniform maps
        have 1 / patches everywhere, and a map with everything in one patch has 1 there.
        """
        values = torch.stack([heat.values.double() for heat in self.heats])
        total = values.abs().sum(dim=(2, 3), keepdim=True)
        return torch.where(total > 0, values / total, 0.0)


def side_by_side(
    model: Explainable,
    images: Images,
    methods: Mapping[str, Callable[..., Heat]],
    target: Target = None,
    *,
    references: Float[Tensor, "r c h w"] | None = None,
    masks: Bool[Tensor, "b rows columns"] | None = None,
    scored: bool = True,
    seed: int = 0,
) -> Comparison:
    """Explain the same pictures by each of the methods.

    Args:
        model: A network in eval mode with its references.
        images: (b, c, h, w), as the network reads them.
        methods: By name, `function(network, images, target) -> Heat`.
        target: What is explained, see `vitrail.explain.target`.
        references: See `trust`.
        masks: See `trust`.
        scored: Whether each map is also scored, which takes far longer than the maps.
        seed: Of the scores: all methods meet the same covers.
    """
    heats, trusts, seconds = [], [], []
    function: OfLogits | None = target if callable(target) and not isinstance(target, Tensor) else None
    for method in methods.values():
        began = time.perf_counter()
        heats.append(method(model.network, images, target))
        seconds.append(time.perf_counter() - began)
        if scored:
            found = trust(model, images, heats[-1], references=references, masks=masks, function=function, seed=seed)
            trusts.append(found)
    return Comparison(tuple(methods), tuple(heats), tuple(trusts), tuple(seconds))
