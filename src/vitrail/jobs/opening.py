"""A model as every process of a job opens it: by its path, and known again by a hash."""

import hashlib
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from vitrail.errors import DataError
from vitrail.io import to_json
from vitrail.model import Model, load
from vitrail.model.saving import named_of
from vitrail.nn import in_bf16
from vitrail.nn.networks import weights_hash
from vitrail.runtime import pick_device

Precision = Literal["fp32", "bf16"]


@dataclass(frozen=True)
class Opening:
    """What a worker loads a model by; plain values.

    Args:
        path: As for `vitrail.load`, found from any folder.
        device: As `--device` takes it.
        more: To `vitrail.load`: what was said of other people's weights, and the size of images.
        known: What the model was known by where the job was begun; nothing is compared when empty.
        precision: In which it is computed.
    """

    path: str
    device: str
    more: Mapping[str, Any]
    known: Mapping[str, str]
    precision: Precision = "fp32"

    def load(self) -> Model:
        """The model, on its device.

        Raises:
            DataError: It is missing, damaged, or another one.
        """
        model = load(self.path, device=pick_device(self.device), **self.more)
        if self.known and identity_of(model) != self.known:
            problem = f"{self.path} on {socket.gethostname()} is another model than where the job was begun"
            raise DataError(problem, "a path that leads to the same model on all machines of the cluster")
        return computed(model, self.precision)


def computed(model: Model, precision: Precision) -> Model:
    """The model as it is asked about many images: the same, or one that multiplies in bf16."""
    return model if precision == "fp32" else replace(model, network=in_bf16(model.network))


def identity_of(model: Model) -> dict[str, str]:
    """What a model is known by: a hash of its weights, and one of all else that decides its answers."""
    told = to_json({**named_of(model), "input": model.input.to_dict(), "output": model.output.to_dict()})
    return {
        "weights": weights_hash(model.network),
        "model": hashlib.blake2b(told.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest(),
    }
