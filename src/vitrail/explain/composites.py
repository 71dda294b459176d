"""What a network says of pictures without evidence: computed once, and kept.

    ~/.cache/vitrail/composites/KEY.safetensors    logits of the composites of one network and its references

They are the same for all pictures of a network (`without_evidence.composites_of`), so who explains many pictures, or
one after the other, pays for them once. The key is made of all that decides them: the numbers of the network and of
the references, the size of the pictures, the seed, the precision, torch and the processor or GPU.
"""

import hashlib
import json
from contextlib import suppress

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.data.tensor_files import read_tensors, with_checksum
from vitrail.errors import DataError
from vitrail.explain.scores.fill import donor
from vitrail.explain.without_evidence import COMPOSITES, composites_of
from vitrail.io import user_cache, write_file
from vitrail.nn import ViT
from vitrail.nn.networks import weights_hash
from vitrail.nn.vit import Images
from vitrail.runtime import device_name

LOGITS = "logits"


def kept_composites(
    network: ViT, asked: ViT, images: Images, lent: Float[Tensor, "r c h w"], seed: int, precision: str
) -> Float[Tensor, "count v"]:
    """Logits of composites: those that are kept, or computed now, and kept from then on.

    Args:
        network: Whose numbers they are, in eval mode.
        asked: The same in the precision that is used.
        images: Any pictures of the size.
        lent: References whose patches they are put together of.
        seed: Decides them.
        precision: What that precision is called.
    """
    of = {
        "network": weights_hash(network),
        "config": repr(network.config),
        "references": hashlib.sha256(lent.detach().cpu().contiguous().numpy().tobytes()).hexdigest(),
        "size": list(images.shape[1:]),
        "kind": str(images.dtype),
        "count": COMPOSITES,
        "seed": seed,
        "precision": precision,
        "torch": torch.__version__,
        "machine": device_name(images.device),
    }
    key = hashlib.blake2b(json.dumps(of).encode(), digest_size=16).hexdigest()
    place = user_cache() / "composites" / f"{key}.safetensors"
    with suppress(DataError, OSError, KeyError):
        found = read_tensors(place, "")[LOGITS]
        if len(found) == COMPOSITES:
            return found.to(images.device)
    made = composites_of(asked, images, donor(lent), range(COMPOSITES), seed)
    with suppress(OSError):  # no home, or a full disk: they are computed again next time
        write_file(place, with_checksum({LOGITS: made.cpu().contiguous()}))
    return made
