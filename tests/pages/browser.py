"""A real headless Chromium for the tests, spoken to over two pipes (the DevTools protocol), without any package."""

import fcntl
import json
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--remote-debugging-pipe",
    "--window-size=1000,1400",
]


class Browser:
    """One page in one browser; `errors` and `requests` collect what happens while it is open."""

    def __init__(self) -> None:
        assert CHROMIUM is not None
        self.profile = tempfile.mkdtemp(prefix="vitrail-browser-")
        to_browser, self.write_end = os.pipe()
        self.read_end, from_browser = os.pipe()
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 20) for fd in (to_browser, from_browser)]
        quiet = os.open(os.devnull, os.O_WRONLY)
        actions = [(os.POSIX_SPAWN_DUP2, high[0], 3), (os.POSIX_SPAWN_DUP2, high[1], 4)]
        actions += [(os.POSIX_SPAWN_DUP2, quiet, 1), (os.POSIX_SPAWN_DUP2, quiet, 2)]
        command = [CHROMIUM, *_FLAGS, f"--user-data-dir={self.profile}", "about:blank"]
        self.process = os.posix_spawn(CHROMIUM, command, os.environ, file_actions=actions, setpgroup=0)
        for fd in (to_browser, from_browser, quiet, *high):
            os.close(fd)
        self.buffer, self.count, self.session = b"", 0, None
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.loaded = 0
        self.chooser: int | None = None
        targets = self.send("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self.session = self.send("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def _receive(self, deadline: float) -> dict:
        while b"\0" not in self.buffer:
            assert time.monotonic() < deadline, "the browser does not answer"
            data = os.read(self.read_end, 1 << 16)
            assert data, "the browser has ended"
            self.buffer += data
        message, self.buffer = self.buffer.split(b"\0", 1)
        answer = json.loads(message)
        name, about = answer.get("method"), answer.get("params", {})
        if name == "Runtime.exceptionThrown":
            self.errors.append(str(about["exceptionDetails"]))
        elif name == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            self.errors.append(about["entry"]["text"])
        elif name == "Runtime.consoleAPICalled":
            self.errors.append(str(about["args"]))
        elif name == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
        elif name == "Page.loadEventFired":
            self.loaded += 1
        elif name == "Page.fileChooserOpened":
            self.chooser = about["backendNodeId"]
        return answer

    def send(self, method: str, timeout: float = 60, **about: object) -> dict:
        self.count += 1
        message = {"id": self.count, "method": method, "params": about}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + timeout
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == self.count:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def open(self, path: Path | str, script: bool = True) -> None:
        """A file, or an address."""
        self.errors.clear()
        self.requests.clear()
        self.send("Emulation.setScriptExecutionDisabled", value=not script)
        before = self.loaded
        self.send("Page.navigate", url=path if isinstance(path, str) else path.as_uri())
        deadline = time.monotonic() + 60
        while self.loaded == before:
            self._receive(deadline)

    def ask(self, expression: str) -> object:
        """The value of a JavaScript expression in the page."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def await_true(self, expression: str, seconds: float = 30) -> None:
        until = time.monotonic() + seconds
        while not self.ask(expression):
            assert time.monotonic() < until, (expression, self.ask("document.body.innerText"), self.errors)
            time.sleep(0.02)

    def choose(self, path: Path) -> None:
        """Press Enter on the focused input, and take a file in the dialogue that it opens."""
        self.send("Page.setInterceptFileChooserDialog", enabled=True)
        self.chooser = None
        self.press("Enter")
        deadline = time.monotonic() + 10
        while self.chooser is None:
            self._receive(deadline)
        self.send("DOM.setFileInputFiles", files=[str(path)], backendNodeId=self.chooser)

    def drop(self, path: Path) -> None:
        about = {"x": 5, "y": 5, "data": {"items": [], "files": [str(path)], "dragOperationsMask": 1}}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.send("Input.dispatchDragEvent", type=kind, **about)

    def press(self, key: str) -> None:
        code = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9, " ": 32, "Enter": 13}[key]
        text = {"text": "\r"} if key == "Enter" else {"text": " "} if key == " " else {}
        about = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": code}
        self.send("Input.dispatchKeyEvent", type="keyDown", **about, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", **about)

    def point(self, x: float, y: float) -> None:
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def close(self) -> None:
        os.close(self.write_end)
        os.close(self.read_end)
        deadline = time.monotonic() + 5
        while os.waitpid(self.process, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                os.killpg(self.process, signal.SIGKILL)
                os.waitpid(self.process, 0)
                break
            time.sleep(0.05)
        shutil.rmtree(self.profile, ignore_errors=True)
