"""What can be asked of `vitrail explain`, and what is refused before anything is computed."""

import pytest

from tests.cli.planted import planted_model
from vitrail.errors import UsageError
from vitrail.explain import METHODS
from vitrail.explain.compare import CLASS_AGNOSTIC, LONG
from vitrail.explain.methods import DEFAULT
from vitrail.explain.reporting.request import ALL, methods_of


def test_what_a_comparison_leaves_out() -> None:
    model = planted_model()
    plain, why = methods_of(model, ALL, False)
    assert {each.name for each in plain} == {e.name for e in METHODS.values() if not e.costly and not e.opt_in}
    assert why[LONG] == tuple(e.name for e in METHODS.values() if e.costly)
    assert why[METHODS["conservative"].opt_in] == ("conservative",)
    many, _ = methods_of(planted_model(image=32, patch=1), ALL, False)
    assert {each.name for each in plain} - {each.name for each in many} <= {"occlusion"}
    contrast, why = methods_of(model, ALL, True)
    assert [each for each in contrast if not each.class_specific] == []
    assert set(why[CLASS_AGNOSTIC]) == {e.name for e in METHODS.values() if not e.class_specific}
    with pytest.raises(UsageError, match="rollout, raw_attention") as refused:
        methods_of(model, ["rollout", "legrad", "generic_attention", "raw_attention"], True)
    assert refused.value.typed == "--methods legrad,generic_attention"


@pytest.mark.parametrize(
    ("word", "name"),
    [("cam", "grad_cam"), ("Grad-CAM", "grad_cam"), ("gradcam", "grad_cam"), ("shap", "kernel_shap"), ("lrp", DEFAULT)],
)
def test_the_hint_names_the_method_that_a_word_stands_for(word: str, name: str) -> None:
    with pytest.raises(UsageError) as refused:
        methods_of(planted_model(), word, False)
    assert refused.value.typed == f"--method {name}"
