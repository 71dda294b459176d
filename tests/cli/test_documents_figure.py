"""What a founding document states stands beside the result of its recipe, trained as long, and of no other."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.command import Answer

Says = Callable[..., Answer]


@pytest.mark.parametrize(
    ("words", "beside"),
    [(("d2-lab",), True), (("d2-lab", "--epochs", 1), False), (("d4-mnist-m", "--epochs", 1), False)],
)
def test_the_documents_figure_beside_the_result(
    vitrail_says: Says, tmp_path: Path, words: tuple[str, ...], beside: bool
) -> None:
    answer = vitrail_says("train", "digits", "--recipe", *words, "--threads", 1, "--out", tmp_path / "run")
    assert answer.code == 0
    lines = answer.out.splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("test accuracy"))
    assert lines[place + 1].startswith("beside it  document D2 states 91.45 %") == beside
    assert answer.out.count("91.45") == int(beside)
    page = (tmp_path / "run" / "run.html").read_text()
    assert ("Beside it: document D2 states 91.45 % of MNIST" in page) == beside
    if words[0] == "d2-lab":
        assert ", 1 block of width 20" in page
