"""Who leads and who follows: the first process has the run folder and decides; the others do what it orders.

    begin      open the run that the first process has just written, or goes on with
    step       one more event of the loop, by the schedule that holds now
    evaluate   the share of an evaluation, by the first process's network and codec
    save       its parts of the state, where the network is divided
    end        the model is saved

So that all of them make the same steps nothing needs to be agreed on: a limit on time, patience, a signal and a failed
write are the first one's affair. An order costs as much as reading a number over the network.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from vitrail.data.batches import Batches
from vitrail.data.dataset import Split
from vitrail.errors import VitrailError
from vitrail.model import Model, load
from vitrail.runs.data import Run, mark_chosen
from vitrail.runs.evaluate import evaluate_split, share_read
from vitrail.runs.folder import RunFolder, saving
from vitrail.runs.group import ALONE, Group
from vitrail.runs.known import TrainedOn
from vitrail.runtime import threads_set
from vitrail.tasks import Result
from vitrail.training.checkpoint import Saving, copy_state, describe_files, load_state, saving_of
from vitrail.training.configuration.request import Request
from vitrail.training.events import Finished, StopRequest, stop_signals
from vitrail.training.loop import EpochDone, State, StepDone, start, train_loop
from vitrail.training.optimizer import MicroBatches, Schedule
from vitrail.training.prepared import Prepared
from vitrail.training.setup import resume_run

Loop = Iterator[StepDone | EpochDone | MicroBatches]


@dataclass(frozen=True)
class Lead:
    """What the first process has the others do; with nobody else there it does the same alone.

    Attributes:
        group: All processes.
    """

    group: Group = ALONE

    def begin(self, folder: RunFolder, state: State, again: str) -> None:
        """Have them open the run, whose settings are written, and wait until they have.

        Args:
            folder: The run.
            state: Where it begins, or goes on: as its last saved state is.
            again: What is typed to go on with it.
        """
        self.group.at(state.step, False, again)
        self.group.send({"do": "begin", "run": str(folder.path.resolve()), "step": state.step, "again": again})
        self.group.meet()

    def steps(self, state: State, prepared: Prepared, schedule: Schedule, stopping: StopRequest) -> Loop:
        """The events of the loop, which the others make, too; a stop of one of them stops all.

        Args:
            state: Where to start; moves on with every event.
            prepared: What is trained, on what, and how.
            schedule: As it is before each event.
            stopping: Where a stop is noted.
        """
        loop, sent = _loop(state, prepared, schedule, self.group), None
        while True:
            phases = schedule.to_dict()
            self.group.send({"do": "step"} if phases == sent else {"do": "step", "schedule": phases})
            sent = phases
            event = _advance(loop, prepared.data, self.group)
            stopping.stop = self.group.at(state.step, stopping.stop)
            if event is None:
                return
            yield event

    def evaluate(self, trained: TrainedOn, model: Model, split: Split, batches: Batches) -> Result:
        """Evaluate a model together, on samples that each process can open by the name of their split."""
        self.group.send({"do": "evaluate", "split": split.split, "output": model.output.to_dict()})
        self.group.meet()
        self.group.spread(model.network.state_dict())
        return evaluate_split(model, split, batches, processes=self.group, trained=trained)

    def copy_state(self, state: State) -> Saving:
        """The state as it is to be saved; where it is divided, by all of them."""
        if state.shards is None:
            return copy_state(state)

        def write(folder: Path) -> dict[str, Any]:
            self.group.send({"do": "save", "folder": str(folder.resolve())})
            _write_parts(state, folder)
            return describe_files(folder)

        return saving_of(state, write)

    def end(self, finished: Finished) -> None:
        """Let them go."""
        facts = {name: getattr(finished, name) for name in ("seconds", "weights")}
        self.group.send({"do": "end", "finished": facts})


def _write_parts(state: State, folder: Path) -> None:
    from vitrail.training.distributed.shard import write_parts  # with all of torch's checkpoint

    assert state.shards is not None
    write_parts(state.shards, state, folder)


def _loop(state: State, prepared: Prepared, schedule: Schedule, group: Group) -> Loop:
    how = prepared.settings.optimization, prepared.settings.execution
    return train_loop(state, prepared.data, prepared.objective, *how, schedule, group)


def _advance(loop: Loop, data: Batches, group: Group) -> StepDone | EpochDone | MicroBatches | None:
    event = next(loop, None)
    if isinstance(event, EpochDone):
        share_read(data, group)
    return event


def follow(group: Group, request: Request) -> Finished:
    """Follow the orders of the first process until it has finished.

    Args:
        group: All processes.
        request: The same in each of them.

    Returns:
        What the first process returns: the model as it was saved, and its evaluation.
    """
    order = group.receive()
    folder = RunFolder(Path(order["run"]))
    again = order["again"]
    group.at(order["step"], False, again)
    try:
        prepared = resume_run(folder, request, listen=lambda event: None)
        prepared.seen.recall(Run(folder.path).contents)
    except VitrailError as error:
        if order["step"]:
            raise
        hint = "the same data, options and versions for all processes, under the same paths"
        raise type(error)(f"not what the first process has: {error.problem}", hint) from error
    settings = prepared.settings
    with stop_signals() as stop, threads_set(settings.execution.threads):
        state = start(prepared.network, settings.optimization)
        if order["step"]:
            load_state(state, folder.resume)
        assert state.step == order["step"], "all processes go on from the same state"
        schedule = Schedule([])
        loop = _loop(state, prepared, schedule, group)
        network: nn.Module | None = None
        results: list[Result] = []  # behind the last step; that of the model stands first
        group.meet()
        while (order := group.receive())["do"] != "end":
            if order["do"] == "step":
                results = []
                if "schedule" in order:
                    schedule.become(Schedule.from_dict(order["schedule"]))
                _advance(loop, prepared.data, group)
                group.at(state.step, stop.stop)
                continue
            if order["do"] == "save":
                with saving(folder.path, again, again):
                    _write_parts(state, Path(order["folder"]))
                continue
            name = order["split"]
            network = copy.deepcopy(state.best_network) if network is None else network
            output = prepared.model.task.codec_from_dict(order["output"])  # with what the first process has settled
            model = replace(prepared.model, network=network, output=output)
            samples = prepared.scored if name == prepared.scored[0].split else prepared.final
            group.meet()
            group.spread(network.state_dict())
            results.append(evaluate_split(model, *samples, processes=group, trained=prepared.seen.trained))
    model = load(folder.model, task=request.own.task, network=request.own.network, parts=request.own.parts)
    result = mark_chosen(results[0], None if prepared.cut is None else prepared.cut.to_dict())
    return Finished(folder.path, model, result, **order["finished"])
