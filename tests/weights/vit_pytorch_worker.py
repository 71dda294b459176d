"""Runs vit-pytorch's ViT in a process of its own, where only its own packages and torch are seen.

    PYTHONPATH=FOLDER python tests/weights/vit_pytorch_worker.py OUT '{"image_size": 256, ...}'

Writes its tensors to OUT: the state dict under `state.`, `images`, and the `logits` it gives in eval mode.
"""

import json
import sys

import torch
from safetensors.torch import save_file
from vit_pytorch import ViT  # pyrefly: ignore[missing-import]

out, arguments = sys.argv[1], json.loads(sys.argv[2])
torch.set_num_threads(1)
torch.manual_seed(0)
arguments = {name: tuple(value) if isinstance(value, list) else value for name, value in arguments.items()}
network = ViT(**arguments).eval()
with torch.no_grad():  # norms and biases that matter
    for parameter in network.parameters():
        if parameter.dim() == 1:
            parameter.add_(0.2 * torch.randn(parameter.shape))
    size = arguments["image_size"]
    height, width = size if isinstance(size, tuple) else (size, size)
    images = torch.randn(2, arguments.get("channels", 3), height, width)
    logits = network(images)
state = {f"state.{name}": tensor.contiguous() for name, tensor in network.state_dict().items() if tensor.numel()}
empty = {name: list(tensor.shape) for name, tensor in network.state_dict().items() if not tensor.numel()}
save_file({**state, "images": images, "logits": logits}, out, metadata={"empty": json.dumps(empty)})
