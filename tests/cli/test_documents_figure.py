"""What a founding document states stands beside the result of its recipe, and of no other."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.command import Answer

Says = Callable[..., Answer]


@pytest.mark.parametrize(("recipe", "beside"), [("d2-lab", True), ("d4-mnist-m", False)])
def test_the_documents_figure_beside_the_result(vitrail_says: Says, tmp_path: Path, recipe: str, beside: bool) -> None:
    answer = vitrail_says(
        "train", "digits", "--recipe", recipe, "--epochs", 1, "--threads", 1, "--out", tmp_path / "run"
    )
    assert answer.code == 0
    lines = answer.out.splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("test accuracy"))
    assert lines[place + 1].startswith("beside it  document D2 states 91.45 %") == beside
    assert answer.out.count("91.45") == int(beside)
