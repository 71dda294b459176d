"""The resolved settings of a training on sequences, and the recipes for it.

What a run of sequences stores is told from a classifier's by its key `task: sequences`.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_type_hints

from pydantic import TypeAdapter

from vitrail.data.readers.mnist_strings import MNIST_STRINGS
from vitrail.data.readers.sort_digits import SORT_DIGITS
from vitrail.data.sequence_source import Counts
from vitrail.errors import UsageError, VitrailError, nearest
from vitrail.nn import ImageToSequenceConfig, TransformerConfig, ViTConfig
from vitrail.training.recipes import NOT_MEASURED
from vitrail.training.settings import Optimization, RunSettings, refuse_unknown, validated

NetworkConfig = TransformerConfig | ImageToSequenceConfig


@dataclass(frozen=True, kw_only=True)
class SequenceSettings(RunSettings):
    """A training on sequences, completely: with the same settings, data and versions it gives the same weights.

    Attributes:
        task: What tells these settings from a classifier's.
        network: A Transformer where texts are read, an image-to-sequence network where pictures are.
        label_smoothing: Share of each target id that is spread over all ids.
        counts: Samples of each split, of a set that is made.
        separator: What stands between two tokens of a text; empty for one token a character.
        resize: How a picture is brought to the size: see `Preprocessing`.
        background: Grey value around a padded picture, 0 to 255.
    """

    task: Literal["sequences"] = "sequences"
    network: NetworkConfig
    label_smoothing: float = 0.1
    counts: Counts = field(default_factory=Counts)
    separator: str = ""
    resize: Literal["crop", "squash", "pad"] = "pad"
    background: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be learnt."""
        super().__post_init__()
        if not 0 <= self.label_smoothing < 1:
            raise UsageError(
                f"label_smoothing must be from 0 to below 1, got {self.label_smoothing}", "label_smoothing: 0.1"
            )
        if not 0 <= self.background <= 255:
            raise UsageError(f"background must be from 0 to 255, got {self.background}", "background: 0")


def is_sequence_settings(values: Mapping[str, Any]) -> bool:
    """Whether the content of a configuration file is that of a training on sequences."""
    return values.get("task") == "sequences"


def check_given(values: dict[str, Any], where: str) -> None:
    """Hold a configuration file, whole or in part, against what settings may hold; the network is checked later.

    Raises:
        UsageError: A key is unknown or a value impossible; names the key.
    """
    known = asdict(_IMAGES if "encoder" in values.get("network", {}) else _TEXTS)
    if "encoder" not in values.get("network", {}):
        known["network"] |= asdict(_IMAGES)["network"]
    refuse_unknown(values, known, where, "")
    kinds = get_type_hints(SequenceSettings) | {"network": dict[str, Any]}
    for name, value in values.items():
        validated(TypeAdapter(kinds[name]), value, where, name)


def sequence_settings_from_dict(values: dict[str, Any], where: str = "the configuration") -> SequenceSettings:
    """Checked settings from nested dicts.

    Raises:
        UsageError: Names the first key that is unknown, missing or of the wrong type.
    """
    check_given(values, where)
    kinds = get_type_hints(SequenceSettings)
    network = dict(values.get("network", {}))
    kind = ImageToSequenceConfig if "encoder" in network else TransformerConfig
    others = {name: value for name, value in values.items() if name != "network"}
    checked = {name: validated(TypeAdapter(kinds[name]), value, where, name) for name, value in others.items()}
    try:
        return SequenceSettings(**checked, network=kind.from_dict(network))
    except VitrailError as error:
        raise UsageError(f"{where}: {error.problem}", error.hint) from error
    except (TypeError, KeyError) as error:
        raise UsageError(f"{where}: the network is incomplete ({error})", "the config.yaml of a former run") from error


_TEXTS = SequenceSettings(data="", network=TransformerConfig(source_vocabulary=4, target_vocabulary=4))
_IMAGES = SequenceSettings(data="", network=ImageToSequenceConfig(encoder=ViTConfig(classes=0), vocabulary=4))


@dataclass(frozen=True, kw_only=True)
class SequenceRecipe:
    """A named set of choices for a training on sequences.

    Attributes:
        says: What it is for.
        reached: Its result unchanged, with hardware and seeds, or that there is none; said where it is announced.
        pictures: Whether pictures are read; else texts.
        network: Fields of the network's configuration that differ from its defaults.
        optimization: How the weights move.
        label_smoothing: Share of each target id that is spread over all ids.
        counts: Samples of each split, of a set that is made.
        background: Grey value around a padded picture.
    """

    says: str
    reached: str
    pictures: bool
    network: dict[str, Any]
    optimization: Optimization
    label_smoothing: float = 0.1
    counts: Counts = field(default_factory=Counts)
    background: int = 0


_SMALL = {"width": 96, "encoder_depth": 2, "decoder_depth": 2, "heads": 4, "mlp_dim": 192, "norm": "pre"}


def _reader(image: tuple[int, int], patch: tuple[int, int], width: int, depth: int, heads: int) -> dict[str, Any]:
    """A ViT without prefix that reads pictures."""
    return {
        "image_size": image,
        "patch_size": patch,
        "channels": 1,
        "classes": 0,
        "width": width,
        "depth": depth,
        "heads": heads,
        "mlp_dim": 2 * width,
        "class_token": False,
        "pooling": "mean",
        "positions": "sinusoidal-2d",
    }


SEQUENCE_RECIPES: dict[str, SequenceRecipe] = {
    SORT_DIGITS: SequenceRecipe(
        says="strings of up to ten digits, to be put in order",
        reached="all of 2,000 held-out strings exactly right, each of 3 seeds; one thread, 102 s",
        pictures=False,
        network={**_SMALL, "dropout": 0.0},
        optimization=Optimization(
            epochs=8, batch_size=128, learning_rate=2e-3, warmup_epochs=0.5, weight_decay=0.01, average=0.99
        ),
        label_smoothing=0.0,
        counts=Counts(train=30_000),
    ),
    MNIST_STRINGS: SequenceRecipe(
        says="pictures of one to five of MNIST's digits side by side, to be read",
        reached="97.90 and 97.60 % of 2,000 exactly right, one seed each; two threads, 16 min on free cores",
        pictures=True,
        network={
            "encoder": _reader((32, 160), (16, 8), 128, 4, 4),
            "decoder_depth": 2,
            "mlp_dim": 256,
            "dropout": 0.0,
        },
        optimization=Optimization(
            epochs=20, batch_size=64, learning_rate=2e-3, warmup_epochs=0.5, weight_decay=0.05, average=0.999
        ),
        label_smoothing=0.1,
        counts=Counts(train=35_000),
    ),
    "texts": SequenceRecipe(
        says="pairs of texts",
        reached=NOT_MEASURED,
        pictures=False,
        network={**_SMALL, "width": 128, "mlp_dim": 512, "dropout": 0.1},
        optimization=Optimization(epochs=30, batch_size=64, learning_rate=1e-3, warmup_epochs=1.0, average=0.998),
    ),
    "picture-texts": SequenceRecipe(
        says="pictures with a line of text on each",
        reached=NOT_MEASURED,
        pictures=True,
        network={"encoder": _reader((32, 160), (16, 8), 128, 4, 4), "decoder_depth": 2, "mlp_dim": 256, "dropout": 0.1},
        optimization=Optimization(epochs=50, batch_size=64, learning_rate=1e-3, warmup_epochs=1.0, average=0.998),
        background=128,
    ),
}


def choose_sequences(name: str, data: str, pictures: bool) -> tuple[SequenceRecipe, str, str]:
    """The recipe asked for, or the one that fits.

    Args:
        name: A recipe's name, or "auto".
        data: What is trained on.
        pictures: Whether pictures are read.

    Returns:
        The recipe, its name, and the reason in words.

    Raises:
        UsageError: The name is unknown, or the recipe reads something else.
    """
    if name == "auto":
        name = data if data in SEQUENCE_RECIPES else "picture-texts" if pictures else "texts"
        recipe = SEQUENCE_RECIPES[name]
        return recipe, name, recipe.says if name != data else f"the recipe of this set ({recipe.says})"
    fitting = [known for known, recipe in SEQUENCE_RECIPES.items() if recipe.pictures == pictures]
    if name not in fitting:
        guess = nearest(name, fitting) or ", ".join(fitting)
        raise UsageError(f"there is no recipe '{name}' for sequences like those of {data}", f"--recipe {guess}")
    return SEQUENCE_RECIPES[name], name, "asked for"


def counts_of(data: str, recipe: str, given: Mapping[str, Any]) -> Counts:
    """How many samples are made, of a set that is made: as the configuration file says, else as the recipe does.

    Args:
        data: What is trained on.
        recipe: What was asked for, or "auto".
        given: Content of a configuration file, or empty.
    """
    name = data if recipe == "auto" else recipe
    usual = SEQUENCE_RECIPES[name].counts if name in SEQUENCE_RECIPES else Counts()
    return replace(usual, **given.get("counts", {}))
