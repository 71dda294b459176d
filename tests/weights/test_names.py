"""Names of weights: what the caches of hubs hold opens by name as it does by folder, and what is missing is said."""

import hashlib
import json
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import timm
import torch
from huggingface_hub import constants, errors
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import load_file, save_file
from torchvision import models
from torchvision.models._api import Weights, WeightsEnum
from torchvision.transforms._presets import ImageClassification

import vitrail
from tests.errors import must_raise
from tests.weights import hostile
from tests.weights.redraw import redrawn
from vitrail.cli.main import main
from vitrail.errors import DataError, UsageError, VitrailError
from vitrail.tasks.features import Numbers
from vitrail.weights.places import guess_name

pytestmark = pytest.mark.usefixtures("as_a_user")

TI = "vit_tiny_patch16_224"
REPOSITORY = f"timm/{TI}.augreg_in21k_ft_in1k"
FIRST, SECOND = "1" * 40, "2" * 40
IMAGES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Hubs:
    """Caches of hubs with nothing in them, and a network that is not there."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.connections = root, list[tuple]()
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(root / "hub"))
        monkeypatch.setenv("TORCH_HOME", str(root / "torch"))
        monkeypatch.setenv("XDG_CACHE_HOME", str(root / "cache"))

        def no(*arguments: Any, **named: Any) -> None:
            self.connections.append(arguments)
            raise OSError("no network")

        for name in ("socket", "create_connection", "getaddrinfo"):
            monkeypatch.setattr(socket, name, no)

    def offline(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    def put(self, repository: str, files: Path, revision: str = FIRST, branch: str = "main") -> Path:
        """The files of a folder as huggingface_hub keeps them; the folder that it gives for them."""
        own = self.root / "hub" / f"models--{repository.replace('/', '--')}"
        for folder in ("blobs", "refs", f"snapshots/{revision}"):
            (own / folder).mkdir(parents=True, exist_ok=True)
        for file in files.iterdir():
            blob = own / "blobs" / hashlib.sha256(file.read_bytes()).hexdigest()
            blob.write_bytes(file.read_bytes())
            (own / "snapshots" / revision / file.name).symlink_to(Path("../../blobs") / blob.name)
        (own / "refs" / branch).write_text(revision)
        return own / "snapshots" / revision


@pytest.fixture
def hubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hubs:
    return Hubs(tmp_path, monkeypatch)


def folder_of(root: Path, case: str = "timm", licence: str = "apache-2.0") -> Path:
    """A small network as hubs lay it out, with a card."""
    folder, outside = hostile.fresh(root)
    hostile.HARMLESS[case](folder, outside)
    (folder / "README.md").write_text(f"---\ntags:\n- vision\nlicense: {licence}\n---\n# A card\nlicense: none\n")
    return folder


def logits(model: vitrail.Model) -> torch.Tensor:
    with torch.no_grad():
        return model.network(IMAGES)


@pytest.mark.parametrize("case", ["timm", "two_files", "transformers"])
def test_a_name_in_the_hub_is_as_a_folder(case: str, hubs: Hubs, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "own", case)
    hubs.put("lab/small", folder)
    by_name, by_folder = vitrail.load("hf:lab/small"), vitrail.load(folder)
    assert torch.equal(logits(by_name), logits(by_folder))
    assert by_name.input == by_folder.input
    assert by_name.output == by_folder.output
    origin, of_folder = by_name.facts["origin"], by_folder.facts["origin"]
    assert "hf:lab/small" in origin
    assert FIRST in origin
    assert "sha256" in of_folder
    assert str(folder) not in of_folder
    assert {**by_name.facts, "origin": ""} == {**by_folder.facts, "origin": ""}
    assert by_name.facts["licence"] == "apache-2.0"
    assert by_name.classes == ("0", "1", "2")
    assert "number" in by_name.facts["class_names"]
    assert hubs.connections == []


def test_images_may_be_told_of_beside_texts(tmp_path: Path) -> None:
    """As transformers 5 saves a processor of both, which it reads before a file of images alone."""
    folder = folder_of(tmp_path, "transformers")
    wanted = vitrail.load(folder).input
    alone = folder / "preprocessor_config.json"
    said = json.loads(alone.read_text())
    both = {"image_processor": said, "processor_class": "CLIPProcessor"}
    (folder / "processor_config.json").write_text(json.dumps(both))
    alone.unlink()
    assert vitrail.load(folder).input == wanted
    alone.write_text(json.dumps({**said, "image_mean": [0.25] * 3}))
    assert vitrail.load(folder).input == wanted
    (folder / "processor_config.json").unlink()
    assert vitrail.load(folder).preprocessing.mean == (0.25,) * 3


def test_revisions_are_told_apart_and_shown(hubs: Hubs, tmp_path: Path) -> None:
    first = folder_of(tmp_path / "first")
    hubs.put("lab/small", first)
    second = hostile.fresh(tmp_path / "second")[0]
    changed = hostile.changed({"head.bias": torch.full((3,), 9.0)})
    hubs.put("lab/small", hostile.model_folder(second, state=changed), SECOND, branch="next")
    answers = {name: vitrail.load(f"hf:lab/small{name}") for name in ("", "@main", f"@{FIRST}", "@next", f"@{SECOND}")}
    for name, model in answers.items():
        is_second = name in ("@next", f"@{SECOND}")
        assert (SECOND if is_second else FIRST) in model.facts["origin"]
        assert torch.equal(logits(model), logits(vitrail.load(second if is_second else first)))
    assert hubs.connections == []


@pytest.mark.parametrize("name", [f"timm:{TI}", f"timm:{TI}.augreg_in21k_ft_in1k"])
def test_a_name_of_timm(name: str, hubs: Hubs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of(tmp_path / "own")
    hubs.put(REPOSITORY, folder)
    hubs.offline(monkeypatch)
    model = vitrail.load(name)
    assert torch.equal(logits(model), logits(vitrail.load(folder)))
    assert f"timm:{TI}.augreg_in21k_ft_in1k" in model.facts["origin"]
    assert FIRST in model.facts["origin"]
    assert model.facts["licence"] == "apache-2.0"
    assert hubs.connections == []


@torch.no_grad()
def test_a_cache_with_the_tensors_alone(hubs: Hubs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What timm's own table says of them is known without their config.json: epsilon, what the head gives, pixels."""
    name = "vit_xsmall_patch16_clip_224.tinyclip_yfcc15m"
    theirs: Any = redrawn(timm.create_model(name))
    (tmp_path / "own").mkdir()
    save_file(theirs.state_dict(), tmp_path / "own" / "model.safetensors")
    hubs.put(f"timm/{name}", tmp_path / "own")
    hubs.offline(monkeypatch)
    model = vitrail.load(f"timm:{name}")
    images = 0.01 * torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model.network(images), theirs(images), rtol=1e-4, atol=1e-5)
    wanted = timm.data.resolve_model_data_config(theirs)
    reads = model.preprocessing
    assert (reads.mean, reads.std, reads.size) == (wanted["mean"], wanted["std"], wanted["input_size"][1:])
    assert (reads.crop_pct, reads.interpolation) == (wanted["crop_pct"], wanted["interpolation"])
    assert isinstance(model.output, Numbers)
    assert model.facts["licence"] == theirs.pretrained_cfg["license"]


# ---- torchvision


@pytest.fixture
def published(hubs: Hubs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, torch.nn.Module]:
    """Weights of a small network, published as torchvision does and in torch hub's cache."""
    torch.manual_seed(0)
    theirs = models.VisionTransformer(
        image_size=8, patch_size=4, num_layers=2, num_heads=2, hidden_dim=8, mlp_dim=32, num_classes=3
    ).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_()
    folder = tmp_path / "torch" / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    torch.save(theirs.state_dict(), folder / "first.pth")
    digest = hashlib.sha256((folder / "first.pth").read_bytes()).hexdigest()
    file = (folder / "first.pth").rename(folder / f"vit_b_16-{digest[:8]}.pth")

    class Published(WeightsEnum):
        V1 = Weights(
            url=f"https://download.pytorch.org/models/{file.name}",
            transforms=partial(ImageClassification, crop_size=8, resize_size=9),
            meta={"categories": ["a", "b", "c"], "_file_size": 1.0},
        )
        DEFAULT = V1

    monkeypatch.setattr(models, "get_model_weights", lambda name: Published)
    hubs.offline(monkeypatch)
    return file, theirs


def test_a_name_of_torchvision(published: tuple[Path, torch.nn.Module], hubs: Hubs) -> None:
    file, theirs = published
    model = vitrail.load("torchvision:vit_b_16.V1", assume={"heads": 2})
    with torch.no_grad():
        torch.testing.assert_close(logits(model), theirs(IMAGES), rtol=1e-5, atol=1e-5)
    assert model.classes == ("a", "b", "c")
    assert model.preprocessing.size == (8, 8)
    assert model.preprocessing.mean == (0.485, 0.456, 0.406)
    assert model.facts["licence"] == "BSD-3-Clause"
    for part in ("torchvision:vit_b_16.V1", file.name, "pickle"):
        assert part in model.facts["origin"]
    assert hubs.connections == []


def test_a_file_that_is_not_the_one_its_name_says(published: tuple[Path, torch.nn.Module]) -> None:
    file, _ = published
    with file.open("ab") as handle:
        handle.write(b"\0")
    with must_raise(DataError, file.name):
        vitrail.load("torchvision:vit_b_16", assume={"heads": 2})


# ---- what is not there


MISSING = {
    "hf:lab/none": ("hf:lab/none", "size", "licence", "lab/none"),
    f"timm:{TI}": (f"timm:{TI}.augreg_in21k_ft_in1k", "22.9 MB", "apache-2.0", REPOSITORY),
    f"hf:timm/{TI}.augreg_in21k_ft_in1k": ("22.9 MB", "apache-2.0", REPOSITORY),
    "torchvision:vit_b_16": ("torchvision:vit_b_16.IMAGENET1K_V1", "346 MB", "BSD-3-Clause", "vit_b_16-c867db91.pth"),
    "torchvision:vit_l_16.IMAGENET1K_SWAG_E2E_V1": ("vit_l_16", "1.22 GB", "CC-BY-NC-4.0", "vit_l_16_swag"),
}


@pytest.mark.parametrize("name", MISSING)
def test_what_is_nowhere_is_said_with_size_licence_and_place(
    name: str, hubs: Hubs, monkeypatch: pytest.MonkeyPatch
) -> None:
    hubs.offline(monkeypatch)
    with must_raise(DataError) as caught:
        vitrail.load(name)
    for part in MISSING[name]:
        assert part in str(caught.value)
    assert caught.value.exit_code == 3
    assert hubs.connections == [], "offline means no connection"
    assert not list(hubs.root.rglob("*.pth*"))


@pytest.mark.parametrize("name", [f"timm:{TI}", "torchvision:vit_b_16"])
def test_without_a_network(name: str, hubs: Hubs) -> None:
    with must_raise(DataError) as caught:
        vitrail.load(name)
    for part in MISSING[name]:
        assert part in str(caught.value)
    assert hubs.connections != [], "it was tried"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("timm:vit_tiny_patch16_242", f"timm:{TI}"),
        (f"timm:{TI}.augreg_in21k_ft_in2k", f"timm:{TI}.augreg_in21k_ft_in1k"),
        ("torchvision:vit_b16", "torchvision:vit_b_16"),
        ("torchvision:vit_b_16.IMAGENET1K_V2", "torchvision:vit_b_16.IMAGENET1K_V1"),
        (f"tim:{TI}", f"timm:{TI}"),
        ("torch-vision:vit_b_16", ""),
        ("torchvison:vit_b_16", "torchvision:vit_b_16"),
        (f"TIMM:{TI}", f"timm:{TI}"),
        (TI.upper(), f"timm:{TI}"),
        (f"timm:{TI.upper()}", f"timm:{TI}"),
        (TI, f"timm:{TI}"),
        ("google/vit-base-patch16-224", "hf:google/vit-base-patch16-224"),
        ("transformers:lab/small", "hf:lab/small"),
        ("https://huggingface.co/lab/small/tree/main", "hf:lab/small"),
    ],
)
def test_an_unknown_name_offers_the_nearest(name: str, meant: str, hubs: Hubs) -> None:
    with must_raise(UsageError if meant else VitrailError) as caught:
        vitrail.load(name)
    assert str(caught.value.hint).startswith(meant)
    assert hubs.connections == []


def test_a_repository_of_timm_without_its_training(hubs: Hubs, tmp_path: Path) -> None:
    """There is none on the hub, whether it can be reached or not; one in the cache opens as any other."""
    with must_raise(UsageError, f"hf:timm/{TI}") as caught:
        vitrail.load(f"hf:timm/{TI}")
    assert str(caught.value.hint) == f"timm:{REPOSITORY.removeprefix('timm/')}"
    assert hubs.connections == []
    hubs.put(f"timm/{TI}", folder_of(tmp_path / "own"))
    assert vitrail.load(f"hf:timm/{TI}").classes == ("0", "1", "2")


def test_a_misspelt_file_offers_its_neighbour(tmp_path: Path) -> None:
    own = folder_of(tmp_path / "own")
    for name in ("modell.safetensors", "Model.safetensor.safetensors"):
        with must_raise(DataError, name) as caught:
            vitrail.load(own / name)
        assert str(caught.value.hint) == str(own / "model.safetensors")
    with must_raise(DataError, "zzz.pth") as caught:
        vitrail.load(own / "zzz.pth")
    assert "model.safetensors" not in str(caught.value.hint)


def test_another_network_or_a_hub_that_is_none_is_not_offered(hubs: Hubs) -> None:
    for name in ("timm:vit_small_patch16_rope_mixed_224", "timm:convnext_tiny.dinov3_lvd1689m", "vit_pytorch:ViT"):
        with must_raise(UsageError, name) as caught:
            vitrail.load(name)
        assert not str(caught.value.hint).startswith(("timm:", "hf:", "torchvision:"))
    for path in ("runs/latest", "S/16", "tests/none", "lab/none.safetensors"):
        assert guess_name(path) == ""


@pytest.mark.parametrize(("name", "code"), [("hf:lab/none", 3), ("timm:vit_tiny_patch16_242", 2)])
def test_the_command_line_leaves_with_the_right_code(
    name: str, code: int, hubs: Hubs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hubs.offline(monkeypatch)
    with pytest.raises(SystemExit) as left:
        main(["models", name])
    assert left.value.code == code
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.strip().splitlines()) == 2


def told(kind: type[errors.HfHubHTTPError]) -> Callable[..., str]:
    """A hub that answers every question with this error, as huggingface_hub raises it."""

    def answer(local_files_only: bool = False, **wanted: Any) -> str:
        if local_files_only:
            raise errors.LocalEntryNotFoundError("not here")
        raise kind("403: no", response=SimpleNamespace(headers={}, request=None))  # pyrefly: ignore

    return answer


def holding(files: list[str]) -> Callable[..., Any]:
    """A hub whose repositories hold these files."""
    return lambda **asked: SimpleNamespace(siblings=[SimpleNamespace(rfilename=name) for name in files])


def test_a_gated_repository(hubs: Hubs, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("snapshot_download", "model_info"):
        monkeypatch.setattr(huggingface_hub, name, told(errors.GatedRepoError))
    for name, repository in (("hf:lab/gated", "lab/gated"), (f"timm:{TI}", REPOSITORY)):
        with must_raise(DataError, "gated") as caught:
            vitrail.load(name)
        assert f"huggingface.co/{repository}" in str(caught.value.hint)


def test_a_repository_that_the_hub_has_not(hubs: Hubs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hubs.put("lab/small-vit", folder_of(tmp_path / "own"))
    for kind in (errors.RepositoryNotFoundError, errors.RevisionNotFoundError):
        for name in ("snapshot_download", "model_info"):
            monkeypatch.setattr(huggingface_hub, name, told(kind))
        with must_raise(UsageError, "hf:lab/smal-vit") as caught:
            vitrail.load("hf:lab/smal-vit")
        assert str(caught.value.hint) == "hf:lab/small-vit"
    monkeypatch.undo()
    with must_raise(UsageError, "a/b/c"):
        vitrail.load("hf:a/b/c")


def test_a_fetch_that_was_interrupted_goes_on(hubs: Hubs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "own", "two_files")
    place, last = hubs.put("lab/small", folder), folder / "b.safetensors"
    kept = (place / "b.safetensors").readlink()
    (place / "b.safetensors").unlink()
    asked = []

    def answer(local_files_only: bool = False, **wanted: Any) -> str:
        asked.append(local_files_only)
        if not local_files_only and not (place / "b.safetensors").is_symlink():
            (place / "b.safetensors").symlink_to(kept)
        return str(place)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", answer)
    monkeypatch.setattr(huggingface_hub, "model_info", holding([file.name for file in folder.iterdir()]))
    assert torch.equal(logits(vitrail.load("hf:lab/small")), logits(vitrail.load(folder)))
    assert asked == [True, False, False]
    (place / "b.safetensors").unlink()
    hubs.offline(monkeypatch)
    with must_raise(DataError, "hf:lab/small"):
        vitrail.load("hf:lab/small")
    assert asked == [True, False, False, True]
    assert last.is_file()


OTHERS = (
    "model.fp16.safetensors",
    "adapter_model.safetensors",
    "pytorch_model.bin",
    "pytorch_model.fp16.bin",
    "tf_model.h5",
)


@pytest.mark.parametrize("case", ["timm", "two_files", pytest.param("pickled", marks=pytest.mark.soak)])
def test_only_what_is_opened_is_fetched(case: str, hubs: Hubs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of all that lies in a repository; once, and then nothing is asked of the hub."""
    folder = folder_of(tmp_path / "own", "timm" if case == "pickled" else case)
    if case == "pickled":
        torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    wanted = {file.name for file in folder.iterdir()}
    for name in {*OTHERS, "onnx/model.safetensors", "model.fp16.safetensors"} - wanted:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"another copy")
    there = [str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()]
    place, asked = hubs.root / "hub" / "models--lab--small" / "snapshots" / FIRST, list[bool]()

    def answer(repo_id: str, revision: Any, allow_patterns: list[str], local_files_only: bool = False) -> str:
        asked.append(local_files_only)
        if local_files_only and not place.is_dir():
            raise errors.LocalEntryNotFoundError("not here")
        for name in [] if local_files_only else filter_repo_objects(there, allow_patterns=allow_patterns):
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes((folder / name).read_bytes())
        return str(place)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", answer)
    monkeypatch.setattr(huggingface_hub, "model_info", holding(there))
    fetched = vitrail.load("hf:lab/small")
    assert {str(file.relative_to(place)) for file in place.rglob("*")} == wanted
    assert torch.equal(logits(fetched), logits(vitrail.load(folder)))
    del asked[:]
    hubs.offline(monkeypatch)
    assert torch.equal(logits(vitrail.load("hf:lab/small")), logits(fetched))
    assert asked == [True]


def test_a_link_of_the_hub_that_leaves_its_cache(hubs: Hubs, tmp_path: Path) -> None:
    place = hubs.put("lab/small", folder_of(tmp_path / "own", "two_files"))
    (place / "b.safetensors").unlink()
    (place / "b.safetensors").symlink_to(tmp_path / "own" / "files" / "b.safetensors")
    with must_raise(DataError, "b.safetensors"):
        vitrail.load("hf:lab/small")


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        ("---\nlicense: mit\n---\n", "mit"),
        ("license: mit\n", "not stated"),
        ("---\nlicense: <script>alert(1)</script>\n---\n", "not stated"),
        ("---\ntags: x\n---\nlicense: mit\n", "not stated"),
        ("", "not stated"),
    ],
)
def test_the_licence_of_a_card(card: str, licence: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "own")
    (folder / "README.md").write_text(card)
    config = json.loads((folder / "config.json").read_text())
    for stated, found in (("dinov3-license", "dinov3-license"), ("<b>", "not stated"), (None, "not stated")):
        config["pretrained_cfg"]["license"] = stated  # which a card is above
        (folder / "config.json").write_text(json.dumps(config))
        model = vitrail.load(folder)
        assert model.facts["licence"] == (found if licence == "not stated" else licence)
    saved = vitrail.save(model, tmp_path / "saved")
    assert f"| licence | {licence} |" in (saved / "README.md").read_text()
    assert json.loads((saved / "config.json").read_text())
