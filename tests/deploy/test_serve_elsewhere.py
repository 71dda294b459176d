"""What `vitrail serve --check` says of what is no server that fits, and what `--print` writes for other engines.

docker, kubectl and Triton are not at hand: what is written for them is held against schemas, and the export itself.
"""

import ast
import http.server
import json
import re
import shlex
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import pytest
import yaml

import vitrail
from tests.cli.command import call
from tests.deploy.small import exported, small_model
from vitrail.deploy.server.check import check_server
from vitrail.errors import RunError, UsageError, VitrailError
from vitrail.nn.networks import weights_hash


@contextmanager
def answering() -> Iterator[tuple[str, dict[str, tuple[int, bytes]]]]:
    """The address of something that gives these answers, by path."""
    says = dict[str, tuple[int, bytes]]()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, content = says[self.path.partition("?")[0]]
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Retry-After", "0")
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET

        def log_message(self, *words: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", says
        server.shutdown()


def test_what_is_no_server_that_fits() -> None:
    model = vitrail.load(exported())
    version = weights_hash(small_model().network)[:12]  # of which it was made

    def refused(url: str, token: str | None = None, kind: type[VitrailError] = RunError) -> str:
        with pytest.raises(kind) as raised:
            check_server(url, "m", model, token)
        assert url in raised.value.problem
        return str(raised.value)

    def ready(status: str = "ready", version: str = version) -> tuple[int, bytes]:
        models = [{"model": "m", "version": version}]
        return 200 if status == "ready" else 503, json.dumps({"status": status, "models": models}).encode()

    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"127.0.0.1:{closed.getsockname()[1]}"
    refused(url, kind=UsageError)
    done = call("serve", "--check", f"http://{url}", exported())
    assert (done.code, done.out) == (1, "")
    assert url in done.problem
    with answering() as (url, says):
        for other in ((404, b"not here"), (200, b"[]"), (200, b"\xff"), (200, b'{"models": [1]}'), (200, b"{}")):
            says["/ready"] = other
            refused(url)
        says["/ready"] = ready("loading")
        refused(url)
        says["/ready"] = ready(version="0123456789ab")
        assert {"0123456789ab", version} <= {*re.findall(r"\w+", refused(url))}
        says["/ready"], says["/predict"] = ready(), (401, b"{}")
        assert refused(url) != refused(url, "secret")
        assert "secret" not in refused(url, "secret")
        says["/predict"] = 503, b"{}"
        refused(url)
        for other in ((500, b"{}"), (200, b'{"predictions": [1], "version": 1}'), (200, b"null")):
            says["/predict"] = other
            found = check_server(url, "m", model)
            assert found.differs
            assert found.images == 1


# ---- schemas


def fits(value: Any, schema: Any, where: str = "") -> list[str]:
    """Where a value does not fit: a type, a pattern for words, [one for all], or {key: one} with no key but these."""
    if isinstance(schema, dict):
        if not isinstance(value, dict) or value.keys() != schema.keys():
            return [f"{where}: {value}"]
        return [fault for key, inner in schema.items() for fault in fits(value[key], inner, f"{where}.{key}")]
    if isinstance(schema, list):
        if not isinstance(value, list) or not value:
            return [f"{where}: {value}"]
        return [fault for row, each in enumerate(value) for fault in fits(each, schema[0], f"{where}[{row}]")]
    if isinstance(schema, type):
        return [] if type(value) is schema else [f"{where}: {value!r}"]
    if isinstance(schema, str):
        return [] if isinstance(value, str) and re.fullmatch(schema, value) else [f"{where}: {value!r}"]
    return [] if value == schema and type(value) is type(schema) else [f"{where}: {value!r}"]


NAME, PORT = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", 8000  # of DNS
SHARE = {"cpu": r"\d+", "memory": r"\d+Gi"}
PROBE = {"httpGet": {"path": "/ready", "port": "http"}, "periodSeconds": int, "timeoutSeconds": int}
CONTAINER = {
    "name": NAME,
    "image": rf"{NAME}:\d+",
    "command": [".+"],
    "env": [{"name": "VITRAIL_TOKEN", "valueFrom": {"secretKeyRef": {"name": NAME, "key": "token"}}}],
    "ports": [{"name": "http", "containerPort": PORT}],
    "startupProbe": {"httpGet": {"path": "/ready", "port": "http"}, "periodSeconds": int, "failureThreshold": int},
    "livenessProbe": PROBE | {"httpGet": {"path": "/health", "port": "http"}},
    "readinessProbe": PROBE,
    "lifecycle": {"preStop": {"exec": {"command": [".+"]}}},
    "resources": {"requests": SHARE, "limits": SHARE},
    "securityContext": {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    },
    "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
}
LABELS = {"app": NAME}
DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": NAME, "labels": LABELS},
    "spec": {
        "replicas": int,
        "selector": {"matchLabels": LABELS},
        "strategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        "template": {
            "metadata": {"labels": LABELS},
            "spec": {
                "terminationGracePeriodSeconds": int,
                "automountServiceAccountToken": False,
                "securityContext": {
                    "runAsNonRoot": True,
                    "runAsUser": int,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
                "containers": [CONTAINER],
                "volumes": [{"name": "tmp", "emptyDir": {}}],
            },
        },
    },
}
SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": NAME},
    "spec": {"selector": LABELS, "ports": [{"name": "http", "port": PORT, "targetPort": "http"}]},
}


def printed(engine: str, *words: object) -> str:
    done = call("serve", *words, "--print", engine)
    assert (done.code, done.err) == (0, "")
    commands = [line.strip("# ") for line in done.out.splitlines() if line.startswith("#   ")]
    assert {shlex.split(line)[0] for line in commands} & {"docker", "kubectl", "ray"}
    return done.out


def must_serve(words: list[str], *typed: str) -> None:
    """A command of a container is one that this version takes."""
    from vitrail.cli.args import Serve
    from vitrail.cli.parse import parse

    assert words[:2] == ["vitrail", "serve"]
    options = parse(Serve, "serve", words[2:])
    assert (options.host, options.port) == ("0.0.0.0", PORT)
    assert {*typed} <= {*words}
    assert all(re.fullmatch(r"[^=]+=/models/[^/]+", each) for each in options.models)


def test_a_container_and_its_deployment(tmp_path: Path) -> None:
    folder = tmp_path / "Bees & wasps: $x"
    vitrail.save(small_model(), folder / "model")
    words = [folder, f"small={exported()}", "--workers", "3", "--timeout", "12"]
    first, second = yaml.safe_load_all(printed("k8s", *words))
    assert fits(first, DEPLOYMENT) + fits(second, SERVICE) == []
    inside = first["spec"]["template"]["spec"]
    (container,) = inside["containers"]
    assert {first["metadata"]["name"], *second["spec"]["selector"].values()} == {"vitrail-bees-wasps-x"}
    assert inside["terminationGracePeriodSeconds"] > 10 * 12
    assert container["resources"]["limits"]["cpu"] == "3"
    must_serve(container["command"], "--workers=3", "--timeout=12.0")
    planted = yaml.safe_load(json.dumps(first))
    planted["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]["httpGet"]["path"] = "/nosuch"
    planted["spec"]["replicas"] = "2"
    assert len(fits(planted, DEPLOYMENT)) == 2

    lines = [line for line in printed("docker", *words).splitlines() if line and not line.startswith("#")]
    steps = [line.partition(" ")[::2] for line in lines]
    kinds = [kind for kind, _ in steps]
    assert kinds[0] == "FROM"
    assert {*kinds} <= {"FROM", "RUN", "COPY", "USER", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT"}
    one = {kind: rest for kind, rest in steps if kinds.count(kind) == 1}
    assert json.loads(one["ENTRYPOINT"]) == container["command"]
    assert one["USER"] == str(inside["securityContext"]["runAsUser"])
    assert (one["EXPOSE"], one["STOPSIGNAL"]) == (str(PORT), "SIGTERM")
    probe = json.loads(one["HEALTHCHECK"].partition(" CMD ")[2])
    assert probe[:2] == ["python", "-c"]
    ast.parse(probe[2])
    comments = [line for line in printed("docker", *words).splitlines() if "docker build" in line]
    context = Path(shlex.split(comments[0].strip("# "))[-1])
    copied = [json.loads(re.sub(r"^--chown=\d+ ", "", rest)) for kind, rest in steps if kind == "COPY"]
    served = [word.partition("=")[2] for word in container["command"][-2:]]
    assert [pair[1] for pair in copied[1:]] == served
    assert [(context / pair[0]).resolve() for pair in copied[1:]] == [folder / "model", exported().resolve()]
    stated = "--image-size=24x32", "--mean=0.5,0.4,0.3", "--assume=heads=2"
    (tmp_path / "names.txt").write_text("a\nb\n")
    more = *stated, "--class-names", tmp_path / "names.txt"
    first, _ = yaml.safe_load_all(printed("k8s", *words, *more))
    (container,) = first["spec"]["template"]["spec"]["containers"]
    must_serve(container["command"], *stated, "--class-names=/stated/class_names.txt")
    text = printed("docker", *words, *more, "--host", "::1")
    assert 'names.txt", "/stated/class_names.txt"]' in text
    (check,) = (line for line in text.splitlines() if "--check" in line)
    assert {*stated, f"--class-names={tmp_path / 'names.txt'}"} <= {*shlex.split(check)}
    assert "-p [::1]:8000:8000 " in text
    assert call("serve", f"../x={exported()}", "--print", "docker").code == 2
    for engine in ("docker", "k8s", "triton"):
        done = call("serve", "timm:vit_tiny_patch16_224", "--print", engine)
        assert done.code == 2
        assert "export" in done.hint


def test_a_repository_of_triton_states_what_the_export_declares(tmp_path: Path) -> None:
    done = call("serve", f"bees={exported()}", "--print", "triton", "--out", tmp_path / "new")
    assert (done.code, done.err) == (0, "")
    assert (tmp_path / "new" / "bees" / "1" / "model.onnx").read_bytes() == exported().read_bytes()
    text = (tmp_path / "new" / "bees" / "config.pbtxt").read_text()
    rest = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))
    assert re.findall(r'^(\w+): "?([^"\n]+)"?$', rest, re.MULTILINE) == [
        ("name", "bees"),
        ("platform", "onnxruntime_onnx"),
        ("max_batch_size", "8"),
    ]
    graph = onnx.load(exported()).graph
    types = {onnx.TensorProto.UINT8: "TYPE_UINT8", onnx.TensorProto.FLOAT: "TYPE_FP32"}
    for kind, tensors in (("input", graph.input), ("output", graph.output)):
        (block,) = re.findall(rf"^{kind} \[\n(.*?)^\]$", rest, re.MULTILINE | re.DOTALL)
        found = re.findall(
            r'^  \{ name: "(\w+)", data_type: (\w+), dims: \[ ([-\d, ]+) \] \}(,?)$', block, re.MULTILINE
        )
        assert [comma for *_, comma in found] == [","] * (len(tensors) - 1) + [""]
        wanted = []
        for each in tensors:
            first, *sides = each.type.tensor_type.shape.dim
            assert first.dim_param  # a batch of any size, which Triton adds
            dims = ", ".join(str(side.dim_value or -1) for side in sides)
            wanted.append((each.name, types[each.type.tensor_type.elem_type], dims))
        assert [tuple(row[:3]) for row in found] == wanted
    assert call("serve", exported(), "--print", "triton", "--out", tmp_path / "new").code == 2
    for name in ("../esc", "..", "/esc", ""):
        assert call("serve", f"{name}={exported()}", "--print", "triton", "--out", tmp_path / "a" / "b").code == 2
    assert call("serve", exported(), "--print", "triton", "--image-size", "32").code == 2
    assert [*tmp_path.iterdir()] == [tmp_path / "new"]


def test_an_application_of_ray(tmp_path: Path) -> None:
    text = printed("ray", exported(), "--workers", "3", "--queue", "7")
    names = {
        node.id for node in ast.walk(compile(text, "app.py", "exec", ast.PyCF_ONLY_AST)) if isinstance(node, ast.Name)
    }
    assert {"serve", "Replica", "LOAD"} <= names
    assert "num_replicas=3" in text
