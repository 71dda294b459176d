"""A file that a row of the table knows, for the tests of verified weights."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import vitrail
from tests.weights.small import READS, network
from vitrail.data.tensor_files import digest_of
from vitrail.weights import published
from vitrail.weights.published import drawn_images, sample_logits


@pytest.fixture
def verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file whose weights a row of the table knows."""
    old = vitrail.convert(network(0), preprocessing=READS)
    row = {"name": "a row", "by": "a test", "classes": "", "licence": "mit", "preprocessing": READS.to_dict()}
    with torch.no_grad():
        row["logits"] = sample_logits(old.network(drawn_images(READS))).tolist()
    monkeypatch.setattr(published, "known_table", lambda: {digest_of(old.network.state_dict()): row})
    save_file(network(0).state_dict(), tmp_path / "weights.safetensors")
    return tmp_path / "weights.safetensors"
