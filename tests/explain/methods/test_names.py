"""Methods share their names with the files that hold them: what the package gives is the function."""

import subprocess
import sys

import pytest

SHARED = ("raw_attention", "rollout", "generic_attention", "gradient_rollout")
FIRST = {
    "the package": "import vitrail.explain",
    "the file": "import vitrail.explain.methods.rollout, vitrail.explain.methods.raw_attention",
    "the table": "import vitrail.explain.methods.table",
    "another file": "import vitrail.explain.methods.gradient_rollout",
    "the self-test": "import vitrail.explain.selftest.attention",
    "from the file": "from vitrail.explain.methods.generic_attention import generic_attention",
}


@pytest.mark.parametrize("first", FIRST.values(), ids=FIRST)
def test_a_name_is_the_function_under_every_order_of_imports(first: str) -> None:
    lines = [first, "import vitrail.explain, importlib", f"from vitrail.explain import {', '.join(SHARED)}"]
    for name in SHARED:
        lines += [
            f"file = importlib.import_module('vitrail.explain.methods.{name}')",
            f"assert {name} is vitrail.explain.{name} is file.{name} is vitrail.explain.METHODS['{name}'].function",
        ]
    run = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
