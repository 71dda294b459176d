"""The settings of a run: all that decides its result, as one frozen value and as `config.yaml`.

`config.yaml` is read strictly: an unknown key or a value of the wrong type is an error that names the key.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import yaml
from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from vitrail.data.augmentation import Augmentation
from vitrail.data.dataset import Counts
from vitrail.data.layout import AS_FOUND, Layout
from vitrail.errors import Hint, UsageError, VitrailError, nearest
from vitrail.nn import ViTConfig
from vitrail.nn.networks import NETWORKS, NetworkConfig, config_from_dict, config_to_dict, reads_of
from vitrail.options import Keep, TrainOptions
from vitrail.weights.places import HUBS

ASSUME = "teacher_assume"
EARLIER = "sections and keys, such as `optimization: {epochs: 20}`; the config.yaml of any run shows all of them"
WEIGHTS = "class_weights"
WHOLE = (ASSUME, "assume", "reads", WEIGHTS)  # whose values, of any names, are one setting
OPTIONS = "the options"  # in a message, in place of a file
RENAMED = {"init": "source", "lr": "learning_rate", "distillation": "kind"}  # options, and the settings they decide


AtLeast0 = Annotated[int, Field(ge=0)]
AtLeast1 = Annotated[int, Field(ge=1)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Below1 = Annotated[float, Field(ge=0, lt=1)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]


def _check_assumed(assume: dict[str, Any]) -> dict[str, Any]:
    from vitrail.weights.assume import check_assume  # which a run that started from no weights does not need

    return check_assume(assume)


Assumptions = Annotated[dict[str, Any], AfterValidator(_check_assumed)]


@cache
def _adapters(kind: type) -> dict[str, TypeAdapter]:
    return {name: TypeAdapter(hint) for name, hint in get_type_hints(kind, include_extras=True).items()}


@dataclass(frozen=True, kw_only=True)
class Optimization:
    """Optimizer, schedule and length of a training.

    Attributes:
        epochs: Passes over the training samples.
        batch_size: Samples per step.
        learning_rate: The peak of the schedule.
        schedule: After the warm-up: half a cosine down to 0, or constant.
        warmup_epochs: Epochs in which the rate rises linearly from 0.
        weight_decay: AdamW's, on matrices only.
        betas: Adam's.
        clip_grad_norm: Largest norm of the whole gradient; 0 for no clipping.
        ema_decay: Decay of the exponential moving average (EMA) of the weights that is evaluated and saved; 0: none.
        accumulate: Micro-batches per batch.
        layer_decay: Learning rate of each layer as a fraction of that of the next layer; 1 for the same rate.
        lora: Rank of the adapters that are trained instead of the weights; 0 for none.
        max_time: Time limit of the whole run in seconds, which then makes as many steps as fit; 0 for no limit.
        patience: Epochs without improvement on the split *select* after which the training ends; 0 for no such end.
    """

    epochs: AtLeast1 = 20
    batch_size: AtLeast1 = 128
    learning_rate: NotNegative = 1e-3
    schedule: Literal["cosine", "constant"] = "cosine"
    warmup_epochs: NotNegative = 1.0
    weight_decay: NotNegative = 0.05
    betas: tuple[Below1, Below1] = (0.9, 0.999)
    clip_grad_norm: NotNegative = 1.0
    ema_decay: Below1 = 0.0
    accumulate: AtLeast1 = 1
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    lora: AtLeast0 = 0
    max_time: NotNegative = 0.0
    patience: AtLeast0 = 0


@dataclass(frozen=True, kw_only=True)
class Rare:
    """What a training does for rare classes; an evaluation and every loss that is reported are as without it.

    Attributes:
        class_weights: Of each class in the training loss, of mean 1 over the training samples: auto for the inverse of
            its frequency, or by name; None for none.
        balance: Whether every class is drawn equally often.
        logit_adjustment: The training loss sees logits plus this times the logarithm of the class's frequency.
        asymmetric: Of several labels an image: negative, positive and clip of `vitrail.tasks.losses.asymmetric`.
    """

    class_weights: Literal["auto"] | dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]] | None = None
    balance: bool = False
    logit_adjustment: NotNegative = 0.0
    asymmetric: tuple[NotNegative, NotNegative, Annotated[float, Field(ge=0, lt=1)]] | None = None

    @property
    def words(self) -> str:
        """All of it in a few words, for cards; empty for nothing."""
        weights = f"class weights {'auto' if self.class_weights == 'auto' else 'from a file'}" * bool(
            self.class_weights
        )
        adjusted = f"logit adjustment {self.logit_adjustment:g}" * bool(self.logit_adjustment)
        focused = f"asymmetric loss {','.join(f'{each:g}' for each in self.asymmetric or ())}" * bool(self.asymmetric)
        return ", ".join(filter(None, (weights, "balanced sampling" * self.balance, adjusted, focused)))


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Device and speed of a training; chosen once, stored, and used again when the run is resumed.

    Attributes:
        device: Such as cpu or cuda:0.
        threads: CPU threads of torch.
        precision: Of matrix products: fp32, or bf16 by autocast.
        compile: Whether torch.compile is used.
        workers: Processes that decode images (threads, where the data set fits in memory).
    """

    device: str = "cpu"
    threads: AtLeast1 = 1
    precision: Literal["fp32", "bf16"] = "fp32"
    compile: bool = False
    workers: AtLeast0 = 2


@dataclass(frozen=True, kw_only=True)
class Distillation:
    """Teacher and loss of a distillation.

    Attributes:
        teacher: What `open_teacher` opens, or python:NAME for one that was passed as an object.
        teacher_weights: Of a torchvision or timm teacher: pretrained, random, or a file.
        teacher_size: Side of the teacher's images in pixels; 0 for its own.
        teacher_assume: What the weights do not say of themselves, as `vitrail.load` takes it.
        teacher_classes: Class names of the logits, where the weights have none.
        identity: Hash of the teacher's weights; a run is resumed only with the same ones.
        fit_head: Whether the teacher has a new head for the classes here, on its frozen features.
        kind: soft: learn the teacher's probabilities; hard: learn its top class.
        temperature: The logits of both are divided by it (soft).
        alpha: Fraction of the loss that is the teacher's term; the rest is that of the labels.
        cache: Whether the teacher's predictions are computed once per image, without augmentation, and stored.
    """

    teacher: str
    teacher_weights: str = "pretrained"
    teacher_size: AtLeast0 = 0
    teacher_assume: Assumptions = field(default_factory=dict)
    teacher_classes: tuple[str, ...] = ()
    identity: str = ""
    fit_head: bool = False
    kind: Literal["soft", "hard"] = "soft"
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 3.0
    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5
    cache: bool = False


@dataclass(frozen=True, kw_only=True)
class Initial:
    """The pretrained weights of a training.

    Attributes:
        source: What `vitrail.load` opens.
        assume: What the weights do not say of themselves, as `vitrail.load` takes it.
        identity: Hash of the weights.
        reads: Their preprocessing, as `Preprocessing.to_dict` gives it.
        licence: Of the weights, where it is known.
        probe: Whether only the head is trained.
    """

    source: str
    assume: Assumptions = field(default_factory=dict)
    identity: str = ""
    reads: dict[str, Any] = field(default_factory=dict)
    licence: str = ""
    probe: bool = False


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of a run: the same settings, data and versions give the same weights.

    Attributes:
        data: A named set, a folder or a list.
        data_root: Folder of the named sets; empty for the default.
        task: What is learnt.
        split_seed: Of splits that vitrail made.
        seed: Of everything else.
        recipe: The recipe that decided what was left open.
        decode_size: Height in pixels at which images are read for training, before random crops, with the width in the
            network's proportion; 0 for the network's.
        resize: See `Preprocessing`.
        bits: The same; None where no image of 16 bits was seen.
        pad_value: Grey value around a padded image and behind transparent pixels, 0 to 255.
        separator: Between two tokens of a text; empty for one token per character.
        counts: Samples of each split of a generated data set.
        layout: Columns, groups and fractions of the data, where they were named.
        keep: The network that becomes the model: the best checkpoint (or the probe), the last network, or the probe.
        unreadable: The fraction of the images of a split that may be unreadable; one may be in any case.
        background: Whether the model has shuffled patches of training images, to test explanations with.
        calibration: Whether validation images calibrate its probabilities; runs of before that was there have none.
        network: Configuration of the network.
        augmentation: Of training images; and label smoothing.
        optimization: Optimizer, schedule and length.
        rare: What is done for rare classes.
        execution: Device and speed.
        initial: The pretrained weights; None for random ones.
        distillation: Teacher and loss; None without a teacher.
        own: Names of what was passed as an object (task, reader, network, parts, objective); resuming takes the same
            objects again.
    """

    data: str
    data_root: str = ""
    task: str = "classify"
    split_seed: Seed = 0
    seed: Seed = 0
    recipe: str = "custom"
    decode_size: int = 0
    resize: Literal["crop", "squash", "pad"] = "crop"
    bits: Literal[8, 10, 12, 14, 16] | None = None
    pad_value: Annotated[int, Field(ge=0, le=255)] = 128
    separator: str = ""
    counts: Counts = field(default_factory=Counts)
    layout: Layout = AS_FOUND
    keep: Keep = "auto"
    unreadable: Below1 = 0.01
    background: bool = True
    calibration: bool = False
    network: NetworkConfig
    augmentation: Augmentation = field(default_factory=Augmentation)
    optimization: Optimization = field(default_factory=Optimization)
    rare: Rare = field(default_factory=Rare)
    execution: Execution = field(default_factory=Execution)
    initial: Initial | None = None
    distillation: Distillation | None = None
    own: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse to read images smaller than the network wants them."""
        image = image_config(self.network)
        if self.decode_size and image is not None and self.decode_size < image.image[0]:
            problem = f"decode_size must be 0 or at least the network's {image.image[0]} pixels, got {self.decode_size}"
            raise UsageError(problem, f"decode_size: {image.image[0]}")

    @property
    def selected(self) -> Literal["best", "tuned", "probe"]:
        """The network that becomes the model; what `keep` leaves open is decided."""
        if self.fits_head:
            return "probe"
        chooses = self.initial is not None or self.optimization.patience > 0
        return ("best" if chooses else "tuned") if self.keep == "auto" else self.keep

    @property
    def least_steps(self) -> int:
        """The fewest steps that give a model: none where there is the probe, unless the tuned network is wanted."""
        return 0 if self.initial is not None and self.keep != "tuned" else 1

    @property
    def fits_head(self) -> bool:
        """Whether only the head is trained, on features that are computed once: `--probe`."""
        return self.initial is not None and self.initial.probe

    @property
    def chooses(self) -> bool:
        """Whether a network is chosen on validation samples, which are then cut into parts."""
        return self.optimization.patience > 0 or self.selected == "best"

    def initial_facts(self) -> dict[str, str]:
        """The pretrained weights and their licence, for cards; empty without."""
        if self.initial is None:
            return {}
        source = self.initial.source
        init = source if source.startswith(HUBS) else Path(source).name  # a card names no folders
        return {"init": init, **({"licence": self.initial.licence} if self.initial.licence else {})}

    def distillation_facts(self, probable: bool) -> dict[str, str]:
        """The teacher and the loss, for cards and pages; empty without a teacher.

        Args:
            probable: Whether answers have probabilities; else there is nothing that a temperature would soften.
        """
        how = self.distillation
        if how is None:
            return {}
        soft = f", temperature {how.temperature:g}" if how.kind == "soft" else ""
        token = isinstance(self.network, ViTConfig) and self.network.distillation_token
        where = "by a distillation token" if token else "on the class head"
        kind = f"{how.kind}{soft}" if probable else "by its numbers"
        return {"teacher": how.teacher, "distillation": f"{kind}, alpha {how.alpha:g}, {where}"}


SECTIONS: dict[str, type] = {
    "": Settings,
    "network": ViTConfig,
    "initial": Initial,
    "optimization": Optimization,
    "rare": Rare,
    "execution": Execution,
    "distillation": Distillation,
    "layout": Layout,
}


def settings_of(options: TrainOptions) -> dict[str, tuple[str, str]]:
    """Section and key of the setting that each option decides; without the options that decide none."""
    places = {each.name: section for section, kind in SECTIONS.items() for each in fields(kind)}
    keys = {each.name: RENAMED.get(each.name, each.name) for each in fields(options)}
    return {name: (places[key], key) for name, key in keys.items() if key in places}


def option_of(key: str) -> str:
    """The option that decides a setting; the key itself where none does."""
    return {decided: name for name, decided in RENAMED.items()}.get(key, key)


def image_config(network: NetworkConfig) -> ViTConfig | None:
    """The part of a network's configuration that reads images; None where texts are read."""
    reads = reads_of(network)
    return None if isinstance(reads, int) else reads


def settings_to_yaml(settings: Settings) -> str:
    """Text that reads back into equal settings by `settings_from_dict(yaml.safe_load(text))`."""
    plain = json.loads(json.dumps(settings_to_dict(settings)))  # tuples as lists
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)


def settings_to_dict(settings: Settings) -> dict[str, Any]:
    """Nested plain values."""
    return {**asdict(settings), "network": config_to_dict(settings.network)}


def lay_over(values: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with everything in `above` laid over it, section by section."""
    laid = dict(values)
    for key, value in above.items():
        inner = laid.get(key)
        both = isinstance(inner, dict) and isinstance(value, dict) and key != WEIGHTS  # of one file alone
        laid[key] = lay_over(inner, value) if both else value
    return laid


def changes(settings: Settings, above: Mapping[str, Any], where: str) -> list[tuple[str, Any, Any]]:
    """The settings that nested values change: name, old value, new value.

    Raises:
        UsageError: A key is unknown, or a value is not possible.
    """
    stored = settings_to_dict(settings)
    laid = lay_over(stored, above)
    if laid["network"] != stored["network"] and "decode_size" not in above:
        laid["decode_size"] = stored["decode_size"] = 0  # which goes with the image size
    return differences(stored, settings_to_dict(settings_from_dict(laid, where)))


def differences(former: Mapping[str, Any], present: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """What differs in nested values: name, old value, new value; None where one of them is not there."""
    before, after = dict(_leaves(former)), dict(_leaves(present))
    found = {place: (before.get(place), after.get(place)) for place in {**before, **after}}
    return [(place[-1], old, new) for place, (old, new) in found.items() if old != new]


def _leaves(values: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value with its keys, from the outermost."""
    for key, value in values.items():
        inside = isinstance(value, Mapping) and key not in WHOLE
        yield from _leaves(value, (*above, key)) if inside else [((*above, key), value)]


def read_yaml(path: Path, hint: str | Hint = EARLIER) -> dict[str, Any]:
    """A configuration file as nested dicts.

    Args:
        path: The file.
        hint: What to try when it cannot be used.

    Raises:
        UsageError: If the file is missing or is not a YAML mapping.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"there is no configuration file {path}", hint) from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"{path} cannot be read as YAML ({error})".replace("\n", " "), hint) from error
    if not isinstance(content, dict):
        problem = "is empty" if content is None else "must hold keys and values"
        raise UsageError(f"{path} {problem}", hint)
    return content


def read_given(path: Path) -> dict[str, Any]:
    """A configuration file, whole or in part, with every key and value checked as far as it can be on its own.

    Raises:
        UsageError: If the file cannot be read, or a key is unknown or a value impossible; names the key.
    """
    values = read_yaml(path)
    _checked(values, str(path))
    return values


def check_values(values: Mapping[str, Any], where: str = OPTIONS) -> None:
    """Hold values, nested as the settings are, against the kind of each; they need not be complete.

    Args:
        values: Of the options, or of a file.
        where: What is to blame, in a message.

    Raises:
        UsageError: Names the first that is not possible, and its usual value.
    """
    for section, kind in SECTIONS.items():
        given = values.get(section) or {} if section else values
        for name in _adapters(kind).keys() & given.keys() - SECTIONS.keys():
            validate(_adapters(kind)[name], given[name], where, f"{section}.{name}".strip("."))


def settings_from_dict(values: Mapping[str, Any], where: str = "the configuration") -> Settings:
    """Checked settings from nested dicts.

    Raises:
        UsageError: Names the first key that is unknown, missing or of the wrong type.
    """
    checked = _checked(dict(values), where)
    try:
        return Settings(**checked | {"network": config_from_dict(checked["network"])})
    except VitrailError as error:
        raise UsageError(f"{where}: {error.problem.removeprefix(f'{where}: ')}", error.hint) from error
    except (TypeError, KeyError) as error:
        raise UsageError(f"{where}: the settings are incomplete ({error})", EARLIER) from error


def _checked(values: dict[str, Any], where: str) -> dict[str, Any]:
    """The values as fields of `Settings`, each checked on its own; the network as it is."""
    network = values.get("network", {})
    kind = network.get("kind") if isinstance(network, dict) else None
    known = _keys(Settings)
    known["network"] = {"kind": {}, **(_keys(NETWORKS[kind][0]) if kind in NETWORKS else known["network"])}
    refuse_unknown(values, known, where, "")
    adapters = {**_adapters(Settings), "network": TypeAdapter(dict[str, Any])}
    checked = {name: validate(adapters[name], value, where, name) for name, value in values.items()}
    check_values({"network": network} if kind == "ViT" else {}, where)
    return checked


def _keys(kind: Any) -> dict[str, Any]:
    """The keys of a dataclass, or of each of a union, with the keys inside of them; empty for plain values."""
    if is_dataclass(kind):
        return {name: _keys(hint) for name, hint in get_type_hints(kind).items()}
    return {name: inside for each in get_args(kind) for name, inside in _keys(each).items()}


def validate(adapter: TypeAdapter, value: Any, where: str, name: str) -> Any:
    """A checked value.

    Raises:
        UsageError: Says where, which key, and what is wrong with it.
    """
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        first = next(iter(error.errors()))
        key = ".".join(str(part) for part in (name, *first["loc"]) if part != "")
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        ours = first.get("ctx", {}).get("error")
        if isinstance(ours, VitrailError):  # from a dataclass of ours, which knows what to try
            raise UsageError(f"{where}: {key}: {ours.problem}{more}".replace(": :", ":"), ours.hint) from error
        hint = _possible(key, where)
        raise UsageError(f"{where}: {key}: {first['msg']}, got {first['input']!r}{more}", hint) from error


def _possible(key: str, where: str) -> str | Hint:
    """The default of a key: in a file, or for an option."""
    section, _, name = key.rpartition(".")
    found = getattr(SECTIONS.get(section), name, None)
    if not isinstance(found, bool | int | float | str):
        return Hint(drop=[option_of(name)]) if where == OPTIONS else f"the file without {key}"
    return Hint({option_of(name): found}) if where == OPTIONS else f"{name}: {found}"


def refuse_unknown(values: dict[str, Any], known: dict[str, Any], where: str, path: str) -> None:
    """Refuse an unknown key of nested values.

    Raises:
        UsageError: Names the key and the nearest known one.
    """
    for key, value in values.items():
        if key not in known:
            within = {name: f"{section}.{name}" for section, inner in known.items() for name in inner}
            within |= {name: name for name in known}
            within |= {option: within[name] for option, name in RENAMED.items() if name in within}
            guess = within.get(nearest(str(key), within) or "")
            raise UsageError(f"{where}: unknown key '{path}{key}'", f"{path}{guess}" if guess else ", ".join(known))
        if isinstance(value, dict) and known[key]:
            refuse_unknown(value, known[key], where, f"{path}{key}.")
