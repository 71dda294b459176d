"""`vitrail serve` against LitServe and plain FastAPI: rates, waiting times and refusals under load, cold start, memory.

    pip install --target DIR --no-deps litserve pyzmq uvloop httptools
    python -m benchmarks.serve --litserve DIR [--rounds 5] [--seconds 7] [--closed 4]

LitServe is not in vitrail's environment, and need not be: DIR stands on PYTHONPATH of that server's process alone,
which has torch, timm and FastAPI from here; uvloop and httptools are what `pip install litserve` brings with it.
Without DIR it is left out. `shared/data` is looked for in $VITRAIL_DATA, then beside the checkout.

All answer the real ViT-Ti/16 on the same hundred photographs, each sent as a form on a connection of its own, by as
many processes as there are cores, with one thread each. First each photograph's answer is held against what timm gives
for it in a process without a server (probabilities to 1e-4); under load every answer is, too. Then, in turn, in rounds
that begin with another server each: a server is started, and the seconds until its first right answer are its cold
start; when its processes idle, a closed loop of two requests a process gives its capacity; then requests are sent at
times that were drawn (a Poisson process of which the number is known), whether or not earlier ones have come back, at
0.5, 1 and 2 times this capacity. The waiting time counts from when a request was due. The client is this process alone.
"""

import argparse
import asyncio
import itertools
import json
import math
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

LOADS = 0.5, 1.0, 2.0  # of the capacity
LIMIT = 1e-4  # between probabilities
PATIENCE = 60.0  # seconds for an answer, then it is lost
BEFORE = 120.0  # seconds for a start, and until it idles
LOADING = 0, 503  # what comes while a server starts: nothing, or this status
APART = 0.02  # seconds between two requests while a server starts
OURS, LITSERVE, FASTAPI, ONNX = "vitrail serve", "LitServe", "FastAPI", "vitrail serve, ONNX"
BOUNDARY = "a5f3c1e09b7d"
CORES = len(os.sched_getaffinity(0))


# ---- the client


class Reply(NamedTuple):
    """What came back: the status (0 for nothing whole), the body, and when, in seconds from the start of a phase."""

    photograph: int
    status: int
    body: bytes
    due: float
    came: float


def question(content: bytes) -> bytes:
    """A whole request with an image in a form."""
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="image"; filename="p.jpg"\r\nContent-Type: image/jpeg'
    body = f"{head}\r\n\r\n".encode() + content + f"\r\n--{BOUNDARY}--\r\n".encode()
    kind = f"Content-Type: multipart/form-data; boundary={BOUNDARY}\r\nContent-Length: {len(body)}\r\n"
    return f"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{kind}\r\n".encode() + body


async def asked(port: int, words: bytes) -> tuple[int, bytes]:
    """The status and the body of an answer; 0 where none came whole."""
    writer = None
    try:
        async with asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(words)
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
        return (int(head.split(b" ", 2)[1]), body) if length and int(length) == len(body) else (0, b"")
    except (OSError, TimeoutError):
        return 0, b""
    finally:
        if writer is not None:
            writer.close()


async def closed_loop(port: int, questions: Sequence[bytes], going_on: Callable[[int, float], bool]) -> list[Reply]:
    """Two requests a process on their way, as long as `going_on` of a request's number and of the seconds says so."""
    began, numbers, replies = time.perf_counter(), itertools.count(), list[Reply]()

    async def one() -> None:
        while going_on(number := next(numbers), at := time.perf_counter() - began):
            photograph = number % len(questions)
            status, body = await asked(port, questions[photograph])
            replies.append(Reply(photograph, status, body, at, time.perf_counter() - began))

    await asyncio.gather(*(one() for _ in range(2 * CORES)))
    return replies


async def open_loop(port: int, questions: Sequence[bytes], dues: Sequence[float]) -> list[Reply]:
    """Requests at their times, whether or not earlier ones have come back."""
    began = time.perf_counter()

    async def one(number: int, due: float) -> Reply:
        await asyncio.sleep(began + due - time.perf_counter())
        status, body = await asked(port, questions[number % len(questions)])
        return Reply(number % len(questions), status, body, due, time.perf_counter() - began)

    return await asyncio.gather(*(one(number, due) for number, due in enumerate(dues)))


# ---- what is right


class Judge:
    """Holds answers against timm's probabilities.

    Args:
        rows: Of each photograph those of the classes, the sum of which is 1.
        classes: What vitrail calls them.
    """

    def __init__(self, rows: Sequence[Sequence[float]], classes: Sequence[str]) -> None:
        self.rows, self.number = rows, {name: number for number, name in enumerate(classes)}
        self.best = [sorted(row, reverse=True)[:5] for row in rows]

    def gap(self, photograph: int, body: bytes) -> float:
        """How far the five probabilities are from those of their classes, and from the five largest; inf for others."""
        try:
            found = json.loads(body)
            top = found["predictions"][0]["top"] if "predictions" in found else found["top"]
            pairs = [(self.number[name] if isinstance(name, str) else name, value) for name, value in top]
            row, best = self.rows[photograph], self.best[photograph]
            wanted = zip(pairs, best, strict=True)
            return max(max(abs(value - row[number]), abs(value - large)) for (number, value), large in wanted)
        except (ValueError, KeyError, IndexError, TypeError):
            return float("inf")

    def right(self, reply: Reply) -> bool:
        """Whether this is the answer."""
        return reply.status == 200 and self.gap(reply.photograph, reply.body) <= LIMIT


def reference() -> dict[str, Any]:
    """What the judge needs, as the last line of a process of its own."""
    from PIL import Image

    import vitrail
    from benchmarks.servers.answering import opened

    probabilities = opened()
    classes = vitrail.load(os.environ["VITRAIL_BENCH_WEIGHTS"]).classes
    return {"classes": classes, "rows": [probabilities(Image.open(path)).tolist() for path in photographs()]}


# ---- processes


def family(root: int) -> list[int]:
    """A process and all that come from it."""
    children = dict[int, list[int]]()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):  # it has ended
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(folder.name))
    found = [root]
    for each in found:
        found += children.get(each, [])
    return found


def processor_seconds(processes: Sequence[int]) -> float:
    """That they have taken."""
    ticks = 0
    for number in processes:
        with suppress(OSError):
            ticks += sum(map(int, Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def memory(processes: Sequence[int]) -> float:
    """MiB of them all; what several share is divided among them (PSS)."""
    kilobytes = 0
    for number in processes:
        with suppress(OSError):
            lines = Path(f"/proc/{number}/smaps_rollup").read_text().splitlines()
            kilobytes += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return kilobytes / 1024


def settle(process: int) -> None:
    """Wait until nothing is loaded any more: twice half a second with less than a tenth of a core."""
    quiet, end = 0, time.perf_counter() + BEFORE
    while quiet < 2 and time.perf_counter() < end:
        before = processor_seconds(family(process))
        time.sleep(0.5)
        quiet = quiet + 1 if processor_seconds(family(process)) - before < 0.05 else 0


class Running(NamedTuple):
    """A server that has answered: its port, its process, and the seconds from its command to the first right answer."""

    port: int
    process: int
    cold: float


@contextmanager
def running(command: Sequence[str], environment: Mapping[str, str], words: bytes, judge: Judge) -> Iterator[Running]:
    """A server, from its command to its end, and to that of whatever it started."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryFile() as log:
        began = time.perf_counter()
        child = subprocess.Popen(
            [word.format(port=port) for word in command],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while not judge.right(reply := Reply(0, *asyncio.run(asked(port, words)), 0.0, 0.0)):
                late = time.perf_counter() - began > BEFORE
                if reply.status not in LOADING or child.poll() is not None or late:
                    log.seek(0)
                    said = log.read()[-2000:].decode(errors="replace")
                    raise SystemExit(f"{command}: status {reply.status}, {reply.body[:200]!r}\n{said}")
                time.sleep(APART)
            yield Running(port, child.pid, time.perf_counter() - began)
        finally:
            every = family(child.pid)
            child.terminate()
            with suppress(subprocess.TimeoutExpired):
                child.wait(10)
            for number in every[1:] if child.poll() is not None else every:
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
            child.wait()


# ---- what is measured


class Phase(NamedTuple):
    """What came of a load: requests by what became of them, and milliseconds of the right answers.

    Attributes:
        lost: Those without an answer, or with a status that is neither 200 nor 503.
        seconds: In which requests were due.
        lasted: Seconds until the last came back, if that is more.
        client: Share of one core that the client took.
    """

    sent: int
    waits: list[float]
    refused: int
    lost: int
    wrong: int
    seconds: float
    lasted: float
    client: float

    @property
    def rate(self) -> float:
        """Right answers a second."""
        return len(self.waits) / self.lasted


@dataclass
class Side:
    """A server, and what it showed, round by round.

    Attributes:
        command: With `{port}`.
        environment: That it has besides.
        loaded: Whether more than its start is measured.
        gap: How far its probabilities are from timm's.
        cold: Seconds from the command to the first right answer.
        capacity: Right answers a second in a closed loop.
        phases: By load.
        resting: MiB before the first load.
        after: MiB after the last.
    """

    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    loaded: bool = True
    gap: float = 0.0
    cold: list[float] = field(default_factory=list)
    capacity: list[float] = field(default_factory=list)
    phases: dict[float, list[Phase]] = field(default_factory=lambda: {load: [] for load in LOADS})
    resting: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of the values that this share of them does not pass."""
    return sorted(values)[math.ceil(share * len(values)) - 1] if values else math.nan


def phase(replies: Sequence[Reply], seconds: float, judge: Judge, client: float) -> Phase:
    """What came of a load."""
    right = [reply for reply in replies if judge.right(reply)]
    wrong = sum(reply.status == 200 for reply in replies) - len(right)
    refused = sum(reply.status == 503 for reply in replies)
    lost, lasted = len(replies) - len(right) - wrong - refused, max(seconds, *(reply.came for reply in replies))
    waits = [1000 * (reply.came - reply.due) for reply in right]
    return Phase(len(replies), waits, refused, lost, wrong, seconds, lasted, client / lasted)


def proved(side: Side, questions: Sequence[bytes], judge: Judge) -> None:
    """Hold each answer against timm's; and see that the judge would know that of another photograph."""
    with running(side.command, side.environment, questions[0], judge) as server:
        replies = asyncio.run(closed_loop(server.port, questions, lambda number, at: number < len(questions)))
    side.gap = max(judge.gap(each.photograph, each.body) for each in replies)
    if side.gap > LIMIT or len(replies) < len(questions):
        raise SystemExit(f"{side.command} answers otherwise than timm: {side.gap:.1g}")
    other = min(judge.gap((each.photograph + 1) % len(questions), each.body) for each in replies)
    assert other > LIMIT, "the judge takes the answer to another photograph"


def measured(side: Side, questions: Sequence[bytes], judge: Judge, seconds: float, closed: float, seed: int) -> None:
    """One round of a server."""
    with running(side.command, side.environment, questions[0], judge) as server:
        side.cold.append(server.cold)
        if not side.loaded:
            return
        settle(server.process)
        side.resting.append(memory(family(server.process)))
        replies = asyncio.run(closed_loop(server.port, questions, lambda number, at: at < closed))
        side.capacity.append(phase(replies, closed, judge, 0.0).rate)
        for load in LOADS:
            draw, count = random.Random(seed), max(1, round(load * side.capacity[-1] * seconds))
            dues = sorted(draw.uniform(0, seconds) for _ in range(count))
            before = time.process_time()
            replies = asyncio.run(open_loop(server.port, questions, dues))
            side.phases[load].append(phase(replies, seconds, judge, time.process_time() - before))
        side.after.append(memory(family(server.process)))


# ---- the tables


def header(*columns: str) -> tuple[str, str]:
    """The first lines of a table."""
    return f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)


def tables(sides: Mapping[str, Side]) -> Iterator[str]:
    """Lines of Markdown."""
    from benchmarks.measure import spread

    loaded = {name: side for name, side in sides.items() if side.loaded}
    columns = "load", "sent/s", "right/s", "P50, ms", "P99, ms", "P99 of all rounds", "503", "lost", "wrong"
    yield from header("server", *columns)
    for load in LOADS:
        for name, side in loaded.items():
            phases = side.phases[load]
            sent, waits = sum(each.sent for each in phases), [one for each in phases for one in each.waits]
            cells = (
                name,
                f"{load:g}",
                f"{sent / sum(each.seconds for each in phases):.1f}",
                spread([each.rate for each in phases], 1),
                spread([percentile(each.waits, 0.5) for each in phases]),
                spread([percentile(each.waits, 0.99) for each in phases]),
                f"{percentile(waits, 0.99):,.0f}",
                f"{100 * sum(each.refused for each in phases) / sent:.1f} %",
                f"{sum(each.lost for each in phases)} of {sent:,}",
                f"{sum(each.wrong for each in phases)} of {sent:,}",
            )
            yield "| " + " | ".join(cells) + " |"
    yield ""
    yield from header("server", "capacity/s", "of LitServe's", "cold start, s", "MiB before", "MiB after", "gap")
    peer = loaded[LITSERVE].capacity if LITSERVE in loaded else []
    for name, side in sides.items():
        ratios = [own / other for own, other in zip(side.capacity, peer, strict=False)]
        few = (side.capacity, 1), (ratios, 2), (side.cold, 1), (side.resting, 0), (side.after, 0)
        yield f"| {name} | " + " | ".join(spread(*each) if each[0] else "" for each in few) + f" | {side.gap:.0g} |"
    yield ""
    yield from reached(sides, peer)


def reached(sides: Mapping[str, Side], peer: Sequence[float]) -> Iterator[str]:
    """The goals, each with what came out; and what the client took."""
    ours = sides[OURS]
    if peer:
        ratio = statistics.median(own / other for own, other in zip(ours.capacity, peer, strict=True))
        yield f"- capacity, of LitServe's (goal: at least 0.95): {ratio:.2f}"
        own, other = (statistics.median(each.rate for each in sides[name].phases[1.0]) for name in (OURS, LITSERVE))
        yield f"- right answers a second at once the capacity, of LitServe's: {own / other:.2f}"
    late = [statistics.median(percentile(each.waits, 0.99) for each in ours.phases[load]) for load in (2.0, 0.5)]
    yield f"- P99 at twice the capacity, of that at half of it (goal: below 2): {late[0] / late[1]:.2f}"
    half = ours.phases[0.5]
    refused = 100 * sum(each.refused for each in half) / sum(each.sent for each in half)
    yield f"- 503 at half the capacity (goal: at most 1 %): {refused:.2f} %"
    colds = ", ".join(f"{name} {statistics.median(sides[name].cold):.2f} s" for name in (OURS, ONNX))
    yield f"- cold start (goals: at most 5 s, and 1.5 s of the export): {colds}"
    client = [100 * each.client / CORES for side in sides.values() for rows in side.phases.values() for each in rows]
    yield f"- the client took at most {max(client):.1f} % of the processors (median {statistics.median(client):.1f} %)"


# ---- from the data to the tables


def data() -> Path:
    """The folder with the network and the photographs."""
    for root in (os.environ.get("VITRAIL_DATA", ""), "../shared/data"):
        if root and (Path(root) / "vit_ti16" / "model.safetensors").is_file():
            return Path(root).resolve()
    raise SystemExit("the real ViT-Ti/16 is not there\ntry: VITRAIL_DATA=folder-with-vit_ti16-and-photos")


def photographs() -> list[Path]:
    """A hundred, in order of their classes."""
    return sorted((data() / "photos" / "imagenet100").glob("*.jpg"))


def peers(place: str | None) -> dict[str, Side]:
    """The other servers, those that are here."""
    start, more = (sys.executable, "-m"), ("{port}", str(CORES))
    found = {FASTAPI: Side((*start, "benchmarks.servers.with_fastapi", *more))}
    path = os.pathsep.join(filter(None, [place and str(Path(place).resolve()), os.environ.get("PYTHONPATH")]))
    seeing = {"PYTHONPATH": path}
    tried = subprocess.run([*start[:1], "-c", "import litserve"], env={**os.environ, **seeing}, capture_output=True)
    if tried.returncode:
        print("LitServe is left out: it cannot be imported (--help says how to install it)", file=sys.stderr)
        return found
    return {LITSERVE: Side((*start, "benchmarks.servers.with_litserve", *more), seeing), **found}


def main() -> None:
    """Prove, measure in turn, and print."""
    from benchmarks.measure import machine, worker

    if sys.argv[1:2] == ["reference"]:
        print(json.dumps(reference()))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--litserve", metavar="DIR", help="where LitServe is installed")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=7.0, help="of each load")
    parser.add_argument("--closed", type=float, default=4.0, help="seconds of the closed loop")
    given = parser.parse_args()
    weights = data() / "vit_ti16" / "model.safetensors"
    os.environ |= {"VITRAIL_BENCH_WEIGHTS": str(weights), "OMP_NUM_THREADS": "1"}
    began, facts = time.perf_counter(), worker("serve", "reference", threads=1)
    judge, questions = Judge(facts["rows"], facts["classes"]), [question(path.read_bytes()) for path in photographs()]
    stated = ["--mean", "0.5", "--std", "0.5"]
    vitrail = str(Path(sys.executable).with_name("vitrail"))
    with tempfile.TemporaryDirectory() as place:
        export = f"{place}/model.onnx"
        subprocess.run(
            [vitrail, "export", str(weights), *stated, "--to", "onnx", "--out", export], check=True, stdout=2
        )
        sides = {OURS: Side([vitrail, "serve", str(weights), *stated, "--port", "{port}"]), **peers(given.litserve)}
        sides[ONNX] = Side([vitrail, "serve", export, "--port", "{port}"], loaded=False)
        for side in sides.values():
            proved(side, questions, judge)
        print(f"{machine()}; {given.rounds} rounds, {given.seconds:g} s a load, {len(questions)} photographs\n")
        for number in range(given.rounds):
            order = [*sides.values()]
            for side in order[number % len(order) :] + order[: number % len(order)]:
                measured(side, questions, judge, given.seconds, given.closed, number)
            took = time.perf_counter() - began
            print(f"round {number + 1}: load {os.getloadavg()[0]:.1f}, {took:.0f} s in all", file=sys.stderr)
    print("\n".join(tables(sides)))


if __name__ == "__main__":
    main()
