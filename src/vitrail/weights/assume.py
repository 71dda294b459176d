"""What the user states of pretrained weights, by name, where no tensor shows it: `assume=` and `--assume`.

heads, norm_eps, activation, ...   fields of `ViTConfig`; `image_size` is that of the images that the weights were
                                   made for, where positions make no square
pooling                            also one that has tensors of its own
rotary, periods                    a published rotation by its name, see `rotations.py`; `file` for periods of the file
norms                              `before` the branches, of an own network with EVA's names and without LayerScale
mean, std                          of the preprocessing: one number, or one for each channel
prefix                             of the network that is meant, such as `student.`, in a file of several
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import field, fields, make_dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from vitrail.arguments import parse_word
from vitrail.errors import DataError, Hint, UsageError, check_fields, nearest, raised_as, words_inside
from vitrail.nn import ViTConfig
from vitrail.nn.parts import TABLE
from vitrail.weights.published import distinguish, wordnet_ids
from vitrail.weights.rotations import PUBLISHED

STATISTICS = ("mean", "std")
POOLINGS = ("class", "mean", *TABLE["pooling"])
NAMED: dict[str, Any] = {
    "pooling": Literal[POOLINGS],  # pyrefly: ignore[not-a-type]
    "rotary": Literal[tuple(PUBLISHED)],  # pyrefly: ignore[invalid-literal]
    "periods": Literal["file"],
    "norms": Literal["before"],
    "prefix": str,
}
TYPES: dict[str, Any] = {**get_type_hints(ViTConfig), **NAMED}
ZERO = ("classes", "registers")  # which may be 0, as in `ViTConfig`
NOISE = ("dropout", "embedding_dropout", "attention_dropout", "stochastic_depth")
Assumed = make_dataclass("Assumed", [(name, kind | None, field(default=None)) for name, kind in TYPES.items()])
HEADS = "where N is the number it was trained with"


class _Unknown(str):
    """Stands in a hint for a number that only those who trained the network know."""

    def __repr__(self) -> str:
        return str(self)


UNKNOWN = _Unknown("N")
UNKNOWN_SIZE = _Unknown("HEIGHT"), _Unknown("WIDTH")
EXAMPLES: dict[str, Any] = {each.name: each.default for each in fields(ViTConfig)}
EXAMPLES |= {
    "mean": 0.5,
    "std": 0.5,
    "heads": UNKNOWN,
    "rotary": "dinov3",
    "periods": "file",
    "prefix": "model.",
    "norms": "before",
}


class Contradiction(DataError):
    """Tensors differ from what a file or the user states under a name."""

    def __init__(self, problem: str, hint: str | Hint, names: Sequence[str] = ()) -> None:
        super().__init__(problem, hint)
        self.names = names


def hint_for(values: Mapping[str, Any], text: str = "", gone: Sequence[str] = ()) -> Hint:
    """How values are stated, in Python and on the command line.

    Args:
        values: By name.
        text: What stands behind them.
        gone: Names that were stated and are left out.
    """
    inner = {name: value for name, value in values.items() if name not in STATISTICS}
    flags = {"assume": inner} if inner else {}
    flags |= {name: value for name, value in values.items() if name in STATISTICS}
    return Hint(flags, [f"assume.{name}" for name in gone], text, f"assume={dict(values)}{', ' * bool(text)}{text}")


def assume_words(assume: Mapping[str, Any]) -> str:
    """Assumptions as they stand behind `--assume`."""
    return ",".join(words_inside(assume))


def load_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """What was typed of weights and of the size of images, as arguments of `vitrail.load`.

    Args:
        options: By name; None of what was not typed. `assume` and `class_names` are the words.

    Raises:
        UsageError: A value cannot be read.
        DataError: The file of class names cannot.
    """
    given = {name: value for name, value in options.items() if value is not None}
    assume = parse_assume(given["assume"]) if "assume" in given else {}
    assume |= {name: tuple(given[name]) for name in STATISTICS if name in given}
    found: dict[str, Any] = {"assume": assume} if assume else {}
    if "class_names" in given:
        found["classes"] = read_names(Path(given["class_names"]))
    size = given.get("image_size")
    found |= {} if size is None else {"image_size": tuple(size) if isinstance(size, list) else size}
    return found | {name: given[name] for name in ("channels", "bits") if name in given}


def parse_assume(text: str) -> dict[str, Any]:
    """The value of `--assume`: NAME=VALUE with commas between, of numbers, sizes such as 16x24, and words.

    Raises:
        UsageError: A part is not NAME=VALUE, or a name has two values.
    """
    found: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, word = (each.strip() for each in part.partition("="))
        if not (name and equals and word):
            problem = f"--assume has '{part}', which is not NAME=VALUE"
            raise UsageError(problem, hint_for({"heads": 6, "norm_eps": 1e-6}, gone=[part]))
        value: Any = word
        with suppress(ValueError):  # what it is not is refused by `checked`
            value = parse_word(TYPES.get(name, float if name in STATISTICS else str), word)
        if found.setdefault(name, value) != value:
            problem = f"--assume has both {name}={found[name]} and {name}={value}"
            raise UsageError(problem, hint_for({name: value}, "or the other alone"))
    return found


def read_names(file: Path) -> tuple[str, ...]:
    """The class names in a file, one a line; empty lines are ignored.

    Raises:
        DataError: It cannot be read, or two classes have one name.
    """
    hint = "a text file with one name per line"
    with raised_as(DataError, f"the class names in {file} cannot be read", hint, (OSError, UnicodeDecodeError)):
        lines = [line.strip() for line in file.read_text(encoding="utf-8-sig").splitlines()]
    names = tuple(filter(None, lines))
    twice = [] if wordnet_ids(names) else [name for name, count in Counter(names).items() if count > 1]
    if twice:
        first, second = [number for number, line in enumerate(lines, start=1) if line == twice[0]][:2]
        problem = f"{file}: lines {first} and {second} are both '{twice[0]}', but class names must differ"
        raise DataError(problem, f"another name in line {second}")
    return check_names(names)


def check_assume(assume: Mapping[str, Any] | None) -> dict[str, Any]:
    """The assumptions, each of the right kind; mean and standard deviation as tuples.

    Raises:
        UsageError: A name is unknown, or a value is of the wrong type; names it.
    """
    if assume is None:
        return {}
    if not isinstance(assume, Mapping):
        raise UsageError(f"assume must be values by name, got {type(assume).__name__}", hint_for({"heads": 12}))
    found = {name: value for name, value in assume.items() if value is not None}
    known = [*TYPES, *STATISTICS]
    for name in found:
        if name not in known:
            close = nearest(str(name), known)
            meant, more = ({close: found[name]}, "") if close else ({"heads": 12}, "or another field of ViTConfig")
            hint = hint_for(meant, more, gone=[name])
            raise UsageError(f"assume has '{name}', which is not a field of any network", hint)
    for name, value in found.items():
        if name in STATISTICS:
            found[name] = _numbers(name, value)
            continue
        try:
            check_fields(Assumed(**{name: value}), may_be_zero=ZERO, below_one=NOISE)
        except UsageError as error:
            choices = get_args(TYPES[name]) if get_origin(TYPES[name]) is Literal else ()
            example = nearest(str(value), choices) or EXAMPLES[name]
            hint = hint_for({name: example}, HEADS if example is UNKNOWN else "")
            raise UsageError(f"assume: {error.problem}", hint) from error
        found[name] = tuple(value) if isinstance(value, list) else value
    return found


def check_names(names: Sequence[str]) -> tuple[str, ...]:
    """Class names in the order of the logits; two classes of ImageNet that share a name are told apart.

    Raises:
        UsageError: If they are not a sequence of texts.
    """
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(each, str) for each in names):
        raise UsageError(f"classes must be names in the order of the logits, got {names!r}", "classes=['cat', 'dog']")
    return distinguish(names) if wordnet_ids(names) else tuple(names)


def _numbers(name: str, value: Any) -> tuple[float, ...]:
    """Mean or standard deviation: of values from 0 to 1, one for all channels or one for each."""
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in values)
    if not numbers or len(values) not in (1, 3) or not all(0 <= v <= 1 and (v or name == "mean") for v in values):
        above = "from 0 to 1" if name == "mean" else "above 0, at most 1"
        problem = f"assume: {name} must be one number or three, {above} (of pixels from 0 to 1), got {value!r}"
        raise UsageError(problem, hint_for({name: 0.5}))
    return tuple(map(float, values))
