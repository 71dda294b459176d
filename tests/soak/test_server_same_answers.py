"""The same answer everywhere: the library, the command line and a server, by a model and by its ONNX export.

A hundred photographs and the real ViT-Ti, a hundred digits and the digits model. IMAGES and EXPLAINED in the
environment say how many images of both together are asked about, and of how many the maps are compared.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import vitrail
from tests.cli.command import call_outside
from tests.deploy.serving import Server, form, serving
from tests.soak.test_server_faults import COVERAGE, digits, ti

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

IMAGES, EXPLAINED = int(os.environ.get("IMAGES", 200)), int(os.environ.get("EXPLAINED", 4))
CLOSE = 1e-4


@dataclass(frozen=True)
class Family:
    """A model, its export, and image files."""

    name: str
    model: Path
    export: Path
    files: Sequence[Path]


def families(folder: Path) -> list[Family]:
    """Both, where all that is served lies in this folder."""
    found = list[Family]()
    for make in (ti, digits):
        (folder / make.__name__).mkdir()
        model, contents = make(folder / make.__name__, IMAGES // 2)
        export = folder / f"{make.__name__}.onnx"
        done = call_outside("export", model, "--to", "onnx", "--out", export)
        assert done.code == 0, done.err
        files = [
            folder / make.__name__ / f"{number:03}.{'jpg' if make is ti else 'png'}" for number in range(IMAGES // 2)
        ]
        for file, content in zip(files, contents, strict=True):
            file.write_bytes(content)
        found.append(Family(make.__name__, model, export, files))
    return found


Row = Mapping[str, Any]


def gap(own: Row, other: Row) -> float:
    """The largest difference of a probability, where class, set and the names of the top classes are the same."""
    for key in ("label", "set"):
        assert own[key] == other[key], (own, other)
    both = dict(own["top"]), dict(other["top"])
    assert both[0].keys() == both[1].keys(), (own, other)
    return max(abs(own["probability"] - other["probability"]), *(abs(both[0][key] - both[1][key]) for key in both[0]))


def must_answer_alike(families: list[Family], server: Server) -> None:
    """Class, probability and set."""
    asked, sizes = 0, set[int]()
    for one in families:
        names = [str(each) for each in one.files]
        found = dict[str, list[Row]]()
        for kind, path in (("", one.model), (" of the export", one.export)):
            model = vitrail.load(path)
            own = model.predict(names, coverage=COVERAGE)
            found[f"library{kind}"] = json.loads(json.dumps([each.to_dict() for each in own]))
            options = "--json", "--coverage", COVERAGE, "--precision", "fp32"
            typed = call_outside("predict", path, *names, *options)
            assert typed.code == 0, typed.err
            found[f"command line{kind}"] = json.loads(typed.out)
        for kind in ("", "-onnx"):
            rows = found[f"server{kind}"] = list[Row]()
            for file in one.files:
                reply = server.ask(
                    f"/predict?model={one.name}{kind}&coverage={COVERAGE}", *form((file.name, file.read_bytes()))
                )
                assert reply.status == 200, reply
                rows += reply.json["predictions"]
        (first, wanted), *others = found.items()
        assert len(wanted) == IMAGES // 2
        asked += len(wanted)
        sizes |= {len(row["set"]) for row in wanted}
        for name, rows in others:
            gaps = [gap(row, other) for row, other in zip(wanted, rows, strict=True)]
            print(
                f"{one.name}: {name} against {first}: {len(gaps)} classes and sets equal, at most {max(gaps):.1e} apart"
            )
            assert max(gaps) <= CLOSE
    assert asked == IMAGES
    assert len(sizes) > 2  # of sets


def must_explain_alike(families: list[Family], server: Server, tmp_path: Path) -> None:
    """Maps and verdicts."""
    server.await_routes("explain")
    for one in families:
        files = one.files[:: max(1, len(one.files) // (EXPLAINED // 2))][: EXPLAINED // 2]
        options = "--json", "--precision", "fp32", "--nearest", "none", "--out", tmp_path / f"explained-{one.name}.html"
        typed = call_outside("explain", one.model, *files, *options)
        assert typed.code == 0, typed.err
        for file, own in zip(files, json.loads(typed.out)["images"], strict=True):
            reply = server.ask(f"/explain?model={one.name}", file.read_bytes(), {"Content-Type": "image/jpeg"})
            assert reply.status == 200, reply
            (other,) = reply.json["images"]
            assert (other["label"], other["probability"]) == (
                own["label"],
                pytest.approx(own["probability"], abs=CLOSE),
            )
            assert len(own["attributions"]) == 1
            (left,), (right,) = own["attributions"], other["attributions"]
            assert (left["method"], left["target"]) == (right["method"], right["target"])
            assert left["trust"]["verdict"] == right["trust"]["verdict"]
            assert left["trust"]["score"] == pytest.approx(right["trust"]["score"], abs=1e-3)
            print(f"{one.name}, {file.name}: {left['trust']['verdict']} on both sides")
            if left["values"] is None:  # of several images a map without evidence is not made; of one alone it is
                continue
            maps = torch.tensor(left["values"]), torch.tensor(right["values"])
            torch.testing.assert_close(*maps, atol=CLOSE * float(maps[0].abs().max()), rtol=0)


def test_whoever_is_asked_answers_alike(tmp_path: Path) -> None:
    found = families(tmp_path)
    served = [f"{one.name}{kind}={path}" for one in found for kind, path in (("", one.model), ("-onnx", one.export))]
    with serving([*served, "--workers", "1", "--timeout", "60"], tmp_path / "log.txt") as server:
        must_answer_alike(found, server)
        must_explain_alike(found, server, tmp_path)
        assert server.stop() == 0
        assert "Traceback" not in server.text
