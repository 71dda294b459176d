"""The network of timm, with the preprocessing of its file, on one thread."""

import io
import os
from collections.abc import Callable
from typing import Any

import timm
import torch
from PIL import Image
from safetensors.torch import load_file
from torchvision import transforms

MEAN = STD = (0.5, 0.5, 0.5)


def opened() -> Callable[[Image.Image], torch.Tensor]:
    """What gives the probabilities (K) of an image."""
    torch.set_num_threads(1)
    network = timm.create_model("vit_tiny_patch16_224").eval()
    network.load_state_dict(load_file(os.environ["VITRAIL_BENCH_WEIGHTS"]))
    steps = (
        transforms.Resize(248, transforms.InterpolationMode.BICUBIC),
        transforms.CenterCrop(224),
        transforms.ToTensor(),
        transforms.Normalize(MEAN, STD),
    )
    prepare = transforms.Compose(steps)

    @torch.inference_mode()
    def probabilities(image: Image.Image) -> torch.Tensor:
        return network(prepare(image.convert("RGB"))[None])[0].softmax(0)

    return probabilities


def answering() -> Callable[[bytes], dict[str, Any]]:
    """What answers the bytes of an image: `top`, the numbers of the five likeliest classes with their probabilities."""
    probabilities = opened()

    def answer(content: bytes) -> dict[str, Any]:
        values, places = probabilities(Image.open(io.BytesIO(content))).topk(5)
        return {"top": list(zip(places.tolist(), values.tolist(), strict=True))}

    return answer
