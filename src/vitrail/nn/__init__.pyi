from .attention import Attention as Attention, attend as attend
from .blocks import (
    MLP as MLP,
    STANDARD as STANDARD,
    Branches as Branches,
    EncoderBlock as EncoderBlock,
    LayerScale as LayerScale,
    Parts as Parts,
    PostNormBlock as PostNormBlock,
    StochasticDepth as StochasticDepth,
)
from .config import SIZES as SIZES, ViTConfig as ViTConfig
from .embedding import (
    PatchEmbedding as PatchEmbedding,
    grid_of as grid_of,
    resize_positions as resize_positions,
    sinusoids as sinusoids,
    sinusoids_2d as sinusoids_2d,
)
from .generate import (
    Beam as Beam,
    Generated as Generated,
    Greedy as Greedy,
    Sampling as Sampling,
    Search as Search,
    generate as generate,
)
from .networks import (
    ImageFeatures as ImageFeatures,
    ImageToSequenceConfig as ImageToSequenceConfig,
    SequenceConfig as SequenceConfig,
    TransformerConfig as TransformerConfig,
    evaluating as evaluating,
    features as features,
)
from .parts import check_parts as check_parts, names_of as names_of, parts_of as parts_of
from .record import (
    SILENT as SILENT,
    AnyRecord as AnyRecord,
    Record as Record,
    Silent as Silent,
    attention_weights as attention_weights,
    run_with_record as run_with_record,
)
from .rotary import Rotary as Rotary, Rotation as Rotation
from .seq2seq import (
    Cache as Cache,
    Decoder as Decoder,
    DecoderBlock as DecoderBlock,
    Encoder as Encoder,
    ImageToSequence as ImageToSequence,
    Memory as Memory,
    PostNormDecoderBlock as PostNormDecoderBlock,
    TokenEmbedding as TokenEmbedding,
    Transformer as Transformer,
    causal_mask as causal_mask,
)
from .twin import (
    detached as detached,
    in_bf16 as in_bf16,
    resize_network as resize_network,
    twin as twin,
)
from .vit import ViT as ViT
