"""Run as a separate process: `python unpickle.py FILE OUT BYTES` reads a pickle of tensors and writes safetensors.

It imports nothing of vitrail. Its memory is limited before torch opens the file; `weights_only=True` runs no code that
the file names. Beside tensors an `argparse.Namespace` may be in it, the options of a training, as in timm's files, and
what numpy wrote, for which classes of this file stand: numpy itself, whose arrays trust what a pickle says of their
memory, is never called. A refusal is one line on stderr.
"""

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MOST = 4  # times the size of the file: tensors that share memory are written one by one
SLACK = 2**20  # bytes
NUMBERS = {"f2": "float16", "f4": "float32", "f8": "float64", "i4": "int32", "i8": "int64", "u1": "uint8", "b1": "bool"}


class Written:
    """A kind of numbers, or one number, as numpy wrote it."""

    def __init__(self, *made: Any) -> None:
        self.made: tuple[Any, ...] = made
        self.state: Any = ()

    def __setstate__(self, state: Any) -> None:
        self.state = state


class Array(Written):
    """An array as numpy wrote it; its state is (version, shape, kind, whether by columns, bytes)."""

    @property
    def ndim(self) -> int:
        """As of a tensor."""
        return len(self.state[1])

    def tensor(self) -> Any:
        """As a tensor; itself where its numbers are of another kind, or in the order of other machines."""
        import torch

        _, shape, kind, by_columns, raw = self.state
        if kind.made[0] not in NUMBERS or ">" in kind.state or not raw:
            return self
        flat = torch.frombuffer(bytearray(raw), dtype=getattr(torch, NUMBERS[kind.made[0]]))
        return flat.view(shape[::-1]).permute(*range(len(shape))[::-1]) if by_columns else flat.view(shape)


NUMPY: list[Any] = [(Written, "numpy.dtype"), (Written, "numpy.ndarray")]
for core in ("numpy.core", "numpy._core"):  # before numpy 2, and since
    NUMPY += [(Written, f"{core}.multiarray.scalar"), (Array, f"{core}.multiarray._reconstruct")]


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
        content = {name: value for name, value in each if isinstance(value, torch.Tensor | Array)}
    elif states:
        (content,) = states.values()
    if not isinstance(content, Mapping):
        raise SystemExit(f"it contains {type(content).__name__} instead of tensors by name")
    content = {name: value.tensor() if isinstance(value, Array) else value for name, value in content.items()}
    wrong = [name for name, value in content.items() if type(name) is not str or not isinstance(value, torch.Tensor)]
    if wrong:
        first = repr(wrong[0][:80]) if type(wrong[0]) is str else f"of the kind {type(wrong[0]).__name__}"
        these = "entries are not tensors" if len(wrong) > 1 else "entry is not a tensor"
        raise SystemExit(f"{len(wrong)} {these} by name, first {first}")
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
        with torch.serialization.safe_globals([argparse.Namespace, *NUMPY]):
            content = torch.load(file, map_location="cpu", weights_only=True)
        save_file(tensors_of(content, MOST * Path(file).stat().st_size + SLACK), out)
    except Exception as error:
        named = re.search(r"GLOBAL (\S+)", str(error))
        lines = [line for line in str(error).splitlines() if line.strip()] or [""]
        runs = named and re.match(r"(builtins|nt|os|posix|subprocess|sys)\.", named[1])
        why = (
            f"it {'would run' if runs else 'names'} {named[1]}"
            if named
            else f"{type(error).__name__}: {lines[0].partition('. In PyTorch')[0]}"
        )
        raise SystemExit(why[:200]) from None


if __name__ == "__main__":
    unpickle_file(sys.argv[1], sys.argv[2], int(sys.argv[3]))
