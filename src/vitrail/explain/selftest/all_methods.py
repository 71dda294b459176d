"""Promises of all methods alike: maps move with the picture, a batch is one by one, an empty map says so."""

import copy
from typing import Any

from torch import Tensor, nn

from vitrail.errors import UsageError
from vitrail.explain.heat import NO_SIGNAL, Heat
from vitrail.explain.methods.table import METHODS, Method
from vitrail.explain.selftest.witness import Promise, Witness, off
from vitrail.nn import ViT, twin
from vitrail.nn.vit import Images

QUICK: dict[str, dict[str, Any]] = {
    "smooth_grad": {"samples": 2},
    "integrated_gradients": {"steps": 2},
    "tam": {"steps": 2},
    "rise": {"masks": 20},
    "kernel_shap": {"samples": 120},
}


COVERING = ("occlusion", "rise", "kernel_shap")
DRAWN = ("smooth_grad", "rise", "kernel_shap")  # what is drawn does not move with the picture


def maps_move_with_the_picture(witness: Witness) -> float:
    """Without positions, a picture rolled by whole squares has a rolled map; rows are not columns."""
    blind, down, across = without_positions(witness.network), 1, 2
    height, width = blind.config.patch
    images, target = _some(witness)
    rolled, worst = images.roll((down * height, across * width), dims=(2, 3)), 0.0
    for method in METHODS.values():
        if method.name in DRAWN:
            continue
        pair = [_heat(method, witness, blind, one, target) for one in (images, rolled)]
        here, there = pair
        if here is not None and there is not None:
            worst = max(worst, off(there.values, here.values.roll((down, across), dims=(1, 2))))
    return worst


def a_batch_is_one_by_one(witness: Witness) -> float:
    """A picture's map does not depend on the pictures beside it."""
    (images, target), worst = _some(witness), 0.0
    for method in METHODS.values():
        together = _heat(method, witness, witness.network, images, target)
        for index in range(len(images)):
            one = slice(index, index + 1)
            alone = _heat(method, witness, witness.network, images[one], target[one])
            if together is not None and alone is not None:
                worst = max(worst, off(together.values[one], alone.values))
    return worst


def _heat(method: Method, witness: Witness, network: ViT, images: Images, target: Tensor) -> Heat | None:
    """A quick map; none where there is nothing to compare.

    Of the user's network that is a map that is rounding by its own words, or a layer that a method refuses because no
    gradient reaches it; and methods that cover patches, in many passes, are left to the small networks.
    """
    options = QUICK.get(method.name, {})
    if witness.random:
        return method.function(network, images, target, **options)
    if method.name in COVERING:
        return None
    try:
        heat = method.function(network, images, target, **options)
    except UsageError:
        return None
    return None if any(NO_SIGNAL in notes for notes in heat.notes) else heat


def _some(witness: Witness) -> tuple[Images, Tensor]:
    """Two pictures of a network that may be large."""
    return (witness.images, witness.target) if witness.random else (witness.images[:2], witness.target[:2])


def nothing_gives_no_signal(witness: Witness) -> float:
    """How many maps of a network whose head reads nothing hold numbers, or do not say that there is no signal."""
    deaf, wrong = _deaf(witness.network), 0
    for method in METHODS.values():
        if method.class_specific:
            heat = method.function(deaf, witness.images, witness.target, **QUICK.get(method.name, {}))
            wrong += bool(heat.values.any()) + any(NO_SIGNAL not in notes for notes in heat.notes)
    return float(wrong)


def without_positions(network: ViT) -> ViT:
    """The same network, which does not know where a patch lies."""
    blind = twin(network, {})
    blind.pos_embed = None
    return blind


def _deaf(network: ViT) -> ViT:
    """The network, whose heads multiply by zero."""
    heads = {network.head, network.head_dist}

    def silent(part: nn.Module) -> nn.Module:
        if part not in heads:
            return part
        head = copy.deepcopy(part).requires_grad_(False)
        for parameter in head.parameters():
            parameter.zero_()
        return head

    return twin(network, {nn.Linear: silent})


PROMISES = (
    Promise("all maps move with the picture", maps_move_with_the_picture),
    Promise("every batch is one by one", a_batch_is_one_by_one),
    Promise("an empty map says so", nothing_gives_no_signal, limit=0.0, random_alone=True),
)
