"""Methods side by side: the same pictures, the same target, each map with how far to trust it."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vitrail.errors import UsageError
from vitrail.explain.heat import Heat
from vitrail.explain.methods import METHODS, nearest_method
from vitrail.explain.target import OfLogits, Target
from vitrail.explain.tested import Trust
from vitrail.explain.trusting import Explainable, Precision, evidence_for, trust
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


def compare(
    model: Explainable,
    images: Images,
    methods: Sequence[str] | None = None,
    target: Target = None,
    *,
    references: Float[Tensor, "r c h w"] | None = None,
    masks: Bool[Tensor, "b rows columns"] | None = None,
    scored: bool = True,
    precision: Precision = "fp32",
    seed: int = 0,
) -> Comparison:
    """Explain the same pictures by each of the methods.

    Args:
        model: A network in eval mode with its references.
        images: (b, c, h, w), as the network reads them.
        methods: Names out of `METHODS`; all but those that take hundreds of passes when left out. Where one class is
            held against another, those that cannot tell classes apart are left out too.
        target: What is explained, see `vitrail.explain.target`.
        references: See `trust`.
        masks: See `trust`.
        scored: Whether each map is also scored, which takes far longer than the maps.
        precision: Of the scores' passes, see `trust`.
        seed: Of the scores: all methods meet the same covers.

    Raises:
        UsageError: If a method is unknown, or one that was named cannot answer.
    """
    names = methods_for(target) if methods is None else tuple(methods)
    for name in names:
        if name not in METHODS:
            raise UsageError(f"unknown method '{name}', there are {', '.join(METHODS)}", f"'{nearest_method(name)}'")
    heats, trusts, seconds = [], [], []
    evidence = None
    function: OfLogits | None = target if callable(target) and not isinstance(target, Tensor) else None
    for name in names:
        began = time.perf_counter()
        heats.append(METHODS[name].function(model.network, images, target))
        seconds.append(time.perf_counter() - began)
        if scored:
            evidence = evidence or evidence_for(model, images, heats[-1], references, function, precision, seed)
            found = trust(
                model,
                images,
                heats[-1],
                references=references,
                masks=masks,
                function=function,
                evidence=evidence,
                precision=precision,
                seed=seed,
            )
            trusts.append(found)
    return Comparison(names, tuple(heats), tuple(trusts), tuple(seconds))


def methods_for(target: Target) -> tuple[str, ...]:
    """The methods that answer such a question within some tens of passes."""
    contrast = isinstance(target, tuple)
    return tuple(
        name for name, method in METHODS.items() if not method.costly and (method.class_specific or not contrast)
    )
