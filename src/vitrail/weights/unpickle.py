"""Run as a process of its own: `python unpickle.py FILE OUT BYTES` reads a pickle of tensors and writes safetensors.

It imports nothing of vitrail. What it may allocate is limited before torch sees the file; torch's reader for weights
only runs no code that the file names.
"""

import resource
import sys
from collections.abc import Mapping
from typing import Any

INSIDE = ("state_dict", "model", "teacher", "model_state_dict", "network")  # where a checkpoint keeps its tensors


def tensors_of(content: Any) -> dict[str, Any]:
    """The tensors by name of a state dict, or of the one that a checkpoint holds."""
    import torch

    for key in INSIDE:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping):
        raise SystemExit(f"it holds {type(content).__name__}, and no tensors by name")
    wrong = [
        name for name, value in content.items() if not isinstance(name, str) or not isinstance(value, torch.Tensor)
    ]
    if wrong:
        raise SystemExit(f"{len(wrong)} entries are no tensors by name, first {str(wrong[0])[:80]!r}")
    sparse = [name for name, value in content.items() if value.layout != torch.strided or value.is_quantized]
    if sparse:
        raise SystemExit(f"{len(sparse)} tensors are sparse or quantized, first {sparse[0][:80]!r}")
    return {name: value.detach().clone().contiguous() for name, value in content.items()}


def main(file: str, out: str, limit: int) -> None:
    """Read, look, write."""
    import torch
    from safetensors.torch import save_file

    torch.set_num_threads(1)
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (limit if most < 0 else min(limit, most), most))
    save_file(tensors_of(torch.load(file, map_location="cpu", weights_only=True)), out)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
