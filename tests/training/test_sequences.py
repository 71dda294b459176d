"""A training on sequences: its loss, its settings, what a run leaves, and that it goes on with the same bits."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.training.ended import Killed, ended_at, what_was_learnt
from vitrail.data.readers.mnist_strings import LAYOUT
from vitrail.data.samples import TextSamples
from vitrail.data.sequence_batches import SequenceBatch, SequenceSet, feed_of
from vitrail.data.sequence_source import Counts, open_sequences
from vitrail.data.vocabulary import Vocabulary
from vitrail.errors import DataError, UsageError
from vitrail.nn import Transformer, TransformerConfig, decoder
from vitrail.sequence_model import SequenceModel
from vitrail.training.checkpoint import weights_hash
from vitrail.training.events import Event, Finished
from vitrail.training.loop import EpochDone, StepDone, start, train_loop
from vitrail.training.objectives import teacher_forcing
from vitrail.training.options import TrainOptions
from vitrail.training.prepare_sequences import build_sequences, resolve_sequences
from vitrail.training.run import RunFolder
from vitrail.training.sequence_metrics import SequenceOutcome, edits
from vitrail.training.sequence_settings import SequenceSettings, sequence_settings_from_dict
from vitrail.training.settings import Execution, Optimization, read_yaml

SMALL = """
network: {width: 16, encoder_depth: 1, decoder_depth: 1, heads: 2, mlp_dim: 32, dropout: 0.1}
counts: {train: 120, validation: 30, test: 40}
optimization: {batch_size: 24, average: 0.9}
label_smoothing: 0.1
"""
STEPS = 10  # 120 strings in batches of 24, twice


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration that trains in seconds."""
    path = tmp_path_factory.mktemp("sequences") / "small.yaml"
    path.write_text(SMALL)
    return path


def options(small: Path, **more: object) -> TrainOptions:
    return replace(TrainOptions(config=small, epochs=2, threads=1, device="cpu", seed=3), **more)


@pytest.fixture(scope="module")
def finished(small: Path) -> Finished:
    """The unbroken run that others must equal."""
    return vitrail.train("sort-digits", small.parent / "runs" / "whole", options(small))


# ---- the objective


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_is_the_one_on_paper(smoothing: float) -> None:
    """By hand in float64, id by id; padding is neither asked for nor counted."""
    logits = torch.randn(2, 4, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    target = torch.tensor([[1, 4, 5, 6, 2], [1, 3, 2, 0, 0]])
    given: list[torch.Tensor] = []

    def network(inputs: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        given.append(before)
        return logits

    batch = SequenceBatch(torch.zeros(2, 1, dtype=torch.long), target, np.arange(2), 0, 0, 0)
    loss, count, measures = teacher_forcing(smoothing)(network, batch)
    assert given[0].tolist() == [[1, 4, 5, 6], [1, 3, 2, 0]]
    by_hand, right = 0.0, 0
    for row, wanted in ((0, [4, 5, 6, 2]), (1, [3, 2])):
        for place, number in enumerate(wanted):
            shares = np.exp(logits[row, place].numpy()) / np.exp(logits[row, place].numpy()).sum()
            by_hand -= (1 - smoothing) * np.log(shares[number]) + smoothing * np.log(shares).mean()
            right += int(shares.argmax() == number)
    assert count == 6
    assert float(loss) == pytest.approx(by_hand, rel=1e-6)
    assert int(measures["correct_tokens"]) == right


def test_parts_of_a_batch_add_up() -> None:
    torch.manual_seed(0)
    network = Transformer(
        TransformerConfig(source_vocabulary=13, target_vocabulary=13, width=16, heads=2, mlp_dim=16, encoder_depth=1,
                          decoder_depth=1, dropout=0.0, max_length=12)
    ).double()  # fmt: skip
    source = open_sequences("sort-digits", counts=Counts(40, 5, 5))
    digits = Vocabulary(tuple("0123456789"))
    data = SequenceSet(feed_of(source.train, None, digits, 0), 40, digits, None, 0, torch.device("cpu"))
    objective = teacher_forcing(0.1)
    whole = [objective(network, batch)[:2] for batch in data.batches(0, 20)]
    parts = [objective(network, batch)[:2] for batch in data.batches(0, 20, 0, 7)]
    for number, (loss, count) in enumerate(whole):
        group = parts[3 * number : 3 * number + 3]
        assert sum(part[1] for part in group) == count
        assert sum(float(part[0].detach()) for part in group) == pytest.approx(float(loss.detach()), rel=1e-6)


def unpredictable(steps: int = 150) -> float:
    """The loss at the end of a training whose targets are noise that no source tells."""
    digits, draw = Vocabulary(tuple("0123456789")), np.random.default_rng(0)
    targets = tuple("".join(map(str, row)) for row in draw.integers(0, 10, (steps * 16, 5)).tolist())
    samples = TextSamples(("0",) * len(targets), targets)
    torch.manual_seed(0)
    network = Transformer(
        TransformerConfig(source_vocabulary=13, target_vocabulary=13, width=32, heads=2, mlp_dim=64, encoder_depth=1,
                          decoder_depth=1, dropout=0.0, norm="pre", max_length=6)
    )  # fmt: skip
    data = SequenceSet(feed_of(samples, None, digits, 0), len(samples), digits, None, 0, torch.device("cpu"))
    choices = Optimization(epochs=1, batch_size=16, learning_rate=5e-3, warmup_epochs=0.1, schedule="constant")
    loop = train_loop(start(network, choices), data, teacher_forcing(), choices, Execution(threads=1))
    losses = [float(event.loss) for event in loop if not isinstance(event, EpochDone)]
    return sum(losses[-20:]) / 20


def test_what_cannot_be_known_is_not_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five random digits and an end cost 5 / 6 ln 10 = 1.92 nats an id; who may look ahead pays nearly nothing."""
    floor = 5 / 6 * np.log(10)
    assert unpredictable() > 0.97 * floor
    monkeypatch.setattr(decoder, "causal_mask", lambda n, m, device: torch.ones(n, m, dtype=torch.bool, device=device))
    assert unpredictable() < 0.5 * floor  # the planted fault: the test above would fail


# ---- batches


def test_batches_are_a_function_of_seed_and_epoch() -> None:
    source = open_sequences("sort-digits", counts=Counts(50, 5, 5))
    digits = Vocabulary(tuple("0123456789"))

    def batches(seed: int, epoch: int, start: int = 0) -> list[SequenceBatch]:
        data = SequenceSet(feed_of(source.train, None, digits, 0), 50, digits, None, seed, torch.device("cpu"))
        return list(data.batches(epoch, 16, start))

    one, again, other = batches(0, 1), batches(0, 1), batches(0, 2)
    assert [len(batch) for batch in one] == [16, 16, 16, 2]
    assert sorted(number for batch in one for number in batch.ids.tolist()) == list(range(50))
    for a, b in zip(one[2:], batches(0, 1, start=2), strict=True):
        assert (a.number, a.ids.tolist()) == (b.number, b.ids.tolist())
        assert torch.equal(a.inputs, b.inputs)
        assert torch.equal(a.target, b.target)
    assert all(a.ids.tolist() == b.ids.tolist() for a, b in zip(one, again, strict=True))
    assert one[0].ids.tolist() != other[0].ids.tolist()
    assert one[0].ids.tolist() != batches(1, 1)[0].ids.tolist()
    for batch in one:
        for row, number in enumerate(batch.ids.tolist()):
            assert isinstance(source.train, TextSamples)
            assert digits.decode(batch.inputs[row].tolist()) == source.train.sources[number]
            assert digits.decode(batch.target[row].tolist()) == source.train.targets[number]


# ---- runs


def test_a_run_leaves_a_whole_folder(finished: Finished) -> None:
    folder = finished.folder
    names = {path.name for path in folder.iterdir()}
    assert names >= {"command.txt", "config.yaml", "data.json", "evaluation.json", "metrics.jsonl", "model", "run.html"}
    assert {path.name for path in (folder / "model").iterdir()} == {"README.md", "config.json", "model.safetensors"}
    settings = sequence_settings_from_dict(read_yaml(folder / "config.yaml"))
    assert isinstance(settings, SequenceSettings)
    assert settings.counts == Counts(120, 30, 40)
    assert json.loads((folder / "data.json").read_text())["images"] == {"train": 120, "validation": 30, "test": 40}
    page = (folder / "run.html").read_text()
    assert "are written exactly right" in page
    assert "What is written" in page
    stored = json.loads((folder / "evaluation.json").read_text())
    assert stored["sequences"] == 40
    assert stored["exact"] == sum(row["exact"] for row in stored["by_length"])
    assert "exactly right" not in (folder / "model" / "README.md").read_text()
    assert "of 40 sequences" in (folder / "model" / "README.md").read_text()


def test_how_strings_are_laid_out_is_stated(mnist_root: Path, finished: Finished) -> None:
    """Canvas, gaps and lengths are a part of the recipe, so a run says which they were."""
    source = open_sequences("mnist-strings", mnist_root, counts=Counts(40, 20, 20))
    settings, notes = resolve_sequences("mnist-strings", TrainOptions(threads=1, device="cpu"), {}, source)
    facts = build_sequences(settings, source).data_facts()
    assert json.loads(json.dumps(facts))["layout"] == LAYOUT
    assert "unchanged, it reached 97.90" in notes[0]
    assert "layout" not in json.loads((finished.folder / "data.json").read_text())  # no pictures are made


def test_the_model_of_a_run_says_what_the_run_says(finished: Finished) -> None:
    model = vitrail.load(finished.folder)
    assert isinstance(model, SequenceModel)
    assert weights_hash(model.network) == finished.weights
    outcome = finished.evaluated
    assert isinstance(outcome, SequenceOutcome)
    written = model.generate([reading.written.name for reading in outcome.readings])
    assert [one.text for one in written] == [reading.written.text for reading in outcome.readings]
    assert outcome.exact == sum(one.text == "".join(sorted(one.name)) for one in written)
    assert outcome.edits == sum(edits(one.text, "".join(sorted(one.name))) for one in written)


def test_a_run_is_evaluated_in_python_as_at_the_command_line(finished: Finished) -> None:
    outcome = vitrail.evaluate(finished.folder)
    assert isinstance(outcome, SequenceOutcome)
    assert outcome.to_dict() == finished.evaluated.to_dict()
    assert (outcome.data, outcome.notes) == ("sort-digits", ())
    model, done = vitrail.load(finished.folder), []
    again = vitrail.evaluate(model, run=finished.folder, split="validation", progress=done.append)
    assert (again.split, again.count, done[-1]) == ("validation", 30, 30)
    with pytest.raises(UsageError, match="this model does not remember any data"):
        vitrail.evaluate(model)
    with pytest.raises(UsageError, match="no split rest"):
        vitrail.evaluate(finished.folder, split="rest")
    with pytest.raises(DataError, match="digits holds no sequences"):
        vitrail.evaluate(finished.folder, "digits")


def test_the_metrics_say_what_is_fed_and_what_is_counted(finished: Finished) -> None:
    """120 strings an epoch, and of each its digits and its end."""
    source = open_sequences("sort-digits", counts=Counts(120, 30, 40))
    assert isinstance(source.train, TextSamples)
    tokens = sum(len(text) + 1 for text in source.train.targets)
    rows = RunFolder(finished.folder).history()
    assert [(row["samples"], row["tokens"]) for row in rows] == [(120, tokens)] * 2
    assert not any("images" in row for row in rows)


def test_the_same_seed_gives_the_same_weights_and_another_does_not(
    finished: Finished, small: Path, tmp_path: Path
) -> None:
    again = vitrail.train("sort-digits", tmp_path / "again", options(small))
    assert again.weights == finished.weights
    assert what_was_learnt(again.folder) == what_was_learnt(finished.folder)
    assert vitrail.train("sort-digits", tmp_path / "other", options(small, seed=4)).weights != finished.weights


def test_the_configuration_of_a_run_makes_it_again(finished: Finished, tmp_path: Path) -> None:
    again = vitrail.train(out=tmp_path / "again", options=TrainOptions(config=finished.folder / "config.yaml"))
    assert again.weights == finished.weights
    assert (again.folder / "config.yaml").read_text() == (finished.folder / "config.yaml").read_text()


@pytest.mark.parametrize("step", [1, 5, 7])
def test_a_run_goes_on_with_the_same_bits(
    step: int, finished: Finished, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitrail.training.job.SAVE_WITHIN_EPOCH_SECONDS", -1.0)
    folder = tmp_path / "run"
    with pytest.raises(Killed):
        vitrail.train("sort-digits", folder, options(small), ended_at(step))
    steps: list[int] = []
    again = vitrail.train(
        "sort-digits",
        folder,
        TrainOptions(resume="auto"),
        lambda event: steps.append(event.step) if isinstance(event, StepDone) else None,
    )
    assert again.weights == finished.weights
    assert what_was_learnt(folder) == what_was_learnt(finished.folder)
    assert steps[-1] == STEPS
    assert step <= steps[0] <= step + 1


def test_going_on_differently_is_refused(finished: Finished, small: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished.folder, tmp_path / "copy")
    for asked, said in (
        (TrainOptions(resume="auto", lr=1.0), "learning_rate: 0.002 -> 1.0"),
        (TrainOptions(resume="auto", seed=9), "seed: 3 -> 9"),
        (TrainOptions(resume="auto", recipe="texts"), "recipe: sort-digits -> texts"),
    ):
        with pytest.raises(UsageError, match=said):
            vitrail.train("sort-digits", folder, asked)
    with pytest.raises(UsageError, match="data: sort-digits -> digits"):
        vitrail.train("digits", folder, TrainOptions(resume="auto"))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (TrainOptions(size="S/16"), "--size S/16 is for classes of pictures"),
        (TrainOptions(image_size=32), "--image-size 32 is for classes of pictures"),
        (TrainOptions(recipe="mnist"), "there is no recipe 'mnist' for sequences like those of sort-digits"),
        (TrainOptions(recipe="mnist-strings"), "there is no recipe 'mnist-strings' for sequences like"),
        (TrainOptions(epochs=0), "epochs must be at least 1"),
    ],
)
def test_what_makes_no_sense_is_refused(asked: TrainOptions, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        vitrail.train("sort-digits", tmp_path / "run", asked)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("labelsmoothing: 0.1", "unknown key 'labelsmoothing'"),
        ("network: {widht: 8}", "unknown key 'network.widht'"),
        ("label_smoothing: 2", "label_smoothing must be from 0 to below 1, got 2"),
        ("counts: {train: 0}", "counts"),
        ("optimization: {epochs: many}", "optimization.epochs"),
        ("network: {heads: 5}", "width 96 cannot be shared among 5 heads"),
        ("augmentation: {flip: 0.5}", "unknown key 'augmentation'"),
        ("network: {max_length: 4}", "tokens, and the network writes 3 at most"),
    ],
)
def test_a_wrong_configuration_is_said(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    with pytest.raises((UsageError, DataError), match=said):
        vitrail.train("sort-digits", tmp_path / "run", TrainOptions(config=path))
    assert not (tmp_path / "run").exists()


def test_tokens_and_whole_texts_are_never_one_accuracy(tmp_path: Path) -> None:
    """A text with one wrong token counts as wrong, so the two shares are called by their names."""
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{number}\t{number}\n" for number in range(100, 160)))
    ended = vitrail.train(str(path), tmp_path / "run", TrainOptions(epochs=2))
    (first, *_) = RunFolder(ended.folder).history()
    assert first["training_accuracy"] is None
    assert 0 <= first["training_token_accuracy"] <= 1
    page = (ended.folder / "run.html").read_text()
    assert "training, single tokens" in page
    assert "validation, whole texts" in page


def test_a_single_text_that_is_far_too_long_is_named(tmp_path: Path) -> None:
    """Attention over it would take all the memory there is."""
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{number}\t{number}\n" for number in range(200)) + "777\t" + "7" * 8000 + "\n")
    with pytest.raises(DataError, match="the text of 777 has 8000 tokens, and the network writes 512 at most"):
        vitrail.train(str(path), tmp_path / "run", TrainOptions(epochs=1))
    assert not (tmp_path / "run").exists()


def test_a_classifier_s_configuration_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "classes.yaml"
    path.write_text("augmentation: {flip: 0.5}\n")
    with pytest.raises(UsageError, match="unknown key 'augmentation'"):
        vitrail.train("sort-digits", tmp_path / "run", TrainOptions(config=path))
    path.write_text("label_smoothing: 0.5\n")
    with pytest.raises(UsageError, match="unknown key 'label_smoothing'"):
        vitrail.train("digits", tmp_path / "run", TrainOptions(config=path))


def test_own_pairs(tmp_path: Path) -> None:
    """Words in, words out; what is written is what the training split writes."""
    rows = [f"{a}{b}\t{b}{a}" for a in "abcd" for b in "wxyz"]
    (tmp_path / "swap.tsv").write_text("\n".join(rows * 2))
    finished = vitrail.train(
        str(tmp_path / "swap.tsv"), tmp_path / "run", TrainOptions(epochs=2, batch_size=8, threads=1)
    )
    assert finished.evaluated.split == "validation"
    model = vitrail.load(tmp_path / "run")
    assert set("".join(model.vocabulary.tokens)) <= set("abcdwxyz")
    assert model.network.config.max_length == 3


def test_a_token_that_training_lacks_is_named(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("ab\tba\ttrain\nba\tab\ttrain\nab\tbq\ttest\nab\tba\tval\n")
    with pytest.raises(DataError, match="the test split: 'bq' has the unknown token 'q' at place 2"):
        vitrail.train(str(tmp_path / "pairs.tsv"), tmp_path / "run")


def test_own_pictures(tmp_path: Path) -> None:
    """Colour, of several sizes, one that cannot be read."""
    rows = ["path,text"]
    draw = np.random.default_rng(0)
    for number in range(24):
        text = "ab"[number % 2] * (1 + number % 3)
        pixels = draw.integers(0, 60, (20, 40 + number, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,{text}")
    (tmp_path / "3.png").write_bytes(b"no picture")
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    said: list[Event] = []
    finished = vitrail.train(
        str(tmp_path / "labels.csv"),
        tmp_path / "run",
        TrainOptions(epochs=1, batch_size=8, threads=1, workers=1),
        said.append,
    )
    outcome = vitrail.evaluate(tmp_path / "run")
    assert isinstance(outcome, SequenceOutcome)
    assert outcome.to_dict() == finished.evaluated.to_dict()
    assert vitrail.evaluate(tmp_path / "run", str(tmp_path / "labels.csv"), split="train").count < 24
    with pytest.raises(DataError, match="sort-digits holds texts, this model reads pictures"):
        vitrail.evaluate(tmp_path / "run", "sort-digits")
    model = vitrail.load(tmp_path / "run")
    assert model.network.config.encoder.image == (32, 104)
    assert model.network.config.encoder.channels == 3
    assert model.preprocessing.resize == "pad"
    assert len([sentence for sentence in said if isinstance(sentence, str) and "3.png" in sentence]) == 1
    assert len(model.generate([tmp_path / "0.png", tmp_path / "1.png"])) == 2
    assert finished.evaluated.count == 2
    assert "</html>" in (tmp_path / "run" / "run.html").read_text()


def test_edits() -> None:
    for one, other, wanted in (
        ("", "", 0),
        ("abc", "abc", 0),
        ("abc", "axc", 1),
        ("", "ab", 2),
        ("kitten", "sitting", 3),
    ):
        assert edits(one, other) == edits(other, one) == wanted
