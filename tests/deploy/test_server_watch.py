"""`vitrail serve --watch`: files written over a served model are taken when they are whole, and no request fails."""

import hashlib
import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import onnx
import pytest
import torch

import vitrail
from tests import shared_runs as runs
from tests.deploy.serving import JPEG, Server, jpeg, serving
from tests.deploy.small import exported
from vitrail.model.onnx_file import OnnxNetwork
from vitrail.nn.networks import weights_hash

PIECES, APART = 6, 0.6  # a file is written in so many pieces, seconds apart: longer than a look takes to come again


def shifted(content: bytes) -> bytes:
    """An export with another bias of its head, which makes the last class likelier."""
    proto = onnx.load_from_string(content)
    (bias,) = (held for held in proto.graph.initializer if held.name.endswith("head.bias"))
    values = onnx.numpy_helper.to_array(bias) + torch.linspace(0, 2, bias.dims[0]).numpy()
    bias.CopyFrom(onnx.numpy_helper.from_array(values, bias.name))
    (stated,) = (each for each in proto.metadata_props if each.key == "vitrail")
    stated.value = json.dumps(json.loads(stated.value) | {"weights_hash": hashlib.sha256(values).hexdigest()[:16]})
    return proto.SerializeToString()


def version_of(model: vitrail.Model) -> str:
    network = model.network
    return (network.version if isinstance(network, OnnxNetwork) else weights_hash(network))[:12]


@contextmanager
def asking(server: Server, name: str, content: bytes) -> Iterator[list[tuple[float, str, float]]]:
    """Ask a model on and on: when each answer came, its version and probability. A request that fails is raised."""
    found, failed, stop = list[tuple[float, str, float]](), list[BaseException](), threading.Event()

    def ask_on() -> None:
        try:
            while not stop.is_set():
                reply = server.ask(f"/predict?model={name}", content, JPEG)
                assert reply.status == 200, reply
                (one,) = reply.json["predictions"]
                found.append((time.monotonic(), reply.json["version"], one["probability"]))
                stop.wait(0.03)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=ask_on)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()
    assert not failed, failed


def test_whole_files_are_exchanged_and_no_others(tmp_path: Path) -> None:
    content, export, run = jpeg(5), tmp_path / "small.onnx", runs.copy_of("photos", tmp_path)
    weights = run / "model" / "model.safetensors"
    export.write_bytes(exported().read_bytes())
    (tmp_path / "next.onnx").write_bytes(shifted(export.read_bytes()))
    first, second = vitrail.load(run), vitrail.load(run)
    with torch.no_grad():
        second.network.head.bias += torch.linspace(0, 1, len(second.output.names))
    second.save(tmp_path / "next")
    right = dict[str, dict[str, float]]()
    for name, both in {
        "photos": (first, second),
        "small": (vitrail.load(export), vitrail.load(tmp_path / "next.onnx")),
    }.items():
        found = {version_of(one): one.predict(content)[0].probability for one in both}
        assert len(found) == 2
        assert abs(min(found.values()) - max(found.values())) > 1e-3
        right[name] = found
    new = {
        weights: (tmp_path / "next" / "model.safetensors").read_bytes(),
        export: (tmp_path / "next.onnx").read_bytes(),
    }
    words = [str(run), str(export), "--watch", "--explainers", "0", "--workers", "1"]
    with serving(words, tmp_path / "log.txt") as server, ExitStack() as stack:
        answers = {name: stack.enter_context(asking(server, name, content)) for name in right}
        time.sleep(0.5)  # the files are watched
        weights.write_bytes(new[weights][: len(new[weights]) // 2])
        server.await_line("(?m)^not exchanged.*model.safetensors")
        damaged = time.monotonic()
        with weights.open("wb") as tensors, export.open("wb") as graph:
            for piece in range(PIECES):
                for file, whole in ((tensors, new[weights]), (graph, new[export])):
                    size = -(-len(whole) // PIECES)
                    file.write(whole[piece * size : (piece + 1) * size])
                    file.flush()
                time.sleep(APART)
        written = time.monotonic()
        server.await_line("(?m)^exchanged")
        exchanged = time.monotonic()
        time.sleep(0.3)
        said = re.findall("(?m)^(not exchanged|exchanged)", server.text)
        assert said == ["not exchanged", "exchanged"]  # the half of before, and the whole
        assert sum(server.counts("worker_restarts_total").values()) == 0
        listed = {one["model"]: one["version"] for one in server.ask("/ready").json["models"]}
    for name, (old, young) in right.items():
        assert listed[name] == young
        for when, version, probability in answers[name]:
            assert probability == pytest.approx(right[name][version], abs=1e-4)
            assert version == old or when > written
            assert version == young or when < exchanged + 0.2
        assert sum(damaged < when < written for when, *_ in answers[name]) > 20
    assert "Traceback" not in server.text
    with serving([str(export), "--watch", "--workers", "2"], tmp_path / "log2.txt") as server:  # nor is one missed
        export.write_bytes(exported().read_bytes())  # while there is one process of two
        server.await_line("(?m)^exchanged")
        assert server.ask("/predict", content, JPEG).json["version"] in right["small"].keys() - {listed["small"]}


def test_a_server_lives_on_without_its_log_and_with_whatever_lies_there(tmp_path: Path) -> None:
    """Processes are killed while nothing can be printed; the file is damaged, and another one."""
    content, export = jpeg(5), tmp_path / "small.onnx"
    export.write_bytes(exported().read_bytes())
    (tmp_path / "next.onnx").write_bytes(shifted(export.read_bytes()))
    old, young = (version_of(vitrail.load(file)) for file in (export, tmp_path / "next.onnx"))
    with serving([str(export), "--workers", "1"], tmp_path / "log.txt", Path("/dev/full")) as server:

        def kill() -> None:
            lost = sum(server.counts("worker_restarts_total").values())
            os.kill(server.workers()[0], signal.SIGKILL)
            while sum(server.counts("worker_restarts_total").values()) == lost:
                time.sleep(0.02)

        kill()
        assert server.ask("/predict", content, JPEG).json["version"] == old
        export.write_bytes((tmp_path / "next.onnx").read_bytes())
        kill()
        assert server.ask("/predict", content, JPEG).json["version"] == young
        export.write_bytes(b"damaged")
        kill()
        server.ask("/predict", content, JPEG).must_be_refused(503)
        export.write_bytes(exported().read_bytes())
        until = time.monotonic() + 30
        while (reply := server.ask("/predict", content, JPEG)).status == 503:
            assert time.monotonic() < until
            time.sleep(0.1)
        assert reply.json["version"] == old
        assert server.stop() == 0
