"""What a founding document states stands beside the result of its recipe, trained as long, and of no other."""

from pathlib import Path

import pytest

from tests.cli.command import Cli

STATED = "91.45 %"  # by document D2, of MNIST


def train(cli: Cli, run: Path, *words: object) -> tuple[str, str]:
    """What a training of the digits prints, and its page."""
    answer = cli("train", "digits", "--recipe", "d2-lab", "--threads", 1, "--out", run, *words)
    assert answer.code == 0, answer.err
    return answer.out, (run / "run.html").read_text()


@pytest.mark.soak
def test_the_documents_figure_beside_the_result(cli: Cli, tmp_path: Path) -> None:
    printed, page = train(cli, tmp_path / "run")
    assert printed.count(STATED) == 1
    assert STATED in page


def test_no_figure_where_the_recipe_was_changed(cli: Cli, tmp_path: Path) -> None:
    printed, page = train(cli, tmp_path / "run", "--epochs", 1)
    assert STATED not in printed
    assert STATED not in page
