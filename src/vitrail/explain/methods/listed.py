"""What the rows of methods say, read from their files without importing one: for a help text, which loads no torch.

A row is literal (`METHOD = Method(function=rise, name="rise", ...)`, see `method.py`), and defaults of options stand in
the signature of its function; a test holds both against `METHODS`.
"""

import ast
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WIDTH, INDENT = 80, 24


@dataclass(frozen=True)
class Listed:
    """A method in a list.

    Attributes:
        name: What one types.
        says: What a map shows, in one line.
        options: Default of each of its options, by name.
    """

    name: str
    says: str
    options: Mapping[str, Any]

    def lines(self) -> str:
        """For a help text."""
        options = f" ({', '.join(typed(*each) for each in self.options.items())})" if self.options else ""
        text = f"{self.name:<{INDENT - 3}} {self.says}{options}"
        return textwrap.fill(text, WIDTH, initial_indent="  ", subsequent_indent=" " * INDENT, break_on_hyphens=False)


def typed(name: str, value: Any) -> str:
    """An option with a value as one types it: `masks=500`, `head=none`, `baseline=0.5,0.4,0.3`."""
    if value is None or isinstance(value, bool):
        return f"{name}={str(value).lower()}"
    return f"{name}={','.join(map(str, value)) if isinstance(value, list | tuple) else value}"


def listed(folder: Path = Path(__file__).parent) -> list[Listed]:
    """The methods whose files lie in a folder, by name."""
    return [row for file in sorted(folder.glob("*.py")) for row in rows_of(file.read_text(encoding="utf-8"))]


def rows_of(source: str) -> Iterator[Listed]:
    """The rows `METHOD = Method(...)` of a file, by its text."""
    body = ast.parse(source).body
    functions = {node.name: node.args for node in body if isinstance(node, ast.FunctionDef)}
    for node in body:
        match node:
            case ast.Assign([ast.Name("METHOD")], ast.Call(keywords=said)):
                row = {each.arg: each.value for each in said}
                taken = functions[ast.unparse(row["function"])]
                options = {
                    arg.arg: ast.literal_eval(default)
                    for arg, default in zip(taken.kwonlyargs, taken.kw_defaults, strict=True)
                    if default is not None
                }
                yield Listed(ast.literal_eval(row["name"]), ast.literal_eval(row["says"]), options)
