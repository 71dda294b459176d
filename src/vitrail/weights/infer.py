"""From tensors under our names to a network: what names and shapes show, and what has to be stated.

    shown by the tensors    width, depth, MLP, patch, channels, classes, prefix tokens, biases, LayerScale, norms,
                            SwiGLU, a pooling that has tensors, which tokens have positions, and the grid of a square
                            image
    stated beside them      heads, epsilon, activation, the rule that resizes positions, a pooling without tensors,
                            rotary positions

What has to be stated comes from a live module, a `config.json`, what all members of the family share, or the caller;
heads that nobody states from the row of the published sizes with this width, depth and MLP.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from vitrail.data.preprocessing import CHANNELS
from vitrail.errors import DataError, UsageError, as_word, counted, some_of
from vitrail.nn import SIZES, Parts, ViT, ViTConfig, parts_of
from vitrail.nn.embedding import height_and_width
from vitrail.nn.networks import without_numbers
from vitrail.nn.rotary import Rotary, RotaryPositions
from vitrail.weights.assume import EXAMPLES, HEADS, UNKNOWN, UNKNOWN_SIZE, Contradiction, hint_for
from vitrail.weights.family import ELSE, HEAD, SHOWN, Facts, Tensors, side_of
from vitrail.weights.files import another_copy, check_finite_tensors, check_tensors_fit
from vitrail.weights.places import timm_architectures
from vitrail.weights.rotations import PUBLISHED, UNSTATED

PATCHES = "patch_embed.proj.weight"
COSINES, SINES = "rotary.cos", "rotary.sin"
PERIODS, COARSE, EXACT = "rotary.periods", 2.0**-8, 1e-6  # and the rounding of bf16, and of fp32, relative
STARTS = 1e-5  # of LayerScale, for who makes a fresh network of this configuration; a loaded one has its own
PARTS = {"patch_embed.norm_patches.weight": ("embedding", "normed"), "norm_pre.weight": ("embed_norm", "layer")}
KEYLESS = "no_key_bias", "attended_norm"  # attention whose keys have no bias
NORMED = {"": "", "layer": "qk_norm", "rms": "qk_rms_norm"}
POOLINGS = {"attention": "pool.query", "mean_then_norm": "pool.norm.weight"}  # those that have tensors
PLAINER = {"mean_then_norm": "mean", "class_and_mean": "class"}  # shown by the tensors: stated by a library
OF_CLASS_TOKEN = "class", "attention", "attention_to_all", "class_and_mean"
ATTENTIONS = {  # norms of heads, whether keys have a bias (None: nothing has), a norm of what was attended
    ("", False, False): "no_key_bias",
    ("", False, True): "attended_norm",
    ("", None, True): "attended_norm",
    **{(norm, bias, False): name for norm, name in NORMED.items() for bias in (True, None)},
}
GATED = "swiglu", "normed_swiglu"
ONLY_BEFORE = {"blocks.0.ls1.gamma", "norm_pre.weight"}  # tensors of networks whose norms are before their branches
EVERY = "norm1", "attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"
DEEPEST = 256  # blocks
MADE_WITH = "or what it was made with"
WANTED = {"heads": "how many heads a block has", "norm_eps": "the epsilon of its norms", "activation": "its activation"}


def infer_network(tensors: Mapping[str, Tensor], assume: Facts, stated: Facts, where: str) -> tuple[ViT, list[str]]:
    """The network that these tensors make, and what was assumed on the way, in words.

    Args:
        tensors: Under our names.
        assume: Fields of `ViTConfig` by name, and `pooling`; they are checked against what the tensors show.
        stated: What a `config.json` states of what they show, see `SHOWN`; other names are passed over.
        where: The file or module, for hints; see `located` for what errors say first.

    Raises:
        DataError: If tensors are missing, do not fit each other or what is stated, or are not finite.
        UsageError: If something has to be stated that is not; names it.
    """
    found, assume, assumed = dict(tensors), dict(assume), list[str]()
    seen = _read_shapes(found, assume)
    if isinstance(assume.get("rotary"), str):  # of a file that does not show it
        _check_rotary_stated(found, assume, seen)
    parts = _parts(found, assume.pop("pooling", ""), assume.pop("parts", {}), assumed)
    _check_stated(stated, assume, {**seen, **shown_by(seen, parts)})
    if heads := _heads_shown(found, seen["inner"]):
        _check_stated({}, {"heads": assume.setdefault("heads", heads)}, {"heads": heads})
    _add_heads(assume, seen, assumed)
    found = _with_positions(found, seen, assume, where, assumed)
    pooling = "class" if parts["pooling"] in OF_CLASS_TOKEN and seen["class_token"] else "mean"
    assume["rotary"] = _rotation(found.pop(PERIODS, None), assume, seen, where, assumed)
    given = {each.name: assume[each.name] for each in fields(ViTConfig) if each.name in assume}
    config = ViTConfig.from_dict({**given, **seen, "pooling": pooling})
    _check_angles(found, config)
    named = parts_of({slot: name for slot, name in parts.items() if name not in ("class", "mean")})
    if other := [f"{name} {tensor.dtype}" for name, tensor in found.items() if not tensor.is_floating_point()]:
        these = counted(len(other), "tensor is", "tensors are")
        raise DataError(f"{these} not floating point: {some_of(other, 5)}", "weights that are not quantized")
    check_finite_tensors(found, another_copy(where))
    floats = {name: tensor.float().contiguous() for name, tensor in found.items()}
    return network_of(config, named, floats), assumed


def _read_shapes(found: Tensors, assume: dict[str, Any]) -> dict[str, Any]:
    """Fields of `ViTConfig` by names and shapes; a distillation token that nothing reads becomes a register."""
    for name in (PATCHES, *(f"blocks.0.{part}.weight" for part in EVERY)):
        if name not in found:
            raise DataError(f"there is no {name}, which every ViT has", "the weights of a plain ViT")
    patches, normed = found[PATCHES], "patch_embed.norm_patches.weight" in found
    if patches.ndim != (2 if normed else 4) or found["blocks.0.mlp.fc2.weight"].ndim != 2:
        raise DataError(f"{PATCHES} has the shape {tuple(patches.shape)}", "(width, channels, height, width)")
    if normed:  # flattened patches: their size has to be stated
        patch, width = height_and_width(assume["patch_size"]), patches.shape[0]
        channels = patches.shape[1] // math.prod(patch)
    else:
        width, channels, *patch = patches.shape
    if channels not in CHANNELS:
        problem = f"networks of {counted(channels, 'channel')} are not supported, only of 1 or 3"
        raise DataError(problem, "a network for grey images, or for images in colour")
    blocks = {int(match[1]) for name in found if (match := re.match(r"blocks\.(\d+)\.", name))}
    depth = 1 + max(blocks)
    if depth > min(len(blocks), DEEPEST):
        problem = f"{len(blocks)} blocks, the last of which is number {depth - 1}"
        raise DataError(problem, f"blocks that are numbered from 0, at most {DEEPEST}")
    stated, scale = assume.pop("distillation_token", None), assume.pop("layer_scale", 0)
    pooled = True if "head_dist.weight" in found else stated
    if "dist_token" in found and pooled is None and "head.weight" not in found:
        problem = "nothing shows whether its distillation token is pooled, or its class token alone"
        raise UsageError(problem, hint_for({"distillation_token": True}))
    if "dist_token" in found and not pooled:
        found["reg_token"] = found.pop("dist_token")
    for name in [name for name in ("head.weight", "head_dist.weight") if name in found]:
        if found[name].ndim != 2 or not found[name].numel():
            problem = f"its head, {name}, has the shape {tuple(found[name].shape)}, which gives no outputs"
            raise DataError(problem, "(outputs, width); or a file without its head, for features")
    classes = found["head.weight"].shape[0] if "head.weight" in found else 0
    return {
        "patch_size": tuple(patch),
        "channels": channels,
        "classes": classes,
        "width": width,
        "depth": depth,
        "mlp_dim": found["blocks.0.mlp.fc2.weight"].shape[1],
        "class_token": "cls_token" in found,
        "distillation_token": "dist_token" in found,
        "registers": found["reg_token"].shape[1] if "reg_token" in found else 0,
        "positions": "learned" if "pos_embed" in found else "none",
        "embed_bias": "patch_embed.proj.bias" in found,
        "qkv_bias": "blocks.0.attn.qkv.bias" in found,
        "out_bias": "blocks.0.attn.proj.bias" in found,
        "mlp_bias": "blocks.0.mlp.fc2.bias" in found,
        "head_bias": not classes or "head.bias" in found,
        "layer_scale": scale or STARTS if "blocks.0.ls1.gamma" in found else 0.0,
        "inner": found["blocks.0.attn.proj.weight"].shape[1],  # heads x head_dim
    }


def _check_stated(stated: Facts, assume: Facts, shown: Facts) -> None:
    """Refuse tensors of another network than the user or a `config.json` states; lists what differs."""
    known = {**stated, **assume}
    differing = [name for name in known if name in shown and side_of(known[name]) != side_of(shown[name])]
    if not differing:
        return
    one, other = (some_of([f"{name} {as_word(each[name])}" for name in differing], 5) for each in (known, shown))
    problem = f"the tensors show {other}, but {one} is stated, by the user or beside them"
    right = {name: shown[name] for name in differing if name in assume}
    if "classes" in differing and {*differing} <= {*HEAD}:
        right = {"classes": shown["classes"]}
    raise Contradiction(problem, hint_for(right) if right else "the whole file of that config.json", [*right])


def _add_heads(assume: dict[str, Any], seen: dict[str, Any], assumed: list[str]) -> None:
    """Add the heads to what is seen, and refuse if something that no tensor shows is not stated."""
    heads = assume.pop("heads", 0) or _heads_of(seen, assumed)
    missing = [name for name in WANTED if name not in assume and (name != "heads" or not heads)]
    if missing:
        hint = hint_for({name: EXAMPLES[name] for name in missing}, MADE_WITH if heads else HEADS)
        raise UsageError(f"no tensor shows {', '.join(f'{name} ({WANTED[name]})' for name in missing)}", hint)
    inner = seen.pop("inner")
    if inner % heads:
        problem = f"{heads} heads do not divide the {inner} inputs of attention's output map"
        raise Contradiction(problem, hint_for({"heads": UNKNOWN}, HEADS), ["heads"])
    seen |= {"heads": heads, "head_dim": None if inner == seen["width"] else inner // heads}


def _check_rotary_stated(found: Tensors, assume: Facts, seen: Mapping[str, Any]) -> None:
    """Refuse tensors if nothing states their rotation, what is pooled or, of no published size, where norms are."""
    token, head = found.get("cls_token"), found.get("head.weight")
    pooled = token is None or not found.keys().isdisjoint(POOLINGS.values()) or assume.get("pooling")
    pooled = pooled or (head is not None and head.shape[-1:] == (2 * token.numel(),))
    wanted: dict[str, str] = {"rotary": "dinov3"} if assume["rotary"] == UNSTATED else {}
    wanted |= {} if pooled else {"pooling": "mean"}
    eva = [row["facts"] for name, row in timm_architectures().items() if name.startswith("eva")]
    size = {name: seen[name] for name in ("width", "depth", "mlp_dim")}
    if found.keys().isdisjoint(ONLY_BEFORE) and not any(size.items() <= row.items() for row in eva):
        wanted |= {} if assume.get("norms") else {"norms": "before"}
    others = {
        "rotary": f"or another of {', '.join(PUBLISHED)}",
        "norms": "norms before its branches: a network that has them behind (timm's use_post_norm) does not open",
        "pooling": "pooling mean as timm has DINOv3 and PE, or class as their labs do, and timm its other networks",
    }
    if wanted:
        problem = f"its tensors have names of networks with rotary positions, and none shows {' and '.join(wanted)}"
        raise UsageError(problem, hint_for(wanted, "; ".join(others[name] for name in wanted)))


def network_of(config: ViTConfig, parts: Parts, tensors: Tensors) -> ViT:
    """A network with these tensors, in eval mode; no random number is drawn on the way.

    Raises:
        DataError: If they are not exactly those of the network.
    """
    with without_numbers():
        network = ViT(config, parts)
    check_tensors_fit(tensors, network.state_dict(), "the whole file of one network")
    network.load_state_dict(tensors, assign=True)
    for parameter in network.parameters():
        parameter.requires_grad_(True)
    return network.eval()


def _heads_shown(found: Tensors, inner: int) -> int:
    """The heads that tensors of a rotation or of norms within a head show; 0 where none does.

    A norm as wide as all heads shows nothing: it may be of one head, or of all together.
    """
    cosines, norm = found.get(COSINES), found.get("blocks.0.attn.q_norm.weight")
    if cosines is not None and cosines.ndim == 2:
        return inner // max(1, cosines.shape[1])
    if norm is not None and 0 < norm.numel() < inner and inner % norm.numel() == 0:
        return inner // norm.numel()
    return 0


def _heads_of(seen: Mapping[str, Any], assumed: list[str]) -> int:
    """The heads of the published size with this width, depth and MLP; 0 where there is none."""
    for letter, (width, depth, heads, mlp_dim) in SIZES.items():
        if (width, depth, mlp_dim) == (seen["width"], seen["depth"], seen["mlp_dim"]):
            assumed.append(f"{heads} heads, as in size {letter}")
            return heads
    return 0


def _parts(found: Tensors, assume: str, shown: Mapping[str, str], assumed: list[str]) -> dict[str, str]:
    """Names of the parts that are not the paper's, and of the pooling, by slot; `shown` by a family's own names.

    Where keys have no bias, those of queries and values get zeros between them.
    """
    parts = {slot: name for tensor, (slot, name) in PARTS.items() if tensor in found} | {**shown}
    if "norm.weight" not in found:
        parts["last_norm"] = "none"
    if attention := _attention(found):
        parts["attention"] = attention
    normed = "blocks.0.mlp.norm.weight" in found
    if found["blocks.0.mlp.fc1.weight"].shape[0] == 2 * found["blocks.0.mlp.fc2.weight"].shape[1]:
        parts["mlp"] = GATED[normed]
    elif normed:
        raise DataError("its MLP has a norm and no gate, which no part here has", ELSE)
    if parts.get("attention") in KEYLESS:
        for name in [name for name in found if name.endswith(".attn.qkv.bias")]:
            queries, values = found[name].chunk(2)
            found[name] = torch.cat([queries, torch.zeros_like(queries), values])
    seen = parts.get("pooling") or next((name for name, tensor in POOLINGS.items() if tensor in found), "")
    if "head.weight" in found and found["head.weight"].shape[1] == 2 * found[PATCHES].shape[0]:
        seen, parts["head"] = "class_and_mean", "of_two"
    if not seen and not assume:
        seen = "class" if "cls_token" in found else "mean"
        assumed.append(f"pooling {seen}")
    if seen == "attention" and assume == "attention_to_all":  # which has the same tensors
        seen = assume
    if seen and assume and assume != PLAINER.get(seen):
        _check_stated({}, {"pooling": assume}, {"pooling": seen})
    parts["pooling"] = seen or assume
    return parts


def _attention(found: Tensors) -> str:
    """The name of the attention that has these tensors; empty for the paper's."""
    block = "blocks.0.attn."
    norm = "" if f"{block}q_norm.weight" not in found else "layer" if f"{block}q_norm.bias" in found else "rms"
    bias = found.get(f"{block}qkv.bias")
    keys = None if bias is None else len(bias) == len(found[f"{block}qkv.weight"])
    made = norm, keys, f"{block}norm.weight" in found
    if made not in ATTENTIONS:
        raise DataError("its attention has norms and biases in a combination that no part here has", ELSE)
    return ATTENTIONS[made]


def _rotation(
    stored: Tensor | None, assume: dict[str, Any], seen: Mapping[str, Any], where: str, assumed: list[str]
) -> Rotary | None:
    """The rotation that is stated, or that the names of the tensors show.

    Args:
        stored: Periods in the file; they are taken where the user states so.
        assume: Loses what is no field of a network.
        seen: For the numbers of a head.
        where: The file, for hints.
        assumed: Gets a sentence where the periods of the file are only near.

    Raises:
        DataError: The periods in the file are of another rotation or of none, or there are none.
    """
    rotary, taken = (assume.pop(name, None) for name in ("rotary", "periods"))
    rotary = PUBLISHED[rotary].rotary if isinstance(rotary, str) else rotary
    if stored is None and not taken:
        return rotary
    if rotary is None or stored is None:
        words = "no periods of a rotation" if stored is None else "periods of a rotation, but none is stated"
        raise DataError(f"it has {words}", hint_for({"rotary": "dinov3"}, gone=["periods"]))
    count, values = (seen["head_dim"] or seen["width"] // seen["heads"]) // 4, stored.float().flatten().tolist()
    wrong = [each for each in values if not 0 < each < math.inf]
    if wrong or stored.shape != (count,):
        given = f"{wrong[0]} among them" if wrong else f"{len(values)} in the shape {tuple(stored.shape)}"
        problem = f"its periods must be {count} finite numbers above 0, for {seen['heads']} heads, got {given}"
        raise DataError(problem, another_copy(where))
    if taken:
        return replace(rotary, periods=tuple(values))
    ratios = stored.double() / rotary.base ** (torch.arange(count, dtype=torch.float64) / max(1, count))
    apart = float((ratios - 1).abs().max())
    if apart > COARSE:
        problem = f"its periods are not those of base {rotary.base:g}: they differ by up to {apart:.0%}"
        raise Contradiction(problem, hint_for({"periods": "file"}, "which takes those of the file"))
    if apart > EXACT:
        note = f"those of the file have fewer digits and differ by up to {apart:.1%}, periods=file takes them"
        assumed.append(f"periods of base {rotary.base:g} in fp32 ({note})")
    return rotary


def _check_angles(found: Tensors, config: ViTConfig) -> None:
    """Take cosines and sines of all patches out, and refuse them if they are not those of the network's rotation."""
    stored = {name: found.pop(name) for name in (COSINES, SINES) if name in found}
    made = RotaryPositions(config.rotary, config.head_width, 0)(config.grid, torch.zeros(())) if config.rotary else None
    for name, table in stored.items():
        ours, words = (made and made.cos, "cosines") if name == COSINES else (made and made.sin, "sines")
        if ours is None or ours.shape != table.shape or not ((ours - table).abs() < COARSE).all():
            problem = f"its table of {words} is not that of its rotation for {config.grid[0]}x{config.grid[1]} patches"
            hint = hint_for({"rotary": "eva02"}, "where that is what it was made with", gone=["rotary"])
            raise Contradiction(problem, hint, ["rotary"])


def _with_positions(
    found: Tensors, seen: Mapping[str, Any], assume: dict[str, Any], where: str, assumed: list[str]
) -> Tensors:
    """The tensors with positions for all tokens, zeros for those that have none; `assume` gets the image size."""
    prefix = [int(seen["class_token"]), int(seen["distillation_token"]), seen["registers"]]
    positions, patch, tokens = found.get("pos_embed"), seen["patch_size"], sum(prefix)
    size = None if assume.get("image_size") is None else height_and_width(assume["image_size"])
    if positions is None and size is None:
        raise UsageError("no positions, so nothing shows the image size", hint_for({"image_size": (224, 224)}))
    if positions is None:
        return found
    count = positions.shape[1]

    def is_grid(patches: int) -> bool:
        if size is not None:
            return patches == (size[0] // patch[0]) * (size[1] // patch[1])
        return patches > 0 and math.isqrt(patches) ** 2 == patches

    fronts = sorted({0, prefix[0], sum(prefix[:2]), tokens})  # how many prefix tokens have a position
    fitting = [front for front in fronts if is_grid(count - front)]
    if len(fitting) != 1:
        image = "one square image" if size is None else f"an image of {size[0]}x{size[1]}"
        some = f"{count} positions, {' or '.join(map(str, fronts))} of them for prefix tokens"
        problem = f"{some}, do not fit {image}"
        absent = [name for name, there in zip(("cls_token", "dist_token"), prefix, strict=False) if not there]
        for more in range(1, 1 + len(absent)):
            if is_grid(count - tokens - more):
                lost = f"{' and '.join(absent[:more])} seems to be missing"
                raise DataError(f"{problem}; {lost}, or another image_size has to be stated", another_copy(where))
        sizes = _sizes(count - tokens, patch)
        problem += f"; it may be {' or '.join(f'{height}x{width}' for height, width in sizes)}" if sizes else ""
        hint = hint_for({"image_size": sizes[0] if sizes else UNKNOWN_SIZE})
        raise UsageError(problem, hint) if size is None else Contradiction(problem, hint, ["image_size"])
    (front,) = fitting
    if size is None:
        side = math.isqrt(count - front)
        assume["image_size"] = (side * patch[0], side * patch[1])
    if size is None and front != tokens:
        assumed.append(f"a square image, since {count} positions make one without those of other tokens")
    if front == tokens:
        return found
    without = positions.new_zeros(1, tokens - front, positions.shape[2])
    return {**found, "pos_embed": torch.cat([positions[:, :front], without, positions[:, front:]], dim=1)}


def _sizes(patches: int, patch: tuple[int, int]) -> list[tuple[int, int]]:
    """Image sizes with so many patches, of which the longer side is at most twice the other.

    None where there are several such grids: a wrong guess would give another network.
    """
    near = [rows for rows in range(1, 1 + math.isqrt(max(0, patches))) if patches <= 2 * rows**2]
    grids = [(rows, patches // rows) for rows in near if patches % rows == 0]
    both = dict.fromkeys((grids[0], grids[0][::-1])) if len(grids) == 1 else ()
    return [(rows * patch[0], columns * patch[1]) for rows, columns in both]


def shown_by(config: Facts, parts: Mapping[str, str]) -> dict[str, Any]:
    """What the tensors of a network show of what a `config.json` may state, by the names in `SHOWN`.

    Args:
        config: Fields of `ViTConfig`.
        parts: Names of the parts that are not the paper's, by slot.
    """
    here = {
        "other_tokens": config["registers"] + config["distillation_token"],
        "layer_scale": bool(config["layer_scale"]),
        "embed_norm": "embed_norm" in parts,
        "last_norm": parts.get("last_norm") != "none",
        "gated_mlp": parts.get("mlp") in GATED,
        "key_bias": parts.get("attention") not in KEYLESS,
    }
    return {name: here[name] if name in here else config[name] for name in SHOWN}
