"""A server in a process of its own, as a person starts it, and what is asked of it."""

import contextlib
import http.client
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

ROOT = Path(__file__).parents[2]
JPEG = {"Content-Type": "image/jpeg"}
PATHS = re.compile(r"/(?:home|tmp|root|usr|work)\b|\.py\b|0x[0-9a-f]{6}|Traceback|site-packages")


def children_of(pid: int) -> list[int]:
    return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


@dataclass
class Reply:
    """What came back."""

    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content)

    def must_be_refused(self, *statuses: int) -> None:
        """In the one form, and without a place of this machine."""
        assert self.status in statuses, (self.status, self.content[:300])
        assert set(self.json) == {"error", "try"}, self.content
        assert all(self.json.values())
        assert not PATHS.search(self.content.decode()), self.content
        assert (self.status != 503) or int(self.headers["retry-after"]) >= 1


class Server:
    """A running `vitrail serve`; `lines` are what it printed."""

    def __init__(self, words: list[str], log: Path, printed: Path | None = None) -> None:
        self.log = log
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        command = [sys.executable, "-c", "from vitrail.cli import main; main()", "serve", f"--port={self.port}", *words]
        with (printed or log).open("wb") as file:
            self.process = subprocess.Popen(command, stderr=file, env=environment, cwd=log.parent)
        if printed is None:
            self.await_line(rf"ready: http://127.0.0.1:{self.port} ")
        else:
            self.await_ready()

    @property
    def text(self) -> str:
        return self.log.read_text()

    def await_line(self, pattern: str, seconds: float = 120) -> None:
        until = time.monotonic() + seconds
        while not re.search(pattern, self.text):
            assert self.process.poll() is None, self.text
            assert time.monotonic() < until, self.text
            time.sleep(0.05)

    def await_ready(self) -> None:
        until = time.monotonic() + 120
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                if self.ask("/ready").status == 200:
                    return
            assert self.process.poll() is None
            time.sleep(0.05)
        raise AssertionError("the server is not ready")

    def ask(self, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        with contextlib.closing(connection):
            connection.request("GET" if body is None else "POST", path, body, headers or {})
            answer = connection.getresponse()
            return Reply(answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read())

    def await_routes(self, *routes: str) -> None:
        """Wait until some model has these; explanations come last."""
        until = time.monotonic() + 120
        while not any({*routes} <= {*one["routes"]} for one in self.ask("/ready").json["models"]):
            assert time.monotonic() < until, self.text
            time.sleep(0.1)

    def counts(self, name: str) -> dict[str, float]:
        """A metric by its labels."""
        found = re.findall(rf"^vitrail_{name}\{{(.*)\}} (\S+)$", self.ask("/metrics").content.decode(), re.MULTILINE)
        return {labels: float(value) for labels, value in found}

    def forker(self) -> int:
        """The process from which those that answer are forked."""
        (found,) = children_of(self.process.pid)
        return found

    def workers(self) -> list[int]:
        """The processes that answer, the newest that explains first, which is nicer."""
        return sorted(children_of(self.forker()), key=lambda pid: (-os.getpriority(os.PRIO_PROCESS, pid), -pid))

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@contextlib.contextmanager
def serving(words: list[str], log: Path, printed: Path | None = None) -> Iterator[Server]:
    """One that ends with the block; what it prints goes into the log, or elsewhere."""
    server = Server(words, log, printed)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()


def jpeg(seed: int = 0, size: tuple[int, int] = (70, 50)) -> bytes:
    """A file with an image of smooth noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    return encoded(Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC), "JPEG")


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    content = io.BytesIO()
    image.save(content, kind, **options)
    return content.getvalue()


def form(*files: tuple[str, bytes], field: str = "image") -> tuple[bytes, dict[str, str]]:
    """The body and headers of a form with files, as a browser sends it."""
    parts = b"".join(
        b'--XX\r\nContent-Disposition: form-data; name="%s"; filename="%s"\r\nContent-Type: image/jpeg\r\n\r\n%s\r\n'
        % (field.encode(), name.encode(), content)
        for name, content in files
    )
    return parts + b"--XX--\r\n", {"Content-Type": "multipart/form-data; boundary=XX"}
