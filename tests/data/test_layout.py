"""Columns, groups and fractions that a person names; and splits that no group straddles."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tests.photographs import make_photographs
from vitrail.data.columns import ALL, GROUP, LABEL, Labels, RawDataset, Samples, Texts
from vitrail.data.dataset import divide, hold_out
from vitrail.data.images import ArrayImages
from vitrail.data.layout import Layout
from vitrail.data.sources import read
from vitrail.errors import DataError, UsageError


def samples_of(classes: list[int], groups: list[int] | None) -> Samples:
    """Samples of classes and groups."""
    columns: dict[str, object] = {LABEL: Labels.of([f"class {each}" for each in classes])}
    if groups is not None:
        columns[GROUP] = Texts(tuple(f"group {each}" for each in groups))
    return Samples(ArrayImages(np.zeros((len(classes), 2, 2), np.uint8)), columns)


def groups_in(samples: Samples) -> set[str]:
    """The groups as they stand in the column, else the names: not by what divides them."""
    return set(samples.column(GROUP).values if GROUP in samples.columns else samples.inputs.names())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12)), min_size=2, max_size=120), st.integers(0, 5))
def test_no_group_straddles_a_split(pairs: list[tuple[int, int]], seed: int) -> None:
    """Nothing is lost, no class leaves training, and about as much is held out as was wanted."""
    whole = samples_of([label for label, _ in pairs], [group for _, group in pairs])
    kept, held = hold_out(whole, round(len(whole) / 5), seed)
    assert not groups_in(kept) & groups_in(held)
    assert sorted(kept.inputs.names() + held.inputs.names()) == sorted(whole.inputs.names())
    assert kept.column(LABEL).counts().keys() == whole.column(LABEL).counts().keys()


def test_groups_and_strata_at_once() -> None:
    """Of 40 recordings of 10 images, in two classes one to three, a fifth of each class is held out."""
    groups = [number // 10 for number in range(400)]
    whole = samples_of([int(group % 4 == 0) for group in groups], groups)
    for seed in range(5):
        kept, held = hold_out(whole, 80, seed)
        assert held.column(LABEL).counts() == {"class 0": 60, "class 1": 20}
        assert not groups_in(kept) & groups_in(held)


def test_fractions() -> None:
    for groups, off in ((None, 1), ([number // 5 for number in range(200)], 10)):
        whole = samples_of([number // 5 % 2 for number in range(200)], groups)
        raw = Layout(fractions="70/10/20").apply(RawDataset("here", {ALL: whole}))
        divided, seed = divide(raw, LABEL, 3)
        sizes = [len(divided[name]) for name in ("train", "validation", "test")]
        assert (seed, sum(sizes)) == (3, 200)
        assert np.abs(np.array(sizes) - (140, 20, 40)).max() <= off
        assert not any(groups_in(a) & groups_in(b) for a, b in combinations(divided.values(), 2))
        for each in divided.values():
            counts = each.column(LABEL).counts()
            assert max(counts.values()) - min(counts.values()) <= off
    halves, _ = divide(Layout(fractions="1/1").apply(RawDataset("here", {ALL: whole})), LABEL, 0)
    assert sorted(halves) == ["train", "validation"]
    assert abs(len(halves["train"]) - 100) <= 10


def test_groups_by_a_pattern(tmp_path: Path) -> None:
    make_photographs(tmp_path, ("ant", "bee"), 3, 0)
    raw = read(str(tmp_path), layout=Layout(group_pattern=r"(\w+)_\d+"))
    assert [*raw.splits[ALL].units()] == [name.split("/")[0] for name in raw.splits[ALL].inputs.names()]
    with pytest.raises(DataError, match="nothing_"):
        read(str(tmp_path), layout=Layout(group_pattern=r"nothing_(\d+)"))
    with pytest.raises(UsageError, match="label_column"):
        read(str(tmp_path), layout=Layout(label_column="y"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"group_pattern": r"\d+"},
        {"group_pattern": "("},
        {"fractions": "80"},
        {"fractions": "a/b"},
        {"fractions": "0/100"},
        {"fractions": "1/1/1/1"},
        {"group_pattern": "(a)", "group_column": "patient"},
    ],
)
def test_what_no_data_could_be_read_by(wrong: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        Layout(**wrong)


def test_fractions_are_for_data_in_one_piece() -> None:
    whole = samples_of([0, 1] * 10, None)
    with pytest.raises(UsageError, match="fractions"):
        Layout(fractions="80/20").apply(RawDataset("here", {"train": whole, "test": whole}))
