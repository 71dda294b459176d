"""Options as they are typed: read by the annotation of their parameter, and refused in words."""

from collections.abc import Sequence
from typing import Any, Literal

import pytest
from torch import Tensor

from tests.explain.refused import must_refuse
from vitrail.errors import Hint, UsageError, as_word
from vitrail.explain import METHODS
from vitrail.explain.methods import METHODS_OF_TEXTS
from vitrail.explain.methods.method import as_options, read_options, read_word

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
    (Literal["mean"] | float | Sequence[float] | Tensor, "mean", "mean"),
    (Literal["mean"] | float | Sequence[float] | Tensor, "0.5", 0.5),
    (Literal["mean"] | float | Sequence[float] | Tensor, "0.5,-1,2", (0.5, -1.0, 2.0)),
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
    found = read_word("x", kind, word, 0)
    assert (found, type(found)) == (value, type(value))
    typed = as_options([METHODS["rise"]], UsageError("a problem", Hint({"fill": value}))).hint.flags["option"]["fill"]
    assert read_word("x", kind, typed, 0) == value


@pytest.mark.parametrize(("kind", "word"), WRONG)
def test_a_word_of_another_kind_is_refused(kind: Any, word: str) -> None:
    with must_refuse("amount", f"'{word}'") as caught:
        read_word("amount", kind, word, 7)
    assert caught.value.hint.flags == {"option": {"amount": 7}}


def test_what_is_wanted_names_no_kind_twice() -> None:
    with must_refuse("fill", "'foo'") as caught:
        read_options(METHODS["occlusion"], {"fill": "foo"})
    assert caught.value.problem.count("number") == 1


WITH_OPTIONS = {name: method for name, method in (METHODS | METHODS_OF_TEXTS).items() if method.options}


@pytest.mark.parametrize("name", WITH_OPTIONS)
def test_every_default_can_be_typed(name: str) -> None:
    method = WITH_OPTIONS[name]
    for option, row in method.options.items():
        assert read_options(method, {option: as_word(row.default)}) == {option: row.default}


def test_the_options_of_a_method() -> None:
    rise = METHODS["rise"]
    found = read_options(rise, {"masks": "500", "visible": "0.3", "fill": "0.5,0.4,0.3", "seed": 3})
    assert found == {"masks": 500, "visible": 0.3, "fill": (0.5, 0.4, 0.3), "seed": 3}
    for name, flags in (("mask", {"masks": 2000}), ("seeds", {"seed": 0}), ("layer", {})):
        with must_refuse(name, "rise", *rise.options) as caught:
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
        ("occlusion", Hint({"window": (2, 3), "stride": 1}), {"option": {"window": "2x3", "stride": "1"}}),
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
