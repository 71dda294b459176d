"""Run as a separate process: `python unpickle.py FILE OUT BYTES` reads a pickle of tensors and writes safetensors.

It imports nothing of vitrail. Its memory is limited before torch opens the file; `weights_only=True` runs no code that
the file names. Beside tensors an `argparse.Namespace` may be in it, the options of a training, as in timm's files. A
refusal is one line on stderr.
"""

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MOST = 4  # times the size of the file: tensors that share memory are written one by one
SLACK = 2**20  # bytes


def states_in(content: Any, front: str, found: dict[str, Any], seen: set[int]) -> None:
    """Add the states of a checkpoint, which have kernels or maps by name, by where they are: such as `model.`."""
    if not isinstance(content, Mapping) or id(content) in seen or not all(type(name) is str for name in content):
        return
    seen.add(id(content))
    if any("." in name and getattr(value, "ndim", 0) > 1 for name, value in content.items()):
        found[front] = content
    for name, value in content.items():
        states_in(value, f"{front}{name}.", found, seen)


def tensors_of(content: Any, most: int) -> dict[str, Any]:
    """The tensors by name of a state dict, or of the only one in a checkpoint; at most so many bytes.

    Where there are several, such as an average beside the weights, each name stands behind where it is.
    """
    import torch

    states: dict[str, Any] = {}
    states_in(content, "", states, set())
    if len(states) > 1:
        each = ((front + name, value) for front, state in states.items() for name, value in state.items())
        content = {name: value for name, value in each if isinstance(value, torch.Tensor)}
    elif states:
        (content,) = states.values()
    if not isinstance(content, Mapping):
        raise SystemExit(f"it contains {type(content).__name__} instead of tensors by name")
    wrong = [name for name, value in content.items() if type(name) is not str or not isinstance(value, torch.Tensor)]
    if wrong:
        first = repr(wrong[0][:80]) if type(wrong[0]) is str else f"of the kind {type(wrong[0]).__name__}"
        raise SystemExit(f"{len(wrong)} entries are not tensors by name, first {first}")
    plain = [one for one in content.values() if one.layout == torch.strided and not one.is_quantized and one.is_cpu]
    if len(plain) < len(content):
        raise SystemExit(f"{len(content) - len(plain)} tensors are sparse, quantized or not on the CPU")
    if sum(value.numel() * value.element_size() for value in content.values()) > most:
        raise SystemExit(f"its tensors have more than {most:,} bytes, but the file has not")
    return {name: value.detach().clone().contiguous() for name, value in content.items()}


def limit(size: int) -> None:
    """Memory and files of this process have at most so many bytes; Windows has no such limits."""
    if sys.platform == "win32":
        return
    import resource

    for kind, value in ((resource.RLIMIT_DATA, size), (resource.RLIMIT_FSIZE, size), (resource.RLIMIT_CORE, 0)):
        _, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (value if hard < 0 else min(value, hard), hard))


def unpickle_file(file: str, out: str, size: int) -> None:
    """Read, look, write."""
    import torch
    from safetensors.torch import save_file

    torch.set_num_threads(1)
    limit(size)
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            content = torch.load(file, map_location="cpu", weights_only=True)
        save_file(tensors_of(content, MOST * Path(file).stat().st_size + SLACK), out)
    except Exception as error:
        named = re.search(r"GLOBAL (\S+)", str(error))
        lines = [line for line in str(error).splitlines() if line.strip()] or [""]
        why = f"it names {named[1]}" if named else f"{type(error).__name__}: {lines[0].partition('. In PyTorch')[0]}"
        raise SystemExit(why[:200]) from None


if __name__ == "__main__":
    unpickle_file(sys.argv[1], sys.argv[2], int(sys.argv[3]))
