"""Reading a file of weights that somebody else wrote: safetensors as it is, a pickle only in a process of its own.

The process reads with `weights_only=True`, writes safetensors and ends; nothing of the pickle reaches this process.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from vitrail.errors import DataError

_CONVERT = """
import sys
import torch
from safetensors.torch import save_file
content = torch.load(sys.argv[1], map_location="cpu", weights_only=True)
for key in ("state_dict", "model"):
    if isinstance(content.get(key), dict):
        content = content[key]
save_file({name: t.detach().clone().contiguous() for name, t in content.items()}, sys.argv[2])
"""


def read_state_dict(file: Path) -> dict[str, Tensor]:
    """The tensors of a file by name.

    Args:
        file: `.safetensors`, or a state dict that `torch.save` wrote.

    Raises:
        DataError: If the file is missing, or holds anything but tensors by name.
    """
    if not file.is_file():
        raise DataError(f"there is no file of weights {file}", "the path of a .safetensors or .pth file")
    if file.suffix == ".safetensors":
        return _read(file, file)
    with tempfile.TemporaryDirectory() as folder:
        converted = Path(folder) / "converted.safetensors"
        command = [sys.executable, "-c", _CONVERT, str(file), str(converted)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            hint = "torch.save(network.state_dict(), file)"
            raise DataError(f"{file} is not a plain state dict ({said[:200]})", hint)
        return _read(converted, file)


def _read(file: Path, given: Path) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load(file.read_bytes())
    except (SafetensorError, OSError) as error:
        raise DataError(f"{given} cannot be read as safetensors ({error})", "another file of weights") from error
