"""Files of tensors: the bytes that safetensors writes, and what the file says of itself."""

import hashlib
from pathlib import Path

import pytest
import safetensors.torch
import torch

from vitrail.data.tensor_files import TYPES, read_tensors, tensors_to_bytes, write_tensors


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    """Of every type; numbers without axes, empty ones, and some that do not lie in order."""
    generator = torch.Generator().manual_seed(0)
    found = dict[str, torch.Tensor]()
    for number, kind in enumerate(TYPES):
        for shape in ((), (3,), (2, 0), (5, 2)):
            name = f"{'zyx'[number % 3]}.{number}.{len(shape)}{sum(shape)}"
            found[name] = (torch.rand(shape, generator=generator) * 100).to(kind)
    return {**found, "turned": torch.arange(6.0).view(2, 3).T}


def test_the_bytes_are_those_of_safetensors(tensors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    in_order = {name: tensor.contiguous() for name, tensor in tensors.items()}
    for some in (in_order, {}):
        facts = write_tensors(tmp_path / "x.safetensors", some, checksum=False)
        content = (tmp_path / "x.safetensors").read_bytes()
        assert content == safetensors.torch.save(some)
        assert facts == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def test_both_readers_give_the_tensors_back(tensors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    write_tensors(file, tensors)
    assert file.read_bytes() == tensors_to_bytes(dict(reversed(tensors.items()))), "whatever their order"
    for found in (safetensors.torch.load_file(file), read_tensors(file, "")):
        assert {name: (each.dtype, each.tolist()) for name, each in found.items()} == {
            name: (each.dtype, each.tolist()) for name, each in tensors.items()
        }
