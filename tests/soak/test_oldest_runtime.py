"""The oldest onnxruntime that an export names opens it, and its reader answers there as here."""

import json
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.deploy.small import exported, small_model
from vitrail.deploy.onnx import RUNTIMES

pytestmark = pytest.mark.soak


def test_the_oldest_runtime_answers_alike(tmp_path: Path) -> None:
    oldest = RUNTIMES.split()[1]
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    wanted = ["-m", "pip", "install", "-q", f"onnxruntime=={oldest}.*", "numpy<2", "pillow>=13"]
    made = subprocess.run([python, *wanted], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"onnxruntime {oldest} cannot be installed into Python {sys.version_info[:2]} here")
    image, reader = tmp_path / "a.png", exported().with_name("predict.py")
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 90, 3), dtype=np.uint8)).save(image)
    command = [python, "-I", str(reader), str(exported()), str(image), "--json", "--outputs"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (found,) = json.loads(done.stdout)
    (ours,) = small_model().predict(image)
    assert found["label"] == ours.label
    assert found["probability"] == pytest.approx(ours.probability, abs=1e-4)
    assert vitrail.load(exported()).predict(image)[0].label == ours.label
