"""What a network is made of, as a `config.json` says it and as tensors show it: both have to say the same.

A file that lacks its last block, its last norm or its biases makes a smaller network that answers, and answers wrongly.
Who reads the configuration alone can tell: the library that wrote it would not open the file.
"""

from collections.abc import Mapping
from typing import Any

from vitrail.errors import DataError, some_of
from vitrail.weights.assume import hint_for

STRUCTURE = "structure"  # under which a family's facts have it
USUAL: Mapping[str, Any] = {  # of a ViT of which nothing else is said; width, depth and mlp_dim every one says
    "channels": 3,
    "class_token": True,
    "other_tokens": 0,  # registers, and a distillation token
    "positions": True,
    "embed_bias": True,
    "qkv_bias": True,
    "out_bias": True,
    "mlp_bias": True,
    "layer_scale": False,
    "embed_norm": False,
    "last_norm": True,
    "gated_mlp": False,
}
HEAD = ("classes", "head_bias")  # which are held where a configuration is that of a classifier


def structure_of(seen: Mapping[str, Any], parts: Mapping[str, str]) -> dict[str, Any]:
    """What tensors show, under the names of `USUAL` and of `width`, `depth`, `mlp_dim` and `classes`.

    Args:
        seen: Fields of `ViTConfig`.
        parts: Names of the parts that are none of the paper's.
    """
    taken = ("width", "depth", "mlp_dim", "channels", "class_token", *HEAD)
    return {
        **{name: seen[name] for name in taken},
        **{name: seen[name] for name in ("embed_bias", "qkv_bias", "out_bias", "mlp_bias")},
        "other_tokens": seen["registers"] + seen["distillation_token"],
        "positions": seen["positions"] == "learned",
        "layer_scale": bool(seen["layer_scale"]),
        "embed_norm": "embed_norm" in parts,
        "last_norm": parts.get("last_norm") != "none",
        "gated_mlp": parts.get("mlp") == "swiglu",
    }


def hold(said: Mapping[str, Any], shown: Mapping[str, Any], where: str) -> None:
    """Refuse tensors of another network than a configuration says.

    Args:
        said: By a configuration; a name that is left out is not held.
        shown: By tensors, see `structure_of`.
        where: The file, for messages.

    Raises:
        DataError: Lists what differs.
    """
    differing = [name for name, value in said.items() if name in shown and value != shown[name]]
    if not differing:
        return
    stated, there = (some_of([f"{name} {_word(each[name])}" for name in differing], 5) for each in (said, shown))
    problem = f"{where}: config.json says {stated}, and the tensors show {there}"
    headless = {*differing} <= {*HEAD} and said.get("classes") != shown["classes"]
    raise DataError(problem, hint_for(classes=shown["classes"]) if headless else "the whole file of that config.json")


def _word(value: Any) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
