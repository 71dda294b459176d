"""Rotary positions as they were published, by name, and those that timm's modules and arguments state."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from vitrail.errors import DataError, UsageError
from vitrail.nn.rotary import Rotary
from vitrail.weights.family import ELSE, LEARNT, ROTARY

UNSTATED = ""  # names show that there may be a rotation, and nothing shows which


class Published(NamedTuple):
    """A rotation, and the epsilon of the norms of those that have it."""

    rotary: Rotary | None
    norm_eps: float = 1e-5


_INDEX = Rotary(coordinates="index", base=10_000.0, layout="interleaved")
_PLANE = replace(_INDEX, axes="xy")
PUBLISHED: dict[str, Published] = {
    "none": Published(None, 1e-6),  # EVA
    "dinov3": Published(Rotary()),  # EUPE and LingBot, too
    "eva02": Published(replace(_INDEX, reference=(16, 16)), 1e-6),  # and timm's vit_*_rope_reg*_gap_256
    "rope_vit": Published(replace(_PLANE, base=100.0), 1e-6),
    # of the gigantic one, too: without a class token an offset moves nothing
    **{f"pe_{side}": Published(replace(_PLANE, offset=1.0, reference=(side, side))) for side in (14, 24, 32)},
}


# Networks of timm's Eva: regular expressions of names of tensors that each has, and of those that it lacks
SIGNS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "DINOv3, EUPE, LingBot, RoPE-ViT, vit_*_rope_reg*, PE lang": ((r"\bblocks\.0\.gamma_1$",), ()),
    "EVA, EVA-02 Ti and S": ((r"\bblocks\.0\.attn\.q_bias$",), ()),
    "EVA-02 B and L, those of CLIP as well": ((r"\bblocks\.0\.attn\.q_proj\.",), ()),
    "others with a SwiGLU of two maps": ((r"\bblocks\.0\.mlp\.fc1_g\.",), ()),
    "PE core": ((r"\bnorm_pre\.", r"\battn_pool\."), ()),
    "PE spatial": ((r"\bnorm_pre\.",), (r"^(?!.*\bblocks\.).*\b(fc_)?norm\.\w+$",)),  # a plain ViT of CLIP has one
}


def may_rotate(names: Collection[str]) -> bool:
    """Whether tensors of timm's have the names of its Eva, most of whose networks have rotary positions."""

    def there(pattern: str) -> bool:
        return any(re.search(pattern, name) for name in names)

    return any(all(map(there, has)) and not any(map(there, lacks)) for has, lacks in SIGNS.values())


def rotary_of(rope: Any) -> Rotary | None:
    """The rotation of a module of timm; raises UsageError where it is none of ours."""
    if rope is None:
        return None
    kind = type(rope).__name__
    centred = kind == "RotaryEmbeddingDinoV3"
    if centred:
        other = rope.normalize_coords != "separate" or None not in (rope.min_period, rope.max_period)
    else:
        other = kind != "RotaryEmbeddingCat" or rope.in_pixels or getattr(rope, "grid_type", "index") != "index"
    if other:
        problem = f"timm's {kind} makes {LEARNT if 'Mixed' in kind else ROTARY}, so it does not open"
        raise UsageError(problem, "a network with rope_type='cat' or 'dinov3'; docs/weights.md lists what opens")
    return Rotary(
        coordinates="centred" if centred else "index",
        base=float(rope.temperature),
        reference=None if centred or rope.ref_feat_shape is None else tuple(rope.ref_feat_shape),
        offset=float(rope.grid_offset),
        axes=rope.grid_indexing,
        layout="halves" if rope.rotate_half else "interleaved",
    )


ARGUMENTS: dict[str, tuple[str, Callable[[Any], Any]]] = {  # of timm's networks, and what each is here
    "rope_type": ("coordinates", {"cat": "index", "dinov3": "centred"}.__getitem__),
    "rope_temperature": ("base", float),
    "rope_grid_offset": ("offset", float),
    "rope_grid_indexing": ("axes", str),
    "rope_rotate_half": ("layout", lambda half: "halves" if half else "interleaved"),
    "ref_feat_shape": ("reference", lambda shape: tuple(shape) if isinstance(shape, list) else shape),
}


def with_arguments(rotary: Rotary | None, arguments: Mapping[str, Any]) -> Rotary | None:
    """The rotation of an architecture of timm, with arguments above it; raises DataError where one makes another."""
    used = arguments.get("use_rot_pos_emb")
    fields: dict[str, Any] = vars(rotary or _INDEX)
    for name, (ours, read) in ARGUMENTS.items():
        value = arguments.get(name)
        if value is None and not (name in arguments and ours == "reference"):
            continue
        try:
            fields = {**fields, ours: read(value)}
            if fields["coordinates"] == "centred":  # which timm makes without
                fields["reference"] = None
            Rotary(**fields)
        except (LookupError, TypeError, ValueError) as error:
            problem = f"config.json states {name}={value!r}, which makes a rotation that is not known here"
            raise DataError(problem, ELSE) from error
    return Rotary(**fields) if used or (used is None and rotary is not None) else None
