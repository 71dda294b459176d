"""Transformers for images that are no plain ViT: how they show in the names of networks and tensors, and why."""

import re
from collections.abc import Iterable

ELSE = "docs/weights.md lists what opens, and what serves the rest"
ROTARY, WINDOWS, NORMS = "rotary positions", "windows", "a norm in attention"
SEQUENCES = "patches in sequences of any length"
NETWORKS = {  # part of the name that a library gives a network, or its class
    r"dinov3|dino_v3|eva_?02|(?<![a-z])rope(?![a-z])|(?<![a-z])pe_(core|lang|spatial)": ROTARY,
    r"swin|samvit": WINDOWS,
    r"naflex": SEQUENCES,
}
TENSORS = {  # part of the name of a tensor
    r"(^|[._])rope([._]|$)|rope_embed|rotary|inv_freq": ROTARY,
    r"relative_position_bias_table": WINDOWS,
    r"(^|\.)(q_norm|k_norm)\.": NORMS,
}


def why_not(network: object, tensors: Iterable[str] = ()) -> str:
    """What makes a network of this name, or with tensors of these names, no plain ViT; empty where nothing shows it."""
    name, names = str(network or "").lower(), list(tensors)
    for part, why in NETWORKS.items():
        if re.search(part, name):
            return why
    lacking = not any(each.endswith(("cls_token", "attn.qkv.bias")) for each in names)
    if not name and lacking and any(each.endswith("fc_norm.weight") for each in names):
        return "norms that may stand behind its parts, as in timm's vit_*_rpn_*: nothing beside the tensors says it"
    return next((why for part, why in TENSORS.items() if any(re.search(part, each) for each in names)), "")
