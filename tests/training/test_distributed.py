"""Many processes train as one: the same samples in every step, the same losses, each sample counted once.

The processes are real, and speak by gloo. All launches of this file and of `test_shard.py` are made by one process,
whichever file asks first, and looked at by their tests.
"""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.distributed import HashStore

from tests.photographs import make_photographs
from tests.shared_runs import once
from tests.training.lab import LIVELY, tiny_set
from tests.training.processes import Steps, evaluated, trained
from tests.training.tiny import CLOCK, rows, whole
from vitrail.data.plan import Share
from vitrail.errors import Hint
from vitrail.training.distributed.group import Together
from vitrail.training.distributed.watch import Failure, Watch

pytestmark = pytest.mark.skipif(os.name != "posix", reason="processes are forked")

ROOT = Path(__file__).parents[2]
ALIKE = 1e-5  # relative, of losses over 100 steps
DIGITS = (
    "network: {patch_size: 4, width: 8, depth: 1, heads: 2, mlp_dim: 16, dropout: 0.0, stochastic_depth: 0.0}\n"
    "optimization: {ema_decay: 0.9, accumulate: 3}\n"
    "augmentation: {mixup: 0.4, cutmix: 1.0}\n"
)
SORTED = (
    "network: {width: 16, encoder_depth: 1, decoder_depth: 1, heads: 2, mlp_dim: 32, dropout: 0.0}\n"
    "counts: {train: 97, validation: 30, test: 40}\n"
    "optimization: {batch_size: 24, ema_decay: 0.9, accumulate: 1}\n"
)
PHOTOS = (
    "network: {patch_size: 4, width: 16, depth: 1, heads: 2, mlp_dim: 16, dropout: 0.0, stochastic_depth: 0.0}\n"
    "optimization: {accumulate: 1}\n"
)
NAMES = ("digits", "sorted", "photos", "student")
SHORT = NAMES[:2]  # for make test
COUNTS, BATCHES = [1, 2, 7, 67], [1, 8]
Round = dict[str, Any]  # launches by their names
STEP = 9  # of 14, at which something happens to a process
FROZEN = 12  # seconds of silence


def asked(folder: Path, name: str, **changes: Any) -> dict[str, Any]:
    """A training without dropout, whose result may not depend on who computes what."""
    configuration = {"sorted": SORTED, "photos": PHOTOS}.get(name, DIGITS)
    (folder / f"{name}.yaml").write_text(configuration)
    options = {"threads": 1, "device": "cpu", "seed": 3, "precision": "fp32", "config": str(folder / f"{name}.yaml")}
    match name:
        case "sorted":  # 97 texts in batches of 24: the last one has nothing for the first process
            return {"data": "sort-digits", "options": {**options, "epochs": 2, **changes}}
        case "photos":  # one file cannot be read, in batches of two: the whole share of a process
            more = {"epochs": 1, "batch_size": 2, "image_size": 16, "lr": 1e-4, "workers": 1, **changes}
            return {"data": str(folder / "photographs"), "options": {**options, **more}, "streamed": True}
        case "digits":
            return {"data": "digits", "options": {**options, "epochs": 2, "batch_size": 25, **changes}}
    options |= {"epochs": 1, "batch_size": 200}
    if name == "student":
        return {"data": "digits", "options": {**options, "balance": True, **changes}, "teacher": str(whole("digits"))}
    return {"data": "digits", "options": {**options, "init": str(whole("digits")), **changes}}


def short(folder: Path, **more: Any) -> dict[str, Any]:
    """A training of 14 steps."""
    return {**asked(folder, "digits", batch_size=200, resume="auto"), **more}


def faulty(folder: Path, name: str, rank: int = 1, **more: Any) -> dict[str, Any]:
    """A launch in which something happens to one of two processes."""
    fault = {"kind": name, "step": STEP, "rank": rank}
    return {"world": 2, "trainings": {f"run-{name}": short(folder, fault=fault)}, **more}


def full_at(step: int) -> dict[str, Any]:
    """From this step on the second process has memory for half of what it computes there."""
    return {"kind": "memory", "step": step, "rank": 1}


def other_data(folder: Path) -> dict[str, Any]:
    """The second process finds one photograph less."""
    shutil.copytree(folder / "photographs", folder / "others")
    (folder / "others" / "train" / "b" / "b_001.jpg").unlink()
    return {"1": {"data": str(folder / "others")}}


def other_rate(folder: Path) -> dict[str, Any]:
    """The second process is asked for another learning rate."""
    return {"1": short(folder, options={**short(folder)["options"], "lr": 0.5})}


class Ended(NamedTuple):
    """How the processes of a launch ended: by the rank of each its exit code, and what it wrote to stderr."""

    codes: list[int]
    said: list[str]


class Launched(NamedTuple):
    """All launches of this file.

    Attributes:
        folder: Where they lie.
    """

    folder: Path

    def ended(self, name: str) -> Ended:
        files = range(len(list((self.folder / name).glob("code.*"))))
        here = self.folder / name
        codes = [int((here / f"code.{rank}").read_text()) for rank in files]
        return Ended(codes, [(here / f"err.{rank}").read_text() for rank in files])

    def shares(self, launch: str, training: str) -> list[dict[str, Any]]:
        """What each process did of a training."""
        ended = self.ended(launch)
        assert set(ended.codes) == {0}, ended.said
        ranks = range(len(ended.codes))
        return [json.loads((self.folder / launch / f"{training}.{rank}.json").read_text()) for rank in ranks]


def launch_all(asked: dict[Path, Sequence[Round]]) -> None:
    """The rounds of some folders, by one process."""
    for folder, rounds in asked.items():
        (folder / "asked.json").write_text(json.dumps(rounds))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.training.processes", *map(str, asked)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=280)


def launched(folder: Path, *rounds: Round) -> Launched:
    launch_all({folder: rounds})
    return Launched(folder)


def make_photos(folder: Path) -> None:
    """Two classes in two splits; of each split one file is empty."""
    for split in ("train", "val"):
        make_photographs(folder / "photographs" / split, ("a", "b"), per_class=10, seed=0)
        (folder / "photographs" / split / "a" / "a_003.png").write_bytes(b"")


def rounds_of_whole(folder: Path) -> list[Round]:
    """Of this file: networks that each process has. Not all at once: what starves is taken for frozen."""
    make_photos(folder)
    first = {
        "many": {"world": 2, "trainings": {name: asked(folder, name) for name in SHORT}},
        "alone": {"world": 1, "trainings": {f"{name}-alone": asked(folder, name) for name in SHORT}},
        "counts": {"world": 3, "counts": COUNTS, "batches": BATCHES},
        "missing": {
            "world": 2,
            "only": [0],
            "trainings": {"never": short(folder)},
            "environment": {"VITRAIL_TIMEOUT": 1},
        },
        "taken": {"world": 2, "only": [0], "taken": True, "trainings": {"never": short(folder)}},
    }
    second = {
        "whole": {"world": 2, "trainings": {"run": short(folder)}},
        "kill": faulty(folder, "kill"),
        "terminate": faulty(folder, "terminate"),
        "nan": faulty(folder, "nan"),
        "raise": faulty(folder, "raise"),
        "torch": {"world": 2, "torch": {"1": "2.0.0"}, "trainings": {"never": short(folder)}},
    }
    third = {
        "again": {"world": 2, "trainings": {"run-again": short(folder, after="run-kill")}},
        "stopped": {"world": 2, "trainings": {"run-stopped": short(folder, after="run-terminate")}},
        "late": {"world": 2, "trainings": {"run-late": short(folder, fault=full_at(STEP))}},
        "full": {"world": 2, "trainings": {"run-full": short(folder, fault=full_at(1))}},
        "own": {"world": 2, "trainings": {"idle": {**short(folder), "own": True}}},
        "own-alone": {"world": 1, "trainings": {"idle-alone": {**short(folder), "own": True}}},
        "data": {"world": 2, "trainings": {"never-data": asked(folder, "photos") | {"else": other_data(folder)}}},
        "rate": {"world": 2, "trainings": {"never-rate": short(folder, **{"else": other_rate(folder)})}},
    }
    return [first, second, third]


def divided(folder: Path, **more: object) -> dict[str, Any]:
    """The short training, its network divided among processes."""
    plain = short(folder)
    return {**plain, "options": {**plain["options"], "shard": True}, **more}


def rounds_of_divided(folder: Path) -> list[Round]:
    """Of `test_shard.py`: one network divided among them."""
    fault = {"kind": "kill", "step": STEP, "rank": 1}
    first = {
        "alone": {"world": 1, "trainings": {"run-alone": short(folder)}},
        "whole": {"world": 2, "trainings": {"run": divided(folder)}},
        "kill": {"world": 2, "trainings": {"run-kill": divided(folder, fault=fault)}},
    }
    return [first, {"again": {"world": 2, "trainings": {"run-again": divided(folder, after="run-kill")}}}]


ROUNDS = {"whole": rounds_of_whole, "divided": rounds_of_divided}


def launches_of(kind: str) -> Launched:
    """Those of one of the two files, made once for both; to be read, never changed."""

    def make(root: Path) -> None:
        for each in ROUNDS:
            (root / each).mkdir()
        launch_all({root / each: rounds(root / each) for each, rounds in ROUNDS.items()})

    return Launched(once("launches", make) / kind)


@pytest.fixture(scope="module")
def all_launches() -> Launched:
    return launches_of("whole")


def joined(shares: list[Steps]) -> Steps:
    """What all processes computed, in their order."""
    return [
        [list(itertools.chain(*parts)) for parts in zip(*steps, strict=True)] for steps in zip(*shares, strict=True)
    ]


def apart(ours: Path, theirs: Path) -> float:
    """How far the weights of two runs are from each other, as a fraction of their length.

    But for the biases of keys: they add the same to all logits of a softmax, so that their gradient is rounding alone,
    which Adam makes as large as any other.
    """
    first, second = (load_file(run / "model" / "model.safetensors") for run in (ours, theirs))
    for each in (first, second):
        for name in [name for name in each if name.endswith("qkv.bias")]:
            each[name] = each[name].reshape(3, -1)[[0, 2]]
    both = [torch.cat([each[name].double().flatten() for name in sorted(first)]) for each in (first, second)]
    return float((both[0] - both[1]).norm() / both[0].norm())


def must_be_alike(folder: Path, name: str, shares: list[dict[str, Any]], alone: dict[str, Any]) -> None:
    """A training by many processes against the same by one."""
    assert joined([each["steps"] for each in shares]) == alone["steps"], "each sample in its step, once, in order"
    mine, ours = (rows(folder / run, "step") for run in (f"{name}-alone", name))
    assert [row["step"] for row in ours] == [row["step"] for row in mine]
    losses = [np.array([row["loss"] for row in each]) for each in (mine, ours)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=ALIKE)
    mine, ours = (rows(folder / run) for run in (f"{name}-alone", name))
    for one, other in zip(mine, ours, strict=True):
        assert other.keys() == one.keys()
        for key in one.keys() - CLOCK:
            exact = isinstance(one[key], str | int)
            assert other[key] == (one[key] if exact else pytest.approx(one[key], rel=10 * ALIKE, abs=1e-12)), key
    assert [each["found"] for each in shares] == [shares[0]["found"]] * len(shares), "each has the result"
    assert len({each["weights"] for each in shares}) == 1
    known = [
        file.read_bytes()
        for file in (folder / run / "hashes.safetensors" for run in (f"{name}-alone", name))
        if file.is_file()
    ]
    assert len(known) == 2 * (name != "sorted"), "of texts nothing is known"
    assert known[:1] == known[1:], "what the processes read apart, one knows"
    found = json.loads((folder / name / "evaluation.json").read_text())
    assert found.keys() >= alone["found"].keys()
    assert found["unreadable"] == alone["found"]["unreadable"]
    assert apart(folder / f"{name}-alone", folder / name) < ALIKE


def test_two_processes_train_as_one(all_launches: Launched) -> None:
    """With mixup, CutMix, an average, micro-batches and uneven ends."""
    found = {name: all_launches.shares("many", name) for name in SHORT}
    assert len(found["digits"][0]["steps"]) > 100
    assert [] in [parts[0] for parts in found["sorted"][0]["steps"]], "a process without a sample takes part"
    for name, shares in found.items():
        must_be_alike(all_launches.folder, name, shares, *all_launches.shares("alone", f"{name}-alone"))


def test_parameters_that_a_step_does_not_use_stay_as_they_are(all_launches: Launched) -> None:
    """Of a network of one's own, in one process of two, or in both."""
    shares = all_launches.shares("own", "idle")
    must_be_alike(all_launches.folder, "idle", shares, *all_launches.shares("own-alone", "idle-alone"))


@pytest.mark.soak
def test_two_processes_read_files_teach_and_tune_as_one(tmp_path: Path) -> None:
    """With a file that cannot be read."""
    whole("digits")
    make_photos(tmp_path)
    names = ("photos", "student", "tuned")
    many, alone = ({f"{name}{end}": asked(tmp_path, name) for name in names} for end in ("", "-alone"))
    found = launched(tmp_path, {"many": {"world": 2, "trainings": many}, "alone": {"world": 1, "trainings": alone}})
    for name in names:
        must_be_alike(tmp_path, name, found.shares("many", name), *found.shares("alone", f"{name}-alone"))
    assert any(parts == [[]] for one in found.shares("many", "photos") for parts in one["steps"])


# ---- each sample counts once


def test_an_order_stays_until_all_have_read_it() -> None:
    """The first process may be several orders ahead: the last step of a training waits for nobody."""
    store = HashStore()
    first, *others = (
        Together(rank=rank, world=3, machines=1, store=store, watch=Watch(store, rank, 3, 60.0)) for rank in range(3)
    )
    orders = [{"do": "step", "number": number} for number in range(4)]
    for order in orders:
        first.send(order)
    before = store.num_keys()
    for other in others:
        assert [other.receive() for _ in orders] == orders
    assert (before, store.num_keys()) == (len(orders), 0), "nothing is left behind"


def must_count_once(world: int, counts: Iterable[int], batches: Iterable[int]) -> None:
    """In an evaluation: what each process answers in turn is every sample once, in order, in the batches of one."""
    shares, everyone = [Share(index, world) for index in range(world)], tiny_set(67)
    for count, batch in itertools.product(counts, batches):
        data = everyone.subset(np.arange(count))
        parts = [[one.ids for one in data.in_order(batch, share)] for share in shares]
        rounds = [ids for each in itertools.zip_longest(*parts) for ids in each if ids is not None]
        assert np.concatenate(rounds).tolist() == list(range(count)), (count, batch)
        assert len(rounds) == -(-count // batch)


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_every_sample_is_answered_once(world: int) -> None:
    must_count_once(world, (1, 2, 3, 4, 5, 23, 24, 25, 66, 67), (3, 8))


@pytest.mark.soak
def test_every_sample_is_answered_once_for_any_number_of_them() -> None:
    for world in (1, 2, 3, 4):
        must_count_once(world, range(1, 68), (1, 3, 8))


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_the_shares_of_a_batch_are_the_batch(world: int) -> None:
    """Mixed and augmented, to the last bit; with a file that cannot be read, and where there are too few samples."""
    shares = [Share(index, world) for index in range(world)]
    spare = 0
    for count, part in itertools.product((1, 2, 7, 23), (None, 2)):
        data = tiny_set(count, LIVELY, bad=[3])
        together = zip(*(data.batches(1, 5, 0, part, share) for share in shares), strict=True)
        for one, some in zip(data.batches(1, 5, part_size=part), together, strict=True):
            counted = [each for each in some if not each.spare]
            spare += len(some) - len(counted)
            assert [id for each in counted for id in each.ids] == one.ids.tolist()
            assert sum(each.unreadable for each in some) == one.unreadable
            assert all(len(each) for each in some) or world == 1
            if counted:
                for name in ("inputs", "targets", "labels"):
                    assert torch.equal(torch.cat([getattr(each, name) for each in counted]), getattr(one, name))
    assert (spare > 0) == (world > 1)


def test_processes_count_what_one_counts(all_launches: Launched) -> None:
    """To the last bit, and each of them has it."""
    ended = all_launches.ended("counts")
    assert ended.codes == [0, 0, 0], ended.said
    alone = json.loads(json.dumps([evaluated(COUNTS, batch) for batch in BATCHES]))
    for rank in range(3):
        assert json.loads((all_launches.folder / "counts" / f"counts.{rank}.json").read_text()) == alone


# ---- something happens to one of them


def must_say_once(ended: Ended, *words: str) -> None:
    """All have ended, and one of them says why in two lines."""
    speaking = [text for text in ended.said if "vitrail: " in text]
    assert len(speaking) == 1, ended.said
    problem, hint = speaking[0].strip().splitlines()[-2:]
    assert problem.startswith("vitrail: ")
    assert hint.startswith("try: ")
    for word in words:
        assert word in problem, problem


def test_a_killed_process_ends_all_and_the_run_goes_on(all_launches: Launched, tmp_path: Path) -> None:
    """With as many processes to the same bits; with one to weights that differ by rounding."""
    ended = all_launches.ended("kill")
    assert ended.codes == [1, -9]
    must_say_once(ended, "rank 1", os.uname().nodename, f"step {STEP - 1}")
    (unbroken,), (again,) = (
        {one["weights"] for one in all_launches.shares(*each)} for each in (("whole", "run"), ("again", "run-again"))
    )
    assert again == unbroken
    one = shutil.copytree(all_launches.folder / "run-kill", tmp_path / "run-one")
    finished, steps = trained(one, short(tmp_path))
    assert len(steps) == 14 - (STEP - 1)
    assert len(rows(one)) == 2
    assert apart(finished.folder, all_launches.folder / "run") < ALIKE


def test_a_failure_that_is_heard_of_has_its_hint() -> None:
    store = HashStore()
    one, two = (Watch(store, rank, 2, 60.0) for rank in range(2))
    for watch in (one, two):
        watch.start()
    first = one.first(Failure(0, "the loss is nan", Hint({"lr": 0.001}, text="or fp32"), 3))
    two.parting = True  # it ends by itself
    two.watch()
    began = time.monotonic()
    while two.failure is None and time.monotonic() - began < 120:
        time.sleep(0.1)
    two.close()
    assert two.failure == first
    assert str(two.failure.hint) == "lr=0.001, or fp32"


def test_who_is_silent_is_named_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that is frozen is, in the processes of the next test."""
    store, ended = HashStore(), list[tuple[int, int]]()
    monkeypatch.setattr(os, "kill", lambda *given: ended.append(given))
    frozen, other = (Watch(store, rank, 2, 0.0) for rank in range(2))
    for watch in (frozen, other):
        watch.start()
    other._listen()
    assert other.failure is None
    time.sleep(0.01)  # of silence
    other._listen()
    assert other.failure is not None
    assert (other.failure.rank, other.failure.gone) == (0, True)
    assert other.name(0) in other.failure.problem
    assert ended == [(os.getpid(), signal.SIGKILL)]


@pytest.mark.soak
def test_a_frozen_process_is_named_by_another(tmp_path: Path) -> None:
    frozen = faulty(tmp_path, "freeze", rank=0, frozen=0, environment={"VITRAIL_TIMEOUT": FROZEN})
    ended = launched(tmp_path, {"freeze": frozen}).ended("freeze")
    assert ended.codes == [-9, 1], "the frozen one was ended from outside, when the other had ended"
    must_say_once(ended, "rank 0", os.uname().nodename, f"{FROZEN} s", f"rank 1 at step {STEP - 1}")


def test_all_stop_at_the_same_step_and_go_on(all_launches: Launched) -> None:
    """SIGTERM to the second process alone."""
    ended = all_launches.ended("terminate")
    assert ended.codes == [130, 130]
    must_say_once(ended, "stopped at step")
    (unbroken,), (again,) = (
        {one["weights"] for one in all_launches.shares(*each)}
        for each in (("whole", "run"), ("stopped", "run-stopped"))
    )
    assert again == unbroken


def test_the_first_cause_is_on_top(all_launches: Launched) -> None:
    for name, words in (
        ("nan", [f"step {STEP - 1}", "nan", "from what rank 1"]),
        ("raise", ["rank 1", "ValueError: planted"]),
    ):
        ended = all_launches.ended(name)
        assert ended.codes == [1, 1]
        must_say_once(ended, *words)
        assert not (all_launches.folder / f"run-{name}" / "model").exists()


# ---- what cannot begin


def test_where_memory_runs_out_all_halve_together_or_end_together(all_launches: Launched) -> None:
    """Before gradients are exchanged, and at a step where they are."""
    (smaller,) = json.loads((all_launches.folder / "run-full" / "schedule.json").read_text())["micro_batches"]
    assert smaller["first"] == 0
    assert len({each["weights"] for each in all_launches.shares("full", "run-full")}) == 1
    ended = all_launches.ended("late")
    assert ended.codes == [1, 1]
    must_say_once(ended, "rank 1", f"step {STEP - 1}", "memory")


def test_processes_that_cannot_train_together_are_refused(all_launches: Launched) -> None:
    """In two lines, by one process, with nothing left behind."""
    for name, code, words in (
        ("missing", 1, ["rank 1", "1 of 2"]),
        ("taken", 2, ["port"]),
        ("data", 2, ["rank 1", "photographs", "others"]),
        ("rate", 2, ["rank 1", "0.5"]),
        ("torch", 2, ["rank 1", "2.0.0", torch.__version__]),
    ):
        ended = all_launches.ended(name)
        assert set(ended.codes) == {code}, (name, ended)
        must_say_once(ended, *words)
    assert not list(all_launches.folder.glob("never*"))
