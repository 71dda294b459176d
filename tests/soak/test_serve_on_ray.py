"""The application of Ray Serve that `vitrail serve --print ray` writes: a replica dies under load, no answer is wrong.

Needs `ray[serve]`, which is more than the extra `ray`: `make soak` installs it beside the environment.
"""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.cli.command import call, environment
from tests.deploy.serving import JPEG, ROOT, jpeg
from tests.deploy.small import exported

DRIVER = """
import sys, ray
from ray import serve
ray.init("local", num_cpus=3, object_store_memory=80 * 2**20, include_dashboard=False, log_to_driver=False)
serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
from app import app
serve.run(app)
print("ready", flush=True)
sys.stdin.read()
serve.shutdown()
"""
RAY = ROOT / ".ray_serve"
MARK = "VITRAIL_TEST_OF_RAY_SERVE"
SECONDS = 180.0  # in which another replica has its place, on a busy machine
AT = 5.0  # when a replica is killed
ANSWERED = 0.95  # of the requests of some seconds; Ray's choice among replicas lets some find a full one
INSIDE = 5  # requests that a replica holds, at most: one is answered, the others wait; more get 503 while it is gone


def ours(title: bytes, mark: str) -> list[int]:
    """The processes that a driver of this test started, whose command has these words."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if title in (folder / "cmdline").read_bytes() and mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


def ask(port: int, content: bytes) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    with contextlib.closing(connection):
        connection.request("POST", "/predict", content, JPEG)
        reply = connection.getresponse()
        return reply.status, reply.read()


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="replicas are found in /proc")
def test_a_replica_that_is_killed_under_load_costs_what_was_in_it(tmp_path: Path) -> None:
    if not RAY.is_dir():
        pytest.skip("ray[serve] is missing: `make .ray_serve`")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    done = call("serve", f"small={exported()}", "--print", "ray", "--out", tmp_path / "app")
    assert done.code == 0
    mark = f"{MARK}={os.getpid()}"
    own = environment() | dict([mark.split("=")]) | {"RAY_USAGE_STATS_ENABLED": "0"}
    own["PYTHONPATH"] = os.pathsep.join([own["PYTHONPATH"], str(RAY)])
    words = [sys.executable, "-c", DRIVER, str(port)]
    files = {"cwd": tmp_path / "app", "stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(words, env=own, stderr=log, **files) as driver:
        assert driver.stdin is not None
        assert driver.stdout is not None
        try:
            assert driver.stdout.readline() == b"ready\n", (tmp_path / "log").read_text()[-3000:]
            check = "serve", "--check", f"http://127.0.0.1:{port}", f"small={exported()}", "--json"
            checked = call(*check)
            assert checked.code == 0, checked.err
            assert json.loads(checked.out)["models"][0]["images"] >= 8
            images = [jpeg(seed) for seed in range(8)]
            right = [ask(port, content) for content in images]
            assert {status for status, _ in right} == {200}
            assert len({content for _, content in right}) > 1
            status, refused = ask(port, b"no image")
            assert (status, {*json.loads(refused)}) == (422, {"error", "try"})
            statuses, wrong, stop = list[tuple[float, int]](), list[bytes](), threading.Event()

            def ask_on(number: int) -> None:
                while not stop.is_set():
                    found, content = ask(port, images[number])
                    statuses.append((time.monotonic(), found))
                    if found == 200 and content != right[number][1]:
                        wrong.append(content)
                    time.sleep(0.2 * (found == 503))

            before = ours(b"ray::ServeReplica", mark)
            workers = ours(b"vitrail.deploy.server.worker", mark)
            assert (len(before), len(workers)) == (2, 4)  # one that forks, and one that answers, of each
            asking = [threading.Thread(target=ask_on, args=(number,)) for number in range(8)]
            for each in asking:
                each.start()
            time.sleep(AT)
            killed = time.monotonic()
            os.kill(before[0], signal.SIGKILL)
            time.sleep(AT)
            while True:  # until another replica has its place, and nearly all is answered again
                late = [found == 200 for when, found in list(statuses) if when > time.monotonic() - AT]
                there = {*ours(b"vitrail.deploy.server.worker", mark)}  # that of the lost replica ends with it
                if len(there) == 4 and there != {*workers} and sum(late) > ANSWERED * len(late):
                    break
                assert time.monotonic() < killed + SECONDS, Counter(late)
                time.sleep(1)
            stop.set()
            for each in asking:
                each.join()
            assert wrong == []
            failed = [(round(when - killed, 1), found) for when, found in statuses if found != 200]
            inside = [(when, found) for when, found in failed if found != 503]  # others were refused, and not taken
            assert all(found == 500 and 0 <= when < AT for when, found in inside), inside
            assert 1 <= len(inside) <= INSIDE
            assert sum(when < 0 for when, _ in failed) <= INSIDE, failed  # two replicas are enough for all
            assert len(statuses) - len(failed) > 100
            assert {*ours(b"ray::ServeReplica", mark)} & {*before} == {*before[1:]}
            assert call(*check).code == 0
        finally:
            driver.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                driver.wait(60)
            for process in (title for title in ours(b"", mark) if title != os.getpid()):
                with contextlib.suppress(OSError):
                    os.kill(process, signal.SIGKILL)
