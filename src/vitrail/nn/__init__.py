"""What a network is made of: attention, embedding, blocks, the ViT, the Transformer, and the record of one run.

Needs torch only.
"""

from vitrail.nn.attention import Attention, attend, causal_mask
from vitrail.nn.blocks import MLP, EncoderBlock, LayerScale, StochasticDepth, post_norm, pre_norm
from vitrail.nn.cache import NO_CACHE, AnyCache, Cache, NoCache
from vitrail.nn.config import SIZES, ViTConfig
from vitrail.nn.decoder import STANDARD_STACK, Decoder, DecoderBlock, Memory, StackConfig, StackParts
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
from vitrail.nn.generate import Generated, generate
from vitrail.nn.image_to_sequence import ImageToSequence, ImageToSequenceConfig
from vitrail.nn.mode import evaluating
from vitrail.nn.record import SILENT, AnyRecord, Record, Silent, attention_weights, run_with_record
from vitrail.nn.search import Beam, Greedy, Sampling, Search
from vitrail.nn.token_embedding import TokenEmbedding
from vitrail.nn.transformer import Encoder, Transformer, TransformerConfig
from vitrail.nn.twin import twin
from vitrail.nn.vit import PATCHIFIED, STANDARD, Features, Parts, ViT

__all__ = [
    "MLP",
    "NO_CACHE",
    "PATCHIFIED",
    "SILENT",
    "SIZES",
    "STANDARD",
    "STANDARD_STACK",
    "AnyCache",
    "AnyRecord",
    "Attention",
    "Beam",
    "Cache",
    "Decoder",
    "DecoderBlock",
    "Encoder",
    "EncoderBlock",
    "Features",
    "Generated",
    "Greedy",
    "ImageToSequence",
    "ImageToSequenceConfig",
    "LayerScale",
    "LinearPatchEmbedding",
    "Memory",
    "NoCache",
    "Parts",
    "PatchEmbedding",
    "PatchifiedEmbedding",
    "Record",
    "Sampling",
    "Search",
    "Silent",
    "StackConfig",
    "StackParts",
    "StochasticDepth",
    "TokenEmbedding",
    "Transformer",
    "TransformerConfig",
    "ViT",
    "ViTConfig",
    "attend",
    "attention_weights",
    "causal_mask",
    "cut_patches",
    "evaluating",
    "generate",
    "grid_of",
    "post_norm",
    "pre_norm",
    "resize_positions",
    "run_with_record",
    "sinusoids",
    "sinusoids_2d",
    "twin",
]
