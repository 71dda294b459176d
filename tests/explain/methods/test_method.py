"""Options as they are typed: read by the annotation of their parameter, and refused in words."""

from collections.abc import Sequence
from typing import Any, Literal

import pytest

from tests.explain.refused import must_refuse
from vitrail.errors import Hint, UsageError, as_word
from vitrail.explain import METHODS
from vitrail.explain.methods import METHODS_OF_TEXTS
from vitrail.explain.methods.method import Option, as_options, listed, options_of, read_options

KINDS: list[tuple[Any, str, Any]] = [
    (int, "-3", -3),
    (float, "1e-3", 1e-3),
    (str, "blocks.1.norm1", "blocks.1.norm1"),
    (bool, "true", True),
    (bool, "false", False),
    (int | None, "none", None),
    (int | None, "4", 4),
    (str | None, "none", None),
    (Literal["head", "mean"], "mean", "mean"),
    (Literal["mean"] | float | Sequence[float], "mean", "mean"),
    (Literal["mean"] | float | Sequence[float], "0.5", 0.5),
    (Literal["mean"] | float | Sequence[float], "0.5,-1,2", (0.5, -1.0, 2.0)),
    (int | tuple[int, int], "2,3", (2, 3)),
]
WRONG: list[tuple[Any, str]] = [
    (int, "1.5"),
    (int, ""),
    (float, "nan"),
    (float, "inf"),
    (float, "half"),
    (bool, "yes"),
    (int | None, "all"),
    (Literal["head", "mean"], "max"),
    (int | tuple[int, int], "2,x"),
    (dict, "{}"),
]


@pytest.mark.parametrize(("kind", "word", "value"), KINDS)
def test_a_word_is_read_by_its_kind(kind: Any, word: str, value: Any) -> None:
    found = Option("x", kind, 0, "").read(word)
    assert (found, type(found)) == (value, type(value))
    typed = as_options([METHODS["rise"]], UsageError("a problem", Hint({"fill": value}))).hint.flags["option"]["fill"]
    assert Option("x", kind, 0, "").read(typed) == value


@pytest.mark.parametrize(("kind", "word"), WRONG)
def test_a_word_of_another_kind_is_refused(kind: Any, word: str) -> None:
    with must_refuse("amount", f"'{word}'") as caught:
        Option("amount", kind, 7, "").read(word)
    assert caught.value.hint.flags == {"option": {"amount": 7}}


def test_what_is_wanted_names_no_kind_twice() -> None:
    with must_refuse("fill", "'foo'") as caught:
        options_of(METHODS["occlusion"])["fill"].read("foo")
    assert caught.value.problem.count("number") == 1


@pytest.mark.parametrize("name", METHODS | METHODS_OF_TEXTS)
def test_every_default_can_be_typed(name: str) -> None:
    for option in options_of((METHODS | METHODS_OF_TEXTS)[name]).values():
        word = as_word(option.default)
        assert option.read(word) == option.default, option


def test_the_options_of_a_method() -> None:
    rise = METHODS["rise"]
    found = read_options(rise, {"masks": "500", "visible": "0.3", "fill": "0.5,0.4,0.3", "seed": 3})
    assert found == {"masks": 500, "visible": 0.3, "fill": (0.5, 0.4, 0.3), "seed": 3}
    for name, flags in (("mask", {"masks": 2000}), ("seeds", {"seed": 0}), ("layer", {})):
        with must_refuse(name, "rise", *options_of(rise)) as caught:
            read_options(rise, {name: "1"})
        hint = caught.value.hint
        assert (hint.flags.get("option", {}), list(hint.drop)) == (flags, [f"option.{name}"])
    with must_refuse("saliency", "seed"):
        read_options(METHODS["saliency"], {"seed": "1"})


@pytest.mark.parametrize(
    ("name", "hint", "wanted"),
    [
        ("smooth_grad", Hint({"noise": 0.15}), {"option": {"noise": "0.15"}}),
        ("raw_attention", Hint({"head": None}, text="all heads"), {"option": {"head": "none"}}),
        ("occlusion", Hint({"window": (2, 3), "stride": 1}), {"option": {"window": "2,3", "stride": "1"}}),
        ("rise", Hint(text="images.to(torch.float32)"), {}),
        ("rise", Hint({"noise": 0.15}), {}),
    ],
)
def test_the_options_of_a_hint_are_typed_inside_of_one(name: str, hint: Hint, wanted: dict[str, object]) -> None:
    """Of `--option`; those of no method that was asked for stay as they are in Python."""
    error = as_options([METHODS[name]], UsageError("a problem", hint))
    assert error.hint.flags == wanted
    assert str(error.hint) == str(hint)
    both = as_options([METHODS[name], METHODS["tam"]], UsageError("a problem", hint))
    assert (both.hint.flags, str(both.hint)) == ({}, str(hint))


def test_the_list_that_loads_no_torch_says_what_the_rows_say() -> None:
    rows = {each.name: each for each in listed()}
    assert rows.keys() == (METHODS | METHODS_OF_TEXTS).keys()
    for name, method in (METHODS | METHODS_OF_TEXTS).items():
        defaults = {option.name: option.default for option in options_of(method).values()}
        assert (rows[name].summary, rows[name].options) == (method.summary, defaults)
