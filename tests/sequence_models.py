"""Small models that write, one of each kind, with random weights; and sources for them."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from vitrail.sequence_model import SequenceModel

from vitrail.data.preprocessing import Preprocessing
from vitrail.data.vocabulary import Vocabulary
from vitrail.nn import ImageToSequence, ImageToSequenceConfig, Transformer, TransformerConfig, ViTConfig

LETTERS, DIGITS = Vocabulary(tuple("abcdé")), Vocabulary(tuple("0123456789"))
READER = ViTConfig(image_size=(16, 24), patch_size=8, channels=1, classes=0, width=16, depth=1, heads=2)
SHAPE = Preprocessing((16, 24), "pad", channels=1, mean=(0.4,), std=(0.3,), background=(0, 0, 0))


def text_model(norm: str = "pre") -> SequenceModel:
    config = TransformerConfig(
        source_vocabulary=len(LETTERS), target_vocabulary=len(DIGITS), width=16, heads=2, mlp_dim=24, encoder_depth=1,
        decoder_depth=2, norm=norm, max_length=7,
    )  # fmt: skip
    return SequenceModel(shaken(Transformer(config)), DIGITS, LETTERS)


def picture_model(embeddings: str = "separate") -> SequenceModel:
    config = ImageToSequenceConfig(
        encoder=READER, vocabulary=len(DIGITS), decoder_depth=1, embeddings=embeddings, max_length=6
    )
    return SequenceModel(shaken(ImageToSequence(config)), DIGITS, preprocessing=SHAPE)


def shaken(network: nn.Module):
    torch.manual_seed(0)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.4)
    return network.eval()


MODELS = {
    "texts": text_model,
    "texts, post-norm": lambda: text_model("post"),
    "pictures": picture_model,
    "pictures, tied": lambda: picture_model("tied"),
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
