"""The checks are green for the real package and red for copies of it with a planted fault (T22).

The faults that explanations are known for, and the names under which they are planted here (`KNOWN` holds them):

    reversed gradients              gradients of the last layer first: generic attention, gradient rollout, and both of
                                    their pure functions
    no keepdim                      columns divided, not rows: rollout, gradient rollout
    register off by one             a register shown as the first patch
    swapped rows and columns        rows and columns swapped
    probability for logit, p > .999 a probability differentiated; TAM: a probability
    min-max hidden in the values    every map stretched to 0..1

The self-test finds them all on a user's model (test_selftest.py). Other copies with other faults: methods that look
at pixels (test_checks_pixels.py), conservative propagation (test_conservative.py), scores (scores/test_mutants.py), and
the views inside (inside/test_planted_faults.py).
"""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import vitrail.explain
from tests.explain import attention_checks, checks
from tests.explain.mutants import is_red, make_copy

GENERIC, ROLLOUT, RAW, READOUT = (
    "methods/generic_attention.py",
    "methods/rollout.py",
    "methods/raw_attention.py",
    "readout.py",
)

# name: (file, text, text with the fault, the checks that must go red)
MUTANTS: dict[str, tuple[str, str, str, tuple[Callable[[ModuleType], None], ...]]] = {
    "gradients of the last layer first": (
        GENERIC,
        "recorded(opened.record, at_attended)",
        "recorded(opened.record, dict(zip(at_attended, reversed(at_attended.values()), strict=True)))",
        (checks.generic_is_exact,),
    ),
    "the pure function, gradients of the last layer first": (
        GENERIC,
        "given_layers(attentions, gradients)",
        "given_layers(attentions, list(reversed(gradients)))",
        (checks.row_is_the_row_of_the_product,),
    ),
    "columns divided, not rows (no keepdim)": (
        ROLLOUT,
        "mixed.sum(dim=-1, keepdim=True)",
        "mixed.sum(dim=-2, keepdim=True)",
        (checks.rollout_options_are_exact, checks.row_is_the_row_of_the_product, checks.rows_of_rollout_sum_to_one),
    ),
    "a register shown as the first patch": (
        READOUT,
        "row[:, prefix:].unflatten(1, grid)",
        "row[:, max(0, prefix - 1) : -1 if prefix else None].unflatten(1, grid)",
        (checks.raw_is_exact, checks.rollout_is_exact, checks.generic_is_exact, checks.maps_roll_with_the_picture),
    ),
    "rows and columns swapped": (
        READOUT,
        "row[:, prefix:].unflatten(1, grid)",
        "row[:, prefix:].unflatten(1, grid[::-1]).transpose(1, 2)",
        (checks.raw_is_exact, checks.rollout_is_exact, checks.generic_is_exact, checks.maps_roll_with_the_picture),
    ),
    "a probability differentiated": (
        READOUT,
        "logit = aim.of(logits)",
        "logit = aim.of(logits.softmax(dim=1))",
        (checks.generic_is_exact, checks.generic_is_exact_when_sure),
    ),
    "every map stretched to 0..1": (
        READOUT,
        "values = on_grid(row.detach(), self.prefix, self.grid)",
        "values = on_grid(row.detach(), self.prefix, self.grid)\n"
        "        values = values - values.amin(dim=(1, 2), keepdim=True)\n"
        "        values = values / values.amax(dim=(1, 2), keepdim=True)",
        (checks.raw_is_exact, checks.generic_is_exact, checks.values_are_in_raw_units),
    ),
    "the first row read out with mean pooling": (
        READOUT,
        'if config.pooling == "class":',
        "if True:",
        (checks.raw_is_exact, checks.rollout_is_exact, checks.generic_is_exact),
    ),
    "mean over prefix tokens too": (
        READOUT,
        "readout[config.prefix :] = 1.0 / patches",
        "readout[:] = 1.0 / len(readout)",
        (checks.raw_is_exact, checks.rollout_is_exact, checks.generic_is_exact),
    ),
    "the distillation token's head forgotten": (
        READOUT,
        "if config.distillation_token:",
        "if False:",
        (checks.raw_is_exact, checks.rollout_is_exact, checks.generic_is_exact),
    ),
    "R kept whole, not R - I": (
        GENERIC,
        "    return gathered\n",
        "    return gathered + start\n",
        (checks.generic_is_exact, checks.row_is_the_row_of_the_product),
    ),
    "the two clamps exchanged": (
        GENERIC,
        'if clamp == "head":',
        'if clamp != "head":',
        (checks.generic_is_exact, checks.row_is_the_row_of_the_product),
    ),
    "no clamp": (
        GENERIC,
        "(some, piece.clamp(min=0))",
        "(some, piece)",
        (checks.generic_is_exact, checks.row_is_the_row_of_the_product),
    ),
    "gradient without attention": (
        "layers.py",
        "layer.gradient(heads, queries) * layer.weights(heads, queries)",
        "layer.gradient(heads, queries)",
        (checks.generic_is_exact, checks.row_is_the_row_of_the_product),
    ),
    "rollout from the first layer to the last": (
        ROLLOUT,
        "for layer in reversed(layers):",
        "for layer in layers:",
        (checks.rollout_is_exact, checks.row_is_the_row_of_the_product),
    ),
    "the largest entries discarded": (
        ROLLOUT,
        "whole * (whole >= smallest_kept)",
        "whole * (whole <= smallest_kept)",
        (checks.rollout_options_are_exact, checks.row_is_the_row_of_the_product),
    ),
    "the first layer as the last": (RAW, "layer: int = -1,", "layer: int = 0,", (checks.raw_is_exact,)),
    "who looks at the readout, not where it looks": (
        RAW,
        "row = read_row(RecordedLayer(opened.record.kept(place)), attention, opened.readout, heads)",
        "row = opened.record.attention(place).mean(dim=1) @ opened.readout",
        (checks.raw_is_exact,),
    ),
    "a constant map passes as a signal": (
        "heat.py",
        "(NO_SIGNAL,) if is_constant else ()",
        "()",
        (checks.nothing_gives_no_signal,),
    ),
}

MUTANTS |= attention_checks.MUTANTS
CHECKS = checks.CHECKS + attention_checks.CHECKS


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_real_package_is_right(check: Callable[[ModuleType], None]) -> None:
    check(vitrail.explain)


def test_a_copy_without_a_fault_is_right(tmp_path: Path) -> None:
    copy = make_copy(tmp_path)
    assert [check.__name__ for check in CHECKS if is_red(check, copy)] == []


@pytest.mark.parametrize("fault", MUTANTS)
def test_a_planted_fault_is_found(fault: str, tmp_path: Path) -> None:
    file, old, new, finders = MUTANTS[fault]
    mutant = make_copy(tmp_path, file, old, new)
    assert [check.__name__ for check in finders if not is_red(check, mutant)] == []


# what is known to go wrong, and the mutants that plant it
KNOWN: dict[str, tuple[str, ...]] = {
    "reversed gradients": (
        "gradients of the last layer first",
        "the pure function, gradients of the last layer first",
        "gradient rollout: gradients of the last layer first",
        "gradient rollout: the pure function, gradients of the last layer first",
    ),
    "no keepdim": (
        "columns divided, not rows (no keepdim)",
        "gradient rollout: columns divided, not rows (no keepdim)",
    ),
    "register off by one": ("a register shown as the first patch",),
    "swapped rows and columns": ("rows and columns swapped",),
    "probability for logit where p > 0.999": ("a probability differentiated", "TAM: a probability"),
    "min-max hidden in the values": ("every map stretched to 0..1",),
}


def test_every_known_fault_is_planted() -> None:
    assert {fault for faults in KNOWN.values() for fault in faults} <= set(MUTANTS)
    assert checks.generic_is_exact_when_sure in MUTANTS["a probability differentiated"][3]


def test_every_check_finds_some_fault() -> None:
    assert {check for *_, finders in MUTANTS.values() for check in finders} == set(CHECKS)
