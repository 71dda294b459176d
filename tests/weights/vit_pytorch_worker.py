"""Runs vit-pytorch's ViTs in a process of its own, where its packages are seen, and converts each as it lives there.

    PYTHONPATH=FOLDER python tests/weights/vit_pytorch_worker.py OUT '{"small": {"image_size": 256, ...}, ...}'

Every number of each is redrawn. Its tensors go to OUT/NAME.safetensors: the state dict under `state.`, `images`, and
the `logits` that it gives in eval mode; beside them the gap to the converted network.
"""

import json
import sys
from pathlib import Path

import torch
import vit_pytorch  # pyrefly: ignore[missing-import]
from safetensors.torch import save_file

from tests.weights.redraw import redrawn
from vitrail.weights.convert import convert_network

torch.set_num_threads(1)
for name, given in json.loads(sys.argv[2]).items():
    torch.manual_seed(0)
    arguments = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    network = getattr(vit_pytorch, arguments.pop("kind", "ViT"))(**arguments).eval()
    redrawn(network)
    with torch.no_grad():
        size = arguments["image_size"]
        height, width = size if isinstance(size, tuple) else (size, size)
        images = torch.randn(2, arguments.get("channels", 3), height, width)
        logits = network(images)
    converted = convert_network(network, {"image_size": size})  # no tensor says that of a rectangle
    assert (converted.network(images) - logits).abs().max() <= 1e-5 * logits.abs().max()
    state = {f"state.{key}": tensor.contiguous() for key, tensor in network.state_dict().items() if tensor.numel()}
    empty = {key: list(tensor.shape) for key, tensor in network.state_dict().items() if not tensor.numel()}
    tensors = {**state, "images": images, "logits": logits}
    save_file(
        tensors,
        Path(sys.argv[1], f"{name}.safetensors"),
        metadata={"empty": json.dumps(empty), "gap": str(converted.gap)},
    )
