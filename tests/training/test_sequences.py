"""A training on sequences: its loss, its batches, what a run leaves, and that it goes on with the same bits."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.errors import must_raise
from tests.pages.shown import charts_of
from tests.shared_runs import run_of, stored
from tests.training.lab import (
    EXECUTION,
    VOCABULARY,
    EpochDone,
    batch_of_ids,
    digit_strings,
    start,
    teacher_forcing,
    text_set,
    train_loop,
    writer,
)
from tests.training.tiny import (
    AGAIN,
    STEPS,
    Killed,
    ended_at,
    must_equal,
    options,
    rows,
    saved,
    steps_of,
    whole,
)
from vitrail.errors import DataError, UsageError, VitrailError
from vitrail.nn import seq2seq
from vitrail.nn.networks import weights_hash
from vitrail.runs.settings import Optimization

SORT = "sort-digits"


# ---- the objective


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_is_the_one_on_paper(smoothing: float) -> None:
    """By hand in float64, id by id; padding is neither asked for nor counted."""
    logits = torch.randn(2, 4, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    given: list[torch.Tensor] = []

    def network(inputs: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        given.append(before)
        return logits

    batch = batch_of_ids([[1, 4, 5, 6, 2], [1, 3, 2, 0, 0]])
    loss, count, measures = teacher_forcing(smoothing)(network, batch)
    assert given[0].tolist() == [[1, 4, 5, 6], [1, 3, 2, 0]]
    by_hand, right = 0.0, 0
    for row, wanted in ((0, [4, 5, 6, 2]), (1, [3, 2])):
        for place, number in enumerate(wanted):
            probabilities = np.exp(logits[row, place].numpy()) / np.exp(logits[row, place].numpy()).sum()
            by_hand -= (1 - smoothing) * np.log(probabilities[number]) + smoothing * np.log(probabilities).mean()
            right += int(probabilities.argmax() == number)
    assert count == 6
    assert float(loss) == pytest.approx(by_hand, rel=1e-6)
    assert int(measures["correct_tokens"]) == right


def test_micro_batches_add_up() -> None:
    network, strings = writer(16, 12).double(), digit_strings(40)
    data, objective = text_set(strings, ["".join(sorted(text)) for text in strings]), teacher_forcing(0.1)
    full = [objective(network, batch)[:2] for batch in data.batches(0, 20)]
    parts = [objective(network, batch)[:2] for batch in data.batches(0, 20, 0, 7)]
    for number, (loss, count) in enumerate(full):
        group = parts[3 * number : 3 * number + 3]
        assert sum(part[1] for part in group) == count
        assert sum(float(part[0].detach()) for part in group) == pytest.approx(float(loss.detach()), rel=1e-6)


def unpredictable(steps: int = 60) -> float:
    """The loss at the end of a training whose targets are noise that no source tells."""
    targets = ["".join(map(str, row)) for row in np.random.default_rng(0).integers(0, 10, (steps * 16, 5)).tolist()]
    choices = Optimization(epochs=1, batch_size=16, learning_rate=1e-2, warmup_epochs=0.1, schedule="constant")
    data = text_set(["0"] * len(targets), targets)
    loop = train_loop(start(writer(32, 6), choices), data, teacher_forcing(), choices, EXECUTION)
    losses = [float(event.loss) for event in loop if not isinstance(event, EpochDone)]
    return sum(losses[-20:]) / 20


@pytest.mark.soak
def test_what_cannot_be_known_is_not_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five random digits and an end cost 5 / 6 ln 10 = 1.92 nats an id; who may look ahead pays nearly nothing."""
    floor = 5 / 6 * np.log(10)
    assert unpredictable() > 0.97 * floor
    monkeypatch.setattr(seq2seq, "causal_mask", lambda n, m, device: torch.ones(n, m, dtype=torch.bool, device=device))
    assert unpredictable() < 0.7 * floor  # the planted fault: the test above would fail


# ---- batches


def test_batches_are_a_function_of_seed_and_epoch() -> None:
    sources = digit_strings(50)
    targets = ["".join(sorted(text)) for text in sources]

    def batches(seed: int, epoch: int, first: int = 0) -> list[Any]:
        return list(text_set(sources, targets, seed).batches(epoch, 16, first))

    one, again, other = batches(0, 1), batches(0, 1), batches(0, 2)
    assert [len(batch) for batch in one] == [16, 16, 16, 2]
    assert sorted(number for batch in one for number in batch.ids.tolist()) == list(range(50))
    for a, b in zip(one[2:], batches(0, 1, 2), strict=True):
        assert (a.number, a.ids.tolist()) == (b.number, b.ids.tolist())
        assert torch.equal(a.inputs, b.inputs)
        assert torch.equal(a.targets, b.targets)
    assert all(a.ids.tolist() == b.ids.tolist() for a, b in zip(one, again, strict=True))
    assert one[0].ids.tolist() != other[0].ids.tolist()
    assert one[0].ids.tolist() != batches(1, 1)[0].ids.tolist()
    for batch in one:
        for row, number in enumerate(batch.ids.tolist()):
            assert VOCABULARY.decode(batch.inputs[row].tolist()) == sources[number]
            assert VOCABULARY.decode(batch.targets[row].tolist()) == targets[number]


# ---- runs


def answers(run: Path, sources: list[Any]) -> list[str]:
    """What the model of a run writes for each source."""
    return [one.text for one in vitrail.load(run).predict(sources)]


def test_a_run_leaves_a_whole_folder() -> None:
    folder = whole(SORT)
    names = {path.name for path in folder.iterdir()}
    assert names >= {"command.txt", "config.yaml", "data.json", "evaluation.json", "metrics.jsonl", "model", "run.html"}
    assert {path.name for path in (folder / "model").iterdir()} == {"README.md", "config.json", "model.safetensors"}
    assert json.loads((folder / "data.json").read_text())["images"] == {"train": 120, "validation": 30, "test": 40}
    assert "</html>" in (folder / "run.html").read_text()
    found = stored(folder)
    assert found["sequences"] == sum(row["sequences"] for row in found["by_length"]) == 40
    assert found["exact"] == sum(row["exact"] for row in found["by_length"])
    assert weights_hash(vitrail.load(folder).network) == found["weights"]


def test_how_strings_are_laid_out_is_stated(mnist_root: Path, tmp_path: Path) -> None:
    """Canvas, gaps and lengths are a part of what a set is, so a run says which they were."""
    config = tmp_path / "tiny.yaml"
    config.write_text(
        "network: {encoder: {width: 8, depth: 1, heads: 2, mlp_dim: 8}, decoder_depth: 1, mlp_dim: 8}\n"
        "counts: {train: 20, validation: 5, test: 5}\n"
    )
    asked = replace(options(SORT, epochs=1), config=config, data_root=mnist_root)
    run = vitrail.train("mnist-strings", tmp_path / "run", asked).folder
    layout = json.loads((run / "data.json").read_text())["layout"]
    assert layout["canvas"] == list(vitrail.load(run).network.config.encoder.image)
    assert "layout" not in json.loads((whole(SORT) / "data.json").read_text())  # no images are made


def edits(one: str, other: str) -> int:
    """Levenshtein's distance, by its recursion."""
    if not one or not other:
        return len(one) + len(other)
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, start=1):
        before, row = row, [i]
        row += [0] * len(other)
        for j, b in enumerate(other, start=1):
            row[j] = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b))
    return row[-1]


def test_own_pairs_are_counted_as_by_hand(tmp_path: Path) -> None:
    """Texts in a file with three splits: each answer of the model, compared here, gives the figures of the run."""
    strings = digit_strings(72)
    lines = [f"{text}\t{''.join(sorted(text))}\t{('train', 'val', 'test')[n % 3]}" for n, text in enumerate(strings)]
    (tmp_path / "pairs.tsv").write_text("\n".join(lines))
    asked = replace(options(SORT, epochs=8, batch_size=8, lr=0.02), config=own_config(tmp_path))
    run = vitrail.train(str(tmp_path / "pairs.tsv"), tmp_path / "run", asked).folder
    sources = strings[2::3]
    wanted, written = ["".join(sorted(text)) for text in sources], answers(run, sources)
    found = stored(run)
    assert found["split"] == "test"
    assert found["sequences"] == len(sources) == 24
    assert found["exact"] == sum(one == other for one, other in zip(wanted, written, strict=True))
    assert found["edit_distance"] == sum(edits(one, other) for one, other in zip(wanted, written, strict=True)) > 0
    assert found["tokens"] == sum(map(len, wanted))
    answered = set(zip(sources, written, strict=True))
    assert {(row["source"], row["written"]) for row in found["mistakes"]} <= answered


def own_config(folder: Path) -> Path:
    """The tiny network for texts of one's own, which are not made."""
    path = folder / "own.yaml"
    path.write_text("network: {width: 16, encoder_depth: 1, decoder_depth: 1, heads: 2, mlp_dim: 32}\n")
    return path


def test_a_run_is_evaluated_in_python_as_in_the_run() -> None:
    run, done = whole(SORT), []
    outcome, found = vitrail.evaluate(run), stored(run)
    assert outcome.to_dict() | {"weights": found["weights"], "calibration": outcome.calibration} == found
    assert (outcome.data, outcome.notes) == (SORT, ())
    model = vitrail.load(run)
    again = vitrail.evaluate(model, split="validation", progress=done.append).to_dict()
    assert (again["split"], again["sequences"], done[-1]) == ("validation", 30, 30)
    assert vitrail.evaluate(model).to_dict() == outcome.to_dict()
    with must_raise(UsageError):
        vitrail.evaluate(replace(model, loaded_from=""))  # of no run
    with must_raise(UsageError) as caught:
        vitrail.evaluate(run, split="vlidation")
    assert caught.value.hint.flags == {"split": "validation"}
    with must_raise(DataError):
        vitrail.evaluate(run, "digits")  # holds no sequences


def test_the_metrics_say_what_is_fed_and_what_is_counted(tmp_path: Path) -> None:
    """Each target of three letters asks for four ids: its letters and its end."""
    (tmp_path / "pairs.tsv").write_text("".join(f"{number}\t{number}\n" for number in range(100, 160)))
    asked = replace(options(SORT), config=own_config(tmp_path))
    run = vitrail.train(str(tmp_path / "pairs.tsv"), tmp_path / "run", asked).folder
    fed = json.loads((run / "data.json").read_text())["images"]["train"]
    assert [(row["samples"], row["tokens"]) for row in rows(run)] == [(fed, 4 * fed)] * 2
    assert not any("images" in row for row in rows(run))
    assert "training_accuracy" not in rows(run)[0], "a text with one wrong token is wrong"
    assert 0 <= rows(run)[0]["training_token_accuracy"] <= 1
    drawn = {title: len(lines) for title, lines in charts_of((run / "run.html").read_text("utf-8")).items()}
    assert [*drawn.values()] == [2, 1, 1, 1]
    assert drawn[vitrail.tasks.TASKS["sequences"].metric.label.capitalize()] == 1


def test_the_configuration_of_a_run_makes_it_again(tmp_path: Path) -> None:
    config = whole(SORT) / "config.yaml"
    again = vitrail.train(out=tmp_path / "again", options=vitrail.TrainOptions(config=config))
    must_equal(again, SORT)
    assert (again.folder / "config.yaml").read_text() == config.read_text()
    assert vitrail.train(SORT, tmp_path / "other", options(SORT, seed=4)).weights != again.weights


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.soak), 5, pytest.param(7, marks=pytest.mark.soak)])
def test_a_run_goes_on_with_the_same_bits(step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole(SORT)
    saved(monkeypatch, often=True)
    folder, events = tmp_path / "run", []
    with pytest.raises(Killed):
        vitrail.train(SORT, folder, options(SORT), ended_at(step))
    must_equal(vitrail.train(SORT, folder, AGAIN, events.append), SORT)
    assert steps_of(events) == list(range(step, STEPS[SORT] + 1)), "it does not start over"


def test_going_on_differently_is_refused() -> None:
    run = whole(SORT)
    for changed, change in (
        ({"lr": 1.0}, "lr: 0.002 -> 1.0"),
        ({"seed": 9}, "seed: 3 -> 9"),
        ({"recipe": "texts"}, "recipe: sort-digits -> texts"),
    ):
        with must_raise(UsageError) as caught:
            vitrail.train(SORT, run, replace(AGAIN, **changed))
        assert change in caught.value.problem
    with must_raise(UsageError, "sort-digits -> digits"):
        vitrail.train("digits", run, AGAIN)


# ---- what is refused


@pytest.mark.parametrize(
    "asked", [{"size": "S/16"}, {"image_size": 32}, {"recipe": "mnist"}, {"recipe": "mnist-strings"}, {"epochs": 0}]
)
def test_options_that_make_no_sense_are_refused(asked: dict, tmp_path: Path) -> None:
    with must_raise(UsageError, str(next(iter(asked.values())))):
        vitrail.train(SORT, tmp_path / "run", options(SORT, **asked))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("labelsmoothing: 0.1", "labelsmoothing"),
        ("network: {widht: 8}", "network.widht"),
        ("augmentation: {label_smoothing: 2}", "label_smoothing"),
        ("counts: {train: 0}", "counts"),
        ("optimization: {epochs: many}", "optimization.epochs"),
        ("network: {heads: 5}", "heads"),
        ("augmentation: {flip: 0.5}", "augmentation.flip"),
        ("augmentation: {mixup: 0.5}", "augmentation.mixup"),
        ("network: {max_length: 4}", "3"),
    ],
)
def test_a_wrong_configuration_names_its_key(text: str, key: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(text if "counts" in text else f"{text}\ncounts: {{train: 120, validation: 30, test: 40}}\n")
    with must_raise(VitrailError, key) as caught:
        vitrail.train(SORT, tmp_path / "run", vitrail.TrainOptions(config=path))
    assert caught.value.exit_code in (2, 3)
    assert not (tmp_path / "run").exists()


def test_a_single_text_that_is_far_too_long_is_named(tmp_path: Path) -> None:
    """Attention over it would take all the memory there is."""
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{number}\t{number}\n" for number in range(200)) + "777\t" + "7" * 8000 + "\n")
    with must_raise(DataError, "777.*8000"):
        vitrail.train(str(path), tmp_path / "run", vitrail.TrainOptions(epochs=1))
    assert not (tmp_path / "run").exists()


def test_a_token_that_training_lacks_is_named(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("ab\tba\ttrain\nba\tab\ttrain\nab\tbq\ttest\nab\tba\tval\n")
    with must_raise(DataError, "'bq'.*'q'"):
        vitrail.train(str(tmp_path / "pairs.tsv"), tmp_path / "run")


# ---- images with texts


def test_own_images(tmp_path: Path) -> None:
    """Colour, of several sizes, one that cannot be read."""
    lines, draw = ["path,text"], np.random.default_rng(0)
    for number in range(24):
        pixels = draw.integers(0, 60, (20, 40 + number, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
        lines.append(f"{number}.png,{'ab'[number % 2] * (1 + number % 3)}")
    (tmp_path / "3.png").write_bytes(b"no image")
    data, config, said = tmp_path / "labels.csv", tmp_path / "tiny.yaml", []
    data.write_text("\n".join(lines))
    config.write_text(
        "network: {encoder: {width: 16, depth: 1, heads: 2, mlp_dim: 32}, decoder_depth: 1, mlp_dim: 32}\n"
    )
    asked = replace(options(SORT, epochs=1, batch_size=8), config=config)
    run = vitrail.train(str(data), tmp_path / "run", asked, said.append).folder
    found = stored(run)
    outcome = vitrail.evaluate(run)
    assert outcome.to_dict() | {"weights": found["weights"], "calibration": outcome.calibration} == found
    assert found["sequences"] == 2
    assert vitrail.evaluate(run, str(data), split="train").to_dict()["sequences"] < 24
    with must_raise(DataError):
        vitrail.evaluate(run, SORT)  # texts, for a model that reads images
    model = vitrail.load(run)
    assert model.network.config.encoder.image == (32, 104)
    assert model.network.config.encoder.channels == 3
    assert len([event for event in said if isinstance(event, str) and "3.png" in event]) == 1
    assert set("".join(answers(run, [tmp_path / "0.png", tmp_path / "1.png"]))) <= set("ab")


def test_an_image_is_written_as_in_the_run() -> None:
    """Loaded from its files, the model writes for each image of the test split what the evaluation counted."""
    run = run_of("strings")
    found = stored(run)
    written = {row["source"]: row["written"] for row in found["mistakes"] + found["right_answers"]}
    root = Path(json.loads((run / "data.json").read_text())["root"]).parent
    assert answers(run, [root / name for name in written]) == list(written.values())
