"""The kinds of networks by name, their configurations, and the way from a stored one to a network.

build(config_from_dict({"kind": "ViT", "image_size": 28, ...}))
"""

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vitrail.errors import UsageError, check_fields, check_keys, check_kinds, nearest
from vitrail.nn.attention import head_dim_of
from vitrail.nn.blocks import Parts
from vitrail.nn.config import ViTConfig
from vitrail.nn.embedding import sinusoids
from vitrail.nn.vit import Images, ViT
from vitrail.text import short_repr

Config = TypeVar("Config")


# ---- the configurations of networks that generate text (`seq2seq.py`)


@dataclass(frozen=True, kw_only=True)
class SequenceConfig:
    """What every network that generates text has: special ids, and a decoder; `seq2seq.py` completes it.

    Parts are made from it as from a `ViTConfig`, whose names it has for all that they need: `heads`, `head_width`
    and `vocab_size`, the number of ids of the target, come with the networks.

    Attributes:
        pad_id: The id that fills rows up and is never attended to.
        bos_id: The id that every target starts with.
        eos_id: The id that ends a target.
        decoder_depth: Number of blocks of the decoder.
        mlp_dim: Numbers in the middle of the MLP; None stands for 4 x width, see `mlp_width`.
        dropout: Probability after the embedding, the output map of attention and both maps of the MLP.
        attention_dropout: Probability of dropping an attention weight.
        activation: Of the MLP.
        norm: Where the norms are: "post" (the paper of 2017), or "pre", as in the ViT, where a stack ends in a norm.
        embeddings: "separate"; "tied": the target's embedding is the output map; "shared": the source's as well.
        max_length: Longest target, in ids, that may be trained on or generated.
        norm_eps: The epsilon of LayerNorm.
    """

    pad_id: int = 0
    bos_id: int = 1
    eos_id: int = 2
    decoder_depth: int = 6
    mlp_dim: int | None = None
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation: Literal["relu", "gelu"] = "gelu"
    norm: Literal["post", "pre"] = "pre"
    embeddings: Literal["separate", "tied", "shared"] = "separate"
    max_length: int = 512
    norm_eps: float = 1e-6

    qkv_bias = out_bias = mlp_bias = True  # of every map
    layer_scale = 0.0  # none
    head_width: ClassVar[Any] = ViTConfig.head_width  # computed as there
    mlp_width: ClassVar[Any] = ViTConfig.mlp_width

    @classmethod
    def from_dict(cls: type[Config], values: Mapping[str, Any]) -> Config:
        """The inverse of `dataclasses.asdict`, also after a way through JSON.

        Raises:
            UsageError: If a key is unknown or missing, here or in the configuration of an encoder.
        """
        check_keys(cls, values)
        encoder = {"encoder": ViTConfig.from_dict(values["encoder"])} if "encoder" in values else {}
        return cls(**{**values, **encoder})

    def check(self: Any, *vocab_sizes: int) -> None:
        """Refuse values of a wrong kind, special ids that are equal or unknown, and an odd width; raises UsageError."""
        check_fields(self, may_be_zero=("pad_id", "bos_id", "eos_id"), below_one=("dropout", "attention_dropout"))
        size, ids = min(vocab_sizes), (self.pad_id, self.bos_id, self.eos_id)
        if len(set(ids)) < 3 or max(ids) >= size:
            problem = f"pad_id, bos_id and eos_id must be three different ids below {size}, got {ids}"
            raise UsageError(problem, "pad_id=0, bos_id=1, eos_id=2 and a vocabulary of at least 4")
        sinusoids(1, self.width)  # refuses a width that does not fit


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(SequenceConfig):
    """An encoder-decoder Transformer; the defaults are the paper's base model (table 3).

    Attributes:
        source_vocab_size: Number of ids of the source.
        target_vocab_size: Number of ids of the target.
        width: Numbers per token, d.
        encoder_depth: Number of blocks of the encoder.
        heads: Attention heads per block, k.
        head_dim: Numbers per head, e; None stands for width / heads, see `head_width`.

    The others are those of `SequenceConfig`, of both stacks. A source may be longer than `max_length`.
    """

    source_vocab_size: int
    target_vocab_size: int
    width: int = 512
    encoder_depth: int = 6
    heads: int = 8
    head_dim: int | None = None
    mlp_dim: int = 2048
    activation: Literal["relu", "gelu"] = "relu"
    norm: Literal["post", "pre"] = "post"
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        """Refuse an invalid configuration."""
        self.check(self.source_vocab_size, self.target_vocab_size)
        if self.embeddings == "shared" and self.source_vocab_size != self.target_vocab_size:
            sizes = f"{self.source_vocab_size} and {self.target_vocab_size} ids"
            problem = f"shared embeddings need equal vocabularies, got {sizes}"
            raise UsageError(problem, "embeddings='tied', which shares only the target's")
        head_dim_of(self.width, self.heads, self.head_dim)  # refuses heads that do not divide the width

    @property
    def vocab_size(self) -> int:
        """Number of ids of the target."""
        return self.target_vocab_size


@dataclass(frozen=True, kw_only=True)
class ImageToSequenceConfig(SequenceConfig):
    """A ViT as encoder and a decoder that generates; width and heads are the encoder's in both.

    Attributes:
        encoder: The ViT, with `classes=0`.
        vocab_size: Number of ids of the target.
        embeddings: "separate" or "tied": what is read has none.

    The others are those of `SequenceConfig`, of the decoder.
    """

    encoder: ViTConfig
    vocab_size: int
    embeddings: Literal["separate", "tied"] = "separate"

    def __post_init__(self) -> None:
        """Refuse an invalid configuration."""
        self.check(self.vocab_size)
        if self.encoder.classes:
            problem = f"the encoder must have no head (its patches are read), got {self.encoder.classes} classes"
            raise UsageError(problem, "dataclasses.replace(encoder, classes=0)")

    @property
    def width(self) -> int:
        """Numbers per token, the encoder's."""
        return self.encoder.width

    @property
    def heads(self) -> int:
        """Attention heads per block, the encoder's."""
        return self.encoder.heads

    @property
    def head_dim(self) -> int:
        """Numbers per head, the encoder's."""
        return self.encoder.head_width


# ---- all kinds


NetworkConfig = ViTConfig | TransformerConfig | ImageToSequenceConfig

NETWORKS: dict[str, tuple[type, str]] = {
    "ViT": (ViTConfig, "vit"),
    "Transformer": (TransformerConfig, "seq2seq"),
    "ImageToSequence": (ImageToSequenceConfig, "seq2seq"),
}
"""Kind: its configuration, and the file of the network that is built from it, which has its name."""


def network_class(kind: str) -> type[nn.Module]:
    """The class of the networks of a kind; its file is loaded when it is first needed."""
    return getattr(import_module(f"vitrail.nn.{NETWORKS[kind][1]}"), kind)


def is_known(network: nn.Module) -> bool:
    """Whether a configuration builds such a network."""
    kind = type(network).__name__
    return kind in NETWORKS and type(network) is network_class(kind)


def kind_of(config: NetworkConfig) -> str:
    """The name under which a configuration stands in the table."""
    return next(kind for kind, (known, _) in NETWORKS.items() if type(config) is known)


def reads_of(config: NetworkConfig) -> ViTConfig | int:
    """The inputs of a network: the images of a ViT, or ids below a number."""
    if isinstance(config, TransformerConfig):
        return config.source_vocab_size
    return config.encoder if isinstance(config, ImageToSequenceConfig) else config


def output_count(config: NetworkConfig) -> int:
    """How many logits a network gives: of an image, or of a token."""
    return (config.classes or config.width) if isinstance(config, ViTConfig) else config.vocab_size


def config_to_dict(config: NetworkConfig) -> dict[str, Any]:
    """Plain values, with the kind in front."""
    return {"kind": kind_of(config), **asdict(config)}


def config_from_dict(values: Mapping[str, Any]) -> NetworkConfig:
    """The inverse, also through JSON or YAML.

    Raises:
        UsageError: The kind or a key is unknown, or a value is not possible.
    """
    rest = dict(values)
    kind = rest.pop("kind", "ViT")
    if kind not in NETWORKS:
        problem = f"there is no kind of network '{kind}'"
        raise UsageError(problem, f"kind: {nearest(str(kind), NETWORKS) or ', '.join(NETWORKS)}")
    return NETWORKS[kind][0].from_dict(rest)


def build_network(config: NetworkConfig, parts: Parts | None = None) -> nn.Module:
    """A network with fresh weights, drawn from torch's generator.

    Args:
        config: What to build.
        parts: Other parts than the standard ones.
    """
    network: Any = network_class(kind_of(config))
    return network(config) if parts is None else network(config, parts)


class _NotDrawn(TorchFunctionMode):
    """Skips the initialisation of tensors: on `meta` it costs seconds of imports and does nothing."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named = kwargs or {}
        if getattr(func, "__module__", "") == nn.init.__name__:
            return named["tensor"] if "tensor" in named else args[0]
        return func(*args, **named)


@contextmanager
def without_numbers() -> Iterator[None]:
    """Networks that are built inside have tensors on `meta`: shapes without values, whatever their size."""
    with torch.device("meta"), _NotDrawn():
        yield


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Every module in eval mode for the time, and then in the mode it had."""
    check_kinds(network=(network, nn.Module))
    modes = [(module, module.training) for module in network.modules()]
    if any(training for _, training in modes):  # torch's way is 2 % of the time of a ViT-Ti and an image
        network.eval()
    try:
        yield
    finally:
        for module, training in modes:
            if module.training is not training:
                module.training = training


def weights_hash(network: nn.Module, without: Collection[str] = ()) -> str:
    """Short hash of all parameters and buffers: equal for equal bits.

    Args:
        network: It may be anywhere.
        without: Parts by the first word of their names, such as `head`, that are left out.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        if name.partition(".")[0] in without:
            continue
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())  # bfloat16, too
    return digest.hexdigest()[:16]


def example_inputs(network: nn.Module, samples: int = 1) -> tuple[Tensor, ...]:
    """Inputs of a network of the library, of zeros and of the id `begin`: images or ids, and a target where it has one.

    Args:
        network: They get its dtype and device; ids have its greatest length.
        samples: Rows.
    """
    config: Any = network.config
    reads, weights = reads_of(config), next(network.parameters())
    images = ()
    if isinstance(reads, ViTConfig):
        images = (torch.zeros(samples, reads.channels, *reads.image, dtype=weights.dtype, device=weights.device),)
    if isinstance(config, ViTConfig):
        return images
    ids = torch.full((samples, config.max_length), config.bos_id, device=weights.device)
    return (*images, ids) if images else (ids, ids)


class ImageFeatures(NamedTuple):
    """The features of an image after the last norm and before the head.

    Use `pooled` to search and cluster (it is the head's input), `patches` for anything that has a place in the image.
    """

    class_token: Float[Tensor, "b d"] | None
    patches: Float[Tensor, "b gh gw d"]
    registers: Float[Tensor, "b r d"]
    pooled: Float[Tensor, "b d"]

    __repr__ = short_repr


def features(network: ViT, images: Images) -> ImageFeatures:
    """Class token, patches as a grid, registers and the pooled vector, after the last norm."""
    config = network.config
    tokens, prefix = network.norm(network.encode(images)), config.prefix
    registers, patches = tokens[:, prefix - config.registers : prefix], tokens[:, prefix:]
    patches = patches.unflatten(1, network.grid(images))
    pooled = network.pool(tokens, prefix)
    return ImageFeatures(tokens[:, 0] if config.class_token else None, patches, registers, pooled)
