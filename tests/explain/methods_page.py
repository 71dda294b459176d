"""The tables of methods in `docs/methods.md`, as the rows of the methods have them.

python -m tests.explain.methods_page     # writes them anew, between the marks of the page
"""

import inspect
import sys
from collections.abc import Iterable
from pathlib import Path

from vitrail.errors import as_word
from vitrail.explain import METHODS, Method
from vitrail.explain.methods import METHODS_OF_TEXTS

PAGE = Path(__file__).parents[2] / "docs" / "methods.md"
START, END = "<!-- made by `python -m tests.explain.methods_page` -->", "<!-- end -->"


def tables_of(methods: Iterable[Method]) -> str:
    """A line for each method, one for where it comes from, then one for each of their options."""
    rows = list(methods)
    lines = ["| `--method` | a map shows | classes | sign | networks | passes |", "|---|---|---|---|---|---|"]
    for each in rows:
        marks = "yes" if each.class_specific else "no", "±" if each.signed else "", "any" if each.any_network else "ViT"
        lines.append(f"| `{each.name}` | {each.summary} | {' | '.join(marks)} | {each.cost} |")
    lines += ["", *(f"- `{each.name}`: {source_of(each)}" for each in rows)]
    lines += ["", "| method | option and its default | what it is |", "|---|---|---|"]
    lines += [
        f"| `{each.name}` | `{name}={as_word(option.default)}` | {option.help} |"
        for each in rows
        for name, option in each.options.items()
    ]
    return "\n".join(lines)


def source_of(method: Method) -> str:
    """Where a method comes from: the first line of its file."""
    return (sys.modules[inspect.unwrap(method.function).__module__].__doc__ or "").partition("\n")[0].removesuffix(".")


def written(text: str, tables: str) -> str:
    """A page with these tables between its marks."""
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    assert start, f"the page has no mark {START}"
    assert end, f"the page has no mark {END}"
    return f"{before}{START}\n{tables}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8"), tables_of((METHODS | METHODS_OF_TEXTS).values())), "utf-8")
