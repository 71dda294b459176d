"""A server for 30,000 requests to the digits model, and 2,000 to ViT-Ti, while one fault after the other is planted.

Every answer is held against the library's own, and memory at the end against that of the first tenth. A fault costs
nobody else an answer: of a process that dies or stands still, the one request that it was at gets 503, and no other
request gets anything but its answer. REQUESTS_DIGITS and REQUESTS_TI in the environment say how many requests:
"""

import contextlib
import json
import os
import random
import re
import signal
import socket
import struct
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from PIL import Image

import vitrail
from tests import shared_runs as runs
from tests.deploy.serving import JPEG, PATHS, Server, encoded, form, serving
from tests.real import class_of, real_data, real_photographs
from vitrail.data.sources import read_images
from vitrail.errors import VitrailError
from vitrail.nn.networks import evaluating, weights_hash
from vitrail.weights.published import imagenet_names

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

CLIENTS, WORKERS = 16, 2
QUEUE = 64  # more than ask at a time: nobody is refused because others wait
TIMEOUT = 10  # seconds, after which a process that stands still is given up
COVERAGE = 0.9
PATH = f"/predict?coverage={COVERAGE}"
CLIENT = 0.25  # of one core, at most, is what all who ask take: else they would be what limits
HEAD = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
PATIENCE = 150.0  # seconds for what the server ends after 10 or 60 s


# ---- what is asked, and what is right


@dataclass(frozen=True)
class Sort:
    """The class, the probability and the set of an answer."""

    label: str
    probability: float
    inside: frozenset[str]

    def same(self, row: Mapping[str, object]) -> bool:
        """Whether this is the answer in the JSON of a server."""
        near = abs(float(str(row["probability"])) - self.probability) <= 1e-4
        return near and (row["label"], {*row["set"]}) == (self.label, self.inside)  # type: ignore[misc]


@dataclass(frozen=True)
class Asked:
    """An image, as it goes over the wire, with the right answer by the version of the weights."""

    content: bytes
    right: Mapping[str, Sort]

    @property
    def sent(self) -> bytes:
        return f"{HEAD}Content-Length: {len(self.content)}\r\n\r\n".encode() + self.content


def asked(contents: Sequence[bytes], models: Sequence[vitrail.Model]) -> list[Asked]:
    """These files, with what the library answers by each of the models."""
    found = [dict[str, Sort]() for _ in contents]
    for model in models:
        version = weights_hash(model.network)[:12]
        for own, one in zip(found, model.predict(list(contents), coverage=COVERAGE, batch_size=1), strict=True):
            row = one.to_dict()
            own[version] = Sort(row["label"], row["probability"], frozenset(row["set"]))
    return [Asked(*both) for both in zip(contents, found, strict=True)]


def shifted(model: vitrail.Model) -> vitrail.Model:
    """The same with another head, so that answers differ."""
    with torch.no_grad():
        model.network.head.weight *= 0.6
        model.network.head.bias += torch.linspace(0, 1, model.output.outputs)
    return model


def digits(folder: Path, count: int = 100) -> tuple[Path, list[bytes]]:
    """A run, and digits of its test images as they are, or larger."""
    run, files = runs.copy_of("digits", folder), list[bytes]()
    images = read_images(["digits"], flat=True).splits["test"].images
    for index in range(count):
        image = images.open(index)
        larger = image.resize((8 + index % 60, 8 + index % 41), Image.Resampling.BICUBIC)
        files.append(encoded(larger if index % 2 else image, "PNG"))
    return run, files


def ti(folder: Path, count: int = 100) -> tuple[Path, list[bytes]]:
    """ViT-Ti, whose sets are fitted to the very photographs: each probability is a limit of some coverage."""
    root = real_data()
    stated = {"mean": 0.5, "std": 0.5}
    model = vitrail.load(root / "vit_ti16" / "model.safetensors", assume=stated, classes=imagenet_names())
    photographs = real_photographs(root)
    with evaluating(model.network), torch.no_grad():
        outputs = torch.cat([model.network(model.tensor([each])) for each in photographs])
    targets = torch.tensor([class_of(each) for each in photographs])
    replace(model, output=model.output.calibrate(outputs, targets, "photographs")).save(folder / "ti" / "model")
    return folder / "ti", [each.read_bytes() for each in photographs[:count]]


# ---- those who ask


class Stream:
    """One connection, on which requests follow each other."""

    def __init__(self, port: int, timeout: float = 120) -> None:
        self.socket, self.rest = socket.create_connection(("127.0.0.1", port), timeout=timeout), b""
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *parts: bytes | str) -> None:
        for part in parts:
            self.socket.sendall(part.encode() if isinstance(part, str) else part)

    def reset(self) -> None:
        """Go away at once, and have the other side know it."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def reply(self) -> tuple[int, bytes, bytes]:
        """Status, headers and body of the next answer; (0, b"", b"") where the connection ends before one."""
        while b"\r\n\r\n" not in self.rest:
            if not self._more():
                assert not self.rest, self.rest
                return 0, b"", b""
        head, _, self.rest = self.rest.partition(b"\r\n\r\n")
        if head[9:12] == b"100":  # the body may come, which it has
            return self.reply()
        size = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        while len(self.rest) < size:
            assert self._more(), (head, self.rest)
        body, self.rest = self.rest[:size], self.rest[size:]
        return int(head[9:12]), head, body

    def _more(self) -> bool:
        try:
            found = self.socket.recv(65536)
        except ConnectionResetError:
            return False
        self.rest += found
        return bool(found)


class Load:
    """Clients that ask on and on, each on one connection that is kept; nothing but right answers and 503 may come.

    Attributes:
        fault: What is planted now.
        right: How many answers were right.
        refused: How many requests got 503, by what was planted.
        versions: How many answers came from which weights.
        seconds: Of processor that clients took which have ended.
    """

    def __init__(self, port: int, requests: Sequence[Asked]) -> None:
        self.port, self.fault, self.stop = port, "", threading.Event()
        self.sent = [(each.sent, each.right) for each in requests]
        self.right, self.lock, self.seconds = 0, threading.Lock(), 0.0
        self.refused, self.versions = Counter[str](), Counter[str]()
        self.pool = ThreadPoolExecutor(CLIENTS)
        self.asking = list[Future[None]]()

    def __enter__(self) -> "Load":
        self.asking += [self.pool.submit(self.ask_on, seed) for seed in range(CLIENTS)]
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.pool.shutdown()

    def ask_on(self, seed: int) -> None:
        draw, began = random.Random(seed), time.thread_time()
        with Stream(self.port) as connection:
            while not self.stop.is_set():
                sent, right = draw.choice(self.sent)
                connection.send(sent)
                status, head, body = connection.reply()
                found = json.loads(body)
                if status == 200:
                    (row,), version = found["predictions"], found["version"]
                    assert right[version].same(row), (self.fault, version, row, right)
                    with self.lock:
                        self.right += 1
                        self.versions[version] += 1
                else:
                    assert status == 503, (self.fault, status, found)
                    assert {*found} == {"error", "try"}
                    wait = int(head.lower().partition(b"retry-after:")[2].partition(b"\r\n")[0])
                    with self.lock:
                        self.refused[self.fault] += 1
                    self.stop.wait(min(wait, 2))
        with self.lock:
            self.seconds += time.thread_time() - began

    def look(self) -> None:
        """Fails as soon as a client has seen what may not be."""
        for each in self.asking:
            if each.done():
                each.result()

    def await_answers(self, count: float) -> None:
        while self.right < count:
            self.look()
            time.sleep(0.05)


# ---- what is looked at from outside


def family(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for folder in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            for child in (folder / "children").read_text().split():
                found += family(int(child))
    return found


def memory(server: Server) -> tuple[float, float, int]:
    """MB of the process that listens and of all together, each page counted once; and how many files the first holds.

    The smallest of a few looks: what a single request needs is not counted.
    """

    def megabytes(pid: int, key: str) -> float:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith(key):
                    return int(line.split()[1]) / 1000
        return 0.0

    looks = list[tuple[float, float, int]]()
    for _ in range(10):
        all_of_them = sum(megabytes(pid, "Pss:") for pid in family(server.process.pid))
        files = len(os.listdir(f"/proc/{server.process.pid}/fd"))
        looks.append((megabytes(server.process.pid, "Rss:"), all_of_them, files))
        time.sleep(0.2)
    return min(each[0] for each in looks), min(each[1] for each in looks), min(each[2] for each in looks)


@dataclass
class Case:
    """What faults are planted in."""

    server: Server
    load: Load
    requests: Sequence[Asked]
    run: Path  # whose weights are served
    other: Path  # a model folder that takes turns with the one in the run
    models: tuple[vitrail.Model, vitrail.Model]
    version: str
    draw: random.Random = field(default_factory=lambda: random.Random(0))

    def restarts(self) -> float:
        return sum(self.server.counts("worker_restarts_total").values())

    def one(self) -> Asked:
        return self.draw.choice(self.requests)

    def must_be_right(self, status: int, body: bytes, wanted: Asked) -> None:
        assert status == 200, (status, body)
        (row,) = json.loads(body)["predictions"]
        assert wanted.right[json.loads(body)["version"]].same(row), (row, wanted.right)

    def must_refuse(self, content: bytes, headers: Mapping[str, str], *statuses: int) -> None:
        self.server.ask(PATH, content, dict(headers)).must_be_refused(*statuses)

    def must_answer(self) -> None:
        """All processes are there again, and a new connection is answered rightly, by the right weights."""
        until = time.monotonic() + 240
        while (there := sum(self.server.counts("workers").values())) < WORKERS:
            assert time.monotonic() < until, there
            self.load.look()
            time.sleep(0.2)
        for _ in range(3):
            wanted = self.one()
            reply = self.server.ask(PATH, wanted.content, {"Content-Type": "image/png"})
            self.must_be_right(reply.status, reply.content, wanted)
            assert reply.json["version"] == self.version
        assert self.server.ask("/health").status == 200

    def lose(self, number: int, seconds: float) -> int:
        """Send a signal to processes that answer, in turn, until one is replaced: some may not answer yet, or no more.

        Returns:
            To how many.
        """
        before = self.restarts()
        for count in range(1, 6):
            os.kill(self.draw.choice(self.server.workers()), number)
            if self.replaced(before + 1, seconds):
                return count
        raise AssertionError(f"nothing was replaced: {self.server.workers()}")

    def replaced(self, count: float, seconds: float) -> bool:
        """Whether within some seconds so many processes have been replaced since the start."""
        until = time.monotonic() + seconds
        while self.restarts() < count and time.monotonic() < until:
            self.load.look()
            time.sleep(0.1)
        return self.restarts() >= count

    def hear(self, act: Callable[[], object], pattern: str) -> None:
        """Do something, and wait for a line that is printed thereafter."""
        with self.server.log.open() as log:
            log.seek(0, os.SEEK_END)
            act()
            until, text = time.monotonic() + 240, ""
            while not re.search(pattern, text, re.MULTILINE):
                assert time.monotonic() < until, text[-2000:]
                self.load.look()
                time.sleep(0.1)
                text += log.read()

    def signal(self, number: int = signal.SIGHUP) -> None:
        self.server.process.send_signal(number)

    @contextlib.contextmanager
    def stream(self) -> Iterator[Stream]:
        with Stream(self.server.port, PATIENCE) as stream:
            yield stream


def must_be_form(reply: tuple[int, bytes, bytes], *statuses: int) -> None:
    """A refusal over a bare connection has the one form, or nothing came where 0 is among the statuses."""
    status, head, body = reply
    assert status in statuses, reply
    if status:
        assert {*json.loads(body)} == {"error", "try"}, body
        assert not PATHS.search(body.decode()), body
        assert b"application/json" in head.lower()


# ---- faults: each returns how many requests of others may be refused while it is planted

Fault = Callable[[Case], int]


def a_killed_process(case: Case) -> int:
    return case.lose(signal.SIGKILL, 10)


def a_stopped_process(case: Case) -> int:
    return case.lose(signal.SIGSTOP, 3 * TIMEOUT)


def every_process_but_one_killed(case: Case) -> int:
    before = case.restarts()
    for pid in family(case.server.process.pid)[1:]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert case.replaced(before + WORKERS, 60)
    return WORKERS + CLIENTS


def clients_that_go_amid_their_body(case: Case) -> int:
    for number in range(20):
        sent = case.one().sent
        with case.stream() as stream:
            stream.send(sent[: len(sent) - 40])
            time.sleep(0.01)
            if number % 2:
                stream.reset()
    return 0


def clients_that_go_before_their_answer(case: Case) -> int:
    for number in range(20):
        with case.stream() as stream:
            stream.send(case.one().sent)
            if number % 2:
                stream.reset()
    return 0


def a_body_longer_than_said(case: Case) -> int:
    for more in (b"x" * 1000, b"\r\n" * 3 + b"\x00" * 100 + b"\r\n\r\n"):
        wanted = case.one()
        with case.stream() as stream:
            stream.send(wanted.sent + more + b"\r\n\r\n")
            status, _, body = stream.reply()
            case.must_be_right(status, body, wanted)
            must_be_form(stream.reply(), 0, 400)
            assert stream.reply()[0] == 0
    return 0


def a_body_shorter_than_said_and_an_end(case: Case) -> int:
    wanted = case.one()
    with case.stream() as stream:
        stream.send(f"{HEAD}Content-Length: {len(wanted.content) + 10}\r\n\r\n", wanted.content)
        stream.socket.shutdown(socket.SHUT_WR)
        must_be_form(stream.reply(), 0, 400)
    return 0


def png(*chunks: tuple[bytes, bytes]) -> bytes:
    """A file with these chunks, whatever they hold."""
    parts = (
        struct.pack(">I", len(one)) + kind + one + struct.pack(">I", zlib.crc32(kind + one)) for kind, one in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def flat(side: int) -> bytes:
    """A grey image of a few kB, whose rows are all there."""
    size, packer = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0), zlib.compressobj(9)
    rows = b"".join(packer.compress(bytes(side + 1)) for _ in range(side)) + packer.flush()
    return png((b"IHDR", size), (b"IDAT", rows), (b"IEND", b""))


def a_bomb(case: Case) -> int:
    """200 megapixels in 200 kB; one of 36, which may be, is answered as the library does."""
    case.must_refuse(flat(14_200), JPEG, 413)
    (allowed,) = asked([flat(6_000)], case.models)
    reply = case.server.ask(PATH, allowed.content, JPEG)
    case.must_be_right(reply.status, reply.content, allowed)
    return 0


def a_bomb_in_a_text(case: Case) -> int:
    """200 MB of a comment, packed into 200 kB, in front of an image of one pixel."""
    packed = zlib.compress(bytes(200_000_000), 9)
    text = (b"zTXt", b"Comment\0\0" + packed)
    pixel = (b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)), (b"IDAT", zlib.compress(b"\0\0")), (b"IEND", b"")
    content = png(pixel[0], text, *pixel[1:])
    assert len(content) < 250_000
    try:
        (wanted,) = asked([content], case.models)
    except VitrailError:
        case.must_refuse(content, JPEG, 422)
        return 0
    reply = case.server.ask(PATH, content, JPEG)
    case.must_be_right(reply.status, reply.content, wanted)
    return 0


def truncated_images(case: Case) -> int:
    whole = [each.content for each in case.requests[:10]]
    whole.append(encoded(Image.effect_noise((300, 200), 90), "JPEG"))
    for content in whole:
        case.must_refuse(content[: len(content) // 2], JPEG, 422)
    return 0


def an_image_of_100_000_x_100_000_pixels(case: Case) -> int:
    for side in (100_000, 2**31 - 1):
        size = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
        case.must_refuse(png((b"IHDR", size), (b"IDAT", zlib.compress(bytes(10_000)))), JPEG, 413, 422)
    return 0


def garbage_in_place_of_http(case: Case) -> int:
    noise = random.Random(1).randbytes(2000)
    for garbage in (
        noise + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + noise[:500] + b"\r\n\r\n",  # hello, says TLS
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /nosuch HTTP/9.9\r\n\r\n",
        b"GET /\r\n\r\n",
        b"POST " + b"/" * 60_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\0" * 5000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n folded: x\r\nA\0B: c\r\n\r\n",
    ):
        with case.stream() as stream:
            with contextlib.suppress(ConnectionError):
                stream.send(garbage)
            must_be_form(stream.reply(), 0, 400, 404)
    return 0


def requests_that_do_not_wait_for_answers(case: Case) -> int:
    wanted = [case.one() for _ in range(10)]
    with case.stream() as stream:
        stream.send(b"".join(each.sent for each in wanted[:2]))
        stream.send(*(each.sent for each in wanted[2:]))
        for each in wanted:
            status, _, body = stream.reply()
            case.must_be_right(status, body, each)
    return 0


def absurd_headers(case: Case) -> int:
    wanted = case.one()
    end = f"Content-Length: {len(wanted.content)}\r\n\r\n".encode() + wanted.content
    for lines, statuses in (
        ("X: " + "a" * 1_000_000 + "\r\n", (0, 400)),
        ("".join(f"X-{number}: {number}\r\n" for number in range(100_000)), (0, 400)),
        ("".join(f"X-{number}: 1\r\n" for number in range(4_000)), (200, 400)),
        ("X" * 30_000 + ": 1\r\n", (200, 400)),
        ("Content-Type: multipart/form-data; boundary=" + "x" * 30_000 + "\r\n", (200, 400, 415, 422)),
        ("Transfer-Encoding: gzip\r\n", (400, 415, 501)),
        ("Content-Length: 1\r\n", (400,)),
        ("Expect: 100-continue\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n", (200,)),
    ):
        with case.stream() as stream:
            with contextlib.suppress(ConnectionError):
                stream.send(HEAD + lines, end)
            reply = stream.reply()
            if reply[0] == 200:
                case.must_be_right(reply[0], reply[2], wanted)
            else:
                must_be_form(reply, *statuses)
    return 0


def two_lengths(case: Case) -> int:
    """One by its number, one by chunks: what stands behind the shorter is no request of its own that gets an answer."""
    with case.stream() as stream:
        stream.send(
            f"{HEAD}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /metrics HTTP/1.1\r\n\r\n"
        )
        must_be_form(stream.reply(), 400, 422)
    return 0


def mutated_boundaries(case: Case) -> int:
    body, _ = form(("a.png", case.one().content), ("b.png", case.one().content))
    draw = random.Random(2)
    boundaries = ["", "X", "XXX", "YY", '"XX', '"XX"', "X\tX", "XX; boundary=YY", "x" * 5000, "--XX", "é", "XX" * 40]
    for boundary in boundaries:
        reply = case.server.ask(
            PATH, body, {"Content-Type": f"multipart/form-data; boundary={boundary}".encode("latin-1")}
        )  # type: ignore[dict-item]
        assert reply.status == 200 or reply.must_be_refused(400, 415, 422) is None
    for _ in range(60):
        mutated = bytearray(body)
        for place in [each.start() for each in re.finditer(b"--XX", body)]:
            mutated[place + draw.randrange(4)] = draw.randrange(256)
        reply = case.server.ask(PATH, bytes(mutated), {"Content-Type": "multipart/form-data; boundary=XX"})
        assert reply.status == 200 or reply.must_be_refused(400, 415, 422) is None
    return 0


def other_weights_by_sighup(case: Case) -> int:
    swap(case)
    case.hear(case.signal, "^exchanged")
    case.version = next(each for each in case.requests[0].right if each != case.version)
    return 0


def swap(case: Case) -> None:
    """Let the model folders take turns."""
    here, aside = case.run / "model", case.other.with_name("aside")
    for old, new in ((here, aside), (case.other, here), (aside, case.other)):
        old.rename(new)


def sighup_five_times_at_once(case: Case) -> int:
    def storm() -> None:
        for _ in range(5):
            case.signal()
            time.sleep(0.05)

    case.hear(storm, "^exchanged")
    time.sleep(1)
    return 0


def damaged_weights_and_sighup(case: Case) -> int:
    """The model before answers on, even when a process dies of which no other can take the place."""
    weights = case.run / "model" / "model.safetensors"
    kept = weights.read_bytes()
    try:
        weights.write_bytes(kept[: len(kept) // 2])
        case.hear(case.signal, "^not exchanged.*model.safetensors")
        killed = case.lose(signal.SIGKILL, 10)
        answered = case.load.right
        case.load.await_answers(answered + 10)
    finally:
        weights.write_bytes(kept)
    return killed


FAULTS: Sequence[Fault] = (
    a_killed_process,
    clients_that_go_amid_their_body,
    clients_that_go_before_their_answer,
    a_stopped_process,
    a_body_longer_than_said,
    a_body_shorter_than_said_and_an_end,
    a_bomb,
    a_bomb_in_a_text,
    truncated_images,
    an_image_of_100_000_x_100_000_pixels,
    other_weights_by_sighup,
    garbage_in_place_of_http,
    requests_that_do_not_wait_for_answers,
    absurd_headers,
    two_lengths,
    mutated_boundaries,
    every_process_but_one_killed,
    sighup_five_times_at_once,
    damaged_weights_and_sighup,
)


# ---- faults that take long: all of them at once, beside the others


def slow_headers(case: Case) -> None:
    with case.stream() as stream:
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):
            stream.send(HEAD)
            stream.socket.settimeout(1)
            for number in range(60):
                stream.send(f"X-{number}: 1\r\n")
                with contextlib.suppress(TimeoutError):
                    must_be_form(stream.reply(), 408)
                    break
        assert 8 < time.monotonic() - began < 45


def slow_body(case: Case) -> None:
    """A byte a second."""
    must_be_too_slow(case, "Content-Length: 5000", b"x")


def chunks_without_an_end(case: Case) -> None:
    """A small one each second."""
    must_be_too_slow(case, "Transfer-Encoding: chunked", b"3\r\nabc\r\n")


def must_be_too_slow(case: Case, header: str, part: bytes) -> None:
    """A body that comes in parts, one a second."""
    with case.stream() as stream:
        began = time.monotonic()
        stream.send(f"{HEAD}{header}\r\n\r\n")
        stream.socket.settimeout(1)
        while time.monotonic() < began + PATIENCE:
            with contextlib.suppress(TimeoutError):
                must_be_form(stream.reply(), 408)
                break
            with contextlib.suppress(ConnectionError):
                stream.send(part)
        assert 50 < time.monotonic() - began < PATIENCE


def chunks_of_40_mb_without_an_end(case: Case) -> None:
    with case.stream() as stream:
        stream.send(f"{HEAD}Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(40):
            stream.send(b"100000\r\n", bytes(0x100000), b"\r\n")
        must_be_form(stream.reply(), 413)


def a_body_shorter_than_said_and_silence(case: Case) -> None:
    wanted = case.one()
    with case.stream() as stream:
        stream.send(f"{HEAD}Content-Length: {len(wanted.content) + 10}\r\n\r\n", wanted.content)
        must_be_form(stream.reply(), 408)


def a_flood_of_200_connections(case: Case) -> None:
    """Which send nothing, and are closed."""
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(case.stream()) for _ in range(200)]
        answered = case.load.right
        case.load.await_answers(answered + 20)
        began = time.monotonic()
        for each in silent:
            must_be_form(each.reply(), 0, 408)
            assert each.reply()[0] == 0
        assert time.monotonic() - began < 45


PATIENT: Sequence[Callable[[Case], None]] = (
    slow_headers,
    slow_body,
    chunks_without_an_end,
    chunks_of_40_mb_without_an_end,
    a_body_shorter_than_said_and_silence,
    a_flood_of_200_connections,
)


@pytest.mark.parametrize(("make", "count"), [(digits, 30_000), (ti, 2_000)], ids=["digits", "vit_ti16"])
def test_no_fault_costs_others_an_answer(
    make: Callable[[Path], tuple[Path, list[bytes]]], count: int, tmp_path: Path
) -> None:
    run, contents = make(tmp_path)
    count = int(os.environ.get(f"REQUESTS_{make.__name__.upper()}", count))
    models = vitrail.load(run), shifted(vitrail.load(run))
    models[1].save(tmp_path / "other")
    requests = asked(contents, models)
    first, second = requests[0].right
    assert sum(abs(one.right[first].probability - one.right[second].probability) > 1e-3 for one in requests) > 80
    words = [run, "--explainers", "0", "--workers", WORKERS, "--queue", QUEUE, "--timeout", TIMEOUT]
    with serving([*map(str, words)], tmp_path / "log.txt") as server, Load(server.port, requests) as load:
        case = Case(server, load, requests, run, tmp_path / "other", models, first)
        case.must_answer()
        began, answered = time.monotonic(), load.right
        load.await_answers(count / 10)
        before, rate = memory(server), (load.right - answered) / (time.monotonic() - began)
        with ThreadPoolExecutor(len(PATIENT)) as pool:
            patient = {each.__name__: pool.submit(each, case) for each in PATIENT}
            for number, fault in enumerate(FAULTS, start=1):
                load.fault = fault.__name__
                print(f"{time.strftime('%X')} {load.right:7,} answers, planted: {load.fault}", flush=True)
                try:
                    allowed = fault(case)
                    case.must_answer()
                    load.await_answers(load.right + 5)
                    assert load.refused[load.fault] <= allowed, load.refused
                except BaseException as error:
                    error.add_note(f"planted was: {load.fault}")
                    raise
                load.await_answers(count * (0.1 + 0.8 * number / len(FAULTS)))
            load.fault = "what takes long"
            for name, each in patient.items():
                try:
                    each.result()
                except BaseException as error:
                    error.add_note(f"planted was: {name}")
                    raise
        load.fault = "nothing"
        load.await_answers(count)
        case.must_answer()
        after = memory(server)
        took = time.monotonic() - began
        load.stop.set()
        for each in load.asking:
            each.result()
        assert server.stop() == 0
    share = load.seconds / took
    print(
        f"{make.__name__}: {load.right:,} right answers in {took:.0f} s, at first {rate:.0f} a second; "
        f"{len(FAULTS) + len(PATIENT)} kinds of faults, refused {dict(load.refused)}; "
        f"listening {before[0]:.0f} -> {after[0]:.0f} MB, all {before[1]:.0f} -> {after[1]:.0f} MB, "
        f"files {before[2]} -> {after[2]}; clients took {share:.0%} of a core"
    )
    assert load.refused.keys() <= {each.__name__ for each in FAULTS}
    assert min(load.versions[each] for each in (first, second)) > count / 20
    assert share < CLIENT
    assert after[0] < 1.1 * before[0] + 10
    assert after[1] < 1.1 * before[1] + 20
    assert after[2] <= before[2] + 5
    text = server.text
    assert "Traceback" not in text
    assert "unexpectedly" not in text
    assert not re.search(r"^\S+ /predict 500 ", text, re.MULTILINE)
