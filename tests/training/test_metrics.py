"""What an evaluation counts, against scikit-learn and scipy; and classes that are matched by name, end to end."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics as sk
from vitrail.jobs import evaluate_found, open_for
from vitrail.training.evaluation import evaluate_network
from vitrail.training.metrics import Counting, Scores, wilson_interval

from tests.photographs import make_photographs
from tests.training.lab import PLAIN, PatchyLoader, fresh, pictures
from vitrail.data.preprocessing import Preprocessing
from vitrail.model import Model
from vitrail.nn import ViT, ViTConfig


def answers(seed: int, count: int, classes: int, kinds: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and labels; only the first `kinds` classes occur among the labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, kinds, (count,), generator=generator)
    logits = torch.randn(count, classes, generator=generator) * 2
    logits[torch.arange(count), labels] += 1.5
    return logits, labels


def counted(logits: torch.Tensor, labels: torch.Tensor, batch: int) -> Scores:
    counting = Counting(logits.shape[1])
    for first in range(0, len(labels), batch):
        part = slice(first, first + batch)
        counting.add(logits[part], labels[part], np.arange(len(labels))[part])
    return counting.scores()


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 60),
    classes=st.integers(2, 7),
    empty=st.integers(0, 3),
    batch=st.integers(1, 70),
)
def test_scikit_learn_counts_the_same(seed: int, count: int, classes: int, empty: int, batch: int) -> None:
    logits, labels = answers(seed, count, classes, max(1, classes - empty))
    scores, everyone = counted(logits, labels, batch), list(range(classes))
    best = logits.argmax(1).numpy()
    np.testing.assert_array_equal(scores.confusion, sk.confusion_matrix(labels, best, labels=everyone))
    assert scores.images == count
    assert scores.accuracy == sk.accuracy_score(labels, best)
    shares = logits.double().softmax(1).numpy()
    assert scores.loss == pytest.approx(sk.log_loss(labels, shares, labels=everyone), rel=1e-9)
    np.testing.assert_array_equal(scores.predicted, best)
    np.testing.assert_array_equal(scores.ids, np.arange(count))
    np.testing.assert_allclose(scores.probability, shares.max(1), rtol=1e-12)
    np.testing.assert_allclose(scores.own_probability, shares[np.arange(count), labels], rtol=1e-12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reference = sk.precision_recall_fscore_support(labels, best, labels=everyone, zero_division=np.nan)
    for row, precision, recall, f1, support in zip(
        scores.per_class(tuple("abcdefg"[:classes])), *reference, strict=True
    ):
        assert row["images"] == support
        for name, value in (("precision", precision), ("recall", recall), ("f1", f1)):
            assert row[name] is None if np.isnan(value) else row[name] == pytest.approx(value, abs=1e-12), name


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 100), count=st.integers(1, 40), batch=st.integers(1, 45))
def test_batches_of_any_size_count_the_same(seed: int, count: int, batch: int) -> None:
    logits, labels = answers(seed, count, 4, 4)
    whole, parts = counted(logits, labels, count), counted(logits, labels, batch)
    np.testing.assert_array_equal(whole.confusion, parts.confusion)
    np.testing.assert_array_equal(whole.predicted, parts.predicted)
    assert whole.loss == pytest.approx(parts.loss, rel=1e-12)


def test_a_dropped_last_batch_would_be_seen() -> None:
    """The planted fault of many loops."""
    logits, labels = answers(0, 10, 3, 3)
    kept = counted(logits[:8], labels[:8], 4)
    assert kept.images != counted(logits, labels, 4).images


def test_nothing_counted_is_no_accuracy() -> None:
    scores = Counting(3).scores()
    assert (scores.images, scores.accuracy, scores.loss, scores.interval) == (0, 0.0, 0.0, (0.0, 1.0))
    counting = Counting(3)
    counting.add(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), np.zeros(0, np.int64))
    assert counting.scores().images == 0


@settings(deadline=None, max_examples=80)
@given(images=st.integers(1, 100_000), share=st.floats(0, 1))
def test_the_interval_is_wilson_s(images: int, share: float) -> None:
    correct = round(share * images)
    low, high = wilson_interval(correct, images)
    reference = stats.binomtest(correct, images).proportion_ci(0.95, method="wilson")
    assert low == pytest.approx(reference.low, abs=1e-9)
    assert high == pytest.approx(reference.high, abs=1e-9)
    assert 0 <= low <= correct / images <= high <= 1


@pytest.mark.parametrize("batch_size", [1, 3, 22, 256])
def test_a_network_is_evaluated_once_per_picture_and_left_as_it_was(batch_size: int) -> None:
    pixels, labels = pictures()
    network, feed = fresh().network.train(), PatchyLoader(pixels, [4, 21])
    network.blocks[0].eval()  # also a mixed state comes back
    modes = {name: module.training for name, module in network.named_modules()}
    done: list[int] = []
    scores = evaluate_network(network, feed, labels, 3, PLAIN, batch_size=batch_size, progress=done.append)
    assert scores.images == 20
    assert scores.ids.tolist() == [one for one in range(22) if one not in (4, 21)]
    assert sorted(feed.unreadable) == [4, 21]
    assert done == [min(22, first + batch_size) for first in range(0, 22, batch_size)]
    assert modes == {name: module.training for name, module in network.named_modules()}
    with torch.no_grad():
        expected = network.eval()(PLAIN.normalise(pixels))[scores.ids].argmax(1)
    assert scores.predicted.tolist() == expected.tolist()


def test_classes_are_matched_by_name_from_folder_to_score(tmp_path: Path) -> None:
    """A model of {a, b, c} on pictures of {b, c, d}: b and c score, d is left out, counted and named."""
    make_photographs(tmp_path, ("b", "c", "d"), per_class=6, seed=3)
    config = ViTConfig(image_size=16, patch_size=8, classes=3, width=8, depth=1, heads=2)
    model = Model(ViT(config).eval(), Preprocessing((16, 16)), ("a", "b", "c"))
    colours = {name: model.tensor(sorted((tmp_path / name).iterdir())).mean((0, 2, 3)) for name in "bc"}

    class Colour(torch.nn.Module):
        """Right for b and c by construction: which mean colour is nearer."""

        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(()))

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            far = [((images.mean((2, 3)) - colours[name]) ** 2).sum(1) for name in "bc"]
            return -self.scale * torch.stack([torch.full_like(far[0], 100.0), *far], 1)

    found = open_for(model, tmp_path / "nowhere", str(tmp_path), split="all")
    assert found.unknown == {"d": 6}
    scores = evaluate_network(
        Colour(),
        PatchyLoader(torch.stack([model.preprocessing.to_uint8(found.split.pictures.open(i)) for i in range(12)])),
        found.split.labels,
        3,
        model.preprocessing,
    )
    assert scores.confusion.tolist() == [[0, 0, 0], [0, 6, 0], [0, 0, 6]], "by number, b would be counted as a"
    evaluated = evaluate_found(model, found)
    answer = evaluated.to_dict()
    assert answer["images"] == 12
    assert answer["unknown"] == {"d": 6}
    assert [row["class"] for row in answer["per_class"]] == ["a", "b", "c"]
    assert [row["images"] for row in answer["per_class"]] == [0, 6, 6]
    assert answer["interval"] == list(wilson_interval(round(answer["accuracy"] * 12), 12))
