"""What wrote the folders beside it: the code of commit ec7d80c (format 1), on 2026-11-22; it is not for later code.

    python -m tests.model.old_format.write FOLDER

It stays as the record of how they were made. `images.py` makes the images again, `expected.json` holds what that code
said of the runs: predictions, evaluations, maps, and the weights that they end with.

    photos       a classifier of images in files, finished; its references are JPEG
    stopped      a classifier of the digits, stopped in its second epoch: a state, and no model
    student      a classifier of the digits that learnt from a teacher; finished, with a state of its second epoch
    writing      texts to texts; finished, with a state of its second epoch
    reading      the model folder of a network that reads images and writes texts
"""

import contextlib
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

import vitrail
from tests.model.old_format.images import label_texts, make_images, some_images
from tests.model.old_format.lab import PLACE, SOURCES, machine, rounded, teacher
from vitrail.training.events import Stopped
from vitrail.training.loop import StepDone

ONE = {"threads": 1, "workers": 1, "device": "cpu", "seed": 3}
AGAIN = vitrail.TrainOptions(resume="auto")
SMALL = {"width": 4, "heads": 2, "mlp_dim": 8}
CONFIGS: dict[str, dict[str, Any]] = {
    "photos": {
        "network": {"width": 8, "depth": 1, "heads": 2, "mlp_dim": 16, "patch_size": 8, "image_size": 96},
        "decode_size": 96,
        "optimization": {"ema_decay": 0.0, "epochs": 10, "batch_size": 8, "learning_rate": 0.005},
    },
    "student": {
        "network": {**SMALL, "depth": 1, "patch_size": 4},
        "optimization": {"ema_decay": 0.0, "epochs": 3, "batch_size": 300},
    },
    "stopped": {
        "network": {**SMALL, "depth": 1, "patch_size": 4},
        "optimization": {"epochs": 3, "batch_size": 300},
    },
    "writing": {
        "network": {**SMALL, "encoder_depth": 1, "decoder_depth": 1},
        "counts": {"train": 96, "validation": 24, "test": 24},
        "optimization": {"epochs": 3, "batch_size": 24, "ema_decay": 0.0, "learning_rate": 0.02},
    },
    "reading": {
        "network": {
            "decoder_depth": 1,
            "mlp_dim": 8,
            "encoder": {**SMALL, "depth": 1, "image_size": [16, 24], "patch_size": 8},
        },
        "optimization": {"epochs": 2, "batch_size": 8, "ema_decay": 0.0, "learning_rate": 0.02},
    },
}
DATA = {"photos": "images", "student": "digits", "stopped": "digits", "writing": "sort-digits", "reading": "images.csv"}
UNNEEDED = ("run.html", "log.txt", "README.md")  # what nothing reads


def train(name: str, listen: Callable[[object], None] = lambda event: None, *, again: bool = False) -> Any:
    """One of the runs, from its beginning or where it stopped."""
    config = Path(f"{name}.yaml")
    config.write_text(yaml.safe_dump(CONFIGS[name]))
    if name == "student":
        asked = vitrail.DistillOptions(resume="auto") if again else vitrail.DistillOptions(config=config, **ONE)
        return vitrail.distill(DATA[name], teacher(), name, asked, listen)
    return vitrail.train(DATA[name], name, AGAIN if again else vitrail.TrainOptions(config=config, **ONE), listen)


def train_with_a_stop(name: str, step: int) -> Any:
    """The same with Ctrl-C behind a step; `<name>-stopped` is what lay there then."""

    def listen(event: object) -> None:
        if isinstance(event, StepDone) and event.step == step:
            signal.raise_signal(signal.SIGINT)

    with contextlib.suppress(Stopped):
        train(name, listen)
    shutil.copytree(name, f"{name}-stopped")
    return train(name, again=True)


def write() -> dict[str, Any]:
    """All runs, in the current folder; what was said of them."""
    make_images(Path("images"))
    label_texts(Path("images"))
    photos, reading = train("photos"), train("reading")
    student, stopped, writing = (train_with_a_stop(name, 6) for name in ("student", "stopped", "writing"))
    images, explain = some_images(Path("images")), vitrail.explain
    tensor = photos.model.tensor(images)
    maps = {"generic_attention": explain.generic_attention, "occlusion": explain.occlusion}
    heats = {name: method(photos.model.network, tensor) for name, method in maps.items()}
    return {
        "machine": machine(),
        "photos": {
            "predictions": [[one.label, rounded(one.probability)] for one in photos.model.predict(images)],
            "evaluation": figures(photos),
            "maps": {name: rounded(heat.values.tolist()) for name, heat in heats.items()},
            "references": rounded(photos.model.references.double().mean(dim=(1, 2, 3)).tolist()),
        },
        "student": {"evaluation": figures(student), "weights": student.weights},
        "stopped": {"evaluation": figures(stopped), "weights": stopped.weights},
        "writing": {
            "answers": [[one.text, rounded(one.probability)] for one in writing.model.generate(SOURCES)],
            "evaluation": figures(writing),
            "weights": writing.weights,
        },
        "reading": {"answers": [[one.text, rounded(one.probability)] for one in reading.model.generate(images)]},
    }


def figures(finished: Any) -> dict[str, Any]:
    """The figures of an evaluation, without its tables."""
    return {
        name: rounded(value) for name, value in finished.evaluated.to_dict().items() if isinstance(value, float | int)
    }


def clean(run: Path, place: str, to: Path, resume: Path | None) -> None:
    """A copy of a run without what nothing reads, and without the name of a machine or of a place on it."""
    shutil.copytree(run, to, ignore=shutil.ignore_patterns(*UNNEEDED, "resume"))
    if resume is not None:
        shutil.copytree(resume, to / "resume")
    for file in (to / "data.json", to / "config.yaml", to / "command.txt"):
        file.write_text(file.read_text().replace(place, PLACE))
    facts = json.loads((to / "env.json").read_text())
    (to / "env.json").write_text(json.dumps({**facts, "host": "elsewhere", "system": "Linux"}, indent=2) + "\n")


def main(folder: Path) -> None:
    """Write all into a folder that is not there yet."""
    folder = folder.resolve()
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        said, root = write(), str(Path(place).resolve())
        clean(Path("photos"), root, folder / "photos", None)
        clean(Path("stopped-stopped"), root, folder / "stopped", Path("stopped-stopped", "resume"))
        for name in ("student", "writing"):
            clean(Path(name), root, folder / name, Path(f"{name}-stopped", "resume"))
        shutil.copytree(Path("reading", "model"), folder / "reading", ignore=shutil.ignore_patterns(*UNNEEDED))
    (folder / "expected.json").write_text(json.dumps(said) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
