"""In which precision a model is computed: bf16 where it is faster and answers alike; chosen once, kept, replayed."""

import csv
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import vitrail
from tests.cli.command import Cli
from tests.cli.planted import planted_model
from vitrail.data.images import FileImages
from vitrail.features import file
from vitrail.jobs import precision
from vitrail.jobs.precision import Choice, choose_precision, choose_precision_for
from vitrail.nn import ViT, in_bf16

COUNT = 80


@pytest.fixture
def images(tmp_path: Path) -> FileImages:
    """Small photographs of noise, in two classes, of which one cannot be read."""
    random, files = np.random.default_rng(0), []
    for row in range(COUNT):
        file = tmp_path / "data" / "test" / str(row % 2) / f"{row}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 255, (32, 32), np.uint8)).save(file)
        files.append(file)
    files[7].write_bytes(b"no image")
    return FileImages(files)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[float], list[torch.dtype]]:
    """Small jobs of narrow networks are chosen for, too; says how fast bf16 seems, and gives what was timed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(precision, "BF16_LEAST_WIDTH", 1)
    monkeypatch.setattr(precision, "LEAST", COUNT)
    monkeypatch.setattr(precision, "multiplies_bf16", lambda device: True)
    asked = list[torch.dtype]()

    def faster(gain: float) -> list[torch.dtype]:
        def seconds(forward: Callable[[], Tensor]) -> float:
            asked.append(forward().dtype)
            return 1 / gain if asked[-1] == torch.bfloat16 else 1.0

        monkeypatch.setattr(precision, "time_pass", seconds)
        return asked

    return faster


def files_of(folder: Path) -> list[Path]:
    return sorted(each for each in folder.rglob("*") if each.is_file()) if folder.exists() else []


def test_the_faster_is_taken_kept_and_replayed(
    images: FileImages, timed: Callable[[float], list[torch.dtype]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, cache = planted_model(), tmp_path / "cache"
    asked = timed(1.16)
    first = choose_precision(model, [images])
    assert (first.precision, first.images) == ("bf16", 63)  # of 64, one of which cannot be read
    assert first.margin < 0.05
    assert first.gain == pytest.approx(1.16)
    assert set(asked) == {torch.float32, torch.bfloat16}
    (place,) = files_of(cache)
    count = len(asked)
    assert choose_precision(model, [images]) == choose_precision(model, [images.select(range(40)), images]) == first
    assert choose_precision_for(model, torch.zeros(1, 1, 32, 32)) == first
    assert len(asked) == count, "it was timed again"
    assert [choose_precision(model, [images], each).precision for each in ("fp32", "bf16")] == ["fp32", "bf16"]
    assert choose_precision(model, [images.select(range(COUNT - 1))]).precision == "fp32", "a small job"
    place.write_text("{")
    assert choose_precision(model, [images]).precision == "bf16", "a damaged file is no choice"
    assert len(asked) > count
    for change in ({"torch": "2.0"}, {"machine": "another"}, {"device": "cuda"}, {"weights": "0"}, {"model": "0"}):
        told = json.loads(place.read_text())
        place.write_text(json.dumps({**told, "of": {**told["of"], **change}}))
        count = len(asked)
        choose_precision(model, [images])
        assert len(asked) > count, change
    timed(1.14)
    place.unlink()
    slow = choose_precision(model, [images])
    assert (slow.precision, slow.images, round(slow.gain, 2)) == ("fp32", 0, 1.14)
    place.unlink()
    monkeypatch.setattr(precision, "BF16_LEAST_WIDTH", 192)
    timed(10)
    assert choose_precision(model, [images]) == Choice("fp32")
    assert not place.exists()


def test_nothing_is_timed_on_a_processor_without_units_for_bf16(
    images: FileImages, timed: Callable[[float], list[torch.dtype]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = timed(3.0)
    monkeypatch.setattr(precision, "multiplies_bf16", lambda device: False)
    assert choose_precision(planted_model(), [images]) == Choice("fp32")
    assert not asked
    assert choose_precision(planted_model(), [images], "bf16").precision == "bf16", "on demand"


def test_a_run_keeps_its_choice_and_no_model_folder_does(
    images: FileImages, timed: Callable[[float], list[torch.dtype]], tmp_path: Path
) -> None:
    timed(2.0)
    model, cache = planted_model(), tmp_path / "cache"
    folder = vitrail.save(model, tmp_path / "run" / "model")
    before = files_of(tmp_path / "run")
    assert choose_precision(replace(model, loaded_from=str(folder)), [images]).precision == "bf16"
    assert files_of(tmp_path / "run") == before
    assert len(files_of(cache)) == 1
    (tmp_path / "run" / "config.yaml").write_text("")
    assert choose_precision(replace(model, loaded_from=str(tmp_path / "run")), [images]).precision == "bf16"
    assert {*files_of(tmp_path / "run")} - {*before} == {
        tmp_path / "run" / "config.yaml",
        tmp_path / "run" / "inference.json",
    }
    assert len(files_of(cache)) == 1


def test_where_nothing_can_be_kept_it_is_chosen_again(
    images: FileImages, timed: Callable[[float], list[torch.dtype]], tmp_path: Path
) -> None:
    asked = timed(2.0)
    (tmp_path / "cache").write_text("a file where a folder is wanted")
    assert choose_precision(planted_model(), [images]).precision == "bf16"
    count = len(asked)
    assert choose_precision(planted_model(), [images]).precision == "bf16"
    assert len(asked) == 2 * count


def plant(monkeypatch: pytest.MonkeyPatch, change: Callable[[Tensor], Tensor]) -> None:
    """The bf16 network answers otherwise."""

    class Other(nn.Module):
        def __init__(self, network: ViT) -> None:
            super().__init__()
            self.network = in_bf16(network)

        def forward(self, images: Tensor) -> Tensor:
            return change(self.network(images).float()).bfloat16()

    monkeypatch.setattr(precision, "in_bf16", Other)


def test_other_answers_are_not_taken(
    images: FileImages, timed: Callable[[float], list[torch.dtype]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Classes that were clear change, accuracy is lost, numbers are far, or nothing is a number."""
    timed(5.0)
    model = planted_model()

    def anew(model: vitrail.Model = model, **more: object) -> Choice:
        for each in files_of(tmp_path / "cache"):
            each.unlink()
        return choose_precision(model, [images], **more)  # pyrefly: ignore[bad-argument-type]

    assert anew().precision == "bf16"
    plant(monkeypatch, lambda logits: logits.flip(1))
    found = anew()
    assert found.precision == "fp32"
    assert found.changed > 50
    assert found.margin > 0.05
    plant(monkeypatch, lambda logits: logits * torch.nan)
    assert anew().precision == "fp32"

    def second(logits: Tensor) -> Tensor:  # the two most probable change places
        places = logits.topk(2).indices
        return logits.scatter(1, places, logits.gather(1, places.flip(1)))

    torch.nn.init.normal_(model.network.head.weight, std=1e-4)  # all margins are tiny
    plant(monkeypatch, second)
    found = anew()
    assert found.precision == "bf16", "no label says that it is worse"
    assert found.changed >= 60
    assert found.margin < 0.05
    with torch.no_grad():
        best = {row: int(model.network(model.tensor([images.open(row)])).argmax()) for row in range(COUNT) if row != 7}
    right = anew(labels=lambda ids: torch.tensor([best[row] for row in ids.tolist()]))
    assert right.precision == "fp32"
    assert right.lost is not None
    assert right.lost > 0.9
    assert right.images == COUNT - 1, "where labels are at hand it looks at all"
    for each in files_of(tmp_path / "cache"):
        each.unlink()
    blind = choose_precision(model, [images])
    assert (blind.precision, blind.lost) == ("bf16", None)
    assert (
        choose_precision(model, [images], labels=lambda ids: torch.tensor([best[row] for row in ids.tolist()])) == right
    )
    assert choose_precision(model, [images]) == right, "what accuracy has decided holds for all"
    wrong = anew(labels=lambda ids: torch.tensor([-1 for row in ids.tolist()]))
    assert (wrong.precision, wrong.lost) == ("bf16", 0.0)
    numbers = replace(model, output=vitrail.tasks.Numbers(10), task=vitrail.tasks.features.Features())
    monkeypatch.setattr(precision, "in_bf16", in_bf16)
    monkeypatch.setattr("vitrail.tasks.codec.FAR", 0.05)  # how far bf16 is off differs between processors
    assert anew(numbers).precision == "bf16"
    plant(monkeypatch, lambda logits: 1.08 * logits)
    assert anew(numbers).precision == "fp32"


def test_a_network_that_cannot_be_computed_so_stays_in_fp32(
    images: FileImages, timed: Callable[[float], list[torch.dtype]], tmp_path: Path
) -> None:
    """Neither in a job nor in an explanation."""
    timed(5.0)
    model = planted_model()

    class Own(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return input @ self.weight.T + self.bias

    block = model.network.blocks[0].mlp
    own = Own(block.fc2.in_features, block.fc2.out_features)
    block.fc2 = own
    with pytest.raises(RuntimeError):
        in_bf16(model.network)(torch.zeros(1, 1, 32, 32))
    assert choose_precision(model, [images]) == Choice("fp32")
    shutil.rmtree(tmp_path / "cache")
    assert choose_precision_for(model, torch.zeros(2, 1, 32, 32)) == Choice("fp32")


def test_every_verb_computes_as_was_chosen(
    images: FileImages,
    timed: Callable[[float], list[torch.dtype]],
    cli: Cli,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the first of them; each says which, and fp32 is what it was."""
    asked = timed(2.0)
    model = planted_model(background=True)
    folder, data = vitrail.save(model, tmp_path / "model"), tmp_path / "data"
    half = replace(model, network=in_bf16(model.network))

    def predicted(words: tuple[str, ...] = (), out: str = "p.csv") -> tuple[list[dict[str, str]], list[dict]]:
        answer = cli("predict", folder, data, "--out", tmp_path / out, "--json", *words)
        assert "1.png" in (tmp_path / out).read_text()
        return list(csv.DictReader((tmp_path / out).read_text().splitlines())), json.loads(answer.out)

    rows, told = predicted()
    count = len(asked)
    assert count
    assert {each["compute_dtype"] for each in told} == {"bf16"}
    exact, told = predicted(("--precision", "fp32"), "exact.csv")
    assert {each["compute_dtype"] for each in told} == {"fp32"}
    for network, table in ((half, rows), (model, exact)):
        for row in table:
            if not row["problem"]:
                (one,) = network.predict(row["file"])  # by itself: how bf16 is rounded in a batch is the processor's
                near = 0.02 if network is half else 1e-4
                assert dict(one.top)[row["label"]] == pytest.approx(float(row["probability"]), abs=near)
    assert rows != exact
    answer = cli("evaluate", folder, data, "--json")
    found = json.loads(answer.out)
    assert found["compute_dtype"] == "bf16"
    assert found["choice"]["images"] == 79  # with their labels, so anew
    assert len(asked) == 2 * count
    assert "choice" not in json.loads(cli("evaluate", folder, data, "--json", "--precision", "fp32").out)
    answer = cli("embed", folder, data, "--out", tmp_path / "f.npz", "--json")
    assert json.loads(answer.out)["compute_dtype"] == "bf16"
    kept = file.read_features(tmp_path / "f.npz")
    seen = half.tensor([images.open(0)])
    with torch.no_grad():
        token, other = (each.norm(each.encode(seen))[0, 0].float().numpy() for each in (half.network, model.network))
    row = kept.ids.index(next(name for name in kept.ids if name.endswith("/0.png")))
    found = kept.values["class"][row]
    assert np.abs(found - token).max() < 0.05
    assert np.abs(found - other).max() > 1e-4, "that is fp32"
    assert cli("embed", folder, data, "--out", tmp_path / "f.npz", "--precision", "fp32").code == 2
    page = ("--out", tmp_path / "s.html", "--json")
    near = json.loads(cli("similar", folder, images.paths[0], tmp_path / "f.npz", *page).out)
    assert near["queries"][0]["neighbours"]
    answer = cli("explain", folder, images.paths[0], "--out", tmp_path / "e.html", "--json")
    assert [row["attributions"][0]["trust"]["precision"] for row in json.loads(answer.out)["images"]] == ["bf16"]
    assert len(asked) == 2 * count, "it was chosen anew"
