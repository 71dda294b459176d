"""Exports to ONNX: a file that answers alike, planted faults that the proof finds, and what is refused."""

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from PIL import Image

import vitrail
from tests.deploy.small import exported, small_model
from tests.errors import must_raise
from vitrail.deploy.onnx import Weights, contract_of, store, stored_network, to_bytes
from vitrail.deploy.proof import prove_file
from vitrail.errors import DataError, UsageError
from vitrail.model.contract import KEY, read_contract, version_of
from vitrail.model.model import resize_model
from vitrail.model.onnx_file import open_onnx, relative_gap
from vitrail.nn.networks import weights_hash


def test_an_export_is_a_model_that_answers_alike_at_any_size_and_batch():
    model, opened = small_model(), vitrail.load(exported())
    assert opened.output == model.output
    assert opened.preprocessing == model.preprocessing
    pixels = torch.randint(0, 256, (5, 3, 24, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    for count in (1, 3, 5):
        inputs = model.preprocessing.normalise(pixels[:count])
        with torch.no_grad():
            assert relative_gap(model.network(inputs), opened.network(inputs)) < 1e-5
    larger = resize_model(model, (40, 16))
    inputs = larger.preprocessing.normalise(torch.randint(0, 256, (2, 3, 40, 16), dtype=torch.uint8))
    with torch.no_grad():
        assert relative_gap(larger.network(inputs), opened.network(inputs)) < 1e-5
    image = np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8)
    ours, theirs = (one.predict(image, coverage=0.9)[0].to_dict() for one in (model, opened))
    assert theirs["set"] == ours["set"]
    assert theirs["probability"] == pytest.approx(ours["probability"], abs=1e-4)


def test_no_path_of_a_machine_is_in_the_file():
    content = exported().read_bytes()
    for part in (str(Path(vitrail.__file__).parent), "site-packages", "/home/", "/tmp", "/root", ".py:", 'File "'):
        assert part.encode() not in content, part
    strings = re.findall(rb"(?:/[\w.-]{2,}){3,}", content)
    assert not strings, strings[:5]
    assert "…/photos/bees" in json.loads(onnx.load(exported()).metadata_props[0].value)["facts"]["data"]


def weight(proto: onnx.ModelProto, part: str) -> onnx.TensorProto:
    return next(held for held in proto.graph.initializer if part in held.name)


def changed(proto: onnx.ModelProto, part: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    held = weight(proto, part)
    held.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(held)).astype(np.float32), held.name))


def stated(proto: onnx.ModelProto, change: Callable[[dict[str, Any]], object]) -> None:
    (entry,) = [each for each in proto.metadata_props if each.key == KEY]
    contract = json.loads(entry.value)
    change(contract)
    entry.value = json.dumps(contract)


def swap_statistics(proto: onnx.ModelProto) -> None:
    mean, std = weight(proto, "mean"), weight(proto, "std")
    mean.name, std.name = std.name, mean.name


def freeze_batch(proto: onnx.ModelProto) -> None:
    for named in (*proto.graph.input, *proto.graph.output):
        named.type.tensor_type.shape.dim[0].dim_value = 2


def drop_norm(proto: onnx.ModelProto) -> None:
    norms = [node for node in proto.graph.node if node.op_type == "LayerNormalization"]
    last = norms[-1]
    at = list(proto.graph.node).index(last)
    proto.graph.node.remove(last)
    proto.graph.node.insert(at, onnx.helper.make_node("Identity", [last.input[0]], [last.output[0]]))


def reorder_patches(proto: onnx.ModelProto) -> None:
    """The positions of the patches in the opposite order, in whatever shape they are held."""
    own = np.sort(small_model().network.pos_embed.detach().numpy()[:, 1:].flatten())
    for held in proto.graph.initializer:
        array = numpy_helper.to_array(held)
        if array.size == own.size and np.allclose(np.sort(array.flatten()), own):
            turned = np.ascontiguousarray(array.reshape(-1, 32)[::-1].reshape(array.shape))
            held.CopyFrom(numpy_helper.from_array(turned, held.name))
            return
    pytest.fail("no positions are held")


def overflow(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flat[7] = np.float32(np.inf)
    return array


def declare(proto: onnx.ModelProto) -> None:
    proto.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 7


def state_twice(proto: onnx.ModelProto) -> None:
    proto.metadata_props.insert(0, proto.metadata_props[0])


FAULTS: dict[str, Callable[[onnx.ModelProto], object]] = {
    "output bias": lambda proto: changed(proto, "head.bias", lambda array: array + 0.01 * (array == array.max())),
    "frozen batch": freeze_batch,
    "mean and std swapped": swap_statistics,
    "class order": lambda proto: stated(proto, lambda found: found["answer"][0]["names"].reverse()),
    "fp16 infinity": lambda proto: changed(proto, "patch_embed.proj.weight", overflow),
    "dropped norm": drop_norm,
    "resize rule": lambda proto: stated(proto, lambda found: found["input"].update(interpolation="bilinear")),
    "patches out of order": reorder_patches,
    "a format that the oldest runtime does not read": lambda proto: setattr(proto, "ir_version", 10),
    "another width is declared": declare,
    "two contracts": state_twice,
    "a path": lambda proto: setattr(proto.graph.node[0], "doc_string", str(Path(torch.__file__).parent)),
    "temperature": lambda proto: stated(proto, lambda found: found["answer"][0].update(temperature=1.0)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, tmp_path: Path):
    shutil.copytree(exported().parent, tmp_path, dirs_exist_ok=True)
    proto, model = onnx.load(exported()), small_model()
    FAULTS[fault](proto)
    onnx.save(proto, tmp_path / "model.onnx")
    found = prove_file(model, model.network, contract_of(model, any_size=True), tmp_path / "model.onnx", None, "drawn")
    assert found.faults


def test_a_right_file_has_no_fault():
    model = small_model()
    found = prove_file(model, model.network, contract_of(model, any_size=True), exported(), None, "drawn")
    assert (found.faults, found.flips) == ((), 0)
    assert found.gap < 1e-5


@pytest.mark.parametrize("weights", ["fp16", "int8"])
def test_fewer_bits_are_stored_and_computed_in_fp32(weights: Weights, tmp_path: Path):
    model, proto = small_model(), onnx.load(exported())
    network = stored_network(model, weights)
    state = dict(network.named_parameters())
    for held in proto.graph.initializer:  # the graph of the other network, without a second export
        for name, tensor in state.items():
            array = numpy_helper.to_array(held)
            own, before = tensor.detach().numpy(), dict(model.network.named_parameters())[name].detach().numpy()
            for turned in (lambda each: each, np.transpose):
                if array.shape == turned(before).shape and np.array_equal(array, turned(before)):
                    held.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(turned(own)), held.name))
    store(proto, weights)
    (tmp_path / "model.onnx").write_bytes(to_bytes(proto))
    assert (tmp_path / "model.onnx").stat().st_size < 0.8 * exported().stat().st_size
    pixels = torch.randint(0, 256, (3, 3, 24, 32), dtype=torch.uint8)
    inputs = model.preprocessing.normalise(pixels)
    with torch.no_grad():
        wanted, exact = network(inputs), model.network(inputs)
    assert relative_gap(wanted, open_onnx(tmp_path / "model.onnx").network(inputs)) < 1e-5
    assert 0 < relative_gap(exact, wanted) < {"fp16": 1e-2, "int8": 0.1}[weights]
    own = hashlib.sha256((tmp_path / "model.onnx").read_bytes()).hexdigest()[:16]  # of a file with other numbers
    assert {version_of(stated, tmp_path / "model.onnx") for stated in (contract_of(model, weights), {})} == {own}
    assert version_of(contract_of(model), tmp_path / "nosuch") == weights_hash(model.network)


def test_an_export_is_evaluated_as_its_model_is(tmp_path: Path):
    draw = np.random.default_rng(0)
    rows = ["path,label"]
    for number in range(12):
        Image.fromarray(draw.integers(0, 256, (30, 40, 3), dtype=np.uint8)).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,{('bleu clair', 'g')[number % 2]}")
    (tmp_path / "list.csv").write_text("\n".join(rows))
    ours, theirs = (vitrail.evaluate(one, tmp_path / "list.csv") for one in (small_model(), exported()))
    assert theirs.value == ours.value
    assert theirs.loss == pytest.approx(ours.loss, rel=1e-5)


def test_what_is_no_export_is_refused(tmp_path: Path):
    (tmp_path / "text.onnx").write_text("no graph")
    proto = onnx.load(exported())
    del proto.metadata_props[:]
    onnx.save(proto, tmp_path / "foreign.onnx")
    for name in ("text.onnx", "foreign.onnx", "absent.onnx"):
        with must_raise(DataError):
            vitrail.load(tmp_path / name)
    with must_raise(UsageError):
        vitrail.load(exported(), image_size=64)
    with must_raise(UsageError):
        vitrail.export(small_model(), out=tmp_path / "model.pt")
    with must_raise(UsageError):
        vitrail.export(small_model(), out=tmp_path / "model.onnx", size=(25, 32))
    with must_raise(UsageError):
        vitrail.export(small_model(), out=tmp_path / "foreign.onnx")
    with must_raise(UsageError):
        vitrail.export(small_model(), out=tmp_path / "model.onnx", weights="int8")  # which nobody can count
    (tmp_path / "predict.py").write_text("my own")
    with must_raise(UsageError, "predict.py"):
        vitrail.export(small_model(), out=tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()
    with must_raise(DataError):
        read_contract({KEY: "{"}, "a file")
