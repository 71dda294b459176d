"""A model as one ONNX graph that takes pixels, with all that a reader needs to know in its metadata.

    pixels uint8 (b, h, w, c) -> float, (x / 255 - mean) / std, network -> outputs fp32 (b, v)

How an image file becomes pixels is not in the graph, since no runtime resizes as Pillow does: it is stated, and the
readers beside the file do it. torch's exporter notes for each node where in the sources it came from; that is taken
out, so that no path of a machine leaves the house.
"""

import copy
import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from vitrail.data.preprocessing import LONGEST, Preprocessing
from vitrail.errors import RunError, UsageError, byte_size
from vitrail.io import plain, to_json
from vitrail.model import Model
from vitrail.model.contract import FORMAT, INSTALL, KEY, MAP, OUTPUTS, PIXELS
from vitrail.nn import ViT, evaluating
from vitrail.nn.networks import weights_hash
from vitrail.text import short_paths

OPSET, IR = 18, 8  # what onnxruntime 1.16 reads: of operators, and of the file's own format
RUNTIMES = "onnxruntime 1.16 or newer"
LARGEST = 2**31 - 2**20  # bytes of a file, by its format
LEAST = 1024  # numbers from which on a tensor is stored in fewer bits
GROUP = 32  # numbers of a row that share a scale
Weights = Literal["fp32", "fp16", "int8"]


class FromPixels(nn.Module):
    """Pixels to what a network says of them.

    Args:
        network: Gives outputs, or outputs and a map.
        reads: With mean and standard deviation.
    """

    def __init__(self, network: nn.Module, reads: Preprocessing) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("mean", torch.tensor(reads.mean)[:, None, None])
        self.register_buffer("std", torch.tensor(reads.std)[:, None, None])

    def forward(self, pixels: UInt8[Tensor, "b h w c"]) -> Any:
        """Outputs (b, v), and where the network gives one a map (b, rows, columns)."""
        images = pixels.permute(0, 3, 1, 2).to(torch.float32)
        return self.network((images / 255 - self.mean) / self.std)


def check_installed() -> None:
    """Refuse an export without what writes it, and what it is proved in.

    Raises:
        UsageError: Names what is missing.
    """
    if missing := [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]:
        raise UsageError(f"an export to ONNX needs {', '.join(missing)} (vitrail[onnx])", INSTALL)


def contract_of(
    model: Model, weights: Weights = "fp32", explained: Mapping[str, Any] | None = None, any_size: bool = False
) -> dict[str, Any]:
    """What the file states of a model, as plain values.

    Raises:
        UsageError: Nothing says how its outputs are read: it generates texts, or its codec is one of your own.
    """
    head = [] if model.reads_text else model.output.portable()
    if not head:
        problem = f"the task {model.task.name} gives {model.task.help}, which no reader without vitrail can make"
        hint = "vitrail predict, or a model of another task; a codec of your own needs the method portable"
        raise UsageError(problem, hint)
    return plain(
        {
            "format": FORMAT,
            "made_by": f"vitrail {version('vitrail')}",
            "task": model.task.name,
            "input": model.preprocessing.to_dict(),
            "longest": LONGEST,
            "any_size": any_size,
            "patch": list(model.network.config.patch) if isinstance(model.network, ViT) else [1, 1],
            "answer": head,
            "about": model.about,
            "output": model.output.to_dict(),
            "facts": {name: short_paths(fact) if isinstance(fact, str) else fact for name, fact in model.facts.items()},
            "weights": weights,
            "weights_hash": weights_hash(model.network) if weights == "fp32" else None,
            "opset": OPSET,
            "runtimes": RUNTIMES,
            "explain": explained,
        }
    )


def build(model: Model, contract: Mapping[str, Any], network: nn.Module) -> Any:
    """The graph with its contract, as `onnx.ModelProto`.

    Args:
        model: On the CPU.
        contract: See `contract_of`.
        network: What is traced: that of the model, or the same for any size, or with a map as second output.

    Raises:
        RunError: torch cannot trace the network.
    """
    import onnx

    reads, names = model.preprocessing, [OUTPUTS, *[MAP] * (contract["explain"] is not None)]
    module = FromPixels(network, reads)
    pixels = torch.zeros(2, *reads.size, reads.channels, dtype=torch.uint8)
    free = {0: torch.export.Dim("batch", min=1)}
    if contract["any_size"]:
        names_of = zip(("rows", "columns"), contract["patch"], strict=True)
        free |= {axis: side * torch.export.Dim(name, min=1) for axis, (name, side) in enumerate(names_of, start=1)}
    with evaluating(module), torch.no_grad(), quiet():
        try:
            program = torch.onnx.export(
                module,
                (pixels,),
                dynamo=True,
                opset_version=OPSET,
                input_names=[PIXELS],
                output_names=names,
                dynamic_shapes={"pixels": free},
                verbose=False,
            )
        except Exception as error:  # torch's own, of many kinds, and whatever a part of one's own raises
            cause = error.__cause__ or error
            why = next((line.strip() for line in str(cause).splitlines() if line.strip()), type(cause).__name__)
            problem = f"{_part_of(cause, module)} cannot be written as an ONNX graph ({why[:300]})"
            raise RunError(problem, "a part that does not decide by the numbers it sees") from error
    assert program is not None
    proto = program.model_proto
    _clean(proto)
    onnx.helper.set_model_props(proto, {KEY: to_json(contract, indent=None).strip()})
    proto.ir_version = IR
    proto.producer_name, proto.producer_version = "vitrail", version("vitrail")
    return proto


def _part_of(error: BaseException, module: FromPixels) -> str:
    """Which part of the network was at work when an error came up, by its class and name."""
    names, trace = {id(part): name for name, part in module.network.named_modules()}, error.__traceback__
    found: Any = module.network
    while trace is not None:
        owner, trace = trace.tb_frame.f_locals.get("self"), trace.tb_next
        found = owner if id(owner) in names else found
    place = names[id(found)]
    return f"the part {type(found).__name__} at {place}" if place else f"the network {type(found).__name__}"


@contextmanager
def quiet() -> Iterator[None]:
    """Without what torch and onnxscript print of themselves while they export: notes, and graphs that did not go."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _clean(proto: Any) -> None:
    """Take out all that says where in the sources a node came from, and what shapes the example had."""
    graphs = [proto.graph, *proto.functions]
    del proto.metadata_props[:]
    while graphs:
        graph = graphs.pop()
        for field in ("metadata_props", "value_info"):
            if hasattr(graph, field):
                del getattr(graph, field)[:]
        for node in graph.node:
            del node.metadata_props[:]
            node.doc_string = ""
            graphs += [inner for each in node.attribute for inner in (*each.graphs, *[each.g] * each.HasField("g"))]
    for named in (*proto.graph.input, *proto.graph.output, *proto.graph.initializer):
        named.doc_string = ""
        if hasattr(named, "metadata_props"):
            del named.metadata_props[:]


def to_bytes(proto: Any) -> bytes:
    """The content of the file.

    Raises:
        UsageError: The format has no room for so many numbers.
    """
    if (size := proto.ByteSize()) > LARGEST:
        problem = f"the ONNX file would have {byte_size(size)}, and the format has room for 2.15 GB"
        raise UsageError(problem, "--weights fp16, which takes half")
    return proto.SerializeToString(deterministic=True)


# ---- numbers stored in fewer bits, and computed in fp32


def stored_network(model: Model, weights: Weights) -> nn.Module:
    """The model's network with the numbers that are stored; the same one for fp32.

    Raises:
        UsageError: A number is too large for fp16.
    """
    if weights == "fp32":
        return model.network
    network = copy.deepcopy(model.network)
    with torch.no_grad():
        for name, tensor in network.named_parameters():
            if tensor.dtype != torch.float32 or tensor.numel() < LEAST:
                continue
            if weights == "fp16":
                tensor.copy_(tensor.half().float())
            elif tensor.ndim in (2, 4):
                whole, scale = _as_int8(tensor.flatten(1).numpy())
                tensor.copy_(torch.from_numpy((whole * scale).reshape(tensor.shape)))
            if not bool(tensor.isfinite().all()):
                raise UsageError(f"{name} has numbers above 65,504, the largest of fp16", "--weights int8, or fp32")
    return network


def _as_int8(rows: Float[np.ndarray, "r c"]) -> tuple[np.ndarray, np.ndarray]:
    """Whole numbers -127..127 (r, groups, n), and what each group of a row is multiplied by (r, groups, 1)."""
    group = GROUP if rows.shape[1] % GROUP == 0 else rows.shape[1]
    parts = rows.reshape(len(rows), -1, group)
    scale = np.abs(parts).max(axis=2, keepdims=True) / np.float32(127)
    scale = np.where(scale > 0, scale, 1).astype(np.float32)
    return np.rint(parts / scale).astype(np.int8), scale


def store(proto: Any, weights: Weights) -> None:
    """Store the large tensors of a graph in fewer bits; it begins by making fp32 of them, which runtimes do once.

    Args:
        proto: Of the network that `stored_network` gave, whose numbers have as few.
        weights: How they are stored.
    """
    from onnx import TensorProto, helper, numpy_helper

    added = []
    for held in list(proto.graph.initializer):
        if weights == "fp32" or held.data_type != TensorProto.FLOAT or np.prod(held.dims) < LEAST:
            continue
        tensor, name = numpy_helper.to_array(held), held.name
        half, steps = tensor.astype(np.float16), list[tuple[str, list[str], Any]]()
        parts: dict[str, np.ndarray] = {}
        if weights == "fp16" and np.array_equal(half.astype(np.float32), tensor):
            parts = {"half": half}
        elif weights == "int8" and tensor.ndim in (2, 4):
            for turned in (False, True) if tensor.ndim == 2 else (False,):  # of a product the exporter turns the matrix
                rows = tensor.T if turned else tensor.reshape(len(tensor), -1)
                whole, scale = _as_int8(rows)
                if np.allclose((whole * scale).reshape(rows.shape), rows, rtol=1e-6, atol=0):
                    shape = np.array(rows.shape if turned else tensor.shape, np.int64)
                    parts = {"whole": whole, "scale": scale, "shape": shape}
                    steps = [("Mul", ["scale"], {}), ("Reshape", ["shape"], {})]
                    steps += [("Transpose", [], {"perm": [1, 0]})] * turned
        if not parts:
            continue
        proto.graph.initializer.remove(held)
        stored = {part: f"{name}.{part}" for part in parts}
        proto.graph.initializer.extend(numpy_helper.from_array(parts[part], stored[part]) for part in parts)
        at, fp32 = next(iter(stored.values())), dict[str, Any](to=TensorProto.FLOAT)
        for number, (kind, more, how) in enumerate([("Cast", [], fp32), *steps]):
            made = name if number == len(steps) else f"{name}.{kind}"
            added.append(
                helper.make_node(kind, [at, *(stored[part] for part in more)], [made], f"{name}.{number}", **how)
            )
            at = made
    nodes = list(proto.graph.node)
    del proto.graph.node[:]
    proto.graph.node.extend([*added, *nodes])
