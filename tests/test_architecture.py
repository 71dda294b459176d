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

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "vitrail"
FILES = sorted(path for path in SOURCE.rglob("*.py*") if path.suffix in (".py", ".pyi"))
PACKAGES = sorted(path.parent for path in SOURCE.rglob("__init__.py"))
LONGEST = 320

# Who may import whom, from below: each may import those that stand above it here, as far as they are named. `errors`,
# `arguments` and `statistics` are open to all; nothing but `__main__` imports `cli`.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "arguments": set(),
    "options": set(),
    "text": set(),
    "statistics": set(),
    "io": {"text"},
    "runtime": {"io"},  # the processor cores, which are asked for before torch is loaded
    "pages": {"io", "text"},
    "nn": {"text"},  # how values are shown
    "data": {"io", "text", "runtime"},
    "weights": {"io", "runtime", "nn", "data"},
    "tasks": {"text", "pages", "nn", "data"},
    # `vitrail` itself for the methods of a model, which are the public functions: see `AsMethod` and the test below.
    "model": {"io", "text", "runtime", "pages", "nn", "data", "weights", "tasks", ""},
    "jobs": {"io", "text", "runtime", "nn", "data", "tasks", "model"},
    "features": {"io", "text", "runtime", "pages", "nn", "data", "tasks", "model", "jobs"},
    "runs": {
        *("options", "io", "text", "runtime", "pages", "nn", "data", "weights", "tasks", "model", "jobs", "features"),
    },
    "check": {"io", "text", "runtime", "pages", "nn", "data", "tasks", "model", "jobs", "features", "runs"},
    "explain": {
        *("io", "text", "runtime", "pages", "nn", "data", "weights", "tasks", "model", "jobs", "features", "runs"),
    },
    "training": {
        "check",
        "options",
        "io",
        "text",
        "runtime",
        "pages",
        "nn",
        "data",
        "weights",
        "tasks",
        "model",
        "jobs",
        "features",
        "explain",
        "runs",
    },
    "audit": {
        *("io", "text", "runtime", "pages", "nn", "data", "tasks", "model", "jobs", "features", "runs", "check"),
        "explain",
    },
    "deploy": {
        *("options", "io", "text", "runtime", "pages", "nn", "data", "weights", "tasks", "model", "jobs", "features"),
        *("runs", "explain"),
    },
    "": {
        "options",
        "nn",
        "data",
        "tasks",
        "model",
        "features",
        "audit",
        "check",
        "explain",
        "runs",
        "training",
        "deploy",
    },  # vitrail/__init__.py
    "cli": {
        "options",
        "io",
        "text",
        "runtime",
        "pages",
        "nn",
        "data",
        "weights",
        "tasks",
        "model",
        "jobs",
        "features",
        "audit",
        "check",
        "explain",
        "runs",
        "training",
        "deploy",
        "",
    },
    "__main__": {"cli"},  # python -m vitrail
}
# Libraries that are not Python's: for some parts all they may use, for some what they may not.
ONLY = {
    "errors": set(),
    "arguments": {"pydantic", "yaml"},
    "options": set(),
    "text": set(),
    "statistics": {"numpy", "jaxtyping"},
    "io": {"filelock"},
    "runtime": {"torch"},
    "nn": {"torch", "jaxtyping", "lazy_loader"},
}
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
PEERS = {"timm", "transformers"}
WITH_PEERS = {"weights", "deploy"}  # what opens theirs, and what they open


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
            if other not in MAY_IMPORT[part] | {part, "errors", "arguments", "statistics"}:
                found.append(f"{module} imports {name}")
            continue
        refused = NEVER_ANYWHERE | NEVER.get(part, set()) | (set() if part in WITH_PEERS else PEERS)
        foreign = top not in sys.stdlib_module_names
        if top in refused or (foreign and part in ONLY and top not in ONLY[part]):
            found.append(f"{module} imports {name}")
        if top == "__future__" and "jaxtyping" in text:
            found.append(f"{module} turns the shapes of jaxtyping into strings")
    return found


def test_every_file_imports_only_what_it_may():
    parts = {part_of(module_of(path)) for path in FILES}
    assert parts <= set(MAY_IMPORT), "a new part of the house: say in MAY_IMPORT what it may import"
    found = {path: faults(path.read_text(), module_of(path), path.stem == "__init__") for path in FILES}
    assert [fault for each in found.values() for fault in each] == []


def test_no_two_parts_import_each_other():
    for part, others in MAY_IMPORT.items():
        for other in others - {""}:
            assert part not in MAY_IMPORT[other] or (part, other) == ("", "model"), f"{part} and {other}"
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
        ("vitrail.explain.attribution", "from vitrail.training import loop"),
        ("vitrail.explain.attribution", "import timm"),
        ("vitrail.runs.data", "from vitrail.explain import evidence"),
        ("vitrail.runs.evaluate", "from vitrail.training import loop"),
        ("vitrail.training.loop", "from vitrail.cli import main"),
        ("vitrail.model.loading", "import pickle"),
        ("vitrail.model.model", "from vitrail import explain"),
        ("vitrail.model.model", "def late():\n    from vitrail.explain import report"),
        ("vitrail.pages.render", "import torch"),
        ("vitrail.pages.render", "from vitrail.nn import ViT"),
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


# The one function in an `__init__`: a version cannot be imported from a file, and who asks for none should not wait for
# `importlib.metadata`.
LAZY_VERSION = ast.unparse(
    ast.parse("""
def __getattr__(name: str) -> object:
    '''A public name, which is imported now; or the version, which the metadata of the installed package have.'''
    if name == "__version__":
        from importlib.metadata import version
        return version(__name__)
    return _public(name)
""")
)


def public_names(text: str) -> list[str]:
    """What a package's stub says that it gives: `from .file import Name as Name`, as type checkers want it."""
    names = []
    for node in ast.parse(text.removesuffix("\n__version__: str\n")).body:
        assert isinstance(node, ast.ImportFrom), ast.unparse(node)
        assert node.level == 1, ast.unparse(node)
        assert all(alias.asname == alias.name for alias in node.names), ast.unparse(node)
        names += [alias.name for alias in node.names]
    return names


def test_what_is_public_stands_in_a_stub_and_can_be_imported():
    for package in PACKAGES:
        path = package / "__init__.py"
        module = importlib.import_module(module_of(path))
        code = [node for node in ast.parse(path.read_text()).body if not isinstance(node, ast.Expr)]
        code = [node for node in code if ast.unparse(node) != LAZY_VERSION or module.__name__ != "vitrail"]
        assert all(isinstance(node, ast.Import | ast.ImportFrom | ast.Assign) for node in code), path
        if path.with_suffix(".pyi").exists():
            assert module.__all__ == sorted(public_names(path.with_suffix(".pyi").read_text())), path
        for name in module.__all__:
            assert getattr(module, name) is not None, f"{module.__name__}.{name}"
        star: dict[str, object] = {}
        exec(f"from {module.__name__} import *", star)
        assert set(star) - {"__builtins__"} == set(module.__all__), path


def reads_above(text: str) -> list[str]:
    """Where a file of `model` reads a name of `vitrail` itself as it is imported, and not in a function, later."""
    tree = ast.parse(text)
    later = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.Lambda | ast.FunctionDef)
        for inner in ast.walk(node.body if isinstance(node, ast.Lambda) else ast.Module(node.body, []))
    }
    return [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "vitrail" and node not in later
    ]


def test_a_model_finds_what_stands_above_it_when_it_is_asked():
    found = {path.name: reads_above(path.read_text()) for path in (SOURCE / "model").glob("*.py")}
    assert not any(found.values()), found
    assert reads_above("import vitrail\nclass A:\n    embed = AsMethod(vitrail.embed)") == ["vitrail.embed"]
    assert reads_above("import vitrail\nclass A:\n    embed = AsMethod(lambda: vitrail.embed)") == []


def test_a_planted_fault_in_a_stub_is_found():
    for text in (
        "from .vit import ViT",
        "from .vit import ViT as Network",
        "from vitrail.nn.vit import ViT as ViT",
        "import torch",
        "NAMES = ()",
    ):
        with pytest.raises(AssertionError):
            public_names(text)
    assert public_names("from .vit import SIZES as SIZES, ViT as ViT") == ["SIZES", "ViT"]


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
    five = (lengths[f"vitrail.nn.{name}"] for name in ("attention", "embedding", "blocks", "vit", "config"))
    assert sum(five) <= 470  # those of a plain ViT, which README names first


def test_a_planted_long_file_is_found():
    assert lines_of_code("x = 1\n" * (LONGEST + 1)) > LONGEST
    text = '"""A page.\n\nLong.\n"""\n\n# a comment\ndef f():\n    """One line."""\n    return """two\n    lines"""\n'
    assert lines_of_code(text) == 3


NO_TORCH = """
import importlib, sys
asked = []

class NoTorch:
    def find_spec(self, name, *others):
        if name.partition(".")[0] in ("torch", "torchvision"):
            asked.append(name)
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, NoTorch())
for module in sys.argv[1:]:
    asked.clear()
    try:
        importlib.import_module(module)
    except ModuleNotFoundError:
        assert asked
    if asked:
        print(module)
"""


def loaded_by(*modules: str) -> set[str]:
    """Which of these modules ask for torch while they are imported, in a process of their own that has none."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", NO_TORCH, *modules]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    return set(run.stdout.split())


def test_these_never_load_torch():
    light = ("vitrail", "vitrail.errors", "vitrail.pages", "vitrail.cli")
    assert loaded_by(*light, "vitrail.nn", "vitrail.nn.vit") == {"vitrail.nn.vit"}, (
        "the last one must be noticed, no other may be there"
    )
