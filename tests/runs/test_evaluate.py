"""What an evaluation counts, against scikit-learn and scipy; and classes that are matched by name, end to end."""

import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from PIL import Image
from scipy import stats
from sklearn import metrics as sk
from torch import Tensor, nn

import vitrail
from tests.errors import must_raise
from tests.pages.structure import Structure
from tests.photographs import make_photographs
from tests.shared_runs import run_of
from tests.training.lab import PLAIN, PatchyLoader, batch_of_images, fresh, image_set, some_images, split_of
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import UsageError
from vitrail.nn.networks import weights_hash
from vitrail.runs.evaluate import evaluate_split
from vitrail.statistics import wilson_interval
from vitrail.tasks import Classification, Result

TASK = Classification()


class Stored(nn.Module):
    """A network that knows its answers: the one pixel of an image says which row it is."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = logits

    def forward(self, images: Tensor) -> Tensor:
        return self.logits[images[:, 0, 0, 0].long()]


def answers(seed: int, count: int, classes: int, kinds: int) -> tuple[Tensor, Tensor]:
    """Logits and labels; only the first `kinds` classes occur among the labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, kinds, (count,), generator=generator)
    logits = torch.randn(count, classes, generator=generator) * 2
    logits[torch.arange(count), labels] += 1.5
    return logits, labels


def counted(logits: Tensor, labels: Tensor, batch: int) -> Result:
    """What the task counts, in batches of this size."""
    metrics = TASK.metrics(PLAIN, vitrail.Classes(tuple("abcdefg"[: logits.shape[1]])))
    rows = torch.arange(len(labels), dtype=torch.float32)[:, None, None, None]
    found = []
    for first in range(0, len(labels), batch):
        part = slice(first, first + batch)
        found.append(metrics.answers(Stored(logits), batch_of_images(rows[part], labels[part], first)))
    return metrics.result(found, str)


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
    result, everyone = counted(logits, labels, batch), list(range(classes))
    found, best = result.to_dict(), logits.argmax(1).numpy()
    assert result.count == found["images"] == count
    assert result.value == found["accuracy"] == sk.accuracy_score(labels, best)
    probabilities = logits.double().softmax(1).numpy()
    assert result.loss == found["loss"] == pytest.approx(sk.log_loss(labels, probabilities, labels=everyone), rel=1e-9)
    assert "".join(result.answers) == "".join("abcdefg"[number] for number in best)
    assert "".join(result.truths) == "".join("abcdefg"[number] for number in labels)
    np.testing.assert_array_equal(result.ids, np.arange(count))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reference = sk.precision_recall_fscore_support(labels, best, labels=everyone, zero_division=np.nan)
    for row, precision, recall, f1, support in zip(found["per_class"], *reference, strict=True):
        assert row["images"] == support
        for name, value in (("precision", precision), ("recall", recall), ("f1", f1)):
            assert row[name] is None if np.isnan(value) else row[name] == pytest.approx(value, abs=1e-12), name


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 100), count=st.integers(1, 60))
def test_the_examples_are_of_every_class_the_surest_mistakes_and_the_least_sure_answers(seed: int, count: int) -> None:
    """Of each class as many as of another, where it has them; in order."""
    logits, labels = answers(seed, count, 4, 4)
    top, best = (each.numpy() for each in logits.double().softmax(1).max(1))
    wrong, shown = (best != labels.numpy()), counted(logits, labels, 7).examples
    for bad in (True, False):
        some = [example for example in shown if example.right != bad]
        assert shown[: len(some)] == tuple(some) or not bad, "mistakes first"
        assert len(some) == min(12, int((wrong == bad).sum()))
        taken = Counter(int(labels[example.id]) for example in some)
        for label in range(4):
            rows = [row for row in range(count) if labels[row] == label and wrong[row] == bad]
            rows.sort(key=lambda row: -top[row] if bad else top[row])
            assert {example.id for example in some if labels[example.id] == label} == set(rows[: taken[label]])
            assert taken[label] in (len(rows), *(max(taken.values(), default=0) - less for less in (0, 1)))
        order = [-example.probability if bad else (example.truth, example.probability) for example in some]
        assert order == sorted(order)
    for example in shown:
        assert example.probability == pytest.approx(top[example.id], rel=1e-12)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 100), count=st.integers(1, 40), batch=st.integers(1, 45))
def test_batches_of_any_size_count_the_same(seed: int, count: int, batch: int) -> None:
    logits, labels = answers(seed, count, 4, 4)
    full, parts = counted(logits, labels, count).to_dict(), counted(logits, labels, batch).to_dict()
    assert full.pop("loss") == pytest.approx(parts.pop("loss"), rel=1e-12)
    assert full == parts


def test_a_dropped_last_batch_would_be_seen() -> None:
    """The planted fault of many loops."""
    logits, labels = answers(0, 10, 3, 3)
    assert counted(logits[:8], labels[:8], 4).count != counted(logits, labels, 4).count


def test_an_evaluation_is_written_as_a_page(tmp_path: Path) -> None:
    """With the images of its examples, or the texts in a table; what comes back is the same."""
    for name, images in (("digits", True), ("sort-digits", False)):
        run, page = run_of(name), tmp_path / f"{name}.html"
        found = vitrail.evaluate(run, out=page)
        assert found.to_dict() == vitrail.evaluate(run).to_dict()
        shown = Structure(page.read_text())
        assert not shown.open
        assert page.read_text().count("<img ") == (len(found.examples) if images else 0)
        text = " ".join(shown.text)
        assert found.examples
        assert all(word in text for one in found.examples for word in (one.name, one.truth, one.answer))
        assert found.metric.shown(found.value) in text
        assert weights_hash(vitrail.load(run).network) in text
    with must_raise(UsageError):
        vitrail.evaluate(run, out=tmp_path / "page.txt")


def test_nothing_counted_is_no_accuracy() -> None:
    found = counted(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), 4).to_dict()
    assert (found["images"], found["accuracy"], found["interval"]) == (0, 0.0, [0.0, 1.0])
    assert all(row["precision"] is None for row in found["per_class"])


@settings(deadline=None, max_examples=80)
@given(images=st.integers(1, 100_000), share=st.floats(0, 1))
def test_the_interval_is_wilson_s(images: int, share: float) -> None:
    correct = round(share * images)
    low, high = wilson_interval(correct, images)
    reference = stats.binomtest(correct, images).proportion_ci(0.95, method="wilson")
    assert low == pytest.approx(reference.low, abs=1e-9)
    assert high == pytest.approx(reference.high, abs=1e-9)
    assert 0 <= low <= correct / images <= high <= 1


def test_a_network_is_evaluated_once_per_image_and_left_as_it_was() -> None:
    pixels, labels = some_images()
    network, bad = fresh().network.train(), (4, 21)
    network.blocks[0].eval()  # also a mixed state comes back
    modes = {name: module.training for name, module in network.named_modules()}
    data = image_set(PatchyLoader(pixels, bad), labels)
    model = vitrail.Model(network, PLAIN, vitrail.Classes(tuple("abc")))
    done: list[int] = []
    result = evaluate_split(model, split_of(pixels, labels), data, done.append)
    assert result.count == 20
    assert result.ids.tolist() == [one for one in range(22) if one not in bad]
    assert len(result.unreadable) == 2
    assert done == [22]
    assert modes == {name: module.training for name, module in network.named_modules()}
    with torch.no_grad():
        expected = network.eval()(PLAIN.normalise(pixels))[result.ids].argmax(1)
    assert result.answers.tolist() == ["abc"[number] for number in expected]


def test_classes_are_matched_by_name_from_folder_to_score(tmp_path: Path) -> None:
    """A model of {a, b, c} on images of {b, c, d}: b and c score, d is left out, counted and named."""
    make_photographs(tmp_path, ("b", "c", "d"), per_class=6, seed=3)
    shape = Preprocessing((16, 16))
    means = {}
    for name in "bc":
        pixels = torch.stack([shape.to_uint8(Image.open(path)) for path in sorted((tmp_path / name).iterdir())])
        means[name] = shape.normalise(pixels).mean((0, 2, 3))

    class Colour(nn.Module):
        """Right for b and c by construction: which mean colour is nearer; never a."""

        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, images: Tensor, record: Any = None) -> Tensor:
            far = [((images.mean((2, 3)) - means[name]) ** 2).sum(1) for name in "bc"]
            return -self.scale * torch.stack([torch.full_like(far[0], 100.0), *far], 1)

    model = vitrail.Model(Colour(), shape, vitrail.Classes(("a", "b", "c")))
    result = vitrail.evaluate(model, str(tmp_path), split="all")
    answer = result.to_dict()
    assert (answer["images"], answer["accuracy"], answer["unknown"]) == (12, 1.0, {"d": 6})
    assert "".join(result.truths) == "bbbbbbcccccc", "by number, b would be counted as a"
    assert [row["class"] for row in answer["per_class"]] == ["a", "b", "c"]
    assert [row["images"] for row in answer["per_class"]] == [0, 6, 6]
    assert answer["interval"] == list(wilson_interval(12, 12))
