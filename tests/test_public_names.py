"""What `import vitrail` gives: a short list, filled when it is used."""

import ast
import importlib
import inspect
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

import vitrail
from tests.cli.command import environment

PUBLIC_FOLDERS = {"audit", "data", "explain", "nn", "tasks", "training"}
PROMISED = PUBLIC_FOLDERS | {
    *("ViT", "ViTConfig", "Record", "run_with_record", "Model", "load", "save", "train", "TrainOptions", "evaluate"),
    *("Transformer", "TransformerConfig", "ImageToSequence", "ImageToSequenceConfig", "Classes", "Vocabulary"),
    *("convert", "Preprocessing", "distill", "DistillOptions", "Teacher", "train_loop", "embed", "similar"),
    *("check_data", "show_data", "export"),
}
FOLDERS = sorted(path.parent.name for path in (Path(vitrail.__file__).parent).glob("*/__init__.py"))
MODULES = sorted(path.stem for path in Path(vitrail.__file__).parent.glob("*.py") if path.stem != "__init__")


def test_the_list_is_what_was_promised() -> None:
    assert set(vitrail.__all__) == PROMISED
    assert list(vitrail.__all__) == sorted(vitrail.__all__)
    assert dir(vitrail) == sorted(PROMISED)


def test_a_name_is_there_and_says_what_it_is() -> None:
    for name in PROMISED:
        value = getattr(vitrail, name)
        assert value is getattr(vitrail, name)
        assert inspect.getdoc(value)
        if name not in PUBLIC_FOLDERS:
            assert value.__name__ == name
            assert value.__module__.startswith("vitrail.")


def test_no_function_bears_the_name_of_a_folder_or_file() -> None:
    """Else `vitrail.x` would be one thing before and another thing after `import vitrail.x`."""
    assert {"cli", "data", "explain", "nn", "pages", "training"} <= set(FOLDERS)
    for name in (*FOLDERS, *MODULES):
        if name in vitrail.__all__:
            assert isinstance(getattr(vitrail, name), ModuleType), name


def test_the_names_survive_the_import_of_every_folder() -> None:
    """In a process of its own, where nothing has been imported yet.

    Methods share their names with the files that hold them: what the package gives is the function, also when its file
    was imported first.
    """
    methods = ("raw_attention", "rollout", "generic_attention", "gradient_rollout")
    code = (
        "import importlib, sys, vitrail\nassert 'importlib.metadata' not in sys.modules, 'it is slow'\n"
        "import vitrail.explain.methods.rollout, vitrail.explain.methods.raw_attention\n"
        f"from vitrail.explain import {', '.join(methods)}\n"
        f"for name in {methods!r}:\n"
        "    file, method = importlib.import_module('vitrail.explain.methods.' + name), globals()[name]\n"
        "    assert method is getattr(vitrail.explain, name) is getattr(file, name), name\n"
        "    assert vitrail.explain.METHODS[name].function.__wrapped__ is method, name\n"
        f"folders = {PUBLIC_FOLDERS!r}\n"
        f"for name in {[*FOLDERS, *MODULES]!r}: importlib.import_module('vitrail.' + name)\n"
        "for name in vitrail.__all__: assert callable(getattr(vitrail, name)) == (name not in folders), name\n"
        "from vitrail import *\n"
        "assert ViT is vitrail.ViT and explain.rollout\n"
    )
    run = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr


def test_a_wrong_name_is_named() -> None:
    with pytest.raises(AttributeError, match="VIT"):
        _ = vitrail.VIT  # pyrefly: ignore[missing-attribute]


def test_the_methods_of_explain() -> None:
    for name in ("raw_attention", "rollout", "generic_attention"):
        assert vitrail.explain.METHODS[name].function.__wrapped__ is getattr(vitrail.explain, name)


def test_what_benchmarks_and_lessons_import_is_there() -> None:
    """A renamed function left a benchmark that nothing else runs."""
    folder, seen = Path(__file__).parent.parent, 0
    for file in (*folder.glob("benchmarks/*.py"), *folder.glob("lessons/*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "vitrail":
                module = importlib.import_module(str(node.module))
                names = [each.name for each in node.names if not hasattr(module, each.name)]
                missing = [name for name in names if find_spec(f"{node.module}.{name}") is None]
                assert not missing, f"{file.name} imports {missing} from {node.module}"
                seen += 1
    assert seen > 100


def test_the_model_is_the_first_argument_of_whatever_takes_one() -> None:
    packages = (vitrail, vitrail.data, vitrail.nn, vitrail.tasks, vitrail.explain, vitrail.explain.inside)
    public = [getattr(package, name) for package in packages for name in package.__all__]
    taking = dict[str, list[int]]()
    for function in filter(inspect.isfunction, public):
        every = inspect.signature(function).parameters.values()
        given = [each.name for each in every if each.kind is each.POSITIONAL_OR_KEYWORD]
        taking[function.__name__] = [place for place, name in enumerate(given) if name in ("model", "network")]
    assert {name for name, places in taking.items() if places not in ([], [0])} == set()
    assert sum(places == [0] for places in taking.values()) > 35
    assert [*inspect.signature(vitrail.similar).parameters][:3] == ["model", "images", "data"]
