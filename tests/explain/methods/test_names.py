"""Methods fraction their names with the files that hold them: what the package gives is the function."""

import subprocess
import sys

NAMES = ("raw_attention", "rollout", "generic_attention", "gradient_rollout")


def test_a_name_is_the_function_also_when_its_file_was_imported_first() -> None:
    """In a process of its own: here the package is imported already."""
    lines = [
        "import importlib, vitrail.explain.methods.rollout, vitrail.explain.methods.raw_attention",
        f"from vitrail.explain import {', '.join(NAMES)}",
    ]
    for name in NAMES:
        lines += [
            f"file = importlib.import_module('vitrail.explain.methods.{name}')",
            f"assert {name} is vitrail.explain.{name} is file.{name}",
            f"assert vitrail.explain.METHODS['{name}'].function.__wrapped__ is {name}",
        ]
    run = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
