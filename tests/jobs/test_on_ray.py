"""Jobs by workers of Ray: whoever is killed or stands still, the bytes are those of one process, each image once.

One Ray for the whole file, in this process; nothing looks at the clock but the driver's own deadline.
"""

import importlib.util
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import vitrail
from tests.cli.command import DATA, INTERRUPTED, Cli, call_outside, environment
from tests.errors import must_raise
from tests.features.test_embed import model_of
from tests.photographs import make_photographs
from tests.runs import hashes
from vitrail.data.images import FileImages
from vitrail.errors import DataError, RunError, UsageError
from vitrail.explain.reporting import job
from vitrail.features import embed as features
from vitrail.jobs import answers as home, on_ray
from vitrail.jobs.answers import answer_all
from vitrail.jobs.on_ray import Cluster, Wanted, Worker
from vitrail.jobs.parts import Lines, begun, folder_of, versions
from vitrail.jobs.precision import Opening, identity_of
from vitrail.jobs.ranges import split_up

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is missing: the extra `ray`"),
    pytest.mark.skipif(sys.platform != "linux", reason="workers are found in /proc"),
]
MARK = "VITRAIL_TEST_OF_RAY"  # in the environment of our own workers
ROWS = 8


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`photos`, 60 images of which one cannot be read, and `model`."""
    root = tmp_path_factory.mktemp("ray")
    make_photographs(root / "photos", ("a", "b"), per_class=30, seed=0)
    (root / "photos" / "a" / "a_004.jpg").write_text("no image")
    vitrail.save(model_of(), root / "model")
    return root


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A Ray of two processors, whose workers can be told from others."""
    import ray

    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**environment(), MARK: str(os.getpid()), "RAY_USAGE_STATS_ENABLED": "0"}.items():
            patch.setenv(name, value)
        patch.setenv("RAY_kill_worker_timeout_milliseconds", "200")  # until a worker that does not answer is killed
        ray.init("local", num_cpus=2, object_store_memory=80 * 2**20, include_dashboard=False, log_to_driver=False)
        yield
        ray.shutdown()


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "ROWS", ROWS)
    monkeypatch.setattr(features, "ROWS", ROWS)


def workers_of(mark: str, loaded: bool = False) -> list[int]:
    """The processes of workers that were started by a process with this number; or those that hold a model."""
    found, starting = [], (b"ray::Worker.__init__", b"ray::Worker.ready")
    for folder in Path("/proc").iterdir():
        try:
            title = (folder / "cmdline").read_bytes() if folder.name.isdigit() else b""
            if title.startswith(b"ray::Worker") and not (loaded and title.startswith(starting)):
                ours = f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0")
                found += [int(folder.name)] if ours else []
        except OSError:  # it has ended
            continue
    return sorted(found)


def cluster_processes() -> list[int]:
    """The processes that a driver of its own has started."""
    found = list[int]()
    for folder in Path("/proc").iterdir():
        try:
            environ = (folder / "environ").read_bytes() if folder.name.isdigit() else b""
            ours = f"{MARK}=driver".encode() in environ.split(b"\0")
            found += [int(folder.name)] if ours else []
        except OSError:  # it has ended
            continue
    return found


def agents() -> list[int]:
    """Ray's own helpers among them."""
    found = [pid for pid in cluster_processes() if b"Agent" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return found if len(found) == 2 else []


def all_end(processes: Callable[[], list[int]], seconds: float = 8.0) -> bool:
    """Whether they all end in so many seconds."""
    began = time.monotonic()
    while processes() and time.monotonic() - began < seconds:
        time.sleep(0.1)
    return not processes()


def files_in(place: Path) -> list[Path]:
    return sorted((place / "photos").rglob("*.*"))


def opening_in(place: Path) -> Opening:
    return Opening(str(place / "model"), "cpu", {}, identity_of(vitrail.load(place / "model")))


def striking(strikes: dict[int, signal.Signals], seen: list[int]) -> Callable[[int, int], None]:
    """Progress that sends signals: behind so many ranges one of the workers gets one, which must have met it."""

    def progress(done: int, total: int) -> None:
        seen.append(done)
        if (number := strikes.get(len(seen))) is not None:
            os.kill(workers_of(str(os.getpid()), loaded=True)[0], number)

    return progress


@pytest.mark.usefixtures("started")
def test_a_killed_and_a_frozen_worker_change_no_byte(place: Path, tmp_path: Path) -> None:
    model, told, seen = vitrail.load(place / "model"), list[str](), list[int]()
    answer_all([FileImages(files_in(place))], model, tmp_path / "one.csv")
    found = answer_all(
        [FileImages(files_in(place))],
        model,
        tmp_path / "ray.csv",
        cluster=Cluster("local", 2, deadline=2.0, tell=told.append),
        opening=opening_in(place),
        progress=striking({2: signal.SIGKILL, 4: signal.SIGSTOP}, seen),
    )
    assert (tmp_path / "ray.csv").read_bytes() == (tmp_path / "one.csv").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.csv", "ray.csv"]
    assert [name for name, _ in found.problems] == [str(place / "photos" / "a" / "a_004.jpg")]
    assert (found.count, seen[0], seen[-1]) == (59, 0, 60)
    assert len(told) >= 2  # of one that ended, and of one that stood still


@pytest.mark.usefixtures("started")
def test_features_are_those_of_one_process(place: Path, tmp_path: Path) -> None:
    photos, model, cluster = place / "photos", place / "model", Cluster("local", 1)
    vitrail.embed(photos, model, out=tmp_path / "one.npz", patches=True)
    vitrail.embed(photos, model, out=tmp_path / "ray.npz", patches=True, cluster=cluster)
    assert (tmp_path / "ray.npz").read_bytes() == (tmp_path / "one.npz").read_bytes()
    with must_raise(UsageError, named="out"):
        vitrail.embed(photos, model, cluster=cluster)
    with must_raise(UsageError, named="path"):
        vitrail.embed(photos, vitrail.load(model), out=tmp_path / "x.npz", cluster=cluster)
    while workers_of(str(os.getpid())):  # nothing is left behind
        time.sleep(0.1)


def test_a_worker_knows_its_job(place: Path, tmp_path: Path) -> None:
    """By the job's hash, by versions and by the model: each is looked at before anything is computed."""
    parts = begun(tmp_path / "x.csv", Lines(), {"verb": "predict"})
    opening, ranges = opening_in(place), split_up([FileImages(files_in(place))], ROWS)
    wanted = Wanted.here(parts, 1, ranges)

    def worker(known: Opening = opening, **other: Any) -> Worker:
        return Worker(home.Answering(known, None), parts, replace(wanted, **other))

    assert worker().ready() == os.getpid()
    with must_raise(DataError, named="x.csv.parts"):
        worker(digest="another").ready()
    with must_raise(DataError, named="y.jpg"):
        worker(image=str(tmp_path / "y.jpg")).ready()
    with must_raise(UsageError, named="1.0"):
        worker(versions={**versions(), "torch": "1.0"}).ready()
    with must_raise(DataError, named=str(place / "model")):
        worker(replace(opening, known={"weights": "others"})).ready()


@pytest.mark.soak
@pytest.mark.usefixtures("started")
def test_what_a_worker_refuses_is_said_as_here(place: Path, tmp_path: Path) -> None:
    other = replace(opening_in(place), known={"weights": "others"})
    with must_raise(DataError, named=str(place / "model")):
        vitrail.embed(
            place / "photos", place / "model", out=tmp_path / "x.npz", cluster=Cluster("local", 1), opening=other
        )
    assert not (tmp_path / "x.npz").exists()


@pytest.mark.parametrize("listens", [False, True])
def test_a_ray_that_has_ended_is_named(listens: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its head does not answer, or no machine is left; nothing more is asked of it, since it would wait."""
    monkeypatch.setattr(on_ray, "GONE", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as head:
        port = head.getsockname()[1]
        if not listens:
            head.close()
        context = SimpleNamespace(gcs_address=f"127.0.0.1:{port}")
        ray = SimpleNamespace(get_runtime_context=lambda: context, nodes=lambda: [{"Alive": False}])
        driver = object.__new__(on_ray._Driver)
        driver.ray, driver.cluster = ray, Cluster("local")
        monkeypatch.setattr(driver, "_seats", lambda ranges: [on_ray._Seat(None, asked=1)])
        with must_raise(RunError, named="Ray itself has ended") as caught:
            list(driver.run(split_up([FileImages([tmp_path / "x.png"])], ROWS)))
    assert caught.value.hint.startswith("the same command again")
    assert len(caught.value.problem.splitlines()) == 1


def test_of_what_ray_says_the_first_sentence_is_shown() -> None:
    error = RuntimeError("The actor died.  The raylet at 10.0.0.1 was lost.\n\tclass_name: Worker")
    assert on_ray._sentence(error) == "The actor died"
    assert on_ray._sentence(RuntimeError("Cannot reach 10.0.0.1:6379\nTraceback")) == "Cannot reach 10.0.0.1:6379"
    assert on_ray._sentence(RuntimeError()) == ""


def test_a_killed_driver_goes_on_behind_its_parts(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is typed, with a Ray of its own: killed, then asked to stop, as batch systems do; then in this process."""
    monkeypatch.setenv(MARK, "driver")
    words = ("embed", place / "photos", "--model", place / "model", "--ray", "local", "--workers", 1)
    small = f"from vitrail.features import embed as home\nhome.ROWS = {ROWS}\n"
    killing = (
        "import os, signal, time\nfrom tests.jobs.test_on_ray import all_end, agents\n"
        "from vitrail.jobs import on_ray\nanswer, done = on_ray._Driver._answer, []\n"
        "def dying(self, seat, left):\n"
        "    found = answer(self, seat, left)\n"
        "    done.extend([found] if found else [])\n"
        "    if len(done) == 3:\n"
        "        all_end(lambda: [] if agents() else [1], 20)  # which Ray starts late, and which outlive it\n"
        "        print(time.monotonic(), flush=True)\n"
        "        os.kill(os.getpid(), signal.SIG)\n"
        "    return found\n"
        "on_ray._Driver._answer = dying\n"
    )
    for name, code in (("SIGKILL", -signal.SIGKILL), ("SIGTERM", INTERRUPTED)):
        killed = call_outside(*words, "--out", tmp_path / "x.npz", before=small + killing.replace("SIG)", f"{name})"))
        assert killed.code == code
        assert not (tmp_path / "x.npz").exists()
        assert all_end(cluster_processes, 40.0)
        assert time.monotonic() - float(killed.out.split()[-1]) < 45, "Ray's helpers stay for a minute"
    kept = {file.name: file.stat().st_mtime_ns for file in folder_of(tmp_path / "x.npz").glob("*.npz")}
    assert len(kept) >= 3
    seen: list[int] = []
    vitrail.embed(place / "photos", place / "model", out=tmp_path / "x.npz", progress=lambda done, _: seen.append(done))
    assert len(seen) <= 1 + len(files_in(place)) / ROWS + 1 - len(kept)
    vitrail.embed(place / "photos", place / "model", out=tmp_path / "one.npz")
    assert (tmp_path / "x.npz").read_bytes() == (tmp_path / "one.npz").read_bytes()
    with np.load(tmp_path / "x.npz") as arrays:
        assert len(set(arrays["id"].tolist())) == 59


@pytest.mark.usefixtures("started")
def test_explanations_are_those_of_one_process(
    place: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines and images, of files that are named from where one is."""
    monkeypatch.chdir(place / "photos")
    monkeypatch.setattr(job, "ROWS", 3)
    words = ("explain", place / "model", "a", "--count", 7, "--no-trust", "--method", "rollout", "--threads", 1)
    folders = {"one": (), "ray": ("--ray", "local", "--workers", 1)}
    for name, more in folders.items():
        assert cli(*words, "--out", tmp_path / name / "x.jsonl", *more).code == DATA  # one cannot be read
    found = {name: hashes(tmp_path / name) for name in folders}
    assert found["one"] == found["ray"]
    assert len(found["one"]) == 1 + 6


@pytest.mark.soak
@pytest.mark.usefixtures("started")
def test_twenty_kills_and_five_freezes(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over 10,000 small images, at whatever a worker is at, its start included."""
    monkeypatch.setattr(home, "ROWS", 32)
    monkeypatch.setattr(on_ray, "STARTING", 60.0)
    draw, model, contents = np.random.default_rng(0), vitrail.load(place / "model"), files_in(place)
    (tmp_path / "many").mkdir()
    files = [tmp_path / "many" / f"{number:05d}{contents[number % 60].suffix}" for number in range(10_000)]
    for number, file in enumerate(files):
        file.write_bytes(contents[number % 60].read_bytes())
    kinds = draw.permutation([signal.SIGKILL] * 20 + [signal.SIGSTOP] * 5).tolist()
    struck, seen = list[int](), list[int]()

    def strike(done: int, total: int) -> None:
        seen.append(done)
        if len(seen) % 12 or not kinds:
            return
        while not (there := [one for one in workers_of(str(os.getpid())) if not is_stopped(one)]):
            time.sleep(0.1)  # both stand still, or start
        os.kill(int(draw.choice(there)), kinds[-1])
        struck.append(kinds.pop())

    answer_all([FileImages(files)], model, tmp_path / "one.csv")
    cluster = Cluster("local", 2, deadline=2.0)
    found = answer_all(
        [FileImages(files)], model, tmp_path / "ray.csv", cluster=cluster, opening=opening_in(place), progress=strike
    )
    assert (struck.count(signal.SIGKILL), struck.count(signal.SIGSTOP)) == (20, 5)
    assert (tmp_path / "ray.csv").read_bytes() == (tmp_path / "one.csv").read_bytes()
    names = [line.partition(",")[0] for line in (tmp_path / "ray.csv").read_text().splitlines()[1:]]
    assert names == [str(file) for file in files]
    assert found.count + len(found.problems) == 10_000


def is_stopped(worker: int) -> bool:
    """Whether a process stands still, or has ended."""
    try:
        return Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[0] in "TtZX"
    except OSError:
        return True
