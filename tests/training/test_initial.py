"""Training that starts from weights which are there: a probe first, then tuning; the better of both is kept."""

import errno
import importlib
import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import yaml
from timm.models import save_for_hf

import vitrail
from tests.errors import figures, must_raise
from tests.paired import added
from tests.photographs import make_photographs
from tests.shared_runs import once
from tests.training.tiny import Killed, die, ended_at, rows, saved
from tests.weights.redraw import redrawn
from vitrail.data.dataset import Counts, Split
from vitrail.errors import DataError, RunError, UsageError
from vitrail.explain.reporting.report import ORDER
from vitrail.features.linear_probe import Probed
from vitrail.nn import ViT
from vitrail.runs.settings import settings_from_dict
from vitrail.statistics import wilson_interval
from vitrail.text import percent
from vitrail.training.budget import Budget
from vitrail.training.configuration.request import Request
from vitrail.training.configuration.resolve import RECIPES
from vitrail.training.events import Event, Finished, Started
from vitrail.training.finish import Chosen
from vitrail.training.prepared import open_data
from vitrail.training.report import verdict_facts, verdicts_of
from vitrail.training.setup import new_run
from vitrail.training.transfer.initial import rate_for
from vitrail.weights.adapt import start_network

SMALL = {"embed_dim": 24, "depth": 2, "num_heads": 3, "img_size": 16, "patch_size": 4, "in_chans": 1, "num_classes": 7}
pytestmark = pytest.mark.usefixtures("few_penalties", "as_a_user")
OPTIONS = vitrail.TrainOptions(epochs=1, threads=1, device="cpu", seed=3, batch_size=100, precision="fp32", verdicts=0)


def source() -> Path:
    """Somebody's network, as a hub lays it out: one channel, seven classes."""

    def make(folder: Path) -> None:
        module = redrawn(timm.create_model("vit_tiny_patch16_224", **SMALL))
        save_for_hf(module, str(folder), model_args=SMALL, safe_serialization=True)
        config = json.loads((folder / "config.json").read_text())
        config["pretrained_cfg"] |= {"mean": [0.4], "std": [0.3], "input_size": [1, 16, 16], "crop_pct": 0.8}
        (folder / "config.json").write_text(json.dumps(config))

    return once("somebodys-weights", make)


def tuned() -> Path:
    """A run from them, whole; with `few_penalties`."""
    asked = replace(OPTIONS, init=str(source()))
    return once("tuned-digits", lambda folder: vitrail.train("digits", folder / "run", asked)) / "run"


def test_the_start_has_all_numbers_of_the_source_but_the_heads() -> None:
    model = vitrail.load(source())
    assert isinstance(model.network, ViT)
    config = replace(model.network.config, classes=4)
    started = start_network(model.network, config)
    theirs, ours = model.network.state_dict(), started.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours if not name.startswith("head."))
    assert not ours["head.weight"].any()
    assert ours["head.weight"].shape[0] == 4


def test_a_run_says_what_the_probe_had_and_keeps_the_better() -> None:
    folder = tuned()
    found = json.loads((folder / "evaluation.json").read_text())
    probed, gain = found["probe"], found["tuned"]
    assert probed == json.loads((folder / "probe.json").read_text())
    choice, parts = found["choice"], json.loads((folder / "data.json").read_text())["parts"]
    assert found["kept"] == ("tuned" if choice["won"] > choice["lost"] else "probe")
    assert (choice["split"], choice["images"]) == ("select", parts["select"])
    assert (found["split"], gain["split"], gain["images"]) == ("test", "test", 359)
    assert parts["select"] + parts["report"] == probed["images"]
    assert probed["trained"] + probed["images"] == 1438
    assert probed["accuracy"] > 0.5  # of ten classes, on features of random weights
    model, start = vitrail.load(folder), vitrail.load(folder / "probe")
    assert model.facts["init"] == source().name
    assert model.facts["kept"] == found["kept"]
    assert (model.preprocessing.mean, model.preprocessing.crop_pct) == ((0.4,), 0.8)  # as they were trained
    assert start.network.config == model.network.config
    theirs, ours = vitrail.load(source()).network.state_dict(), start.network.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours if not name.startswith("head."))
    evaluated = vitrail.evaluate(folder / "probe", "digits", split="validation").value
    assert evaluated == pytest.approx(probed["accuracy"])
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    assert (settings["recipe"], settings["initial"]["identity"] != "") == ("fine-tune", True)
    assert settings["optimization"]["layer_decay"] < 1
    assert len(rows(folder)) == 1


def test_the_page_shows_probe_and_tuned_beside_each_other() -> None:
    found, page = json.loads((tuned() / "evaluation.json").read_text()), (tuned() / "run.html").read_text()
    shown = page.count('<span class="answer">probe: ')
    both = found["tuned"]["won"], found["tuned"]["lost"]
    assert shown == sum(min(12, count) for count in both) > 0
    assert max(both) > 12
    assert all(f": 12 of {count}</h3>" in page for count in both if count > 12)
    assert page.count("<h3>probe") == page.count("<h3>tuned") == 1


def test_the_page_says_which_network_the_model_is_and_whose_figure_stands_where() -> None:
    """The clean half beside all of validation; without a test split."""
    found = json.loads((tuned() / "evaluation.json").read_text())
    parts, model, choice = {"select": 77, "report": 76}, vitrail.load(tuned()), found.pop("choice")
    accuracy = percent(found["probe"]["accuracy"])
    for kept, named in (("tuned", f"epoch {found['best']['epoch']}"), ("probe", "probe")):
        words = Chosen(model, {}, {**found, "kept": kept}, parts).words("report")
        first, second, third = words.split(". ", 2)
        assert named in first
        assert "76 of 153" in second
        assert accuracy in third
        assert "153" in third
        assert "77" not in third, "nothing was chosen between networks"
        for images, all_of_them in ((153, True), (64, False)):
            probe = {**found["probe"], "images": images}
            last = Chosen(model, {}, {**found, "probe": probe, "kept": kept, "choice": choice}, parts).words("report")
            assert ("77" in last.split(". ")[-1]) == all_of_them
        assert Chosen(model, {}, {**found, "kept": kept}, parts).words("test") == f"{first}."
    for won, lost in ((5, 5), (3, 1), (50, 1)):
        gain = added(won, lost, 100)
        chosen = {**found, "kept": "probe", "choice": {**choice, **vars(gain)}}
        said = Chosen(model, {}, chosen, parts).words("test").removeprefix(first)
        assert figures(said)[:3] == [str(won), str(lost), "100"]
        assert ("not significant" in said) != gain.significant
    assert Chosen(model, {}, {}, None).words("test") == ""
    (about,) = re.findall("The model is .*?[.]", (tuned() / "run.html").read_text())
    assert ("epoch" in about) == (found["kept"] == "tuned")


@pytest.mark.parametrize("keep", ["tuned", "probe"])
def test_what_is_to_be_kept_is_kept(keep: str, tmp_path: Path) -> None:
    """And as nothing is chosen, validation stays whole."""
    finished = vitrail.train("digits", tmp_path / "run", replace(OPTIONS, init=str(source()), keep=keep))
    found, data = json.loads((tmp_path / "run" / "evaluation.json").read_text()), tmp_path / "run" / "data.json"
    assert found["kept"] == finished.model.facts["kept"] == keep
    assert found["tuned"]["images"] == 359
    assert not {"chosen_on", "choice", "best"} & found.keys()
    assert "parts" not in json.loads(data.read_text())
    probe = vitrail.load(tmp_path / "run" / "probe").network.state_dict()
    same = all(torch.equal(each, probe[name]) for name, each in finished.model.network.state_dict().items())
    assert same == (keep == "probe")


def test_the_learning_rate_follows_what_the_probe_tells() -> None:
    """Ten times the recipe's below nine of ten told right by cross-validation; and one that is asked for stays."""
    folder, recipe = tuned(), RECIPES["fine-tune"].optimization
    choices = settings_from_dict(yaml.safe_load((folder / "config.yaml").read_text())).optimization
    probed = Probed(**json.loads((folder / "probe.json").read_text()))
    assert probed.cross_validated < 0.9
    assert choices.learning_rate == pytest.approx(10 * recipe.learning_rate)
    for told, rate in ((0.9, recipe.learning_rate), (0.8999, 10 * recipe.learning_rate)):
        assert rate_for(recipe, replace(probed, cross_validated=told))[0] == replace(recipe, learning_rate=rate)
    asked = Request(data="digits", options=replace(OPTIONS, init=str(source()), lr=0.0123))
    assert new_run(asked, lambda event: None).settings.optimization.learning_rate == 0.0123


def test_a_limit_that_is_over_before_the_probe_is_refused(tmp_path: Path) -> None:
    with must_raise(UsageError):
        vitrail.train("digits", tmp_path / "run", replace(OPTIONS, init=str(source()), max_time="0.01s"))
    assert not list(tmp_path.iterdir()), "nothing is begun"


def test_both_networks_are_asked_where_they_look(tmp_path: Path) -> None:
    """The verdicts on the same images, in the evaluation and on the page; the library gives the same one by one."""
    asked = replace(OPTIONS, init=str(source()), verdicts=3, keep="tuned")
    said: list[Event] = []
    run = vitrail.train("digits", tmp_path / "run", asked, said.append).folder
    found = json.loads((run / "evaluation.json").read_text())["verdicts"]
    assert found.keys() == {"probe", "tuned"}
    model = vitrail.load(run)
    for name, folder in (("probe", run / "probe"), ("tuned", run)):
        assert found[name]["images"] == 3 == sum(found[name]["counts"].values())
        assert found[name]["interval"] == list(wilson_interval(found[name]["supported"], 3))
        network = vitrail.load(folder).network
        judged = verdicts_of(replace(model, network=network), held_out(), 3)
        assert verdict_facts(judged) == found[name]
        words = judged.rates[0].words
        assert any(isinstance(event, str) and words in event for event in said)
        assert words in (run / "run.html").read_text()
        assert sorted(one["file"] for one in found[name]["least_trusted_first"]) == sorted(
            held_out().samples.name(place)
            for place in np.linspace(0, len(held_out().samples) - 1, 3).astype(int).tolist()
        )
    for wrong in ({"verdicts": -1}, {"probe": True, "keep": "auto"}, {"background": False}):
        with must_raise(UsageError):
            vitrail.train("digits", tmp_path / "none", replace(asked, **wrong))
    assert not (tmp_path / "none").exists()


def test_the_network_of_any_run_is_asked_where_it_looks(tmp_path: Path) -> None:
    """On the page, with the images whose maps are not to be trusted first."""
    plain = vitrail.TrainOptions(epochs=1, threads=1, device="cpu", precision="fp32", verdicts=4)
    run = vitrail.train("digits", tmp_path / "run", plain).folder
    (found,) = json.loads((run / "evaluation.json").read_text())["verdicts"].values()
    judged = verdicts_of(vitrail.load(run), held_out(), 4)
    assert verdict_facts(judged) == found
    assert sum(each["images"] for each in found["per_class"].values()) == found["images"] == 4
    ranks = [ORDER.index(one["verdict"]) for one in found["least_trusted_first"]]
    assert ranks == sorted(ranks)
    page = (run / "run.html").read_text()
    assert page.count('class="mark ') == 4 + len(found["counts"])
    assert all(one["file"] in page for one in found["least_trusted_first"])


def held_out() -> Split:
    """The held-out digits that judge."""
    dataset, _ = open_data("digits", "classify", None, 0, Counts())
    assert dataset.test is not None
    return Split(dataset.test, "test", {})


def test_without_time_for_a_step_there_is_the_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Budget, "count_steps", lambda self: 0)
    asked = replace(OPTIONS, init=str(source()), max_time="1h")
    finished = vitrail.train("digits", tmp_path / "run", asked)
    run = finished.folder
    found = json.loads((run / "evaluation.json").read_text())
    assert found["kept"] == "probe"
    assert finished.evaluated.notes, "and it is not as if it had been tuned"
    assert 'class="state untrained"' in (run / "run.html").read_text()
    with must_raise(UsageError):
        vitrail.train("digits", tmp_path / "other", replace(asked, keep="tuned"))
    assert not (tmp_path / "other").exists()
    assert not {"tuned", "choice"} & found.keys(), "the probe is not compared with itself"
    assert vitrail.load(run).facts["epochs"] == 0
    assert json.loads((run / "schedule.json").read_text())["steps"] == 0
    start, model = vitrail.load(run / "probe"), vitrail.load(run)
    assert all(torch.equal(a, b) for a, b in zip(start.network.parameters(), model.network.parameters(), strict=True))
    assert "</html>" in (run / "run.html").read_text()


def test_the_probe_alone_moves_nothing_but_the_head(tmp_path: Path) -> None:
    events: list[Event] = []
    asked = replace(OPTIONS, epochs=None, init=str(source()), probe=True)
    vitrail.train("digits", tmp_path / "run", asked, events.append)
    found = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert found["kept"] == "probe"
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    assert not [event for event in events if isinstance(event, Started)]
    (finished,) = [event for event in events if isinstance(event, Finished)]
    theirs, ours = vitrail.load(source()).network.state_dict(), finished.model.network.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours if not name.startswith("head."))
    tuned_probe = vitrail.load(tuned() / "probe").network.state_dict()
    assert torch.equal(ours["head.weight"], tuned_probe["head.weight"])  # the same every time
    again = vitrail.train("digits", tmp_path / "run", replace(asked, resume="auto"))
    assert again.weights == finished.weights, "the same once more, as of any finished run"
    settings = (tmp_path / "run" / "config.yaml").read_text()
    with must_raise(UsageError, "--epochs 300"):
        vitrail.train("digits", tmp_path / "run", vitrail.TrainOptions(resume="auto", epochs=300))
    assert (tmp_path / "run" / "config.yaml").read_text() == settings
    with must_raise(UsageError):
        vitrail.train("digits", tmp_path / "other", replace(asked, epochs=3))


def test_a_disk_that_is_full_at_the_start_is_told_and_nothing_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is written before the first step fails once: the file is named, and the same call begins again."""
    asked, run = replace(OPTIONS, init=str(source())), tmp_path / "run"
    prepared = new_run(Request(data="digits", options=asked), lambda event: None)
    monkeypatch.setattr(importlib.import_module("vitrail.training.train"), "new_run", lambda *rest, **named: prepared)
    sync, named, allowed = os.fsync, list[str](), 0

    def full(handle: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(handle)

    monkeypatch.setattr(os, "fsync", full)
    while "config.yaml" not in named:  # with which it has begun
        left = allowed
        with must_raise(RunError) as caught:
            vitrail.train("digits", run, asked)
        named.append(caught.value.problem.removeprefix(f"{run}{os.sep}").partition(":")[0])
        assert not list(tmp_path.iterdir())
        assert str(caught.value.hint).startswith(f"vitrail.train('digits', {str(run)!r}, ")
        assert "resume=" not in str(caught.value.hint)
        allowed += 1
    assert {"command.txt", "env.json", "data.json", "probe.json", "probe/model.safetensors"} < set(named)
    left = allowed
    with must_raise(RunError, "resume") as caught:
        vitrail.train("digits", run, asked)
    assert "resume='auto'" in str(caught.value.hint)
    left = 1_000_000
    finished = vitrail.train("digits", run, vitrail.TrainOptions(resume="auto", verdicts=0))
    assert finished.weights == json.loads((tuned() / "evaluation.json").read_text())["weights"]


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.soak), 7])
def test_a_run_goes_on_without_the_source(step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before anything was saved, or after: the same bits, although the weights it began with are gone."""
    copied = shutil.copytree(source(), tmp_path / "weights")
    saved(monkeypatch, often=step > 1)
    asked, run = replace(OPTIONS, init=str(copied)), tmp_path / "run"
    with pytest.raises(Killed):
        vitrail.train("digits", run, asked, ended_at(step, die))
    (run / "lock").unlink(missing_ok=True)
    shutil.rmtree(copied)
    finished = vitrail.train("digits", run, vitrail.TrainOptions(resume="auto", verdicts=0))
    assert finished.weights == json.loads((tuned() / "evaluation.json").read_text())["weights"]


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    named = str(source())
    for changes in (
        {"probe": True},
        {"keep": "probe"},
        {"patience": 0},
        {"init": named, "probe": True, "keep": "best"},
        {"init": named, "probe": True, "patience": 2},
        {"init": named, "size": "S/4"},
        {"init": named, "recipe": "digits"},
        {"recipe": "fine-tune"},
        {"init": named, "image_size": 18},
    ):
        with must_raise(UsageError):
            vitrail.train("digits", tmp_path / "run", replace(OPTIONS, **changes))
        assert not (tmp_path / "run").exists()
    with must_raise(DataError):
        vitrail.train("digits", tmp_path / "run", replace(OPTIONS, init=str(tmp_path / "nothing.safetensors")))
    with must_raise(UsageError, "init|source"):
        vitrail.train("digits", tuned(), replace(OPTIONS, init=str(tmp_path), resume="auto"))


def test_what_is_told_of_the_weights_is_stored_and_held_to(tmp_path: Path) -> None:
    assume = {"mean": (0.2,), "std": (0.9,)}
    asked = replace(OPTIONS, epochs=None, init=str(source()), probe=True)
    finished = vitrail.train("digits", tmp_path / "run", asked, assume=assume)
    assert (finished.model.preprocessing.mean, finished.model.preprocessing.std) == ((0.2,), (0.9,))
    settings = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert settings["initial"]["assume"] == {"mean": [0.2], "std": [0.9]}
    again = vitrail.train("digits", tmp_path / "again", replace(asked, config=tmp_path / "run" / "config.yaml"))
    assert again.weights == finished.weights
    stopped = replace(asked, probe=False, resume="auto")
    with pytest.raises(Killed):
        vitrail.train("digits", tmp_path / "tuned", replace(stopped, resume="never"), ended_at(1, die), assume=assume)
    (tmp_path / "tuned" / "lock").unlink(missing_ok=True)
    with must_raise(UsageError, "assume"):
        vitrail.train("digits", tmp_path / "tuned", stopped, assume={"mean": (0.5,), "std": (0.9,)})
    with must_raise(UsageError):
        vitrail.train("digits", tmp_path / "other", OPTIONS, assume=assume)  # of no weights


def test_a_network_of_grey_images_refuses_colours(tmp_path: Path) -> None:
    make_photographs(tmp_path / "photos", ("a", "b"), per_class=4, seed=0)
    with must_raise(UsageError):
        vitrail.train(str(tmp_path / "photos"), tmp_path / "run", replace(OPTIONS, init=str(source())))
    assert not (tmp_path / "run").exists()
