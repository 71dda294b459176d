"""Runs vit-pytorch's ViTs in a process of its own, where only its own packages and torch are seen.

    PYTHONPATH=FOLDER python tests/weights/vit_pytorch_worker.py OUT '{"small": {"image_size": 256, ...}, ...}'

Writes the tensors of each network to OUT/NAME.safetensors: the state dict under `state.`, `images`, and the `logits`
that it gives in eval mode.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from vit_pytorch import ViT  # pyrefly: ignore[missing-import]

torch.set_num_threads(1)
for name, given in json.loads(sys.argv[2]).items():
    torch.manual_seed(0)
    arguments = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    network = ViT(**arguments).eval()
    with torch.no_grad():  # norms and biases that matter
        for parameter in network.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn(parameter.shape))
        size = arguments["image_size"]
        height, width = size if isinstance(size, tuple) else (size, size)
        images = torch.randn(2, arguments.get("channels", 3), height, width)
        logits = network(images)
    state = {f"state.{key}": tensor.contiguous() for key, tensor in network.state_dict().items() if tensor.numel()}
    empty = {key: list(tensor.shape) for key, tensor in network.state_dict().items() if not tensor.numel()}
    tensors = {**state, "images": images, "logits": logits}
    save_file(tensors, Path(sys.argv[1], f"{name}.safetensors"), metadata={"empty": json.dumps(empty)})
