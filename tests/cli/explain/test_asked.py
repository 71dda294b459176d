"""What can be asked of `vitrail explain`, and what is refused before anything is computed."""

import pytest

from tests.cli.planted import planted_model
from vitrail.cli.explain.asked import choose_methods
from vitrail.data import background
from vitrail.errors import UsageError
from vitrail.explain import METHODS, evidence


def test_what_a_comparison_leaves_out(capsys: pytest.CaptureFixture[str]) -> None:
    model = planted_model()
    plain = choose_methods(model, None, True, None, False)
    assert {each.name for each in METHODS.values() if not each.costly and not each.opt_in} == {
        each.name for each in plain
    }
    assert "others report a patent on rules of its kind: conservative; --methods" in capsys.readouterr().err
    many = choose_methods(planted_model(image=32, patch=1), None, True, None, False)
    assert {each.name for each in plain} - {each.name for each in many} <= {"occlusion"}
    contrast = choose_methods(model, None, True, None, True)
    assert [each for each in contrast if not each.class_specific] == []
    assert "cannot tell classes apart: raw_attention" in capsys.readouterr().err
    with pytest.raises(UsageError, match="rollout, raw_attention cannot tell") as refused:
        choose_methods(model, None, True, "rollout,legrad,generic_attention,raw_attention", True)
    assert refused.value.hint == "--methods legrad,generic_attention"


def test_no_option_silences_another() -> None:
    model = planted_model()
    for method, several, named, hint in (
        ("rollout", True, None, "--methods rollout in its place"),
        ("rollout", True, "legrad,tam", "--methods legrad,tam in its place"),
        (None, False, "legrad", "--compare --methods legrad"),
    ):
        with pytest.raises(UsageError) as refused:
            choose_methods(model, method, several, named, False)
        assert refused.value.hint == hint
    assert [each.name for each in choose_methods(model, None, False, None, False)] == ["generic_attention"]


def test_as_many_references_are_few_for_the_words_as_for_the_verdict() -> None:
    assert background.FEW == evidence.FEWEST
