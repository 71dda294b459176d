"""The end of a run: each file is written once, the evaluation last, and an end that was broken off is made again."""

import os
from collections import Counter
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

import vitrail
from tests.shared_runs import stored
from tests.training.tiny import AGAIN, options
from vitrail.training import finish
from vitrail.training.configuration.request import Request
from vitrail.training.events import Finished
from vitrail.training.setup import new_run

pytestmark = pytest.mark.usefixtures("as_a_user")
VERDICTS = 2


def test_the_files_of_the_end_are_written_once_and_the_evaluation_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, replace = list[str](), os.replace

    def noted(old: Any, new: Any, **named: Any) -> None:
        written.append(Path(new).relative_to(tmp_path / "run").as_posix())
        replace(old, new, **named)

    def ended(*given: Any) -> Any:
        written.clear()  # what the loop has written
        return choose(*given)

    choose = finish.choose_model
    monkeypatch.setattr(finish, "choose_model", ended)
    monkeypatch.setattr(os, "replace", noted)
    vitrail.train("digits", tmp_path / "run", options("digits", verdicts=VERDICTS))
    assert {name for name, times in Counter(written).items() if times > 1} == {"model/README.md"}, "its figure is late"
    assert written[-2:] == ["run.html", "evaluation.json"]
    assert {"model/model.safetensors", "model/config.json"} < set(written)
    assert stored(tmp_path / "run")["verdicts"]["model"]["images"] == VERDICTS


def test_an_end_that_was_broken_off_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a step, and to the same weights and figures; the model was saved before."""

    def interrupted(*given: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(finish, "give_verdicts", interrupted)
        with pytest.raises(KeyboardInterrupt):
            vitrail.train("digits", tmp_path / "run", options("digits", verdicts=VERDICTS))
    assert not (tmp_path / "run" / "evaluation.json").exists()
    saved = vitrail.load(tmp_path / "run").network.state_dict()
    events: list[Any] = []
    again = vitrail.train("digits", tmp_path / "run", AGAIN, events.append)
    assert not [event for event in events if hasattr(event, "loss")], "no step is left"
    assert all(tensor.equal(saved[name]) for name, tensor in again.model.network.state_dict().items())
    assert stored(tmp_path / "run")["weights"] == again.weights
    (finished,) = [event for event in events if isinstance(event, Finished)]
    assert finished.evaluated.value == again.evaluated.value


def test_what_is_prepared_does_not_change_any_more() -> None:
    prepared = new_run(Request(data="digits", options=options("digits")), lambda event: None)
    for name in ("settings", "objective", "model", "notes"):
        with pytest.raises(FrozenInstanceError):
            setattr(prepared, name, None)
    assert isinstance(prepared.notes, tuple)
