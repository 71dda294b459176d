"""Frozen values: what is kept of an answer, on which machine it was found, and where two of them differ."""

import hashlib
import json
import math
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ARITHMETIC = ("sse", "ssse", "avx", "fma", "f16c", "amx")
MASKED = ("seconds", "milliseconds")  # keys whose values differ from one call to the next
SAID = ("verdict",)  # keys whose words are kept, although they have spaces
BITS = ("sha256", "weights")  # keys whose values say nothing where bits may differ

# How far numbers may lie from each other where bits may differ. With SSE alone in the place of AVX-512 the largest
# distance was 3e-5 of the value or 2e-5, but for the biases of queries and keys, at 1.4e-4: a key's bias has no
# gradient but rounding, and Adam makes steps of it.
RELATIVE = 1e-3
ABSOLUTE = 1e-4
ABSOLUTE_QKV_BIAS = 1e-3

FILE = Path(__file__).with_name("frozen.json")


PROCESSOR = "vendor_id", "cpu family", "model", "stepping", "cache size"  # the last decides how products are cut


def machine() -> dict[str, Any]:
    """What decides the bits of an answer: processor, versions, threads."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().split("\n\n")[0].splitlines() if info.is_file() else []
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return {
        "processor": [platform.machine(), *(facts.get(name, "") for name in PROCESSOR)],
        "flags": sorted(flag for flag in facts.get("flags", "").split() if flag.startswith(ARITHMETIC)),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }


def readable(value: Any, key: str = "") -> Any:
    """The value without what is volatile: times are left out, and of prose only that it is there."""
    match value:
        case Tensor():
            return readable(value.tolist())
        case Mapping():
            return {str(key): "masked" if key in MASKED else readable(inner, str(key)) for key, inner in value.items()}
        case list() | tuple():
            return [readable(inner) for inner in value]
        case str() if " " in value and key not in SAID:
            return "prose"
    return value


def summary(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Of each tensor its shape, the hash of its bits, and three numbers: its root mean square and two projections."""
    found = {}
    for name, tensor in sorted(tensors.items()):
        flat = tensor.detach().cpu().double().flatten()
        steps = torch.arange(1, flat.numel() + 1, dtype=torch.float64)
        root = math.sqrt(flat.numel())
        bits = tensor.detach().cpu().contiguous().numpy().tobytes()
        numbers = [flat.norm() / root, (flat @ torch.cos(steps)) / root, (flat @ torch.sin(steps * steps)) / root]
        found[name] = {
            "shape": list(tensor.shape),
            "sha256": hashlib.sha256(bits).hexdigest()[:16],
            "numbers": [float(f"{number:.9g}") for number in numbers],
        }
    return found


def differences(frozen: Any, found: Any, exactly: bool, where: str = "") -> Iterator[str]:
    """Where two answers differ, one line each.

    Args:
        frozen: The recorded answer.
        found: What is answered now.
        exactly: Compare every number and hash to the last bit; else numbers within `RELATIVE` and `ABSOLUTE`.
        where: The place inside of the whole answer.
    """
    match frozen, found:
        case dict(), dict():
            for key in sorted({*frozen, *found}):
                if key not in found or key not in frozen:
                    yield f"{where}/{key}: {'gone' if key in frozen else 'new'}"
                elif exactly or key not in BITS:
                    yield from differences(frozen[key], found[key], exactly, f"{where}/{key}")
        case list(), list():
            if len(frozen) != len(found):
                yield f"{where}: {len(frozen)} entries -> {len(found)}"
            for index, pair in enumerate(zip(frozen, found, strict=False)):
                yield from differences(*pair, exactly, f"{where}/{index}")
        case float(), float() if not exactly and frozen == frozen:
            least = ABSOLUTE_QKV_BIAS if ".qkv.bias/" in where else ABSOLUTE
            if not math.isclose(frozen, found, rel_tol=RELATIVE, abs_tol=least):
                yield f"{where}: {frozen} -> {found}"
        case _:
            same = frozen == found or (frozen != frozen and found != found)
            if type(frozen) is not type(found) or not same:
                yield f"{where}: {frozen!r} -> {found!r}"


def told(value: Any, depth: int = 0) -> str:
    """JSON in which an entry that fits into one line has one, so that a change shows as few lines."""
    line = json.dumps(value, ensure_ascii=False)
    if len(line) < 160 or not isinstance(value, dict | list):
        return line
    pad, rows = " " * (depth + 1), []
    if isinstance(value, dict):
        rows = [f"{pad}{json.dumps(key)}: {told(inner, depth + 1)}" for key, inner in value.items()]
        return "{\n" + ",\n".join(rows) + "\n" + " " * depth + "}"
    rows = [pad + told(inner, depth + 1) for inner in value]
    return "[\n" + ",\n".join(rows) + "\n" + " " * depth + "]"
