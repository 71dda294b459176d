"""References without evidence: what the network names is replaced, and nothing else changes."""

from pathlib import Path

import pytest
import torch

import vitrail
from tests.explain.planted_lab import load_planted
from vitrail.data.sets.planted import planted_digits
from vitrail.explain.evidence import REPLACED, composites_of, without_evidence
from vitrail.explain.methods.generic_attention import generic_attention
from vitrail.explain.sanity_check import scramble

pytestmark = pytest.mark.usefixtures("as_a_user")


def candidates() -> tuple[vitrail.Model, torch.Tensor]:
    """A model, and background for it that hold pieces of digits."""
    model = load_planted("mean-0")
    pixels = torch.from_numpy(planted_digits("train", 64, seed=5).pixels)[:, None]
    return model, pixels


def test_every_patch_stays_in_its_place_and_only_named_ones_go() -> None:
    model, pixels = candidates()
    background = model.preprocessing.normalise(pixels)
    cleaned = without_evidence(model.network, background, pixels)
    values = generic_attention(model.network, background).values.flatten(1)
    first = values.argsort(dim=1, descending=True)[:, : round(REPLACED * 64)]
    for reference in range(len(pixels)):
        for patch in range(64):
            row, column = divmod(patch, 8)
            place = (0, slice(4 * row, 4 * row + 4), slice(4 * column, 4 * column + 4))
            now, before = cleaned[reference][place], pixels[reference][place]
            assert (now == pixels[:, *place]).flatten(1).all(dim=1).any()  # from this place of some reference
            if patch not in first[reference]:
                assert torch.equal(now, before)
    assert int((cleaned != pixels).flatten(1).any(dim=1).sum()) > 0


def test_composites_reach_less_and_a_scrambled_network_is_not_helped() -> None:
    model, pixels = candidates()
    background = model.preprocessing.normalise(pixels)
    cleaned = model.preprocessing.normalise(without_evidence(model.network, background, pixels))
    for network, falls in ((model.network, True), (scramble(model.network, 1), False)):
        numbers = []
        for some in (background, cleaned):
            logits = composites_of(network, some, 0, range(400))
            numbers.append((logits - logits.mean(dim=1, keepdim=True)).amax(dim=1))
        change = float(numbers[0].quantile(0.95) - numbers[1].quantile(0.95)) / float(numbers[0].std())
        assert change > 0.3 if falls else abs(change) < 0.3


def test_it_is_deterministic_and_leaves_its_input() -> None:
    model, pixels = candidates()
    before, background = pixels.clone(), model.preprocessing.normalise(pixels)
    one = without_evidence(model.network, background, pixels)
    assert torch.equal(one, without_evidence(model.network, background, pixels))
    assert torch.equal(pixels, before)
    assert torch.equal(without_evidence(model.network, background[:1], pixels[:1]), pixels[:1])


def test_a_training_stores_them(tmp_path: Path) -> None:
    options = vitrail.TrainOptions(epochs=1, batch_size=400, threads=1)
    finished = vitrail.train("digits", tmp_path / "run", options)
    stored = vitrail.load(tmp_path / "run")
    assert stored.background is not None
    assert torch.equal(stored.background, finished.model.background)
