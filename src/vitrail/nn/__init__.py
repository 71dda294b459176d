"""What a network is made of: attention, embedding, blocks, the ViT, networks that write, and the record of one run.

Needs torch only.
"""

from vitrail.nn.attention import Attention, attend
from vitrail.nn.blocks import MLP, STANDARD, EncoderBlock, LayerScale, Parts, StochasticDepth, post_norm, pre_norm
from vitrail.nn.config import SIZES, ViTConfig
from vitrail.nn.decoder import (
    NO_CACHE,
    AnyCache,
    Cache,
    Decoder,
    DecoderBlock,
    Memory,
    NoCache,
    StackConfig,
    TokenEmbedding,
    causal_mask,
)
from vitrail.nn.embedding import PatchEmbedding, grid_of, resize_positions, sinusoids, sinusoids_2d
from vitrail.nn.generate import Beam, Generated, Greedy, Sampling, Search, generate
from vitrail.nn.parts import check_parts, names_of, parts_of
from vitrail.nn.record import SILENT, AnyRecord, Record, Silent, attention_weights, run_with_record
from vitrail.nn.seq2seq import Encoder, ImageToSequence, ImageToSequenceConfig, Transformer, TransformerConfig
from vitrail.nn.twin import detached, evaluating, resized, twin
from vitrail.nn.vit import Features, ViT

__all__ = [
    "MLP",
    "NO_CACHE",
    "SILENT",
    "SIZES",
    "STANDARD",
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
    "Memory",
    "NoCache",
    "Parts",
    "PatchEmbedding",
    "Record",
    "Sampling",
    "Search",
    "Silent",
    "StackConfig",
    "StochasticDepth",
    "TokenEmbedding",
    "Transformer",
    "TransformerConfig",
    "ViT",
    "ViTConfig",
    "attend",
    "attention_weights",
    "causal_mask",
    "check_parts",
    "detached",
    "evaluating",
    "generate",
    "grid_of",
    "names_of",
    "parts_of",
    "post_norm",
    "pre_norm",
    "resize_positions",
    "resized",
    "run_with_record",
    "sinusoids",
    "sinusoids_2d",
    "twin",
]
