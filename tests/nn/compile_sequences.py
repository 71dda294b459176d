"""Compiles and exports networks that write, in a process of its own, as `compile_worker` does for the others.

python -m tests.nn.compile_sequences BACKEND NAME...
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from tests.nn.compile_worker import print_distances
from tests.nn.reference import pictures
from tests.nn.sequences import PADDING, PICTURES, SMALL, image_to_sequence, sources, targets, transformer

CONFIGS = {
    "post-norm": SMALL,
    "pre-norm, tied": replace(SMALL, norm="pre", embeddings="tied"),
    "shared, gelu": replace(SMALL, source_vocabulary=11, embeddings="shared", activation="gelu"),
    "a picture": PICTURES,
    "a graph break": SMALL,
}


class Breaking(nn.Module):
    """A planted fault: a part that cannot stay in one graph."""

    def forward(self, tokens: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return tokens


def network_of(name: str) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    target = targets()
    target[1, 3:] = PADDING
    if name == "a picture":
        return image_to_sequence(CONFIGS[name]), (pictures(3, 1, 16, 24), target)
    network = transformer(CONFIGS[name])
    if name == "a graph break":
        network.encoder.norm = Breaking()
    source = sources().clamp(max=10)
    source[2] = PADDING
    return network, (source, target)


def distance(backend: str, name: str) -> float:
    network, inputs = network_of(name)
    with torch.no_grad():
        expected = network(*inputs)
        if backend == "export":
            free = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
            shapes = ({0: torch.export.Dim.AUTO}, free) if name == "a picture" else (free, free)
            program = torch.export.export(network, inputs, dynamic_shapes=shapes)
            longer = torch.nn.functional.pad(inputs[1], (0, 2))
            logits = program.module()(inputs[0].repeat(2, *[1] * (inputs[0].dim() - 1)), longer.repeat(2, 1))[3:, :5]
        else:
            logits = torch.compile(network, fullgraph=True, backend=backend)(*inputs)
    assert expected.std() > 0.1
    return (logits - expected).abs().max().item()


if __name__ == "__main__":
    print_distances(distance)
