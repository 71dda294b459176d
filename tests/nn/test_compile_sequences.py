"""Networks that write compile to one graph and export with free lengths, with the same logits."""

from pathlib import Path

import pytest

from tests.nn.test_compile import compile_worker, must_be_close

NAMES = ["post-norm", "pre-norm, tied", "shared, gelu", "a picture"]


def compiled(backend: str, names: list[str], cache: Path) -> dict[str, dict]:
    """What the worker says of each network."""
    answers = compile_worker("tests.nn.compile_sequences", [backend, *names], cache)
    return {answer["name"]: answer for answer in answers}


@pytest.mark.parametrize("backend", ["aot_eager", "export"])
def test_networks_that_write_become_one_graph(backend: str, tmp_path: Path):
    must_be_close(compiled(backend, NAMES, tmp_path), NAMES)


def test_a_graph_break_is_found(tmp_path: Path):
    broken = compiled("aot_eager", ["a graph break"], tmp_path)
    assert "graph_break" in broken["a graph break"]["text"]
