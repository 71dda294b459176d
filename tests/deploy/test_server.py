"""`vitrail serve`: the same answers as elsewhere, an end to what waits, and no harm by what strangers send."""

import base64
import json
import os
import resource
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import requests
import torch
from PIL import Image

import vitrail
from tests import shared_runs as runs
from tests.cli.command import call
from tests.deploy.serving import JPEG, ROOT, Reply, Server, encoded, form, jpeg, serving
from tests.deploy.small import exported, small_model
from tests.pages.browser import CHROMIUM, Browser
from tests.pages.structure import Structure, without_data
from vitrail.data import images
from vitrail.data.images import NamedImage, open_image
from vitrail.deploy.server import bodies, worker
from vitrail.deploy.server.names import named_models, read_token
from vitrail.deploy.server.pool import Refusal

PHOTOS, EXPORT = "?model=photos", "?model=model"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of this file alone, and the features of its images."""
    folder = tmp_path_factory.mktemp("served")
    vitrail.embed(runs.copy_of("photos", folder), runs.photographs() / "abc" / "val", out=folder / "known.npz")
    return folder / "photos"


@pytest.fixture(scope="module")
def server(run: Path) -> Iterator[Server]:
    """One for all tests; the last of them ends it."""
    words = [str(run), f"model={exported()}", "--workers", "1", "--timeout", "4"]
    words += ["--features", str(run.parent / "known.npz")]
    with serving(words, run.parent / "log.txt") as server:
        server.await_routes("predict", "explain", "embed", "similar")
        yield server


def photograph() -> bytes:
    file = min((runs.photographs() / "abc" / "val").rglob("*.*"))
    return encoded(Image.open(file).convert("RGB"), "JPEG", quality=90)


def test_one_file_gets_one_answer_however_it_is_sent_and_whoever_is_asked(server: Server, tmp_path: Path) -> None:
    content = jpeg(1)
    (tmp_path / "a.jpg").write_bytes(content)
    words = str(exported()), str(tmp_path / "a.jpg"), "--coverage", "0.9", "--json"
    (typed,) = json.loads(call("predict", *words).out)
    ours = vitrail.load(exported()).predict(content, coverage=0.9)[0].to_dict()
    body, headers = form(("a.jpg", content), ("../b<i>.jpg", content), field="images")
    lines = {"images": [base64.b64encode(content).decode()] * 2}
    both = server.ask(f"/predict{EXPORT}&coverage=0.9", body, headers)
    as_json = server.ask(
        f"/predict{EXPORT}&coverage=0.9", json.dumps(lines).encode(), {"Content-Type": "application/json"}
    )
    plain = server.ask(f"/predict{EXPORT}&coverage=0.9", content, JPEG)
    rows = [one for reply in (both, as_json, plain) for one in reply.json["predictions"]]
    assert [one["file"] for one in rows] == ["a.jpg", "b<i>.jpg", "1", "2", "1"]
    assert b"<" not in both.content
    for row in rows:
        assert set(row) == set(typed)
        assert (row["label"], row["set"], row["compute_dtype"]) == (typed["label"], typed["set"], "fp32")
        assert (row["label"], row["set"]) == (ours["label"], [*ours["set"]])
        for other in (typed, ours):
            assert row["probability"] == pytest.approx(other["probability"], abs=1e-4)
            assert dict(row["top"]) == pytest.approx(dict(map(tuple, other["top"])), abs=1e-4)
    known = {one["model"]: one["version"] for one in server.ask("/ready").json["models"]}
    assert (both.json["model"], both.json["version"]) == ("model", known["model"])
    assert len({*known.values()}) == 2
    assert len(server.ask(f"/predict{EXPORT}&top=2", content, JPEG).json["predictions"][0]["top"]) == 2


def test_maps_features_and_neighbours_are_those_of_the_library(server: Server, run: Path) -> None:
    content, model = photograph(), vitrail.load(run)
    image = NamedImage("1", open_image(content))
    explained = server.ask(f"/explain{PHOTOS}&overlay=true", content, JPEG).json["images"][0]["attributions"][0]
    ours = vitrail.explain.report(model, [image], precision="fp32")[0].to_dict()["attributions"][0]
    assert explained["trust"]["verdict"] == ours["trust"]["verdict"]
    assert explained["trust"]["score"] == pytest.approx(ours["trust"]["score"], abs=1e-3)
    if ours["values"] is not None:
        torch.testing.assert_close(
            torch.tensor(explained["values"]), torch.tensor(ours["values"]), atol=1e-4, rtol=1e-3
        )
        assert base64.b64decode(explained["overlay"]).startswith(b"\x89PNG")
    untested = server.ask(f"/explain{PHOTOS}&trust=false&method=rollout", content, JPEG).json["images"][0]
    assert [(one["method"], one["trust"]) for one in untested["attributions"]] == [("rollout", None)]
    with torch.no_grad():
        (pooled,) = vitrail.nn.features(model.network, model.tensor([image])).pooled
    (features,) = server.ask(f"/embed{PHOTOS}", content, JPEG).json["features"]
    assert any(torch.allclose(pooled, torch.tensor(each), atol=1e-4) for each in features.values() if each != "1")
    found = server.ask(f"/similar{PHOTOS}&neighbours=3", content, JPEG).json
    near = found["queries"][0]["neighbours"]
    assert (found["images"], len(near)) == (len(vitrail.features.file.read_features(run.parent / "known.npz")), 3)
    assert near[0]["distance"] < 0.05
    assert [one["distance"] for one in near] == sorted(one["distance"] for one in near)
    for path in (f"/explain{EXPORT}", f"/embed{EXPORT}", f"/similar{EXPORT}"):
        refused = server.ask(path, content, JPEG)
        refused.must_be_refused(404)
        assert "/predict" in refused.json["try"]


SHOWN = """[...document.querySelectorAll("#top tr")].map((row) => [...row.cells].map((cell) => cell.textContent))"""
DRAWN = """[...document.querySelectorAll(".values tr")].map((row) => [...row.querySelectorAll("td")].map(
    (cell) => Number(cell.textContent)))"""
PASTED = """(() => {
    const data = new DataTransfer();
    data.items.add(new File([Uint8Array.from(atob("%s"), (letter) => letter.charCodeAt(0))], "pasted.jpg"));
    document.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data }));
})()"""


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome on this machine")
def test_the_page_shows_what_the_server_answers(server: Server, tmp_path: Path) -> None:
    hostile = tmp_path / "<img src=x onerror=alert(1)>&amp;.jpg"
    contents = photograph(), jpeg(3), jpeg(4)
    hostile.write_bytes(contents[0])
    (tmp_path / "b.jpg").write_bytes(contents[1])
    (tmp_path / "empty.jpg").touch()
    reply, address = server.ask("/"), f"http://127.0.0.1:{server.port}/"
    page = reply.content.decode()
    (policy,) = (value for value in Structure(page).attribute("meta", "content") if "default-src" in value)
    assert reply.headers["content-security-policy"] == f"{policy}; frame-ancestors 'none'"
    assert "://" not in without_data(page)
    browser = Browser()

    def must_show(name: str, content: bytes, query: str) -> None:
        there = json.dumps(name)
        browser.await_true(f"document.getElementById('name').textContent === {there} && !answer.hidden")
        (one,) = server.ask(f"/predict{query}", content, JPEG).json["predictions"]
        assert browser.ask("verdict.querySelector('b').textContent") == one["label"]
        assert one["label"] in browser.ask("said.textContent")
        rows = [[label, f"{100 * value:.1f}\u00a0%"] for label, value in one["top"]]
        assert browser.ask(SHOWN) == rows
        browser.await_true("image.naturalWidth > 0")
        for label in one.get("set", ()):
            assert f"“{label}”" in browser.ask("notes.textContent")

    try:
        browser.open(address)
        for _ in range(2):  # past the select of models
            browser.press("Tab")
        assert browser.ask("document.activeElement.labels[0].textContent.trim()") == "File"
        browser.choose(hostile)
        must_show(hostile.name, contents[0], PHOTOS)
        browser.press("Tab")
        assert browser.ask("document.activeElement.id") == "why"
        browser.press("Enter")
        browser.await_true("document.querySelector('.map img')?.naturalWidth > 0")
        (own,) = server.ask(f"/explain{PHOTOS}", contents[0], JPEG).json["images"][0]["attributions"]
        assert (
            browser.ask("document.querySelector('.verdict-name strong').textContent").lower() == own["trust"]["verdict"]
        )
        torch.testing.assert_close(torch.tensor(browser.ask(DRAWN)), torch.tensor(own["values"]), rtol=2e-3, atol=1e-4)
        assert browser.ask("document.activeElement.id") == "maps"
        for width in (375, 768, 1280):
            browser.send(
                "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
            )
            assert browser.ask("document.documentElement.scrollWidth <= innerWidth"), width
        browser.drop(tmp_path / "b.jpg")
        must_show("b.jpg", contents[1], PHOTOS)
        assert browser.ask("maps.childElementCount") == 0  # that was of another image
        browser.ask("model.value = 'model'; model.dispatchEvent(new Event('change'))")
        browser.await_true("document.querySelectorAll('#top tr').length === 5")
        must_show("b.jpg", contents[1], f"{EXPORT}&coverage=0.9")
        assert browser.ask("why.hidden"), "an export cannot be explained"
        browser.ask(PASTED % base64.b64encode(contents[2]).decode())
        must_show("pasted.jpg", contents[2], f"{EXPORT}&coverage=0.9")
        assert browser.errors == []
        assert all(url.startswith((address, "data:")) for url in browser.requests)
        browser.drop(tmp_path / "empty.jpg")
        browser.await_true("failed.textContent")
        refused = server.ask(f"/predict{EXPORT}", *form(("empty.jpg", b""))).json
        assert refused["error"] in browser.ask("failed.textContent")
        assert browser.ask("answer.hidden && document.querySelectorAll('img[src=x]').length === 0")
        said = list[object]()
        answer = json.dumps({"error": "-", "try": "-", "models": []})
        browser.ask(f"fetch = async () => new Response('{answer}', {{ status: 401 }})")
        for token in ("", "wrong"):  # what is missing, and what is wrong, are told apart
            browser.ask(f"token.value = '{token}'; failed.replaceChildren(); form.requestSubmit()")
            browser.await_true("failed.textContent && document.activeElement === token && !key.hidden")
            said.append(browser.ask("failed.textContent"))
        assert said[0] != said[1]
    finally:
        browser.close()


def test_a_server_is_checked_against_the_models_here(server: Server, run: Path, tmp_path: Path) -> None:
    """It passes as it is; other weights, and the same with other words, are both seen."""
    words = "serve", "--check", f"http://127.0.0.1:{server.port}/", "--json"
    done = call(*words, run, f"model={exported()}")
    assert (done.code, done.err) == (0, "")
    ours, small = json.loads(done.out)["models"]
    assert [one["model"] for one in (ours, small)] == ["photos", "model"]
    assert {one["model"]: one["version"] for one in server.ask("/ready").json["models"]} == {
        one["model"]: one["version"] for one in (ours, small)
    }
    assert min(ours["images"], small["images"]) >= 8
    assert ours["of"] != small["of"]  # of its run, and drawn
    vitrail.save(small_model(), tmp_path / "made")  # the export was made of it
    assert call(*words, f"model={tmp_path / 'made'}").code == 0
    for name in ("weights", "words"):
        model = vitrail.load(run)
        if name == "weights":
            with torch.no_grad():
                model.network.head.bias[0] += 1e-3
        else:
            model = replace(model, output=replace(model.output, names=model.output.names[::-1]))
        vitrail.save(model, tmp_path / name)
        done = call(*words, f"photos={tmp_path / name}")
        assert done.code == 1
        assert ours["version"] in done.problem or name == "words"
        if name == "words":
            (one,) = json.loads(done.out)["models"]
            assert one["version"] == ours["version"]
            assert one["images"] == 1  # it ends at the first
            assert one["differs"] in done.problem


def bomb() -> bytes:
    """A PNG that has 100,000 x 100,000 pixels, as it says."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(10_000)))


def test_what_strangers_send_is_refused_in_one_form(server: Server) -> None:
    good, two = jpeg(), [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    restarts = server.counts("worker_restarts_total")
    words = {"Content-Type": "application/json"}
    for status, body, headers in (
        (422, b"", JPEG),
        (422, b"no image", JPEG),
        (422, good[: len(good) // 2], JPEG),
        (413, bomb(), JPEG),
        (422, encoded(two[0], "GIF", save_all=True, append_images=two[1:]), JPEG),
        (422, encoded(two[0], "WEBP", save_all=True, append_images=two[1:]), JPEG),
        (415, good, {"Content-Type": "text/html"}),
        (415, good, {}),
        (400, good, words),
        (400, b"[" * 100_000, words),
        (422, b'{"images": []}', words),
        (422, json.dumps({"images": ["AAAA"] * 33}).encode(), words),
        (400, good, {"Content-Type": "multipart/form-data"}),
        (400, good, {"Content-Type": "multipart/form-data; boundary=XX"}),
        (422, *form()),
        (422, *form(*[(f"{n}.jpg", good) for n in range(40)])),
        (422, *form(("/etc/passwd", b"no image"))),
        (422, b'--XX\r\nContent-Disposition: form-data; name="image"\r\n\r\nphoto.jpg\r\n--XX--\r\n', form()[1]),
        (413, bytes(40 * 2**20), JPEG),
    ):
        server.ask(f"/predict{EXPORT}", body, headers).must_be_refused(status)
    for status, path in (
        (422, "/predict"),
        (422, "/predict?model="),
        (404, "/predict?model=nosuch"),
        (422, f"/explain{PHOTOS}&method=os:system"),
        (422, f"/explain{PHOTOS}&target=nosuch"),
        (404, "/nosuch"),
        (405, "/ready"),
    ):
        server.ask(path, good, JPEG).must_be_refused(status)
    said = set[str]()
    for body, given in (  # what is wrong with JSON is told, each in its own words
        (b'{"images": ["?"]}', "1"),
        (b'{"images": ["AAAA", "data:image/png;base64,AAAA"]}', "2"),
        (b'{"images": ["AAAA\\nAAAA"]}', "1"),
        (b'{"images": [3]}', "int"),
        (b'{"images": "AAAA"}', "str"),
        (b'{"images": ["AAAA"], "path": "x"}', "path"),
        (b"{}", "images"),
        (b"[]", "list"),
        (b'{"images": [}', "12"),
        (b"\xff", "UTF-8"),
        (b"[" * 100_000, ""),
    ):
        refused = server.ask(f"/predict{EXPORT}", body, words)
        refused.must_be_refused(400)
        assert given in refused.json["error"]
        said.add(refused.json["error"])
    assert len(said) == 11
    for query, known in (  # and of the query what was given, what there is, and what would do
        ("nosuch=1", "coverage"),
        ("top=0", "top="),
        ("top=abc", "top="),
        ("coverage=2", "coverage="),
        ("coverage=a%20b", "coverage="),
    ):
        refused = server.ask(f"/predict{EXPORT}&{query}", good, JPEG)
        refused.must_be_refused(422)
        assert query.replace("%20", " ").removesuffix("=1") in refused.json["error"]
        assert known in refused.json["error"] + refused.json["try"]
        if "=" in known:
            assert server.ask(f"/predict{EXPORT}&{refused.json['try'].removeprefix('?')}", good, JPEG).status == 200
    server.ask(f"/explain{PHOTOS}", *form(("a", good), ("b", good))).must_be_refused(422)
    assert server.counts("worker_restarts_total") == restarts
    log = server.text.splitlines()
    assert not [line for line in log if "passwd" in line or ".jpg" in line or "Traceback" in line]
    assert any(line.split()[1:3] == ["other", "404"] for line in log)


def test_the_pixels_of_a_request_have_an_end(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the headers of all images: none is decoded before they are known."""
    large = encoded(Image.new("L", (5000, 4000)), "PNG")  # 20 megapixels
    began = time.monotonic()
    server.ask(f"/predict{EXPORT}", *form(*[(f"{n}.png", large) for n in range(3)])).must_be_refused(413)
    assert time.monotonic() - began < 1
    found = server.ask(f"/predict{EXPORT}", *form(("a.png", large), ("b.png", large))).json["predictions"]
    assert [one["file"] for one in found] == ["a.png", "b.png"]
    opened = list[str]()
    monkeypatch.setattr(bodies, "open_image", lambda name, content: opened.append(name))
    monkeypatch.setattr(bodies, "MOST_PIXELS", 7_000)
    contents = jpeg(1), jpeg(2), bomb(), encoded(Image.new("L", (1, 1)), "PNG")  # of 3,500 pixels, twice
    for last in contents[2:]:
        body = {"images": [base64.b64encode(each).decode() for each in (*contents[:2], last)]}
        with pytest.raises(Refusal) as refused:
            bodies.decode_body("application/json", json.dumps(body).encode())
        assert (refused.value.status, opened) == (413, [])


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere what a process writes to has no limit")
def test_what_an_image_takes_when_it_is_decoded_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its header says; then all memory is there again."""
    served = worker.Served("m", "1", {"predict": lambda images, query: {"images": len(images)}}, [], False)
    header = {"model": "m", "route": "predict", "query": {}, "type": "image/jpeg"}

    def taking(image: Image.Image) -> Image.Image:
        assert len(bytes(2**27)) == 2**27
        return image

    monkeypatch.setattr(images, "upright", taking)
    before = resource.getrlimit(resource.RLIMIT_DATA)
    for allowed, status in ((worker.DECODING, 200), (2**26, 413), (2**28, 200)):
        monkeypatch.setattr(worker, "DECODING", allowed)
        assert worker.answer({"m": served}, header, jpeg())[0]["status"] == status
        assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_a_burst_is_answered_rightly_or_refused_at_once(server: Server) -> None:
    """60 bodies of 5 MB at once, of which few can wait: no connection is broken, by any client."""
    large = encoded(Image.effect_noise((2500, 1900), 90).convert("RGB"), "JPEG", quality=97)
    assert 4e6 < len(large) < 8e6
    right = server.ask(f"/predict{EXPORT}", large, JPEG).json
    address = f"http://127.0.0.1:{server.port}/predict{EXPORT}"

    def by_requests(number: int) -> Reply:
        found = requests.post(address, data=large, headers=JPEG, timeout=120)
        return Reply(found.status_code, {key.lower(): value for key, value in found.headers.items()}, found.content)

    def by_curl(number: int) -> Reply:
        words = ["curl", "-s", "-S", "-i", "--data-binary", "@-", "-H", "Content-Type: image/jpeg", address]
        found = subprocess.run(words, input=large, capture_output=True)
        assert found.returncode == 0, found.stderr
        head, _, content = found.stdout.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"").partition(b"\r\n\r\n")
        pairs = (line.partition(": ")[::2] for line in head.decode().split("\r\n")[1:])
        return Reply(int(head.split()[1]), {key.lower(): value for key, value in pairs}, content)

    clients = [by_requests, by_curl, lambda number: server.ask(f"/predict{EXPORT}", large, JPEG)]
    with ThreadPoolExecutor(60) as pool:
        found = list(pool.map(lambda number: clients[number % 3](number), range(60)))
    statuses = Counter(one.status for one in found)
    assert statuses.keys() == {200, 503}
    assert statuses[200] >= 5
    for one in found:
        if one.status == 503:
            one.must_be_refused(503)
        else:
            assert one.json == right
    assert max(server.counts("queue_length").values()) == 0
    with requests.Session() as kept:  # one connection, on which no packet waits for another
        took = []
        for _ in range(20):
            began = time.monotonic()
            assert kept.post(address, data=jpeg(), headers=JPEG).status_code == 200
            took.append(time.monotonic() - began)
    assert min(took) < 0.03


def test_a_process_that_dies_or_gets_stuck_is_replaced_and_a_client_that_goes_is_dropped(server: Server) -> None:
    content, before = jpeg(), sum(server.counts("worker_restarts_total").values())
    answering = server.workers()[1]
    os.kill(answering, signal.SIGSTOP)
    began = time.monotonic()
    server.ask(f"/predict{EXPORT}", content, JPEG).must_be_refused(503)
    assert 3 < time.monotonic() - began < 15
    server.ask(f"/predict{EXPORT}", content, JPEG)  # waits for the one in its place
    answering = server.workers()[1]
    os.kill(answering, signal.SIGKILL)
    time.sleep(0.2)
    assert server.ask(f"/predict{EXPORT}", content, JPEG).status == 200
    assert sum(server.counts("worker_restarts_total").values()) == before + 2
    explaining, *_ = server.workers()
    os.kill(explaining, signal.SIGSTOP)  # or the client would have to be quick
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", server.port)) as gone:
            head = f"Host: localhost\r\nContent-Type: image/jpeg\r\nContent-Length: {len(content)}\r\n\r\n"
            gone.sendall(f"POST /explain{PHOTOS} HTTP/1.1\r\n{head}".encode() + content)
            time.sleep(0.2)
    os.kill(explaining, signal.SIGCONT)
    assert server.ask(f"/explain{PHOTOS}", content, JPEG).status == 200
    assert server.counts("requests_total").get('model="photos",route="/explain",status="499"') == 3
    assert server.workers()[0] == explaining


def test_models_are_exchanged_and_what_was_taken_is_answered_at_the_end(server: Server, run: Path) -> None:
    content, statuses, stop = jpeg(), Counter[int](), threading.Event()
    version = server.ask(f"/predict{PHOTOS}", content, JPEG).json["version"]
    maps = Path(f"/proc/{server.process.pid}/maps").read_text()
    assert "libtorch" not in maps
    assert "onnxruntime" not in maps

    def ask_on() -> None:
        while not stop.is_set():
            statuses[server.ask(f"/predict{PHOTOS}", content, JPEG).status] += 1

    asking = threading.Thread(target=ask_on)
    asking.start()
    model = vitrail.load(run)
    with torch.no_grad():
        model.network.head.bias.add_(1)
    weights = run / "model" / "model.safetensors"
    kept = weights.read_bytes()
    weights.write_bytes(b"damaged")
    server.process.send_signal(signal.SIGHUP)
    server.await_line("not exchanged")
    assert server.ask(f"/predict{PHOTOS}", content, JPEG).json["version"] == version
    weights.write_bytes(kept)
    shutil.rmtree(run / "model")
    model.save(run / "model")
    server.process.send_signal(signal.SIGHUP)
    server.await_line("(?m)^exchanged")
    stop.set()
    asking.join()
    assert statuses.keys() == {200}
    assert server.ask(f"/predict{PHOTOS}", content, JPEG).json["version"] != version
    explaining, *_ = server.workers()
    os.kill(explaining, signal.SIGSTOP)
    with ThreadPoolExecutor(3) as pool:
        taken = [pool.submit(server.ask, f"/explain{PHOTOS}", content, JPEG) for _ in range(3)]
        time.sleep(0.3)
        server.process.send_signal(signal.SIGTERM)
        server.await_line("stopping")
        ready = server.ask("/ready")
        assert (ready.status, ready.json["status"]) == (503, "stopping")
        server.ask(f"/predict{PHOTOS}", content, JPEG).must_be_refused(503)
        os.kill(explaining, signal.SIGCONT)
        assert [each.result().status for each in taken] == [200, 200, 200]
    assert server.process.wait(30) == 0
    assert "Traceback" not in server.text


def test_an_export_is_served_without_torch_and_by_whoever_is_left(tmp_path: Path) -> None:
    with serving([str(exported()), "--workers", "1"], tmp_path / "log.txt") as server:
        right = server.ask("/predict", jpeg(), JPEG).json
        for pid in (server.process.pid, server.forker(), *server.workers()):
            assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text()
        forker, (worker,) = server.forker(), server.workers()
        os.kill(forker, signal.SIGKILL)
        assert server.ask("/predict", jpeg(), JPEG).json == right
        os.kill(worker, signal.SIGKILL)
        while sum(server.counts("worker_restarts_total").values()) < 1:
            time.sleep(0.05)
        assert server.ask("/predict", jpeg(), JPEG).json == right
        assert server.forker() != forker
        kept = server.forker(), *server.workers()
        os.killpg(server.forker(), signal.SIGTERM)  # as a service manager does it, to all of a group
        assert server.ask("/predict", jpeg(), JPEG).json == right
        assert (server.forker(), *server.workers()) == kept
        assert server.stop() == 0
        assert "Traceback" not in server.text
        while any(Path(f"/proc/{pid}").exists() for pid in kept):
            time.sleep(0.05)


def test_what_cannot_be_served_is_refused_before_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, token = str(exported()), tmp_path / "token"
    (name,) = named_models([model])
    token.write_text("secret")
    token.chmod(0o644)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        answer = call("serve", model, "--port", port)
        assert (answer.code, port in answer.problem) == (2, True)
    for words in ([model, f"{name}={model}"], [model, model], [model, "--port", "0", model, f"{name}-2={model}"]):
        twice = call("serve", *words)
        assert (twice.code, f"{name}:" in twice.problem) == (2, True)
        named = [word for word in shlex.split(twice.hint)[2:] if model in word]
        assert len({*named_models(named)}) == len([word for word in words if model in word])
    readable = call("serve", model, "--port", "0", "--token-file", token)
    assert (readable.code, readable.hint) == (2, f"chmod 600 {token}")
    token.chmod(0o600)
    for content in (b"", b" \n", b"two words", "grün".encode(), "grün".encode("latin-1"), b"a\nb", b"a\0b"):
        token.write_bytes(content)
        for more in ((), ("--check", "http://127.0.0.1:1")):
            answer = call("serve", model, *more, "--token-file", token)
            assert (answer.code, str(token) in answer.problem) == (2, True)
            assert "two words" not in answer.err  # it is a secret
    assert call("serve", model, "--token-file", tmp_path).code == 2
    for text in ("", "\n", "grün"):
        monkeypatch.setenv("VITRAIL_TOKEN", text)
        answer = call("serve", model, "--host", "0.0.0.0")
        assert (answer.code, "VITRAIL_TOKEN" in answer.problem) == (2, True)
    monkeypatch.setenv("VITRAIL_TOKEN", "abc123\n")  # as a secret made of a file has it
    token.write_bytes(b"abc123\r\n")
    assert (read_token(), read_token(token)) == ("abc123", "abc123")
    monkeypatch.delenv("VITRAIL_TOKEN")
    assert call("serve", model, "--threads", "100000").code == 2
    for words in ("--port 8150", "--workers 2", "--host 0.0.0.0", f"--out {tmp_path / 'x'}"):
        answer = call("serve", model, "--json", *words.split())
        assert (answer.code, answer.hint.split()[:3]) == (2, ["vitrail", "serve", model])
    code = "import sys; sys.modules['fastapi'] = None; from vitrail.cli import main; main()"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    words = [sys.executable, "-c", code, "serve", model, "--port", "0"]
    missing = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert (missing.returncode, missing.stderr.splitlines()[1]) == (2, 'try: pip install "vitrail[serve]"')
    (tmp_path / "broken.onnx").write_bytes(b"none")
    words = [sys.executable, "-m", "vitrail", "serve", str(tmp_path / "broken.onnx"), "--port", "0"]
    broken = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=120)
    assert (broken.returncode, len(broken.stderr.splitlines())) == (3, 2)
