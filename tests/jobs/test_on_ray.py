"""Jobs by workers of Ray: whoever is killed or stands still, the bytes are those of one process, each image once.

One Ray for the whole file, in this process; nothing looks at the clock but the driver's own deadline.
"""

import importlib.util
import json
import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

import vitrail
from tests.cli.command import DATA, INTERRUPTED, Cli, call_outside, environment
from tests.errors import must_raise
from tests.features.test_embed import model_of
from tests.photographs import make_photographs
from tests.shared_runs import hashes
from vitrail.data.images import FileImages
from vitrail.errors import DataError, RunError, UsageError
from vitrail.explain.reporting import job
from vitrail.features import embed as features
from vitrail.jobs import answers as home, cluster_guard, on_ray
from vitrail.jobs.answers import answer_all
from vitrail.jobs.cluster import Cluster
from vitrail.jobs.on_ray import Wanted, Worker
from vitrail.jobs.parts import LINES, IdRange, decoder_versions, folder_of, open_parts, split_up
from vitrail.jobs.precision import Opening, identity_of

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is missing: the extra `ray`"),
    pytest.mark.skipif(sys.platform != "linux", reason="workers are found in /proc"),
]
MARK = "VITRAIL_TEST_OF_RAY"  # in the environment of our own workers
ROWS = 8
SOON = 40.0  # seconds after the end of its driver in which all of a local Ray ends; some would by themselves after 60


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


class Process(NamedTuple):
    """A process; its start, in ticks since the machine's, tells it from another of the same number."""

    number: int
    start: int
    parent: int
    state: str
    title: str


def processes() -> list[Process]:
    """All that have not ended."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent, *fields = (folder / "stat").read_text().rpartition(")")[2].split()
            title = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended
            continue
        if state not in "ZX":
            found.append(Process(int(folder.name), int(fields[17]), int(parent), state, title))
    return found


def started_by(driver: int) -> list[Process]:
    """The processes of the Ray that a process has started, itself or through others; without its guard."""
    others = [each for each in processes() if cluster_guard.__file__ not in each.title]
    found, parents = list[Process](), {driver}
    while parents:
        below = [each for each in others if each.parent in parents]
        found, parents = found + below, {each.number for each in below}
    return found


def report_and_die(number: signal.Signals) -> None:
    """In a driver: write down the processes of its Ray, when Ray's late helpers are there; then get a signal."""
    began = time.monotonic()
    while sum("Agent" in each.title for each in started_by(os.getpid())) < 2 and time.monotonic() - began < 120:
        time.sleep(0.1)
    before = started_by(os.getpid())
    handles = cluster_guard.marked_processes(os.environ[cluster_guard.NAME])
    marked = {int(Path(f"/proc/self/fdinfo/{each}").read_text().split("Pid:")[1].split()[0]) for each in handles}
    after = {each.number for each in started_by(os.getpid())}
    found = [(*each, each.number in marked) for each in before if each.number in after]
    print(json.dumps({"at": time.monotonic(), "processes": found}), flush=True)
    os.kill(os.getpid(), number)


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
    model, lines, seen = vitrail.load(place / "model"), list[str](), list[int]()
    answer_all([FileImages(files_in(place))], model, tmp_path / "one.csv")
    found = answer_all(
        [FileImages(files_in(place))],
        model,
        tmp_path / "ray.csv",
        cluster=Cluster("local", deadline=5.0, warn=lines.append, opening=opening_in(place)),
        progress=striking({2: signal.SIGKILL, 4: signal.SIGSTOP}, seen),
    )
    assert (tmp_path / "ray.csv").read_bytes() == (tmp_path / "one.csv").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.csv", "ray.csv"]
    assert [name for name, _ in found.problems] == [str(place / "photos" / "a" / "a_004.jpg")]
    assert (found.count, seen[0], seen[-1]) == (59, 0, 60)
    assert len(lines) >= 2  # of one that ended, and of one that stood still


@pytest.mark.usefixtures("started")
def test_features_are_those_of_one_process(place: Path, tmp_path: Path) -> None:
    photos, model, cluster = place / "photos", place / "model", Cluster("local", 1)
    vitrail.embed(model, photos, out=tmp_path / "one.npz", patches=True)
    vitrail.embed(model, photos, out=tmp_path / "ray.npz", patches=True, cluster=cluster)
    assert (tmp_path / "ray.npz").read_bytes() == (tmp_path / "one.npz").read_bytes()
    with must_raise(UsageError, named="out"):
        vitrail.embed(model, photos, cluster=cluster)
    with must_raise(UsageError, named="path"):
        vitrail.embed(vitrail.load(model), photos, out=tmp_path / "x.npz", cluster=cluster)
    while workers_of(str(os.getpid())):  # nothing is left behind
        time.sleep(0.1)


def test_a_worker_knows_its_job(place: Path, tmp_path: Path) -> None:
    """By the job's hash, by versions and by the model: each is looked at before anything is computed."""
    parts = open_parts(tmp_path / "x.csv", LINES, {"verb": "predict"})
    opening, ranges = opening_in(place), split_up([FileImages(files_in(place))], ROWS)
    wanted = Wanted.here(parts, 1, ranges)

    def worker(known: Opening = opening, **other: Any) -> Worker:
        return Worker(partial(known.compute, home.answers, None), parts, replace(wanted, **other))

    assert worker().ready() == os.getpid()
    with must_raise(DataError, named="x.csv.parts"):
        worker(digest="another").ready()
    with must_raise(DataError, named="y.jpg"):
        worker(image=str(tmp_path / "y.jpg")).ready()
    with must_raise(UsageError, named="1.0"):
        worker(versions={**decoder_versions(), "torch": "1.0"}).ready()
    with must_raise(DataError, named=str(place / "model")):
        worker(replace(opening, known={"weights": "others"})).ready()


@pytest.mark.soak
@pytest.mark.usefixtures("started")
def test_what_a_worker_refuses_is_said_as_here(place: Path, tmp_path: Path) -> None:
    other = replace(opening_in(place), known={"weights": "others"})
    with must_raise(DataError, named=str(place / "model")):
        vitrail.embed(
            place / "model", place / "photos", out=tmp_path / "x.npz", cluster=Cluster("local", 1, opening=other)
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
        monkeypatch.setattr(driver, "_start_all", lambda ranges: [on_ray._Handle(None, pending=1)])
        with must_raise(RunError) as caught:
            list(driver.run(split_up([FileImages([tmp_path / "x.png"])], ROWS)))
    assert len(caught.value.problem.splitlines()) == 1


def test_each_worker_that_is_lost_or_frozen_is_one_line(place: Path, tmp_path: Path) -> None:
    """A frozen one is killed, again if that takes long, and then its result is an error: that is one event."""
    lost = type("RayError", (Exception,), {})

    def get(pending: object) -> float:
        raise lost("The worker died.")

    errors = SimpleNamespace(RayError=lost, RayTaskError=type("RayTaskError", (lost,), {}))
    ray = SimpleNamespace(get=get, kill=lambda actor, no_restart: None, exceptions=errors)
    some, lines = split_up([FileImages(files_in(place))], ROWS)[0], list[str]()
    driver = driver_of(place, tmp_path, ray, Cluster("local", deadline=2.0, warn=lines.append))
    for kills in (0, 1, 2):
        worker = on_ray._Handle(actor())
        driver._submit(worker, some)
        for _ in range(kills):
            driver._kill(worker)
        left = deque[IdRange]()
        assert driver._take(worker, left) is None
        assert list(left) == [some]
        assert (worker.range, worker.pending, worker.killed) == (None, 1, False)  # it starts again
        assert len(lines) == kills + 1


def driver_of(place: Path, out: Path, ray: object, cluster: Cluster, device: str = "cpu") -> on_ray._Driver:
    """A driver that has started no worker."""
    parts = open_parts(out / "x.csv", LINES, {"verb": "predict"})
    return on_ray._Driver(ray, cluster, partial(opening_in(place).compute, home.answers, None), parts, device)


def actor() -> SimpleNamespace:
    """What stands for an actor of Ray: each call gives the reference 1."""
    call = SimpleNamespace(options=lambda **_: call, remote=lambda *_: 1)
    return SimpleNamespace(ready=call, do=call)


@pytest.mark.parametrize(
    ("workers", "threads", "device", "started"),
    [(None, 2, "cpu", 3), (9, 2, "cpu", 3), (2, 2, "cpu", 2), (9, 3, "cuda", 1), (9, 9, "cpu", 0), (1, 9, "cuda", 0)],
)
def test_no_worker_starts_that_no_machine_has_room_for(
    workers: int | None, threads: int, device: str, started: int, place: Path, tmp_path: Path
) -> None:
    """Machines with three and five CPUs have room for three workers of two threads; one that has ended has none."""
    machines = [{"CPU": 3.0}, {"CPU": 5.0, "GPU": 1.0}, {"CPU": 4.0}]
    nodes = [{"Alive": number < 2, "Resources": has} for number, has in enumerate(machines)]
    made = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *_: actor()))
    ray, lines = SimpleNamespace(nodes=lambda: nodes, remote=lambda _: made), list[str]()
    driver = driver_of(place, tmp_path, ray, Cluster("auto", workers, threads, warn=lines.append), device)
    ranges = split_up([FileImages(files_in(place))], ROWS)
    if not started:
        with must_raise(UsageError, named=str(threads)):
            driver._start_all(ranges)
        return
    assert len(driver._start_all(ranges)) == started
    assert len(lines) == (workers is not None and workers > started)
    assert all(str(number) in line for line in lines for number in (workers, started))
    assert len(driver._start_all(ranges[:1])) == 1
    assert len(lines) <= 1


@pytest.mark.soak
@pytest.mark.parametrize(
    "signals",
    [
        pytest.param({"SIGKILL": -signal.SIGKILL}, id="killed"),
        pytest.param({"SIGKILL": -signal.SIGKILL, "SIGTERM": INTERRUPTED}, id="and asked to stop"),
    ],
)
def test_a_killed_driver_goes_on_behind_its_parts(signals: dict[str, int], place: Path, tmp_path: Path) -> None:
    """As it is typed, with a Ray of its own: killed, then asked to stop, as batch systems do; then in this process."""
    words = ("embed", place / "model", place / "photos", "--ray", "local", "--workers", 1)
    killing = (
        f"from vitrail.features import embed as home\nhome.ROWS = {ROWS}\n"
        "import signal\nfrom tests.jobs.test_on_ray import report_and_die\n"
        "from vitrail.jobs import on_ray\ntake, done = on_ray._Driver._take, []\n"
        "def dying(self, worker, left):\n"
        "    found = take(self, worker, left)\n"
        "    done.extend([found] if found else [])\n"
        "    if len(done) == 3:\n"
        "        report_and_die(signal.SIG)\n"
        "    return found\n"
        "on_ray._Driver._take = dying\n"
    )
    for name, code in signals.items():
        killed = call_outside(*words, "--out", tmp_path / "x.npz", before=killing.replace("SIG)", f"{name})"))
        assert killed.code == code
        assert not (tmp_path / "x.npz").exists()
        report = json.loads(killed.out)
        ended = report["at"] if name == "SIGKILL" else time.monotonic()  # SIGTERM lets it stop its Ray first
        started = {Process(*each): marked for *each, marked in report["processes"]}
        assert sum("Agent" in each.title for each in started) == 2  # they start late, and outlive a driver by a minute
        assert [each for each, marked in started.items() if not marked] == []
        known = {(each.number, each.start) for each in started}
        while left := [each for each in processes() if (each.number, each.start) in known]:
            assert time.monotonic() - ended < SOON, left
            time.sleep(0.1)
    kept = {file.name: file.stat().st_mtime_ns for file in folder_of(tmp_path / "x.npz").glob("*.npz")}
    assert len(kept) >= 3
    seen: list[int] = []
    vitrail.embed(place / "model", place / "photos", out=tmp_path / "x.npz", progress=lambda done, _: seen.append(done))
    assert len(seen) <= 1 + len(files_in(place)) / ROWS + 1 - len(kept)
    vitrail.embed(place / "model", place / "photos", out=tmp_path / "one.npz")
    assert (tmp_path / "x.npz").read_bytes() == (tmp_path / "one.npz").read_bytes()
    with np.load(tmp_path / "x.npz") as arrays:
        assert len(set(arrays["id"].tolist())) == 59


@pytest.mark.soak
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
def test_an_audit_is_that_of_one_process(place: Path, tmp_path: Path, cli: Cli) -> None:
    """Of all its jobs."""
    words = ("audit", place / "model", place / "photos", "--count", 20, "--method", "rollout", "--threads", 1)
    folders = {"one": (), "ray": ("--ray", "local", "--workers", 1)}
    for name, more in folders.items():
        assert cli(*words, "--out", tmp_path / name / "x.html", *more).code == 0
    for name in ("maps", "first"):
        one, other = ((tmp_path / each / "x" / f"{name}.jsonl").read_bytes() for each in folders)
        assert one == other
    found = [json.loads((tmp_path / name / "x.json").read_text()) for name in folders]
    assert found[0]["asked"]
    assert [{**each, "made": ""} for each in found] == [{**found[0], "made": ""}] * 2


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
    cluster = Cluster("local", deadline=2.0, opening=opening_in(place))
    found = answer_all([FileImages(files)], model, tmp_path / "ray.csv", cluster=cluster, progress=strike)
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
