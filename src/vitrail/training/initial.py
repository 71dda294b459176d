"""What a training starts from that does not start from nothing: weights that `vitrail.load` opens.

The network keeps its numbers but those of its head, which is made anew for the classes at hand; images go in as they
did. What is asked is `TrainOptions.init`, what is stored the `Initial` of the settings; once a run has begun it needs
the source no more, since the start lies in its folder (`probe/`).
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import UsageError
from vitrail.model import Model, load
from vitrail.nn import ViT, ViTConfig
from vitrail.nn.networks import config_to_dict
from vitrail.training.checkpoint import weights_hash
from vitrail.training.options import TrainOptions
from vitrail.training.settings import Initial

HEADS = "head.", "head_dist."


def open_source(options: TrainOptions, given: Mapping[str, Any]) -> Model | None:
    """The model that a training is to start from; None where it starts from nothing.

    Args:
        options: What was asked for.
        given: Content of a configuration file, or empty.

    Raises:
        UsageError: It is no ViT, or `--probe` is asked for without one.
        DataError: It cannot be read.
    """
    stored = given.get("initial") or {}
    source = options.init or stored.get("source")
    if source is None:
        if options.probe:
            raise UsageError("--probe trains a head on a network that is there, and none is named", "--init timm:NAME")
        return None
    if options.size is not None:
        problem = f"--size {options.size} is for a network that is built, and {source} brings one"
        raise UsageError(problem, "one of --size and --init")
    model = load(source, told=stored.get("told") or None, image_size=options.image_size)
    if not isinstance(model.network, ViT):
        raise UsageError(f"{source} holds a {type(model.network).__name__}, which reads no images alone", "a ViT")
    return model


def initial_of(source: Model, options: TrainOptions, given: Mapping[str, Any]) -> dict[str, Any]:
    """What the settings hold of it, as plain values."""
    stored = given.get("initial") or {}
    return asdict(
        Initial(
            source=options.init or stored["source"],
            told=dict(stored.get("told") or {}),
            identity=weights_hash(source.network),
            reads=source.preprocessing.to_dict(),
            licence=str(source.facts.get("licence", "")),
            probe=options.probe or bool(stored.get("probe", False)),
        )
    )


def network_values(source: Model, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of the network: the source's, with what the recipe changes; its head reads with a bias."""
    assert isinstance(source.network, ViT)
    return {**config_to_dict(source.network.config), **recipe, "head_bias": True}


def fetch_size(reads: Preprocessing) -> int:
    """The height at which images are read, from which random crops are cut: what evaluation sees and its margin."""
    return round(reads.size[0] / reads.crop_ratio)


@torch.no_grad()
def start_network(source: ViT, config: ViTConfig) -> ViT:
    """A network with the numbers of the source, and a head that starts from zero.

    Args:
        source: Is not changed.
        config: Its configuration, but for the classes and what happens in training alone, such as dropout.
    """
    network = ViT(config, source.parts)
    kept = {name: tensor for name, tensor in source.state_dict().items() if not name.startswith(HEADS)}
    lost = network.load_state_dict(kept, strict=False)
    assert not lost.unexpected_keys
    assert all(name.startswith(HEADS) for name in lost.missing_keys)
    return network
