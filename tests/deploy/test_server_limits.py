"""What holds before any process is asked: the token, slow and absurd requests, refusals that arrive, counts."""

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn

from tests.pages.browser import CHROMIUM, Browser
from vitrail.deploy.server import app, listening as http, names
from vitrail.deploy.server.pool import Forker, Pool
from vitrail.tasks.regression import NumberPrediction
from vitrail.text import percent, percent_in_words

HEAD = "POST /predict HTTP/1.1\r\nHost: a\r\nContent-Type: image/jpeg\r\n"


class Fake(Pool):
    """A pool that answers with the length of the body; with a bound of 0 it is full."""

    def __init__(self) -> None:
        super().__init__(Forker([]), {"models": {"m": ""}}, 1, 4, 30.0, lambda: None, lambda words: None)
        self.models = {"m": {"version": "0", "routes": ["predict"]}}
        self.asked, self.cancelled, self.slow = list[tuple[Mapping[str, Any], bytes]](), 0, 0.0

    async def ask(self, header: Mapping[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        self.asked.append((header, body))
        try:
            await asyncio.sleep(self.slow)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return {"status": 200, "images": ["ab"]}, b'{"bytes": %d}' % len(body)


@contextlib.contextmanager
def listening(token: str | None = None) -> Iterator[SimpleNamespace]:
    """The application behind the protocol of the server, in this process; its pool is none."""
    pool, listener = Fake(), socket.create_server(("127.0.0.1", 0))
    service = app.Service(pool, None, token)
    config = uvicorn.Config(app.application(service), http=http.Patient, ws="none", lifespan="off", log_config=None)
    server = http._Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    try:
        yield SimpleNamespace(pool=pool, service=service, port=listener.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def sent(port: int, *parts: bytes | str, pause: float = 0.0) -> tuple[int, dict[str, str], Any]:
    """Status, headers and JSON of what comes back to these bytes, all of which could be sent."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        for part in parts:
            connection.sendall(part.encode() if isinstance(part, str) else part)
            time.sleep(pause)
        found = b""
        while b"\r\n\r\n" not in found or len(found.partition(b"\r\n\r\n")[2]) < length_in(found):
            more = connection.recv(65536)
            assert more, found
            found += more
    head, _, body = found.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    return int(first.split()[1]), headers, json.loads(body[: length_in(found)])  # a second answer may stand behind


def length_in(found: bytes) -> int:
    lines = found.lower().partition(b"\r\n\r\n")[0].split(b"\r\n")
    return next(int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length"))


def test_slow_absurd_and_refused_requests_get_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in (
        (http, "HEADER_SECONDS", 0.3),
        (app, "BODY_SECONDS", 0.5),
        (app, "MOST_BYTES", 10_000_000),
        (app, "MOST_HELD", 15_000_000),
        (app, "MOST_THROWN", 30_000_000),
    ):
        monkeypatch.setattr(module, name, value)
    five, body = f"{HEAD}Content-Length: 5000000\r\n\r\n", bytes(5_000_000)
    with listening() as here:
        assert sent(here.port, five, body)[::2] == (200, {"bytes": 5_000_000})
        chunked = f"{HEAD}Transfer-Encoding: chunked\r\n\r\n", b"3\r\nabc\r\n", b"0\r\n\r\n"
        assert sent(here.port, *chunked)[::2] == (200, {"bytes": 3})
        asked, here.pool.bound = len(here.pool.asked), 0
        for refused in (
            f"{HEAD}Content-Length: 5000000\r\n\r\n",
            f"{HEAD}Transfer-Encoding: chunked\r\n\r\n4C4B40\r\n",
        ):
            end = b"" if "Length" in refused else b"\r\n0\r\n\r\n"
            status, headers, found = sent(here.port, refused, body, end)
            assert (status, headers["retry-after"], set(found)) == (503, "1", {"error", "try"})
        status, headers, _ = sent(here.port, f"{HEAD}Content-Length: 5000000\r\nExpect: 100-continue\r\n\r\n")
        assert (status, headers["connection"]) == (503, "close")  # and the body is not asked for
        here.pool.bound = 4
        assert sent(here.port, f"{HEAD}Content-Length: 20000000\r\n\r\n", bytes(20_000_000))[0] == 413
        assert sent(here.port, f"{HEAD}Transfer-Encoding: chunked\r\n\r\nB71B00\r\n", bytes(12_000_000))[0] in (
            413,
            408,
        )
        for absurd in ("9" * 18, "9" * 40, "-1", "1_0", "x", "5\r\nContent-Length: 6"):
            assert sent(here.port, f"{HEAD}Content-Length: {absurd}\r\n\r\n")[0] in (400, 413), absurd
        assert sent(here.port, HEAD + "X: " + "a" * 100_000)[0] == 400
        assert sent(here.port, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n")[0] == 400
        assert sent(here.port, five, b"abc")[0] == 408  # of which the rest never comes
        assert sent(here.port, HEAD)[0] == 408
        assert sent(here.port, *("GET /health HTTP/1.1\r\nX: 1\r\n",) * 3, pause=0.2)[0] == 408
        assert len(here.pool.asked) == asked
        both = five.encode() + body + five.encode() + body  # on one connection
        assert sent(here.port, both)[0] == 200
        while here.service.requests:  # the second of both, of whom nobody reads the answer
            time.sleep(0.01)
        here.pool.slow, before = 30.0, here.pool.cancelled
        with socket.create_connection(("127.0.0.1", here.port)) as gone:
            gone.sendall(f"{HEAD}Content-Length: 3\r\n\r\nabc".encode())
            while here.service.taken == 0:
                time.sleep(0.01)
            time.sleep(0.1)
        until = time.monotonic() + 10
        while here.service.requests and time.monotonic() < until:
            time.sleep(0.01)
        assert (here.pool.cancelled, here.service.held, here.service.requests) == (before + 1, 0, 0)
        text = here.service.metrics()
        assert 'vitrail_requests_total{route="/predict",status="503"} 3' in text
        assert 'vitrail_requests_total{route="/predict",status="499"}' in text


def test_only_who_has_the_token_is_answered() -> None:
    ending = "Host: a\r\nContent-Length: 0\r\n\r\n"
    with listening("s3cret") as here:
        for path, lines, status in (
            ("POST /predict", "", 401),
            ("POST /predict", "Authorization: Bearer s3cre\r\n", 401),
            ("POST /predict", "Authorization: Bearer \xff\r\n", 401),
            ("GET /metrics", "", 401),
            ("GET /nosuch", "", 401),
            ("GET /health", "", 200),
            ("GET /ready", "", 503),
            ("POST /predict", "Authorization: Bearer s3cret\r\n", 200),
        ):
            got, headers, found = sent(here.port, f"{path} HTTP/1.1\r\n{lines}{ending}".encode("latin-1"))
            assert got == status, path
            assert status != 401 or (headers["www-authenticate"], set(found)) == ("Bearer", {"error", "try"})


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome on this machine")
def test_the_page_asks_for_a_token_and_waits_where_the_server_is_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    label = "<b onclick=alert(1)>bee</b>"
    found = {
        "model": "m",
        "version": "0",
        "predictions": [{"label": label, "probability": 0.9996, "top": [[label, 1]]}],
    }

    async def answer(self: Fake, header: Mapping[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        self.asked.append((header, body))
        return {"status": 200, "images": []}, json.dumps(found).encode()

    monkeypatch.setattr(Fake, "ask", answer)
    (tmp_path / "a.jpg").write_bytes(b"abc")
    browser = Browser()
    try:
        with listening("s3cret") as here:
            browser.open(f"http://127.0.0.1:{here.port}/")
            assert not browser.ask("key.checkVisibility()")
            browser.drop(tmp_path / "a.jpg")
            browser.await_true("key.checkVisibility() && document.activeElement.id === 'token'")
            assert browser.ask("failed.textContent")
            here.pool.bound = 0
            browser.send("Input.insertText", text="s3cret")
            browser.press("Enter")
            browser.await_true("said.textContent.includes('busy') && !failed.textContent")
            assert here.pool.asked == []
            here.pool.bound = 4
            browser.await_true("!answer.hidden")
            assert browser.ask("verdict.textContent") == f"Prediction: {label} (over 99.9\u00a0%)."
            assert len(here.pool.asked) == 1
            values = {"weight": 12.345678, "age": -3.27, "a b": 1234.56, "n": 51234.0, "price": 12345.6}
            ends = {"weight": (10.1, 14.7), "age": (-4.0, -0.01), "price": (9990.0, 15500.0)}
            told = NumberPrediction("a.jpg", values, ends, 0.9)
            found["predictions"] = [told.to_dict()]
            browser.press("Enter")
            browser.await_true("verdict.textContent.includes('weight')")
            assert browser.ask("verdict.textContent").replace("\u00a0", " ") == f"Prediction: {told.sentence()}."
            for fraction in (0.0, 0.0004, 0.0052, 0.51, 0.9, 0.994, 0.9996, 1.0):
                label = f"c{fraction}"
                found["predictions"] = [{"label": label, "probability": fraction, "top": [[label, fraction]]}]
                browser.press("Enter")
                browser.await_true(f"verdict.textContent.includes('{label}')")
                both = browser.ask("verdict.textContent + document.querySelector('.figure').textContent")
                wanted = f"Prediction: {label} ({percent_in_words(fraction)}).{percent(fraction)}"
                assert both.replace("\u00a0", " ") == wanted.replace("\u00a0", " ")
            here.pool.bound = 0  # and stays so
            browser.ask("const later = setTimeout; window.setTimeout = (act, wait) => later(act, wait / 20)")
            browser.press("Enter")
            browser.await_true("failed.textContent")
            assert (here.service.statuses["/predict", 503], browser.ask("answer.hidden")) == (3, True)
    finally:
        browser.close()


def test_openapi_shows_what_is_taken_and_answered() -> None:
    with listening() as here:
        _, _, page = sent(here.port, "GET /openapi.json HTTP/1.1\r\nHost: a\r\n\r\n")
    for route in app.ROUTES:
        posted = page["paths"][f"/{route}"]["post"]
        assert {"multipart/form-data", "application/json", "image/*"} == set(posted["requestBody"]["content"])
        example = posted["responses"]["200"]["content"]["application/json"]["example"]
        assert {"model", "version"} < set(example)
        assert {each["name"] for each in posted["parameters"]} == set(app.ROUTES[route].model_fields)
        assert set(posted["responses"]["503"]["content"]["application/json"]["example"]) == {"error", "try"}


def test_names_of_models(tmp_path: Any) -> None:
    (tmp_path / "runs" / "digits" / "model").mkdir(parents=True)
    run = tmp_path / "runs" / "digits"
    (tmp_path / "latest").symlink_to(run)
    (tmp_path / "bees.onnx").touch()
    words = [str(tmp_path / "latest"), str(tmp_path / "bees.onnx"), "timm:vit_tiny", f"x={run}", "hf:google/vit@main"]
    assert [*names.named_models(words)] == ["digits", "bees", "vit_tiny", "x", "vit@main"]
    assert [*names.named_models([str(run / "model")])] == ["digits"]
