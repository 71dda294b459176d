"""`references.safetensors`, which a model folder of format 1 has for its background. Read, and never written.

references                       the values as they are
jpeg, lengths, patch, quality    JPEG files one behind the other, as in today's file, of a quality that varied
"""

import torch
from torch import Tensor

REFERENCES = "references.safetensors"


def unpacked(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of such a file as those of `background.safetensors`; what is neither kind is left as it is."""
    if tensors.keys() == {"references"}:
        return {"background": tensors["references"]}
    quality = tensors.get("quality")
    said = quality is not None and quality.dtype == torch.int64 and quality.shape == (1,)
    return {name: tensor for name, tensor in tensors.items() if name != "quality" or not said}
