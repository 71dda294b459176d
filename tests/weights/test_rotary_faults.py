"""Faults of rotation, each planted into our side of a conversion of timm's Eva: the proof refuses every one of them.

DINOv3 turns by centred coordinates in halves, EVA-02, Perception Encoder and RoPE-ViT by an index in neighbours; the
second has keys without bias and positions beside, the third a norm before the blocks and a query that pools all tokens.
A fresh network of theirs hides most: its LayerScale is 1e-5, or its queries and keys are too small to attend by.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.weights.planting import STATES, Fault, assert_caught
from vitrail.nn import attention, parts, vit
from vitrail.nn.rotary import RotaryPositions, Rotation, turn
from vitrail.weights.family import Tensors

NETWORKS: dict[str, dict[str, Any]] = {
    "dinov3": {"name": "vit_small_patch16_dinov3"},
    "eva02": {"name": "eva02_tiny_patch14_224", "arguments": (("img_size", 56),)},
    "pe": {"name": "vit_pe_core_tiny_patch16_384"},
    "rope": {"name": "vit_small_patch16_rope_224"},
    "normed": {"name": "vit_small_patch16_rope_224", "arguments": (("qk_norm", True),)},
}
ALL = "dinov3", "eva02", "pe", "rope"
INDEXED = "eva02", "pe", "rope"
SCALED = "dinov3", "rope"  # by a LayerScale of 1e-5, behind which a fresh network hides all rotation
Parts = tuple[tuple[Any, str, Callable[[Any], Any]], ...]


def as_field(name: str, change: Callable[[Any], Any]) -> Parts:
    """Another value of a field of `Rotary`."""

    def wrong(right: Any) -> Any:
        def made(self: Any, rotary: Any, head_dim: int, prefix: int) -> None:
            right(self, replace(rotary, **{name: change(getattr(rotary, name))}), head_dim, prefix)

        return made

    return ((RotaryPositions, "__init__", wrong),)


def other_of(*two: str) -> Callable[[str], str]:
    return lambda one: two[1 - two.index(one)]


def turned(change: Callable[[Tensor, int, int], Tensor]) -> Parts:
    """Other angles: of the right ones (n, e), the prefix, and the columns of the grid."""

    def wrong(right: Any) -> Any:
        def forward(self: Any, grid: tuple[int, int], like: Tensor) -> Rotation:
            found = right(self, grid, like)
            angles = change(torch.atan2(found.sin, found.cos), self.prefix, grid[1])
            return found._replace(cos=angles.cos(), sin=angles.sin())

        return forward

    return ((RotaryPositions, "forward", wrong),)


def with_prefix(first: int) -> Callable[[Tensor, int, int], Tensor]:
    """Tokens of the prefix, from one on, turned as the last patch."""

    def change(angles: Tensor, prefix: int, columns: int) -> Tensor:
        angles[first:prefix] = angles[-1]
        return angles

    return change


def by_columns(angles: Tensor, prefix: int, columns: int) -> Tensor:
    """Patches in the order of columns."""
    patches = angles[prefix:].unflatten(0, (-1, columns)).transpose(0, 1).flatten(0, 1)
    return torch.cat([angles[:prefix], patches])


def placed(change: Callable[[Tensor, int], Tensor], longest: bool = False) -> Parts:
    """Other coordinates: of indices and the side of the grid, or the longer of both sides."""

    def wrong(right: Any) -> Any:
        def coordinates(self: Any, grid: tuple[int, int], axis: int, kind: torch.dtype, device: Any) -> Tensor:
            return change(torch.arange(grid[axis], dtype=kind, device=device), max(grid) if longest else grid[axis])

        return coordinates

    return ((RotaryPositions, "_coordinates", wrong),)


def periods(change: Callable[[float, float], float]) -> Parts:
    """Other periods: of the base, and the place j / (e / 4) of each."""

    def wrong(right: Any) -> Any:
        def made(self: Any, rotary: Any, head_dim: int, prefix: int) -> None:
            found = tuple(change(rotary.base, j / (head_dim // 4)) for j in range(head_dim // 4))
            right(self, replace(rotary, periods=found), head_dim, prefix)

        return made

    return ((RotaryPositions, "__init__", wrong),)


def in_bf16(base: float, place: float) -> float:
    mantissa, exponent = math.frexp(base**place)
    return math.ldexp(round(mantissa * 256) / 256, exponent)


def projected(change: Callable[..., tuple[Tensor, Tensor, Tensor]]) -> Parts:
    """Other queries, keys and values: of those that are not turned, and the rotation."""

    def wrong(right: Any) -> Any:
        def project(self: Any, tokens: Tensor, context: Any = None, cache: Any = None, rotation: Any = None) -> Any:
            found = right(self, tokens, context, cache)
            return found if rotation is None else change(*found, rotation)

        return project

    return ((attention.Attention, "project", wrong),)


def many(rotation: Rotation, times: int) -> Rotation:
    angles = times * torch.atan2(rotation.sin, rotation.cos)
    return rotation._replace(cos=angles.cos(), sin=angles.sin())


def in_blocks(times: Callable[[int], int]) -> Parts:
    """So many turns in each block."""

    def wrong(right: Any) -> Any:
        def run(self: Any, tokens: Tensor, record: Any = None, first: int = 0, stop: Any = None, rotation: Any = None):
            for index, block in enumerate(self.blocks):
                tokens = block(tokens, rotation=rotation and many(rotation, times(index)))
            return tokens

        return run

    return ((vit.ViT, "run_blocks", wrong),)


def turned_first(normed: bool) -> Parts:
    """Queries and keys are turned and then normalised, or not normalised at all."""

    def wrong(right: Any) -> Any:
        def project(self: Any, tokens: Tensor, context: Any = None, cache: Any = None, rotation: Any = None) -> Any:
            queries, keys, values = self._heads(self.qkv(tokens), 3)
            queries, keys = turn(queries, rotation), turn(keys, rotation)
            return (self.q_norm(queries), self.k_norm(keys), values) if normed else (queries, keys, values)

        return project

    return ((attention.Attention, "project", wrong),)


def without_key_bias(tensors: Tensors) -> Tensors:
    found = {name: tensor.clone() for name, tensor in tensors.items() if name.endswith(".attn.qkv.bias")}
    for tensor in found.values():
        tensor.chunk(3)[1].zero_()
    return found


def first_token(right: Any) -> Any:
    return lambda self, tokens, prefix: tokens[:, 0]


def mean_of_all(right: Any) -> Any:
    return lambda self, tokens, prefix: tokens.mean(dim=1)


def mean_of_patches(right: Any) -> Any:
    return lambda self, tokens, prefix: tokens[:, prefix:].mean(dim=1)


def of_patches(right: Any) -> Any:
    return lambda self, tokens, prefix: right(self, tokens[:, prefix:], 0)


AXIAL: Parts = (  # timm's pull request 2692: DINOv3 with the rotation of the others, index by index, in neighbours
    (
        RotaryPositions,
        "__init__",
        lambda right: (
            lambda self, rotary, head_dim, prefix: right(
                self, replace(rotary, coordinates="index", layout="interleaved"), head_dim, prefix
            )
        ),
    ),
)
FAULTS: dict[str, tuple[Fault, tuple[str, ...]]] = {
    "no rotation": (Fault(parts=turned(lambda angles, *_: 0 * angles)), ALL),
    "the axial rotation of the others (timm#2692)": (Fault(parts=AXIAL), ("dinov3",)),
    "halves and neighbours": (Fault(parts=as_field("layout", other_of("halves", "interleaved"))), ALL),
    "columns and rows": (Fault(parts=as_field("axes", other_of("ij", "xy"))), ALL),
    "base + 5 %": (Fault(parts=as_field("base", lambda base: 1.05 * base)), ALL),
    "the base of the others": (
        Fault(parts=as_field("base", lambda base: 100.0 if base > 100.0 else 10_000.0)),
        ALL,
    ),
    "no reference": (Fault(parts=as_field("reference", lambda size: None)), ("eva02", "pe")),
    "another reference": (Fault(parts=as_field("reference", lambda size: (14, 14))), INDEXED),
    "its own grid as reference": (Fault(parts=as_field("reference", lambda size: (4, 4))), ("rope",)),
    "half a patch further": (Fault(parts=as_field("offset", lambda offset: offset + 0.5)), ALL),
    "no offset": (Fault(parts=as_field("offset", lambda offset: 0.0)), ("pe",)),
    "prefix turned": (Fault(parts=turned(with_prefix(0))), ALL),
    "registers turned": (Fault(parts=turned(with_prefix(1))), ("dinov3",)),
    "angles from the class token on": (Fault(parts=turned(lambda angles, *_: angles.roll(-1, 0))), ALL),
    "angles one token later": (Fault(parts=turned(lambda angles, *_: angles.roll(1, 0))), ALL),
    "patches by columns": (Fault(parts=turned(by_columns)), ALL),
    "the other way": (Fault(parts=turned(lambda angles, *_: -angles)), ALL),
    "rows and columns in turn": (
        Fault(parts=turned(lambda angles, *_: angles.unflatten(1, (2, -1)).transpose(1, 2).flatten(1))),
        ALL,
    ),
    "coordinates by the longer side": (
        Fault(parts=placed(lambda index, side: 2 * math.pi * (2 * (index + 0.5) / side - 1), longest=True)),
        ("dinov3",),
    ),
    "coordinates of corners": (
        Fault(parts=placed(lambda index, side: 2 * math.pi * (2 * index / max(1, side - 1) - 1))),
        ("dinov3",),
    ),
    "coordinates from 0 to 1": (
        Fault(parts=placed(lambda index, side: 2 * math.pi * (index + 0.5) / side)),
        ("dinov3",),
    ),
    "coordinates without 2 pi": (Fault(parts=placed(lambda index, side: 2 * (index + 0.5) / side - 1)), ("dinov3",)),
    "coordinates by size": (Fault(parts=placed(lambda index, side: index / side)), INDEXED),
    "periods in bf16": (Fault(parts=periods(in_bf16)), ("dinov3",)),
    "periods of half the range": (Fault(parts=periods(lambda base, place: base ** (place / 2))), ALL),
    "periods from one step on": (Fault(parts=periods(lambda base, place: base ** (place + 0.25))), ALL),
    "queries alone": (Fault(parts=projected(lambda q, k, v, rotation: (turn(q, rotation), k, v))), ALL),
    "keys alone": (Fault(parts=projected(lambda q, k, v, rotation: (q, turn(k, rotation), v))), ALL),
    "values turned": (
        Fault(parts=projected(lambda q, k, v, rotation: tuple(turn(each, rotation) for each in (q, k, v)))),
        ALL,
    ),
    "keys the other way": (
        Fault(parts=projected(lambda q, k, v, rotation: (turn(q, rotation), turn(k, many(rotation, -1)), v))),
        ALL,
    ),
    "the first block alone": (Fault(parts=in_blocks(lambda index: int(index == 0))), ALL),
    "all but the first block": (Fault(parts=in_blocks(lambda index: int(index > 0))), ALL),
    "once more in each block": (Fault(parts=in_blocks(lambda index: index + 1)), ALL),
}
BESIDE: dict[str, tuple[Fault, tuple[str, ...]]] = {
    "turned before the norm of queries and keys": (Fault(parts=turned_first(True)), ("normed",)),
    "the norms of queries and keys skipped": (Fault(parts=turned_first(False)), ("normed",)),
    "the keys' bias dropped": (Fault(without_key_bias), ("pe", "rope")),
    "positions dropped": (Fault(without=("pos_embed",)), ("eva02", "pe")),
    "norm before the blocks skipped": (Fault(without=("norm_pre.weight", "norm_pre.bias")), ("pe",)),
    "epsilon 1e-12": (Fault(facts={"norm_eps": 1e-12}), ALL),
    "LayerScale dropped": (
        Fault(lambda tensors: {name: torch.ones_like(one) for name, one in tensors.items() if name.endswith("gamma")}),
        ("dinov3", "rope"),
    ),
    "gate and values swapped": (
        Fault(
            lambda tensors: {name: one.roll(len(one) // 2, 0) for name, one in tensors.items() if ".mlp.fc1." in name}
        ),
        ("eva02",),
    ),
    "mean of all tokens": (Fault(parts=((vit.MeanOfPatches, "forward", mean_of_all),)), ("dinov3", "eva02")),
    "the class token for the mean": (Fault(parts=((vit.MeanOfPatches, "forward", first_token),)), ("dinov3", "eva02")),
    "the mean for the class token": (Fault(parts=((vit.ClassToken, "forward", mean_of_patches),)), ("rope",)),
    "a query of patches alone": (Fault(parts=((parts.AttentionPooling, "forward", of_patches),)), ("pe",)),
}
REFUSED = "no rotation", "the norms of queries and keys skipped"  # by fresh networks, too: all that there are
NAMES = [*FAULTS, *BESIDE]


@pytest.mark.parametrize("name", NAMES)
def test_the_proof_refuses_it(name: str) -> None:
    """In one of its networks in all states; and as it is made in another one, in turn. `make soak` asks all."""
    fault, (first, *others) = {**FAULTS, **BESIDE}[name]
    assert_all(fault, name, first, STATES if name in REFUSED else STATES[1:])
    number = NAMES.index(name)
    for other in others if name in REFUSED else others[number % max(1, len(others)) :][:1]:
        assert_all(fault, name, other, STATES[:1] if name in REFUSED else ())


@pytest.mark.soak
@pytest.mark.parametrize("name", NAMES)
def test_the_proof_refuses_it_in_all_networks_and_states(name: str) -> None:
    fault, networks = {**FAULTS, **BESIDE}[name]
    for network in networks:
        assert_all(fault, name, network, STATES)


def assert_all(fault: Fault, name: str, network: str, states: Sequence[str]) -> None:
    hides = assert_caught(replace(fault, **NETWORKS[network]), f"{name}, {network}", states)
    assert hides or name in BESIDE or network not in SCALED
