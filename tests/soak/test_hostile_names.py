"""Names of weights as a user has them: the environment says offline, and real sizes."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torchvision import models

import vitrail
from tests.weights.test_names import REPOSITORY, TI, Hubs, folder_of

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200), pytest.mark.usefixtures("as_a_user")]

SOURCE = Path(__file__).parents[2] / "src"
PROGRAM = """
import sys
events = []
sys.addaudithook(lambda event, arguments: events.append(event) if event.startswith("socket.") else None)
import vitrail
from vitrail.errors import VitrailError
for name in sys.argv[1:]:
    try:
        print(vitrail.load(name).facts["origin"])
    except VitrailError as error:
        print(error.exit_code, str(error).count("\\n"))
print(events)
"""


def test_offline_means_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Hubs(tmp_path, monkeypatch).put(REPOSITORY, folder_of(tmp_path / "own"))
    places = {"HF_HUB_CACHE": "hub", "TORCH_HOME": "torch", "XDG_CACHE_HOME": "cache"}
    environment = {**os.environ, **{name: str(tmp_path / place) for name, place in places.items()}}
    environment |= {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(SOURCE)}
    monkeypatch.undo()
    names = [f"timm:{TI}", f"hf:{REPOSITORY}", "hf:lab/none", "timm:vit_base_patch16_224", "torchvision:vit_b_16"]
    command = [sys.executable, "-c", PROGRAM, *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    first, second, *refused, events = done.stdout.splitlines()
    assert "1" * 40 in first
    assert "1" * 40 in second
    assert refused == ["3 1"] * 3
    assert events == "[]"


def test_torchvisions_own_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hubs = Hubs(tmp_path, monkeypatch)
    hubs.offline(monkeypatch)
    torch.manual_seed(0)
    theirs = models.vit_b_32().eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.05)
    folder = tmp_path / "torch" / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    torch.save(theirs.state_dict(), folder / "own.pth")
    with (folder / "own.pth").open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    published = models.ViT_B_32_Weights.DEFAULT
    file = (folder / "own.pth").rename(folder / f"vit_b_32-{digest[:8]}.pth")
    monkeypatch.setattr(published.value, "url", f"https://download.pytorch.org/models/{file.name}", raising=True)
    model = vitrail.load("torchvision:vit_b_32")
    images = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        torch.testing.assert_close(model.network(images), theirs(images), rtol=1e-4, atol=1e-4)
    assert model.classes[0] == "tench"
    assert model.preprocessing.size == (224, 224)
    assert file.name in model.facts["origin"]
    assert hubs.connections == []
