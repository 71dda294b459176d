"""Perception Encoder as its lab publishes it ("Perception Encoder", 2025): names of CLIP's own code, made timm's.

Files of CLIP with these names open as well: they have no LayerScale, no pooling by attention, and no rotation.
"""

import re
from collections.abc import Callable, Mapping

from torch import Tensor

from vitrail.weights.family import Tensors

MARKS = "conv1.weight", "transformer.resblocks.0.attn.in_proj_weight"
PIECES = {  # regular expressions of pieces of a name, in this order
    r"^conv1\.": "patch_embed.proj.",
    r"^ln_pre\.": "norm_pre.",
    r"^ln_post\.": "norm.",
    r"^transformer\.resblocks\.": "blocks.",
    r"^attn_pool\.attn\.": "attn_pool.",
    r"^attn_pool\.layernorm\.": "attn_pool.norm.",
    r"^attn_pool\.probe$": "attn_pool.latent",
    r"\.in_proj_": ".qkv.",
    r"\.out_proj\.": ".proj.",
    r"\.ln_([12])\.": r".norm\1.",
    r"\.ls_([12])\.gamma$": r".gamma_\1",
    r"\.mlp\.c_fc\.": ".mlp.fc1.",
    r"\.mlp\.c_proj\.": ".mlp.fc2.",
}
SHAPED: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {  # whole names, of tensors in another shape
    "class_embedding": ("cls_token", lambda token: token[None, None]),
    "positional_embedding": ("pos_embed", lambda table: table[None]),
    "proj": ("head.weight", lambda weight: weight.T),
}


def named_as_timm(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The tensors, those of such a network under timm's names; the others, as of its half for texts, as they are."""
    conv, block = MARKS
    fronts = [name.removesuffix(conv) for name in tensors if name.endswith(conv)]
    fronts = [front for front in fronts if front + block in tensors]
    if len(fronts) != 1:
        return tensors
    found: Tensors = {}
    for name, tensor in tensors.items():
        short = name.removeprefix(fronts[0])
        if not name.startswith(fronts[0]):
            found[name] = tensor
        elif short in SHAPED:
            new, reshape = SHAPED[short]
            found[fronts[0] + new] = reshape(tensor)
        else:
            for piece, new in PIECES.items():
                short = re.sub(piece, new, short)
            found[fronts[0] + short] = tensor
    return found
