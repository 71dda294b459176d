"""The readers beside an exported file: they see the pixels that vitrail sees, and say what it says, or refuse by name.

The files here are made by hand (a mean over pixels, a matrix), so that no export is needed. predict.js is tried where
node finds sharp and a runtime, by itself or in the folder that VITRAIL_NODE_MODULES names.
"""

import hashlib
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib.machinery import SourceFileLoader
from itertools import cycle
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.data import zoo
from tests.real import real_data, real_photographs
from vitrail.data.images import NamedImage, open_image
from vitrail.data.preprocessing import LONGEST, Preprocessing
from vitrail.deploy.server.exports import open_export
from vitrail.errors import DataError, UsageError
from vitrail.tasks import Codec
from vitrail.tasks.attributes import Attributes
from vitrail.tasks.calibration import Calibration
from vitrail.tasks.classify import Classes
from vitrail.tasks.features import Numbers
from vitrail.tasks.multilabel import MultiLabels
from vitrail.tasks.regression import Standardized

DEPLOY = Path(vitrail.__file__).parent / "deploy"
PYTHON, NODE = DEPLOY / "predict.py.txt", DEPLOY / "predict.js"
GREY = {"channels": 1, "mean": (0.5,), "std": (0.5,)}
LIMITS = tuple(None if place > 190 else round(place / 200, 3) for place in range(199))
CODECS: dict[str, tuple[Codec, Any]] = {
    "classes": (Classes(("cat", "dog", "crêpe")), None),
    "sets": (Classes(("cat", "dog", "owl"), calibration=Calibration("val", 60, 1.7, 0.9, (LIMITS,))), 0.43),
    "every set": (Classes(("cat", "dog", "owl"), calibration=Calibration("val", 60, 0.6, 0.9, (LIMITS,))), 0.999),
    "near": (Classes(("cat", "dog", "owl"), calibration=Calibration("val", 60, 1.0, 0.9, ((0.6995,) * 199,))), 0.5),
    "at the limit": (
        Classes(("cat", "dog", "owl"), calibration=Calibration("val", 60, limits=((0.69999,) * 199,))),
        0.5,
    ),
    "labels": (MultiLabels(("cat", "dog", "owl"), (), (0.5, 0.2, 0.9), Calibration("val", 60, 1.3)), None),
    "attributes": (Attributes(("form", "2"), (("blue", "red"), ("round", "long", "flat"))), None),
    "numbers": (Standardized(("count", "age"), (120.0, 3.0), (40.0, 0.5)), None),
    "intervals": (Standardized(("count",), (9.0,), (4.0,), Calibration("val", 60, limits=(LIMITS,))), 0.5),
    "usual intervals": (Standardized(("count",), (9.0,), (4.0,), Calibration("val", 60, limits=(LIMITS,))), None),
    "features": (Numbers(4), None),
}
ONLY_PYTHON = {"avif", "bmp", "gif", "heic", "j2k", "jp2", "pbm", "pgm", "ppm", "tif", "tiff"}  # what node refuses
DEEP = {"16 bits 2.png", "16 bits 4.png", "16 bits 6.png"}  # colours of 16 bits
NOT_PYTHON = {*DEEP, "16 bits a colour.tif", "32 bits, signed.tif", "phone.heic"}
READS = (
    Preprocessing((16, 24)),
    Preprocessing((24, 24), crop_pct=0.8, pad_value=(9, 80, 200), **GREY),
    Preprocessing((20, 28), "pad", pad_value=(10, 200, 30), interpolation="bilinear", bits=12),
)


# ---- what a file holds


def contract_of(codec: Codec, reads: Preprocessing, **more: Any) -> dict[str, Any]:
    of = {"format": 1, "input": reads.to_dict(), "longest": LONGEST, "any_size": False, "patch": [4, 4]}
    return {**of, "answer": codec.portable(), **more}


def made(path: Path, codec: Codec, reads: Preprocessing, contract: object = None, mapped: bool = False) -> Path:
    """An ONNX file whose outputs are the mean of each channel times a matrix; its map is the mean over channels."""
    onnx = pytest.importorskip("onnx")
    helper, kinds = onnx.helper, onnx.TensorProto
    channels, sides = reads.channels, ["h", "w"] if contract and "any_size" in str(contract) else list(reads.size)
    weights = onnx.numpy_helper.from_array(matrix(codec, channels), "weights")
    nodes = [
        helper.make_node("Cast", ["pixels"], ["floats"], to=kinds.FLOAT),
        helper.make_node("ReduceMean", ["floats", "space"], ["means"], keepdims=0),
        helper.make_node("MatMul", ["means", "weights"], ["outputs"]),
        helper.make_node("ReduceMean", ["floats", "last"], ["map"], keepdims=0),
    ]
    axes = [helper.make_tensor("space", kinds.INT64, [2], [1, 2]), helper.make_tensor("last", kinds.INT64, [1], [3])]
    given = helper.make_tensor_value_info("pixels", kinds.UINT8, ["batch", *sides, channels])
    outputs = [helper.make_tensor_value_info("outputs", kinds.FLOAT, ["batch", codec.outputs])]
    outputs += [helper.make_tensor_value_info("map", kinds.FLOAT, ["batch", *sides])] if mapped else []
    graph = helper.make_graph(nodes[: 3 + mapped], "tiny", [given], outputs, [weights, *axes[: 1 + mapped]])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8, producer_name="by-hand")
    if contract is None or contract:
        text = json.dumps(contract or contract_of(codec, reads), ensure_ascii=False)
        helper.set_model_props(model, {"other": "x" * 300, "vitrail": text})
    path.write_bytes(model.SerializeToString())
    return path


def matrix(codec: Codec, channels: int) -> np.ndarray:
    return (np.random.default_rng(3).standard_normal((channels, codec.outputs)) / 40).astype(np.float32)


def files_of(folder: Path) -> list[str]:
    """Three images, large and small, one of them turned."""
    drawn = np.random.default_rng(0)
    for name, shape in (("tall.png", (90, 41, 3)), ("wide.png", (17, 120, 4)), ("é grey.png", (8, 9))):
        Image.fromarray(drawn.integers(0, 256, shape, dtype=np.uint8)).save(folder / name, exif=zoo.exif_of(6))
    return ["tall.png", "wide.png", "é grey.png"]


def wanted(codec: Codec, reads: Preprocessing, files: Sequence[Path], coverage: float | None = None) -> list[Any]:
    """What vitrail says of files, by outputs that numpy has of its own pixels."""
    pixels = np.stack([reads.to_uint8(open_image(file)).numpy() for file in files]).astype(np.float64)
    return said_of(codec, (pixels.mean(axis=(2, 3)) @ matrix(codec, reads.channels)).astype(np.float32), coverage)


def said_of(codec: Codec, outputs: np.ndarray, coverage: float | None) -> list[Any]:
    found = codec.promising(coverage).answer(torch.from_numpy(outputs), [""] * len(outputs))
    plain = json.loads(json.dumps([one.to_dict() for one in found]))
    return [{key: value for key, value in one.items() if key not in ("file", "notes")} for one in plain]


def assert_same(found: Any, expected: Any, gap: float = 2e-6) -> None:
    """Equal keys in their order, texts and counts; numbers up to rounding."""
    assert type(found) is type(expected) or isinstance(found, int | float)
    if isinstance(expected, dict):
        assert {*found} == {*expected}
        in_order = [key for key in expected if not key.isdecimal()]  # JavaScript puts numbers first
        assert [key for key in found if key in in_order] == in_order
        assert_same([found[key] for key in expected], [*expected.values()], gap)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other, gap)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=gap, abs=gap)
    else:
        assert found == expected


# ---- how both are called


@cache
def reader() -> ModuleType:
    pytest.importorskip("onnxruntime")
    loader = SourceFileLoader("predict", str(PYTHON))
    spec = importlib.util.spec_from_loader("predict", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@cache
def node() -> tuple[str, dict[str, str]]:
    """The command, and an environment in which it finds sharp and a runtime; what needs them skips elsewhere."""
    command, environment = shutil.which("node"), dict(os.environ)
    if named := os.environ.get("VITRAIL_NODE_MODULES"):
        environment["NODE_PATH"] = named
    if command is None:
        pytest.skip("predict.js is not tried: there is no node")
    either = "try { require.resolve('onnxruntime-node') } catch { require.resolve('onnxruntime-web') }"
    asked = f"require.resolve('sharp'); {either}"
    tried = subprocess.run([command, "-e", asked], env=environment, cwd=DEPLOY, capture_output=True, check=False)
    if tried.returncode:
        pytest.skip("predict.js is not tried: set VITRAIL_NODE_MODULES to a folder with sharp and onnxruntime-node")
    return command, environment


def run_node(script: Path | str, *words: object, folder: Path) -> "subprocess.CompletedProcess[str]":
    command, environment = node()
    given = [command, script, *map(str, words)]
    return subprocess.run(given, env=environment, cwd=folder, capture_output=True, text=True, check=False, timeout=60)


def by_node(jobs: Sequence[dict[str, Any]], folder: Path) -> list[Any]:
    """Pixels of files (None where they are refused) and answers to outputs, all in one process."""
    code = f"""
    const fs = require("fs"), {{ prepare, answer }} = require({json.dumps(str(NODE))});
    (async () => {{
      const found = [];
      for (const [i, job] of JSON.parse(fs.readFileSync("jobs.json")).entries()) {{
        if (job.outputs) {{ found.push(answer(job.outputs, job.contract, job.coverage)); continue; }}
        const pixels = await prepare(job.file, job.contract).catch((error) => String(error.message));
        if (typeof pixels !== "string") fs.writeFileSync(`${{i}}.pixels`, pixels);
        found.push(typeof pixels === "string" ? pixels : null);
      }}
      fs.writeFileSync("found.json", JSON.stringify(found));
    }})();"""
    (folder / "jobs.json").write_text(json.dumps(jobs))
    (folder / "jobs.js").write_text(code)
    done = run_node("jobs.js", folder=folder)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "found.json").read_text(encoding="utf-8"))


def mains_in_node(every: Sequence[Sequence[str]], folder: Path) -> "list[subprocess.CompletedProcess[str]]":
    """Several command lines, in one process."""
    code = """
    const { main } = require("./predict.js"), print = console.log;
    (async () => {
      for (const words of JSON.parse(process.argv[2])) {
        const said = { out: "", err: "" };
        console.log = (text) => (said.out += text + "\\n");
        console.error = (text) => (said.err += text + "\\n");
        process.argv = ["node", "predict.js", ...words];
        process.exitCode = 0;
        await main();
        print(JSON.stringify({ ...said, code: process.exitCode }));
      }
      process.exitCode = 0;
    })();"""
    (folder / "mains.js").write_text(code)
    done = run_node("mains.js", json.dumps(every), folder=folder)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return [subprocess.CompletedProcess("node", one["code"], one["out"], one["err"]) for one in found]


def stated(name: str, content: bytes, reads: Preprocessing) -> np.ndarray | None:
    """The pixels that vitrail sees (height, width, channels); None where it refuses."""
    try:
        return reads.to_uint8(open_image(name, content)).numpy().transpose(1, 2, 0)
    except DataError:
        return None


def drawn_cases(seed: int, count: int) -> list[tuple[Image.Image, Preprocessing]]:
    """Images of many sizes, and ways to resize them: enlarged, shrunk, elongated."""
    random, found = np.random.default_rng(seed), []
    for number in range(count):
        high, wide = (int(each) for each in random.integers(1, 160, 2))
        if number % 5 == 0:
            high, wide = [(2, 400), (400, 2), (300, 31)][number // 5 % 3]
        size = tuple(int(each) for each in random.integers(8, 70, 2))
        how = ("crop", "squash", "pad")[number % 3]
        reads = Preprocessing(
            (size[0], size[0]) if number % 2 else size,
            how,
            1.0 if how == "pad" else float(random.choice([1, 0.9, 0.875, 0.4])),
            ("bicubic", "bilinear", "bicubic", "nearest")[number % 4],
            centre=("even", "down")[number % 4 == 0],
            **(GREY if number % 7 == 0 else {}),
        )
        pixels = random.integers(0, 256, (high, wide, 3)[: 2 + (number % 4 > 0)], dtype=np.uint8)
        found.append((Image.fromarray(pixels), reads))
    return found


# ---- pixels


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data", "ignore:Truncated File Read")
def test_python_sees_the_pixels_that_vitrail_sees() -> None:
    prepare, left = reader().prepare, set()
    for reads in READS:
        contract = contract_of(Numbers(1), reads)
        for name, content in [*((one, kept.content) for one, kept in zoo.readable().items()), *zoo.refused().items()]:
            expected = stated(name, content, reads)
            try:
                found = prepare(io.BytesIO(content), contract)
            except Exception:  # of Pillow's readers, too
                left |= {name} if expected is not None else set()
                continue
            assert expected is not None, (name, reads)
            assert np.array_equal(found, expected), (name, reads)
    assert left <= {*NOT_PYTHON, "to 65535.pgm"}
    for image, reads in drawn_cases(1, 120):
        found = prepare(image, contract_of(Numbers(1), reads))
        assert np.array_equal(found, reads.to_array(image).reshape(found.shape)), (image.size, reads)


def compare_in_node(cases: Sequence[tuple[str, bytes, Preprocessing]], folder: Path) -> set[str]:
    """The pixels of each file are those of vitrail, or it is refused; the names of those that node alone refuses."""
    for number, (_, content, _) in enumerate(cases):
        (folder / f"{number}.file").write_bytes(content)
    contracts = [contract_of(Numbers(1), reads) for *_, reads in cases]
    jobs = [{"file": f"{number}.file", "contract": contract} for number, contract in enumerate(contracts)]
    left = set()
    for number, ((name, content, reads), problem) in enumerate(zip(cases, by_node(jobs, folder), strict=True)):
        expected = stated(name, content, reads)
        if problem is not None:
            assert "try: " in problem or expected is None or name.rpartition(".")[2] in ONLY_PYTHON, (name, problem)
            left |= {name} if expected is not None else set()
            continue
        assert expected is not None, (name, reads)
        assert (folder / f"{number}.pixels").read_bytes() == expected.tobytes(), (name, reads)
    return left


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data", "ignore:Truncated File Read")
def test_node_sees_the_pixels_that_vitrail_sees(tmp_path: Path) -> None:
    kept = [(name, kept.content) for name, kept in zoo.readable().items()] + [*zoo.refused().items()]
    cases = [(name, content, reads) for reads in READS for name, content in kept]
    cases += [("drawn.png", zoo.saved(image, "PNG"), reads) for image, reads in drawn_cases(2, 60)]
    left = compare_in_node(cases, tmp_path)
    assert {name for name in left if name.rpartition(".")[2] not in ONLY_PYTHON} <= DEEP


@pytest.mark.soak
def test_a_hundred_photographs_in_node(tmp_path: Path) -> None:
    reads = Preprocessing((224, 224), crop_pct=0.9)
    cases = [(path.name, path.read_bytes(), reads) for path in real_photographs(real_data())]
    assert len(cases) == 100
    assert compare_in_node(cases, tmp_path) == set()


# ---- answers


def drawn_outputs(codec: Codec) -> np.ndarray:
    """Outputs of every sureness; all the same in one row, and in the last probabilities of 0.5, 0.3 and 0.2."""
    sizes, known = np.array([0.1, 1, 3, 10, 60, 0])[:, None], np.log([0.5, 0.3, 0.2, 0.1, 0.1])[None]
    drawn = sizes * np.random.default_rng(5).standard_normal((6, codec.outputs))
    return np.concatenate([drawn, known[:, : codec.outputs]]).astype(np.float32)


def test_python_says_what_vitrail_says() -> None:
    for codec, coverage in CODECS.values():
        outputs, contract = drawn_outputs(codec), contract_of(codec, READS[0])
        assert_same(
            json.loads(json.dumps(reader().answer(outputs, contract, coverage))), said_of(codec, outputs, coverage)
        )


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data", "ignore:Truncated File Read")
def test_a_server_says_of_an_export_what_vitrail_says(tmp_path: Path) -> None:
    """Of images of every kind that vitrail reads; so many names as are asked for, and the version of the weights."""
    images = [NamedImage(name, open_image(name, kept.content)) for name, kept in zoo.readable().items()]
    for (name, (codec, coverage)), reads, most in zip(CODECS.items(), cycle(READS), cycle((None, 1, 2)), strict=False):
        fits = [one for one in images if stated(one.name, zoo.readable()[one.name].content, reads) is not None]
        about = contract_of(codec, reads, facts={"verified": "seen"}, about="what they are", task="", output={})
        file = made(tmp_path / f"{name}.onnx", codec, reads, about)
        served = open_export("m", str(file), {"mean": None}, 1)
        (found,) = served.routes["predict"](fits, {"coverage": coverage, "top": most}).values()
        pixels = np.stack([reads.to_uint8(one.image).numpy() for one in fits]).astype(np.float64)
        outputs = (pixels.mean(axis=(2, 3)) @ matrix(codec, reads.channels)).astype(np.float32)
        known = replace(codec, most=most) if most and codec.most is not None else codec
        for one, said, expected in zip(fits, found, said_of(known, outputs, coverage), strict=True):
            assert (said.pop("file"), said.pop("compute_dtype")) == (one.name, "fp32")
            assert said.pop("about_probabilities") == "what they are"
            assert_same(json.loads(json.dumps(said)), expected, 1e-5)
        has_sets = name in ("sets", "every set", "near", "at the limit", "intervals", "usual intervals")
        assert served.sets == has_sets
        assert served.notes == ["seen; licence not stated"]
        assert served.version == hashlib.sha256(file.read_bytes()).hexdigest()[:12]
        with pytest.raises(UsageError):
            served.routes["predict"](fits[:1], {"coverage": 1.5 if has_sets else 0.9})
        with pytest.raises(UsageError):
            open_export("m", str(file), {"mean": (0.5,)}, 1)


def test_node_says_what_vitrail_says(tmp_path: Path) -> None:
    jobs = []
    for codec, coverage in CODECS.values():
        contract = contract_of(codec, READS[0])
        jobs.append({"outputs": drawn_outputs(codec).tolist(), "contract": contract, "coverage": coverage or 0})
    for found, (codec, coverage) in zip(by_node(jobs, tmp_path), CODECS.values(), strict=True):
        assert_same(found, said_of(codec, drawn_outputs(codec), coverage))


# ---- the command lines


def check_command(call: Any, folder: Path) -> None:
    """From image files to JSON: by batches, with outputs, a coverage and a map."""
    codec, coverage = CODECS["sets"]
    reads, names = Preprocessing((12, 20), crop_pct=0.8), files_of(folder)
    made(folder / "fixed.onnx", codec, reads, mapped=True)
    done = call("fixed.onnx", *names, "--json", "--outputs", "--batch", 2, "--coverage", coverage)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [one.pop("file") for one in found] == names
    maps, outputs = ([one.pop(key) for one in found] for key in ("map", "outputs"))
    paths = [folder / name for name in names]
    assert_same(found, wanted(codec, reads, paths, coverage), 1e-5)
    pixels = np.stack([reads.to_uint8(open_image(path)).numpy() for path in paths])
    assert np.allclose(maps, pixels.mean(axis=1), rtol=1e-5)
    assert np.allclose(outputs, pixels.mean(axis=(2, 3)) @ matrix(codec, 3), rtol=1e-4, atol=1e-4)


def check_size(call: Any, folder: Path) -> None:
    """Images of another size than that of the file, as JSON and as lines for people."""
    codec, reads, names = CODECS["labels"][0], Preprocessing((8, 8), "squash", **GREY), files_of(folder)
    paths = [folder / name for name in names]
    other = Preprocessing((16, 12), "squash", **GREY)
    made(folder / "any.onnx", codec, reads, contract_of(codec, reads, any_size=True))
    done = call("any.onnx", *names, "--json", "--size", "16x12")
    found = json.loads(done.stdout)
    assert_same(
        [{**one, "file": ""} for one in found], [{"file": "", **one} for one in wanted(codec, other, paths)], 1e-5
    )
    for line, name, one in zip(
        call("any.onnx", *names).stdout.splitlines(), names, wanted(codec, reads, paths), strict=True
    ):
        assert line == f"{name} " + (
            ", ".join(f"{key} {value:.2f}" for key, value in one["probabilities"].items()) or "none"
        )
    onnx, numbers = pytest.importorskip("onnx"), CODECS["numbers"][0]
    twice = onnx.load(made(folder / "twice.onnx", numbers, reads))
    twice.metadata_props.insert(0, onnx.StringStringEntryProto(key="vitrail", value=json.dumps({"format": 1})))
    onnx.save(twice, folder / "twice.onnx")  # of a key that stands there twice a runtime takes the last
    for line, name, one in zip(
        call("twice.onnx", *names).stdout.splitlines(), names, wanted(numbers, reads, paths), strict=True
    ):
        found = re.fullmatch(rf"{re.escape(name)} count (\S+), age (\S+)", line)
        assert found, line
        assert [float(word) for word in found.groups()] == pytest.approx([*one["values"].values()], rel=6e-4)


def check_refusals(call: Any, folder: Path) -> None:
    """One line and a hint, code 2: nothing is printed, and no traceback."""
    codec, reads = CODECS["classes"][0], Preprocessing((8, 8))
    (image, *_), contract = files_of(folder), contract_of(codec, reads)
    made(folder / "good.onnx", codec, reads)
    made(folder / "bare.onnx", codec, reads, contract={})
    made(folder / "newer.onnx", codec, reads, {**contract, "format": 2})
    made(folder / "odd.onnx", codec, reads, {**contract, "answer": [{"kind": "ordinal", "names": ["a", "b", "c"]}]})
    made(folder / "few.onnx", codec, reads, {**contract, "answer": Classes(("a", "b")).portable()})
    made(folder / "any.onnx", codec, reads, {**contract, "any_size": True})
    (folder / "text.jpg").write_text("no image")
    (folder / "half.jpg").write_bytes(zoo.refused()["half.jpg"])
    refused = {
        ("good.onnx", "text.jpg"): "text.jpg",
        ("good.onnx", image, "half.jpg"): "half.jpg",
        ("good.onnx", "gone.jpg"): "gone.jpg",
        ("text.jpg", image): "text.jpg",
        ("gone.onnx", image): "gone.onnx",
        ("bare.onnx", image): "by-hand",
        ("newer.onnx", image): "2",
        ("odd.onnx", image): "ordinal",
        ("few.onnx", image): "few.onnx",
        ("good.onnx", image, "--size", "16x16"): "16x16",
        ("any.onnx", image, "--size", "10x16"): "10x16",
        ("any.onnx", image, "--size", "16"): "16",
        ("good.onnx", image, "--coverage", "0.9"): "0.9",
        ("good.onnx",): "images",
        ("good.onnx", image, "--odd"): "--odd",
    }
    every = call([[*words, "--json"] for words in refused])
    for (words, named), done in zip(refused.items(), every, strict=True):
        assert (done.returncode, done.stdout) == (2, ""), words
        first, *rest = done.stderr.splitlines()
        assert first.startswith("error: "), words
        assert named in first, words
        assert [line[:5] for line in rest] == ["try: "], (words, done.stderr)


def test_the_command_in_python(tmp_path: Path) -> None:
    shutil.copy(PYTHON, tmp_path / "predict.py")

    def call(*words: object) -> "subprocess.CompletedProcess[str]":
        given = [sys.executable, "-I", "predict.py", *map(str, words)]
        return subprocess.run(given, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)

    check_command(call, tmp_path)


def test_sizes_and_refusals_in_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def call(*words: object) -> "subprocess.CompletedProcess[str]":
        monkeypatch.setattr(sys, "argv", ["predict.py", *map(str, words)])
        code = 0
        try:
            reader().main()
        except SystemExit as end:
            code = int(str(end.code))
        shown = capsys.readouterr()
        return subprocess.CompletedProcess(words, code, shown.out, shown.err)

    check_size(call, tmp_path)
    check_refusals(lambda every: [call(*words) for words in every], tmp_path)


def test_both_print_the_same_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    node()
    shutil.copy(NODE, tmp_path)
    monkeypatch.chdir(tmp_path)
    names, every = files_of(tmp_path), []
    for number, (codec, _) in enumerate(CODECS.values()):
        made(tmp_path / f"{number}.onnx", codec, Preprocessing((8, 8)))
        every.append([f"{number}.onnx", *names])
    for words, done in zip(every, mains_in_node(every, tmp_path), strict=True):
        monkeypatch.setattr(sys, "argv", ["predict.py", *words])
        reader().main()
        assert capsys.readouterr().out == done.stdout
        assert len(done.stdout.splitlines()) == len(names)


def test_a_runtime_that_is_missing_is_named(tmp_path: Path) -> None:
    code = f"import runpy, sys; sys.modules['onnxruntime'] = None; runpy.run_path({str(PYTHON)!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, "onnxruntime" in done.stderr.splitlines()[0]) == (2, True)
    shutil.copy(NODE, tmp_path)
    command, environment = node()
    bare = {name: value for name, value in environment.items() if name != "NODE_PATH"}
    given = [command, "predict.js", "x.onnx", "x.jpg"]
    done = subprocess.run(given, env=bare, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, "onnxruntime-node" in done.stderr.splitlines()[0]) == (2, True)


def test_the_command_in_node(tmp_path: Path) -> None:
    shutil.copy(NODE, tmp_path)
    check_command(lambda *words: run_node("predict.js", *words, folder=tmp_path), tmp_path)


def test_sizes_and_refusals_in_node(tmp_path: Path) -> None:
    shutil.copy(NODE, tmp_path)
    check_size(lambda *words: run_node("predict.js", *words, folder=tmp_path), tmp_path)
    check_refusals(lambda every: mains_in_node(every, tmp_path), tmp_path)
