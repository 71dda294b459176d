"""Small models that write, one of each kind, with random weights; and sources for them."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from vitrail.data.columns import Vocabulary
from vitrail.data.preprocessing import Preprocessing
from vitrail.model import Model
from vitrail.nn import ImageToSequence, ImageToSequenceConfig, Transformer, TransformerConfig, ViTConfig
from vitrail.tasks import TASKS, TextCodec

LETTERS, DIGITS = Vocabulary(tuple("abcdé")), Vocabulary(tuple("0123456789"))
READER = ViTConfig(image_size=(16, 24), patch_size=8, channels=1, classes=0, width=16, depth=1, heads=2)
SHAPE = Preprocessing((16, 24), "pad", channels=1, mean=(0.4,), std=(0.3,), pad_value=(0, 0, 0))
SEQUENCES = TASKS["sequences"]


def text_model(norm: str = "pre") -> Model:
    config = TransformerConfig(
        source_vocab_size=LETTERS.outputs, target_vocab_size=DIGITS.outputs, width=16, heads=2, mlp_dim=24,
        encoder_depth=1, decoder_depth=2, norm=norm, max_length=7,
    )  # fmt: skip
    return Model(shaken(Transformer(config)), LETTERS, TextCodec(DIGITS), SEQUENCES)


def image_model(embeddings: str = "separate") -> Model:
    config = ImageToSequenceConfig(
        encoder=READER, vocab_size=DIGITS.outputs, decoder_depth=1, embeddings=embeddings, max_length=6
    )
    return Model(shaken(ImageToSequence(config)), SHAPE, TextCodec(DIGITS), SEQUENCES)


def shaken(network: nn.Module):
    torch.manual_seed(0)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.4)
    return network.eval()


MODELS = {
    "texts": text_model,
    "texts, post-norm": lambda: text_model("post"),
    "images": image_model,
    "images, tied": lambda: image_model("tied"),
}


def put_sources(folder: Path) -> list:
    """Sources of both kinds: texts, and files that are written into a folder."""
    draw = np.random.default_rng(0)
    files = []
    for number in range(3):
        path = folder / f"{number}.png"
        Image.fromarray(draw.integers(0, 255, (20, 20 + number)).astype(np.uint8)).save(path)
        files.append(path)
    return [["abc", "é", "ddddd"], files]
