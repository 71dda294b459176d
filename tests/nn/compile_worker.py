"""Compiles and exports networks in a process of its own, where annotations are not checked; prints one JSON line each.

    python -m tests.nn.compile_worker BACKEND=NAME...

`BACKEND` is `export` (with free batches and lengths) or a backend of torch.compile. A line holds what was asked and how
far the logits are from the eager ones, or the kind of the error.
"""

import json
import sys
from dataclasses import replace

import torch
from torch import Tensor, nn

from tests.nn.reference import redraw, some_images
from tests.nn.sequences import IMAGES, PADDING, SMALL as TEXTS, image_to_sequence, sources, targets, transformer
from vitrail.nn import STANDARD, EncoderBlock, Parts, Record, ViT, ViTConfig

SHORT = replace(ViTConfig.from_size("Ti/16", image_size=32, classes=10), depth=2)
CONFIGS = {
    "Ti/16": ViTConfig.from_size("Ti/16", image_size=64, classes=10),
    "S/16": ViTConfig.from_size("S/16", image_size=32, classes=10),
    "registers": replace(SHORT, registers=4),
    "distilled": replace(SHORT, distillation_token=True),
    "mean of patches": replace(SHORT, pooling="mean", class_token=False),
    "sinusoidal": replace(SHORT, positions="sinusoidal"),
    "sinusoidal-2d": replace(SHORT, positions="sinusoidal-2d"),
    "no positions": replace(SHORT, positions="none"),
    "LayerScale": replace(SHORT, layer_scale=0.1),
    "rectangular": replace(SHORT, image_size=(32, 48), patch_size=(16, 8)),
    "another grid": SHORT,
    "relu, no qkv bias, free head_dim": replace(SHORT, activation="relu", qkv_bias=False, head_dim=20),
    "no bias": replace(SHORT, embed_bias=False, qkv_bias=False, out_bias=False, mlp_bias=False, head_bias=False),
    "a graph break": SHORT,
    "an image without a batch": SHORT,
    "recorded": SHORT,
    "both heads": replace(SHORT, distillation_token=True),
}
WRITERS = {
    "post-norm": TEXTS,
    "pre-norm, tied": replace(TEXTS, norm="pre", embeddings="tied"),
    "shared, gelu": replace(TEXTS, source_vocab_size=11, embeddings="shared", activation="gelu"),
    "an image": IMAGES,
    "a graph break in a writer": TEXTS,
}


class Breaking(nn.Module):
    """A planted fault: a part that cannot stay in one graph."""

    def forward(self, tokens: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return tokens


class Recorded(nn.Module):
    """The logits and the weights of one block, as one graph may return them."""

    def __init__(self, network: ViT) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        record = Record()
        logits = self.network(images, record)
        return torch.cat([logits, record["blocks.1.attention"].flatten(1)], dim=1)


class BothHeads(nn.Module):
    """What a distillation asks of a student: two names of its record."""

    def __init__(self, network: ViT) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        record = Record("class_logits", "distillation_logits", gradients=True)
        self.network(images, record=record)
        return torch.cat([record["class_logits"], record["distillation_logits"]], dim=1)


WRAPPED = {"recorded": Recorded, "both heads": BothHeads}


def reader(name: str) -> tuple[nn.Module, tuple[Tensor]]:
    config = CONFIGS[name]
    parts = Parts(norm=lambda config: Breaking()) if name == "a graph break" else STANDARD
    network = ViT(config, parts).eval()
    redraw(network)
    size = (48, 80) if name == "another grid" else config.image
    images = some_images(2, 3, *size)
    images = images[0] if name == "an image without a batch" else images
    return WRAPPED.get(name, nn.Sequential)(network), (images,)


def writer(name: str) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    target = targets()
    target[1, 3:] = PADDING
    if name == "an image":
        return image_to_sequence(WRITERS[name]), (some_images(3, 1, 16, 24), target)
    network = transformer(WRITERS[name])
    if name == "a graph break in a writer":
        network.encoder.norm = Breaking()
    source = sources().clamp(max=10)
    source[2] = PADDING
    return network, (source, target)


def exported(network: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    """The logits of an exported program that ran on twice the batch and, where it writes, on longer targets."""
    free = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
    shapes = tuple(free if given.dim() == 2 else {0: torch.export.Dim.AUTO} for given in inputs)
    program = torch.export.export(network, inputs, dynamic_shapes=shapes)
    more = [given.repeat(2, *[1] * (given.dim() - 1)) for given in inputs]
    if len(inputs) == 1:
        return program.module()(*more)[len(inputs[0]) :]
    more[1] = nn.functional.pad(more[1], (0, 2))
    return program.module()(*more)[len(inputs[0]) :, : inputs[1].shape[1]]


def distance(backend: str, name: str) -> float:
    network, inputs = (writer if name in WRITERS else reader)(name)
    with torch.no_grad():
        expected = network(*inputs)
        if backend == "export":
            logits = exported(network, inputs)
        else:
            logits = torch.compile(network, fullgraph=True, backend=backend)(*inputs)
    assert expected.std() > 0.1
    return (logits - expected).abs().max().item()


if __name__ == "__main__":
    assert not hasattr(EncoderBlock.forward, "__wrapped__"), "annotations are checked here"
    for asked in sys.argv[1:]:
        torch._dynamo.reset()
        try:
            answer = {"asked": asked, "distance": distance(*asked.split("=", 1))}
        except Exception as error:
            answer = {"asked": asked, "error": type(error).__name__, "text": str(error)[:2000]}
        print(json.dumps(answer), flush=True)
