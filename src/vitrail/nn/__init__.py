"""What a network is made of: attention, embedding, blocks, the ViT, and the record of one run. Needs torch only."""

from vitrail.nn.attention import Attention, attend, causal_mask
from vitrail.nn.blocks import MLP, EncoderBlock, LayerScale, StochasticDepth
from vitrail.nn.config import SIZES, ViTConfig
from vitrail.nn.embedding import (
    LinearPatchEmbedding,
    PatchEmbedding,
    PatchifiedEmbedding,
    cut_patches,
    grid_of,
    resize_positions,
    sinusoids,
    sinusoids_2d,
)
from vitrail.nn.record import SILENT, AnyRecord, Record, Silent, attention_weights
from vitrail.nn.twin import twin
from vitrail.nn.vit import PATCHIFIED, STANDARD, Features, Parts, ViT

__all__ = [
    "MLP",
    "PATCHIFIED",
    "SILENT",
    "SIZES",
    "STANDARD",
    "AnyRecord",
    "Attention",
    "EncoderBlock",
    "Features",
    "LayerScale",
    "LinearPatchEmbedding",
    "Parts",
    "PatchEmbedding",
    "PatchifiedEmbedding",
    "Record",
    "Silent",
    "StochasticDepth",
    "ViT",
    "ViTConfig",
    "attend",
    "attention_weights",
    "causal_mask",
    "cut_patches",
    "grid_of",
    "resize_positions",
    "sinusoids",
    "sinusoids_2d",
    "twin",
]
