"""The house keeps its order: who may import whom, what is public, and how long a file may be.

Read from the syntax of the files, so that an import inside a function counts as well.
"""

import ast
import importlib
import io
import os
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "vitrail"
FILES = sorted(SOURCE.rglob("*.py"))
PACKAGES = sorted(path.parent for path in SOURCE.rglob("__init__.py"))
LONGEST = 320

# Who may import whom, from below: each may import those that stand above it here, as far as they are named. `errors` is
# open to all; nothing but `__main__` imports `cli`.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "io": set(),
    "text": set(),
    "runtime": set(),
    "pages": {"io", "text"},
    "nn": set(),
    "data": {"io", "runtime"},
    "weights": {"nn", "data"},
    "tasks": {"text", "pages", "nn", "data"},
    "model": {"io", "text", "nn", "data", "weights", "tasks"},
    "explain": {"text", "pages", "nn", "data", "weights"},
    "training": {"io", "text", "runtime", "pages", "nn", "data", "weights", "tasks", "model", "explain"},
    "deploy": {"io", "text", "runtime", "pages", "nn", "data", "weights", "tasks", "model", "explain"},
    "": {"nn", "data", "tasks", "model", "explain", "training", "deploy"},  # vitrail/__init__.py
    "cli": {
        "io",
        "text",
        "runtime",
        "pages",
        "nn",
        "data",
        "weights",
        "tasks",
        "model",
        "explain",
        "training",
        "deploy",
        "",
    },
    "__main__": {"cli"},  # python -m vitrail
}
# Libraries that are not Python's: for some parts all they may use, for some what they may not.
ONLY = {"errors": set(), "io": set(), "text": set(), "runtime": {"torch"}, "nn": {"torch", "jaxtyping"}}
NEVER = {"pages": {"torch", "torchvision"}}
NEVER_ANYWHERE = {
    "accelerate",
    "datasets",
    "gradio",
    "hydra",
    "lightning",
    "pandas",
    "pickle",
    "plotly",
    "pytorch_lightning",
    "torchmetrics",
}
ONLY_IN_WEIGHTS = {"timm", "transformers"}


def part_of(module: str) -> str:
    """`nn` of `vitrail.nn.vit`; the empty word of `vitrail` itself."""
    return [*module.split("."), ""][1]


def module_of(path: Path) -> str:
    parts = ("vitrail", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(text: str, module: str, is_package: bool = False) -> Iterator[str]:
    """Every module that a file names in an import, at any depth of its code."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: len(module.split(".")) - node.level + is_package] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{origin}.{alias.name}" for alias in node.names) if origin == "vitrail" else (origin,)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in (
            "import_module",
            "__import__",
        ):
            yield from (part.value for part in node.args[:1] if isinstance(part, ast.Constant))


def faults(text: str, module: str, is_package: bool = False) -> list[str]:
    """What a file imports and should not."""
    part, found = part_of(module), []
    for name in imports(text, module, is_package):
        top = name.split(".")[0]
        if top == "vitrail":
            other = part_of(name)
            if other not in MAY_IMPORT[part] | {part, "errors"}:
                found.append(f"{module} imports {name}")
            continue
        refused = NEVER_ANYWHERE | NEVER.get(part, set()) | (set() if part == "weights" else ONLY_IN_WEIGHTS)
        foreign = top not in sys.stdlib_module_names
        if top in refused or (foreign and part in ONLY and top not in ONLY[part]):
            found.append(f"{module} imports {name}")
        if top == "__future__" and "jaxtyping" in text:
            found.append(f"{module} turns the shapes of jaxtyping into strings")
    return found


def test_every_file_imports_only_what_it_may():
    parts = {part_of(module_of(path)) for path in FILES}
    assert parts <= set(MAY_IMPORT), "a new part of the house: say in MAY_IMPORT what it may import"
    found = {path: faults(path.read_text(), module_of(path), path.name == "__init__.py") for path in FILES}
    assert [fault for each in found.values() for fault in each] == []


def test_no_two_parts_import_each_other():
    for part, others in MAY_IMPORT.items():
        for other in others - {""}:
            assert part not in MAY_IMPORT[other], f"{part} and {other}"
    assert [part for part, others in MAY_IMPORT.items() if "cli" in others] == ["__main__"]


def test_a_planted_import_is_found():
    for module, text in (
        ("vitrail.nn.vit", "from vitrail.data.images import Images"),
        ("vitrail.nn.vit", "from vitrail import explain"),
        ("vitrail.nn.vit", "import vitrail"),
        ("vitrail.nn.vit", "from ..data import source"),
        ("vitrail.nn.vit", "from .. import data"),
        ("vitrail.nn.vit", "def late():\n    import vitrail.training.loop"),
        ("vitrail.nn.vit", "if TYPE_CHECKING:\n    from vitrail.model import Model"),
        ("vitrail.nn.vit", "import importlib\nimportlib.import_module('vitrail.cli')"),
        ("vitrail.nn.vit", "import numpy as np"),
        ("vitrail.nn.vit", "from __future__ import annotations\nfrom jaxtyping import Float"),
        ("vitrail.data.dataset", "from vitrail.nn import ViT"),
        ("vitrail.data.dataset", "import pandas"),
        ("vitrail.explain.heat", "from vitrail.training import loop"),
        ("vitrail.explain.heat", "import timm"),
        ("vitrail.training.loop", "from vitrail.cli import main"),
        ("vitrail.model", "import pickle"),
        ("vitrail.pages.html", "import torch"),
        ("vitrail.pages.html", "from vitrail.nn import ViT"),
        ("vitrail", "from vitrail.cli import main"),
        ("vitrail.errors", "from vitrail.nn import ViT"),
    ):
        assert faults(text, module), text


def test_what_is_allowed_is_not_called_a_fault():
    for module, text, is_package in (
        ("vitrail.nn.vit", "from vitrail.nn.blocks import MLP\nfrom vitrail.errors import UsageError", False),
        ("vitrail.nn.vit", "from .blocks import MLP\nimport torch.nn.functional as F\nimport math", False),
        ("vitrail.nn", "from .blocks import MLP\nfrom ..errors import UsageError", True),
        ("vitrail.training.loop", "from vitrail import nn, data\nfrom vitrail.model import Model", False),
        ("vitrail.cli.train", "import vitrail\nfrom vitrail import training", False),
    ):
        assert faults(text, module, is_package) == []


def as_sorted(names: list[str]) -> list[str]:
    """CONSTANTS, then Classes, then functions; each by the alphabet."""
    return sorted(names, key=lambda name: (not name.isupper() or len(name) < 2, not name[0].isupper(), name))


def written_all(text: str) -> list[str] | None:
    """The literal list that a file assigns to `__all__`."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    return None


def public_names(text: str) -> set[str]:
    """What a package's own code binds at the top, without an underscore; other libraries do not count."""
    names: set[str] = set()
    for node in ast.parse(text).body:
        body = node.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) else [node]
        for inner in body:
            if isinstance(inner, ast.ImportFrom) and (inner.level or (inner.module or "").startswith("vitrail")):
                names |= {alias.asname or alias.name for alias in inner.names}
            elif isinstance(inner, ast.FunctionDef | ast.ClassDef):
                names.add(inner.name)
            elif isinstance(inner, ast.Assign | ast.AnnAssign):
                targets = inner.targets if isinstance(inner, ast.Assign) else [inner.target]
                names |= {ast.unparse(target) for target in targets}
    return {name for name in names if not name.startswith("_")}


def wrong_all(text: str) -> str | None:
    """What is wrong with a package's `__all__`, or None."""
    names = written_all(text)
    if names is None:
        return "no literal __all__"
    if names != as_sorted(names) or len(set(names)) != len(names):
        return f"not sorted: {as_sorted(names)}"
    if set(names) != public_names(text):
        return f"differs from what is bound: {sorted(set(names) ^ public_names(text))}"
    return None


def test_what_is_public_is_written_down_and_can_be_imported():
    for path in (package / "__init__.py" for package in PACKAGES):
        assert wrong_all(path.read_text()) is None, path
        module = importlib.import_module(module_of(path))
        for name in module.__all__:
            assert getattr(module, name) is not None, f"{module.__name__}.{name}"
        star: dict[str, object] = {}
        exec(f"from {module.__name__} import *", star)
        assert set(star) - {"__builtins__"} == set(module.__all__), path


def test_a_planted_fault_in_what_is_public_is_found():
    for text in (
        "from vitrail.nn.vit import ViT",
        "from vitrail.nn.vit import ViT\n__all__ = []",
        "from vitrail.nn.vit import ViT\n__all__ = ['ViT', 'twin']",
        "from vitrail.nn.vit import ViT, twin\n__all__ = ['twin', 'ViT']",
        "from vitrail.nn.vit import ViT\n__all__ = ['ViT', 'ViT']",
        "def helper(): ...\n__all__ = []",
        "TABLE: dict = {}\n__all__ = []",
    ):
        assert wrong_all(text), text


def test_a_right_list_is_not_called_a_fault():
    assert (
        wrong_all("import torch\nfrom vitrail.nn.vit import SIZES, ViT, twin\n__all__ = ['SIZES', 'ViT', 'twin']")
        is None
    )


def lines_of_code(text: str) -> int:
    """Lines that hold code: no blank lines, comments or docstrings."""
    silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in silent:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def test_no_file_is_longer_than_one_sitting():
    lengths = {module_of(path): lines_of_code(path.read_text()) for path in FILES}
    assert {module: length for module, length in lengths.items() if length > LONGEST} == {}


def test_a_planted_long_file_is_found():
    assert lines_of_code("x = 1\n" * (LONGEST + 1)) > LONGEST
    text = '"""A page.\n\nLong.\n"""\n\n# a comment\ndef f():\n    """One line."""\n    return """two\n    lines"""\n'
    assert lines_of_code(text) == 3


def loaded_by(*modules: str) -> set[str]:
    """Which of these modules have loaded torch once they are imported, in a process of their own."""
    lines = ["import sys"]
    for module in modules:
        lines.append(f"import {module}\nif {{'torch', 'torchvision'}} & set(sys.modules): print({module!r})")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", "\n".join(lines)]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    return set(run.stdout.split())


def test_these_never_load_torch():
    light = ("vitrail", "vitrail.errors", "vitrail.pages", "vitrail.cli")
    assert loaded_by(*light, "vitrail.nn") == {"vitrail.nn"}, "the last one must be noticed, no other may be there"
