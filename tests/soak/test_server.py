"""A server under twice its load: processes are killed, models exchanged, bodies mutated; at the end it is stopped."""

import contextlib
import http.client
import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

import vitrail
from tests import shared_runs as runs
from tests.deploy.serving import JPEG, Server, form, jpeg, serving
from tests.real import real_data
from vitrail.nn.networks import weights_hash

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]
SECONDS, CLIENTS = 60, 16


def memory(server: Server) -> float:
    """MB of the process that listens and of those that answer."""
    kept = 0
    for pid in (server.process.pid, *server.workers()):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        kept += sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
    return kept / 1000


@contextlib.contextmanager
def ending(stop: threading.Event) -> Iterator[None]:
    """Whatever happens, who asks on stops."""
    try:
        yield
    finally:
        stop.set()


def version_of(model: vitrail.Model) -> str:
    return weights_hash(model.network)[:12]


def test_at_twice_the_load_none_is_lost_and_none_is_wrong(tmp_path: Path) -> None:
    """Every second a process is killed or the models are exchanged in turn; memory stays; SIGTERM comes under load."""
    run = runs.copy_of("photos", tmp_path)
    images = [jpeg(seed, (300, 200)) for seed in range(8)]
    first = vitrail.load(run)
    second = vitrail.load(run)
    with torch.no_grad():
        second.network.head.bias += torch.linspace(0, 1, len(second.output.names))
    right, found, stop = dict[str, list[float]](), Counter[str](), threading.Event()
    versions = Counter[str]()
    with serving([str(run), "--explainers", "0", "--workers", "2"], tmp_path / "log.txt") as server:
        right[version_of(first)] = [one.probability for one in first.predict(images)]
        right[version_of(second)] = [one.probability for one in second.predict(images)]
        assert server.ask("/predict", images[0], JPEG).json["version"] == version_of(first)
        second.save(tmp_path / "next")

        def ask_on(seed: int) -> None:
            draw = random.Random(seed)
            while not stop.is_set():
                number = draw.randrange(len(images))
                try:
                    reply = server.ask("/predict", images[number], JPEG)
                except OSError as error:
                    found["stopped" if server.process.poll() is not None or stopping else f"lost: {error}"] += 1
                    if stopping:
                        return
                    continue
                if reply.status == 200:
                    (one,), version = reply.json["predictions"], reply.json["version"]
                    found["right" if abs(one["probability"] - right[version][number]) < 1e-4 else "wrong"] += 1
                    versions[version] += 1
                else:
                    reply.must_be_refused(503)
                    found["refused"] += 1

        stopping = False
        with ThreadPoolExecutor(CLIENTS) as pool, ending(stop):
            asking = [pool.submit(ask_on, seed) for seed in range(CLIENTS)]
            time.sleep(5)
            before, draw, exchanged = memory(server), random.Random(0), 0
            until = time.monotonic() + SECONDS
            while time.monotonic() < until:
                os.kill(draw.choice(server.workers()), signal.SIGKILL)
                time.sleep(4)
                for old, new in (
                    (run / "model", "kept"),
                    (tmp_path / "next", run / "model"),
                    (tmp_path / "kept", "next"),
                ):
                    old.rename(tmp_path / new)
                server.process.send_signal(signal.SIGHUP)
                exchanged += 1
                while server.text.count("\nexchanged") < exchanged:
                    time.sleep(0.2)
            while sum(server.counts("workers").values()) < 2:
                time.sleep(0.2)
            after = min(memory(server) for _ in range(30) if not time.sleep(0.5))  # a process that ends, ends late
            stopping = True
            assert server.stop() == 0
            stop.set()
            for each in asking:
                each.result()
    assert {*found} <= {"right", "refused", "stopped"}, found
    assert min(versions[each] for each in right) > 100
    assert after < 1.15 * before + 20, (before, after)


def test_ten_thousand_mutated_bodies_do_no_harm(tmp_path: Path) -> None:
    body, headers = form(("a.jpg", jpeg()), ("b.png", jpeg(1)))
    kinds = [(body, headers), (jpeg(), JPEG), (b'{"images": ["AAAA"]}', {"Content-Type": "application/json"})]
    draw = np.random.default_rng(0)
    with serving([str(runs.run_of("photos")), "--explainers", "0", "--workers", "1"], tmp_path / "log.txt") as server:
        found, connection = Counter[int](), http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        for number in range(int(os.environ.get("BODIES", "10000"))):
            content, kind = kinds[number % 3]
            bytes_ = bytearray(content)
            for place in draw.integers(0, len(bytes_), draw.integers(1, 12)):
                bytes_[place] = draw.integers(0, 256)
            cut = len(bytes_) if number % 2 else int(draw.integers(0, len(bytes_)))
            connection.request("POST", "/predict", bytes(bytes_[:cut]), kind)
            reply = connection.getresponse()
            answer = json.loads(reply.read())
            assert reply.status == 200 or {*answer} == {"error", "try"}
            assert "/" not in answer.get("error", "").replace("multipart/form-data", ""), answer
            found[reply.status] += 1
        connection.close()
        assert {*found} <= {200, 400, 413, 415, 422}, found
        assert server.counts("worker_restarts_total") == {'pool="answering"': 0}
        assert "Traceback" not in server.text
        assert server.stop() == 0


def test_explanations_that_wait_hardly_slow_predictions(tmp_path: Path) -> None:
    """20 wait while predictions come at half of the capacity of two cores."""
    weights = real_data() / "vit_ti16" / "model.safetensors"
    words = [str(weights), "--mean", "0.5", "--std", "0.5", "--queue", "8"]  # as many as ask
    with serving(words, tmp_path / "log.txt") as server:
        server.await_routes("explain")
        content = jpeg(0, (500, 400))

        def p99(requests: int = 200) -> float:
            def ask(number: int) -> float:
                time.sleep(max(0.0, began + number * apart - time.monotonic()))
                start = time.monotonic()
                assert server.ask("/predict", content, JPEG).status == 200
                return time.monotonic() - start

            took = [server.ask("/predict", content, JPEG) and 0.0 for _ in range(5)]
            start = time.monotonic()
            for _ in took:
                server.ask("/predict", content, JPEG)
            apart, began = (time.monotonic() - start) / len(took), time.monotonic()
            with ThreadPoolExecutor(8) as pool:
                return float(np.quantile(list(pool.map(ask, range(requests))), 0.99))

        alone = p99()
        with ThreadPoolExecutor(21) as pool:
            waiting = [pool.submit(server.ask, "/explain", content, JPEG) for _ in range(21)]
            time.sleep(2)
            beside = p99()
            assert server.counts("queue_length")['pool="explaining"'] >= 15
            server.process.kill()
            for each in waiting:
                each.exception()
    print(f"P99 of predictions {1000 * alone:.0f} ms, beside explanations that wait {1000 * beside:.0f} ms")
    assert beside < 2 * alone
