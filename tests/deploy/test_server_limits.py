"""What holds before any process is asked: the token, slow and absurd requests, refusals that arrive, counts."""

import asyncio
import contextlib
import json
import re
import socket
import threading
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs

import jsonschema
import pytest
import uvicorn

from tests.pages.browser import CHROMIUM, Browser
from vitrail.deploy.server import app, listening as http, names, worker
from vitrail.deploy.server.pool import Forker, Pool
from vitrail.errors import Hint, UsageError
from vitrail.tasks.regression import NumberPrediction
from vitrail.text import percent, percent_in_words

HEAD = "POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\n"


class Fake(Pool):
    """A pool that answers with the length of the body; with a bound of 0 it is full."""

    def __init__(self) -> None:
        super().__init__(Forker([]), {"models": {"m": ""}}, 1, 4, 30.0, lambda: None, lambda words: None)
        self.models = {"m": {"version": "0", "routes": ["predict"]}}
        self.workers = {None}  # type: ignore[arg-type]
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


def sent(port: int, *parts: bytes | str, pause: float = 0.0, half: bool = False) -> tuple[int, dict[str, str], Any]:
    """Status, headers and JSON of what comes back to these bytes, all of which could be sent."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        for part in parts:
            connection.sendall(part.encode() if isinstance(part, str) else part)
            time.sleep(pause)
        if half:
            connection.shutdown(socket.SHUT_WR)
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
        (http, "SEND_SECONDS", 0.5),
        (app, "BODY_SECONDS", 0.5),
        (app, "THROWN_SECONDS", 0.3),
        (app, "MOST_REQUESTS", 4),
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
        known = here.service.counts.statuses.total()
        assert sent(here.port, both)[0] == 200
        while here.service.counts.statuses.total() < known + 2:  # the second of both, whose answer nobody reads
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
        counts = here.service.counts.statuses
        assert counts["m", "/predict", 503] == 3
        assert counts["m", "/predict", 499] >= 1


def test_a_broken_body_is_refused_and_who_takes_no_answer_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "SEND_SECONDS", 0.5)
    chunked = f"{HEAD}Transfer-Encoding: chunked\r\n\r\n"
    with listening() as here:
        began = time.monotonic()
        for bound in (4, 0):  # where it is read, and where it is thrown away
            here.pool.bound = bound
            for chunk in ("ZZ\r\n", "-5\r\n", "3\r\nabcde\r\n", "0x3\r\nabc\r\n0\r\n\r\n"):
                status, headers, found = sent(here.port, chunked, chunk)
                assert (status, headers["connection"], {*found}) == (400 if bound else 503, "close", {"error", "try"})
            for part in (chunked + "5\r\nab", f"{HEAD}Content-Length: 5\r\n\r\nab"):
                assert sent(here.port, part, half=True)[0] == (400 if bound else 503)
        assert sent(here.port, HEAD, half=True)[0] == 400
        assert time.monotonic() - began < 8  # nothing is waited for
        assert (here.service.counts.statuses["m", "/predict", 400], here.pool.asked) == (6, [])
        assert here.service.held == 0
        get = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with socket.create_connection(("127.0.0.1", here.port), timeout=30) as greedy:
            greedy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            began = time.monotonic()
            with contextlib.suppress(ConnectionError):
                while time.monotonic() < began + 20:
                    greedy.sendall(get * 100)
            assert time.monotonic() < began + 20
        assert sent(here.port, get)[0] == 200


def test_probes_and_the_page_are_answered_whatever_else_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "MOST_REQUESTS", 3)
    monkeypatch.setattr(app, "THROWN_SECONDS", 1.0)
    with listening() as here, contextlib.ExitStack() as idle:
        for path in ("/predict", "/nosuch", "/predict", "/nosuch"):  # of which two are to be refused
            one = idle.enter_context(socket.create_connection(("127.0.0.1", here.port)))
            one.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\nabc".encode())
        while here.service.requests < 4:
            time.sleep(0.01)
        for path, status in (("/health", 200), ("/ready", 200), ("/metrics", 200), ("/", 200), ("/openapi.json", 503)):
            assert asked(here.port, path)[0] == status, path
        until = time.monotonic() + 10
        while here.service.requests > 2:  # the two that are still read
            assert time.monotonic() < until
            time.sleep(0.01)


def test_paths_methods_and_hosts_that_are_not_there_are_told_what_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """HEAD is answered as GET is, without a body; nothing is redirected; on loopback a stranger's Host is refused."""
    with listening() as here:
        for path in ("/", "/health", "/ready", "/metrics", "/openapi.json"):
            whole, bare = (asked(here.port, path, method) for method in ("GET", "HEAD"))
            assert (bare[0], bare[2]) == (200, b"")
            assert bare[1]["content-type"] == whole[1]["content-type"]
            assert int(bare[1]["content-length"]) > 10
        for path, method, status, allowed in (
            ("/predict", "GET", 405, "POST"),
            ("/predict", "HEAD", 405, "POST"),
            ("/predict", "DELETE", 405, "POST"),
            ("/ready", "POST", 405, "GET, HEAD"),
            ("/predict/", "POST", 404, None),
            ("/health/", "GET", 404, None),
            ("/%3Cb%3E", "GET", 404, None),
        ):
            got, headers, content = asked(here.port, path, method)
            assert (got, headers.get("allow")) == (status, allowed), path
            assert "location" not in headers
            if method != "HEAD":
                found = json.loads(content)
                assert urllib.parse.unquote(path) in found["error"]
                assert path.rstrip("/") in found["try"] or "/%" in path
        for host, status in (
            ("evil.example", 421),
            ("evil.example:8000", 421),
            ("127.0.0.1.evil.example", 421),
            ("", 421),
            ("LOCALHOST:8000", 200),
            ("localhost.", 200),
            ("127.0.0.1", 200),
            ("[::1]:8000", 200),
            (socket.gethostname(), 200),
        ):
            assert asked(here.port, "/health", host=host)[0] == status, host
    with listening("s3cret") as here:  # which a page of somebody else does not know
        assert asked(here.port, "/health", host="vision.example.org")[0] == 200


def asked(port: int, path: str, method: str = "GET", host: str = "localhost") -> tuple[int, dict[str, str], bytes]:
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    with contextlib.closing(connection):
        connection.request(method, path, headers={"Host": host})
        found = connection.getresponse()
        return found.status, {name.lower(): value for name, value in found.getheaders()}, found.read()


LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\\n]|\\[\\"n])*)"(?:,|$)')
LINE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)")


def parsed(text: str) -> dict[str, tuple[str, dict[tuple[str, frozenset[tuple[str, str]]], float]]]:
    """Metrics by their names: kind, and samples. Raises where the text format of Prometheus, 0.0.4, is violated."""
    assert text.endswith("\n")
    found, name = dict[str, tuple[str, dict[tuple[str, frozenset[tuple[str, str]]], float]]](), ""
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("# HELP "):
            name, words = line[7:].split(" ", 1)
            assert words
            assert name not in found, "samples of a metric are in one group"
            sort, own, kind = next(lines).rsplit(" ", 2)
            assert (sort, own) == ("# TYPE", name)
            found[name] = kind, {}
            continue
        sample, labels, value = LINE.fullmatch(line).groups()  # type: ignore[union-attr]
        kind, own_samples = found[name]
        ends = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        assert sample in {name + end for end in ends}, line
        assert (kind == "counter") == name.endswith("_total")
        pairs = [(one[1], one[2]) for one in LABEL.finditer(labels or "")]
        assert "".join(f'{key}="{value}",' for key, value in pairs)[:-1] == (labels or ""), line
        assert len(dict(pairs)) == len(pairs)
        key = sample, frozenset(pairs)
        assert key not in own_samples
        own_samples[key] = float(value)
    return found


def test_metrics_are_what_prometheus_reads() -> None:
    with listening() as here:
        here.pool.load = {"models": {"m": ""}}
        here.pool.models = {'m"\\\n': {"version": "0", "routes": []}, **here.pool.models}
        here.pool.restarts = 3
        for length in (3, 4):
            sent(here.port, f"{HEAD}Content-Length: {length}\r\n\r\n{'a' * length}")
        asked(here.port, "/nosuch")
        found = parsed(asked(here.port, "/metrics")[2].decode())
    for name, (kind, samples) in found.items():
        assert samples, name
        if kind == "histogram":
            limits = [dict(labels)["le"] for each, labels in samples if each.endswith("_bucket")]
            buckets = [value for (each, _), value in samples.items() if each.endswith("_bucket")]
            (count,) = (value for (each, _), value in samples.items() if each.endswith("_count"))
            (total,) = (value for (each, _), value in samples.items() if each.endswith("_sum"))
            assert buckets == sorted(buckets)
            assert [float(limit) for limit in limits] == sorted(float(limit) for limit in limits)
            assert (limits[-1], buckets[-1], count) == ("+Inf", 2, 2)
            assert 0 < total < 10
    labels = {"model": "m", "route": "/predict", "status": "200"}
    own = found["vitrail_requests_total"][1]
    assert own["vitrail_requests_total", frozenset(labels.items())] == 2
    assert sum(own.values()) == 3
    assert list(found["vitrail_worker_restarts_total"][1].values()) == [3]
    assert len(found["vitrail_model_info"][1]) == 2
    assert abs(found["process_start_time_seconds"][1]["process_start_time_seconds", frozenset()] - time.time()) < 60


def test_only_who_has_the_token_is_answered() -> None:
    ending = "Host: localhost\r\nContent-Length: 0\r\n\r\n"
    with listening("s3cret") as here:
        for path, lines, status in (
            ("POST /predict", "", 401),
            ("POST /predict", "Authorization: Bearer s3cre\r\n", 401),
            ("POST /predict", "Authorization: Bearer \xff\r\n", 401),
            ("GET /metrics", "", 401),
            ("GET /nosuch", "", 401),
            ("GET /health", "", 200),
            ("GET /ready", "", 200),
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
            said = browser.ask("verdict.textContent").replace("\u00a0", " ")
            assert label in said
            assert "over 99.9 %" in said
            assert len(here.pool.asked) == 1
            values = {"weight": 12.345678, "age": -3.27, "a b": 1234.56, "n": 51234.0, "price": 12345.6}
            ends = {"weight": (10.1, 14.7), "age": (-4.0, -0.01), "price": (9990.0, 15500.0)}
            told = NumberPrediction("a.jpg", values, ends, 0.9)
            found["predictions"] = [told.to_dict()]
            browser.press("Enter")
            browser.await_true("verdict.textContent.includes('weight')")
            assert browser.ask("verdict.textContent").replace("\u00a0", " ").count(told.sentence()) == 1
            for fraction in (0.0, 0.0004, 0.0052, 0.51, 0.9, 0.994, 0.9996, 1.0):
                label = f"c{fraction}"
                found["predictions"] = [{"label": label, "probability": fraction, "top": [[label, fraction]]}]
                browser.press("Enter")
                browser.await_true(f"verdict.textContent.includes('{label}')")
                both = browser.ask("[verdict, document.querySelector('.figure')].map((one) => one.textContent)")
                for words, shown in zip((percent_in_words(fraction), percent(fraction)), both, strict=True):
                    assert words.replace("\u00a0", " ") in shown.replace("\u00a0", " ")
            here.pool.bound = 0  # and stays so
            browser.ask("const later = setTimeout; window.setTimeout = (act, wait) => later(act, wait / 20)")
            browser.press("Enter")
            browser.await_true("failed.textContent")
            assert (here.service.counts.statuses["m", "/predict", 503], browser.ask("answer.hidden")) == (3, True)
    finally:
        browser.close()


def test_openapi_shows_what_is_taken_and_answered() -> None:
    """Every example is what its schema says, and each status has its own; a token is in it where one is asked for."""
    pages = list[Any]()
    for token in (None, "s3cret"):
        with listening(token) as here:
            lines = f"Host: localhost\r\nAuthorization: Bearer {token}"
            pages.append(sent(here.port, f"GET /openapi.json HTTP/1.1\r\n{lines}\r\n\r\n")[2])
    for page, asks in zip(pages, (False, True), strict=True):
        schemas = {"components": page["components"]}
        assert page["info"]["version"] == metadata.version("vitrail")
        assert (
            list(page["components"].get("securitySchemes", {}).values())
            == [{"type": "http", "scheme": "bearer"}] * asks
        )
        secured = {path for path, ways in page["paths"].items() for way in ways.values() if way.get("security")}
        assert secured == ({"/metrics", *(f"/{route}" for route in app.ROUTES)} if asks else set())
        for path, ways in page["paths"].items():
            assert path == "/metrics" or len(ways) == 1
            for way in ways.values():
                shown = {
                    status: one.get("content", {}).get("application/json") for status, one in way["responses"].items()
                }
                errors = [json.dumps(one["example"]) for status, one in shown.items() if int(status) > 399 and one]
                assert len({*errors}) == len(errors)
                for status, one in shown.items():
                    if one and "example" in one:
                        jsonschema.Draft202012Validator({**one["schema"], **schemas}).validate(one["example"])
                    if int(status) > 399 and path != "/ready":
                        wrong = jsonschema.Draft202012Validator({**one["schema"], **schemas})
                        assert not wrong.is_valid({"error": "only"})
        assert page["paths"]["/ready"]["get"]["responses"].keys() >= {"200", "503"}
    for route in app.ROUTES:
        posted = pages[0]["paths"][f"/{route}"]["post"]
        assert {"multipart/form-data", "application/json", "image/*"} == set(posted["requestBody"]["content"])
        example = posted["responses"]["200"]["content"]["application/json"]["example"]
        assert {"model", "version"} < set(example)
        assert {each["name"] for each in posted["parameters"]} == set(app.ROUTES[route].model_fields)
        assert {"400", "401", "404", "405", "413", "422", "500", "503"} < set(posted["responses"])


def test_names_of_models(tmp_path: Any) -> None:
    (tmp_path / "runs" / "digits" / "model").mkdir(parents=True)
    run = tmp_path / "runs" / "digits"
    (tmp_path / "latest").symlink_to(run)
    (tmp_path / "bees.onnx").touch()
    words = [str(tmp_path / "latest"), str(tmp_path / "bees.onnx"), "timm:vit_tiny", f"x={run}", "hf:google/vit@main"]
    assert [*names.named_models(words)] == ["digits", "bees", "vit_tiny", "x", "vit@main"]
    weights, export = run / "model" / "model.safetensors", run / "export" / "model.onnx"
    export.parent.mkdir()
    for file in (weights, export):
        file.touch()
    for one in (run / "model", weights, export, tmp_path / "latest" / "model" / "model.safetensors"):
        assert [*names.named_models([str(one)])] == ["digits"]
        with pytest.raises(UsageError) as told:
            names.named_models([str(one), str(run)])
        assert told.value.hint.flags["models"][1] == f"digits-2={run}"


def test_what_is_suggested_can_stand_behind_a_question_mark() -> None:
    hint = worker._words(Hint({"target": "golden retriever & co", "method": "rise"}))
    assert parse_qs(hint.removeprefix("?")) == {"target": ["golden retriever & co"], "method": ["rise"]}
    assert " " not in hint
