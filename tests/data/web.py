"""A server of a folder that does what servers do on bad days: refuses, fails once, stops in the middle of a file."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@dataclass
class Web:
    """What a server has been told and asked.

    Attributes:
        root: The folder.
        address: Where it is.
        faults: By file name, what happens at the next requests: a code to answer, or after how many bytes to stop.
        always: By file name, what happens at every request.
        ranges: Whether it can begin in the middle.
        asked: File, first byte, and the bytes that were sent of each request.
    """

    root: Path
    address: str = ""
    faults: dict[str, list[str]] = field(default_factory=dict)
    always: dict[str, str] = field(default_factory=dict)
    ranges: bool = True
    asked: list[tuple[str, int, int]] = field(default_factory=list)

    def sent(self, name: str) -> int:
        """Bytes of a file that were sent, all in all."""
        return sum(size for file, _, size in self.asked if file == name)


@contextmanager
def serving(root: Path) -> Iterator[Web]:
    """A server of a folder, until the end of the block."""
    web, lock = Web(root), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.strip("/").split("/")[-1]
            with lock:
                left = web.faults.get(name)
                fault = left.pop(0) if left else web.always.get(name, "")
            if fault.startswith("code"):
                self.send_error(int(fault.split()[1]))
                return
            try:
                content = (web.root / name).read_bytes()
            except OSError:
                self.send_error(404)
                return
            wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")) if web.ranges else None
            first = int(wanted[1]) if wanted else 0
            if first and first >= len(content):
                self.send_error(416)
                return
            body = content[first : int(wanted[2]) + 1 if wanted and wanted[2] else None]
            self.send_response(206 if wanted else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            body = body[: int(fault.split()[1])] if fault.startswith("stop") else body
            with lock:
                web.asked.append((name, first, len(body)))
            self.wfile.write(body)

        def log_message(self, *given: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    web.address = f"http://127.0.0.1:{server.server_address[1]}/sets/photos"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield web
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
