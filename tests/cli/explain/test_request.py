"""What can be asked of `vitrail explain`, and what is refused before anything is computed."""

import pytest

from vitrail.errors import UsageError
from vitrail.explain import METHODS
from vitrail.explain.methods import ALL, DEFAULT, methods_of
from vitrail.explain.methods.table import CLASS_AGNOSTIC, LONG


def test_what_a_comparison_leaves_out() -> None:
    plain, notes = methods_of(ALL, False, 64)
    assert {each.name for each in plain} == {e.name for e in METHODS.values() if not e.costly and not e.opt_in}
    long = [e.name for e in METHODS.values() if e.costly]
    (said,) = [note for note in notes if LONG in note]
    assert f"--methods {','.join(long)}" in said
    assert [METHODS["conservative"].opt_in in note for note in notes if "conservative" in note] == [True]
    many, _ = methods_of(ALL, False, 1024)
    assert {each.name for each in plain} - {each.name for each in many} == {"occlusion"}
    contrast, notes = methods_of(ALL, True, 64)
    assert [each for each in contrast if not each.class_specific] == []
    agnostic = [e.name for e in METHODS.values() if not e.class_specific]
    assert any(CLASS_AGNOSTIC in note and ", ".join(agnostic) in note for note in notes)
    with pytest.raises(UsageError, match="rollout, raw_attention") as refused:
        methods_of(["rollout", "legrad", "generic_attention", "raw_attention"], True, 64)
    assert refused.value.hint.flags == {"methods": "legrad,generic_attention"}


@pytest.mark.parametrize(
    ("word", "name"),
    [("cam", "grad_cam"), ("Grad-CAM", "grad_cam"), ("gradcam", "grad_cam"), ("shap", "kernel_shap"), ("lrp", DEFAULT)],
)
def test_the_hint_names_the_method_that_a_word_stands_for(word: str, name: str) -> None:
    with pytest.raises(UsageError) as refused:
        methods_of(word, False, 64)
    assert refused.value.hint.flags == {"method": name}
