"""What other libraries get: their own layout, opened by them, with the answers of who made the network.

In -> out -> in: a peer's module becomes ours, is written for a library, answers there as the peer does, and has the
same bits when it comes back.
"""

import contextlib
import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

import vitrail
from tests.deploy.where import CLASSIFIES, KINDS, MORE, PAGES, Where, written
from tests.errors import must_raise
from tests.weights.families import ROWS, answer
from tests.weights.redraw import redrawn
from vitrail.data.preprocessing import Preprocessing
from vitrail.deploy import layouts
from vitrail.deploy.layouts import NativeFolder, write_native
from vitrail.errors import RunError, UsageError
from vitrail.model import CONFIG, WEIGHTS, Model, save
from vitrail.nn import ViT, ViTConfig, parts_of
from vitrail.tasks import TASKS, Classes
from vitrail.weights.places import timm_architectures
from vitrail.weights.saved import timm_keys

WRITE: dict[str, Callable[..., NativeFolder]] = {
    target: lambda model, folder, target=target: write_native(model, target, folder)
    for target in ("transformers", "timm", "torchvision")
}
BASE = ViTConfig(image_size=32, patch_size=8, classes=5, width=24, depth=2, heads=3)
READS = Preprocessing((32, 32), crop_pct=0.8, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4), centre="down")


def model_of(parts: dict[str, str] | None = None, reads: Preprocessing = READS, **fields: Any) -> Model:
    """A small model whose numbers are all drawn."""
    config = replace(BASE, image_size=reads.size, channels=reads.channels, **fields)
    torch.manual_seed(0)
    network = redrawn(ViT(config, parts_of(parts or {})))
    return Model(network, reads, Classes(tuple("abcde")), facts={"licence": "mit", "origin": "made by hand"})


def opened(made: NativeFolder) -> Callable[[Tensor], Tensor]:
    """What the library makes of the folder by the ways that its users know."""
    if made.target == "timm":
        return timm.create_model(f"local-dir:{made.folder}", pretrained=True).eval()
    if made.target == "torchvision":
        arguments = json.loads((made.folder / CONFIG).read_text())["torchvision"]
        eps = arguments.pop("norm_eps")
        norm: Any = lambda width: torch.nn.LayerNorm(width, eps=eps)  # noqa: E731
        module = torchvision.models.VisionTransformer(**arguments, norm_layer=norm).eval()
        module.load_state_dict(load_file(made.folder / WEIGHTS), strict=True)
        return module
    whose = transformers.AutoModelForImageClassification if CLASSIFIES in made.kind else transformers.AutoModel
    whose = getattr(transformers, made.kind) if "Projection" in made.kind else whose
    module, loading = whose.from_pretrained(made.folder, output_loading_info=True)
    assert type(module).__name__ == made.kind
    assert not any(loading.values()), loading
    return lambda images: answer(module, images)


def differ(found: Tensor, wanted: Tensor) -> float:
    assert found.shape == wanted.shape
    return float((found - wanted).abs().max() / wanted.abs().max())


@torch.no_grad()
def check_there_and_back(name: str, where: Where, folder: Path) -> None:
    row = ROWS[name]
    module, _ = row.make(folder)
    model = vitrail.convert(module, preprocessing=Preprocessing(row.size, "squash", mean=READS.mean, std=READS.std))
    config, own = model.network.config, model.network.state_dict()
    images: Any = torch.randn(3, 3, *row.size, generator=torch.Generator().manual_seed(7))
    theirs, found = answer(module, images), dict[str, NativeFolder]()
    for target, write in WRITE.items():
        with contextlib.suppress(UsageError):
            found[target] = write(model, folder / target)
        assert (target in found) == (folder / target).exists()
    assert not list(folder.glob(".*"))
    assert found.keys() == {target for target in WRITE if getattr(where, target)}
    for target, made in found.items():
        assert made.opened_by.startswith(target)
        assert made.gap is not None
        assert made.gap <= 1e-5
        assert differ(opened(made)(images), theirs) < 1e-4, target
        again = vitrail.load(made.folder)
        assert again.output == model.output, target
        assert again.preprocessing == model.preprocessing
        filled = any("changes nothing" in note or "the rest is 0" in note for note in made.notes)
        assert again.network(images).equal(model.network(images)) or filled
        if not filled:
            state = again.network.state_dict()
            assert state.keys() == own.keys()
            assert all(torch.equal(state[key], tensor) for key, tensor in own.items()), target
            rule = config.position_resize if target == "timm" else again.network.config.position_resize
            assert again.network.config == replace(config, position_resize=rule)
    if "transformers" in found:
        assert found["transformers"].kind == where.transformers


def test_the_pages_have_what_is_tested() -> None:
    for page, lines in PAGES.items():
        text = page.read_text(encoding="utf-8")
        assert text == written(text, lines()), "python -m tests.deploy.where writes them anew"


@pytest.mark.parametrize("name", KINDS)
def test_a_network_goes_to_others_and_comes_back_with_the_same_bits(name: str, tmp_path: Path) -> None:
    check_there_and_back(name, KINDS[name], tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("name", MORE)
def test_the_other_rows_do_too(name: str, tmp_path: Path) -> None:
    assert {*KINDS, *MORE} == {*ROWS}
    check_there_and_back(name, MORE[name], tmp_path)


FILLED: dict[str, tuple[dict[str, Any], dict[str, str], str]] = {  # what is there always, and changes nothing
    "no biases": (dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias", "head_bias"), False), {}, "ViT"),
    "a table of sines": ({"positions": "sinusoidal"}, {}, "ViT"),
    "no positions": ({"positions": "none"}, {}, "ViT"),
    "one register, as DeiT's token that nothing reads": ({"registers": 1}, {}, "DeiT"),
    "registers, of which each has a position here": ({"registers": 3}, {}, "Dinov2WithRegisters"),
    "the class token with LayerScale": ({"layer_scale": 0.1, "qkv_bias": False}, {}, "Dinov2"),
    "the mean behind the norm": ({"pooling": "mean"}, {}, "Dinov2"),
    "the mean without a class token": ({"pooling": "mean", "class_token": False, "mlp_dim": 50}, {}, "Siglip"),
    "CLIP's": (
        {"pooling": "mean", "embed_bias": False, "mlp_dim": 50, "activation": "relu", "norm_eps": 1e-3},
        {"embed_norm": "layer", "last_norm": "none"},
        "CLIP",
    ),
    "SwiGLU": ({"layer_scale": 0.1, "mlp_dim": 64, "activation": "silu"}, {"mlp": "swiglu"}, "Dinov2"),
}


@pytest.mark.parametrize("name", FILLED)
@torch.no_grad()
def test_what_a_network_lacks_changes_no_answer(name: str, tmp_path: Path) -> None:
    fields, parts, kind = FILLED[name]
    model = model_of(parts, **fields)
    made = WRITE["transformers"](model, tmp_path / "out")
    assert made.kind == kind + CLASSIFIES
    images: Any = (
        torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(7))
        * torch.tensor([1, 1, 0.003])[:, None, None, None]
    )
    wanted = model.network(images)
    assert wanted.std() > 0.1
    assert differ(opened(made)(images), wanted) < 1e-5
    assert differ(vitrail.load(made.folder).network(images), wanted) < 1e-5


REFUSED: dict[str, tuple[str, dict[str, Any], dict[str, str], str]] = {  # the target, a network, where it can go
    "heads of another width": ("transformers", {"head_dim": 10}, {}, "onnx"),
    "a norm of another kind": ("transformers", {}, {"norm": "rms"}, "onnx"),
    "a mean with its own norm": (
        "transformers",
        {"pooling": "mean"},
        {"pooling": "mean_then_norm", "last_norm": "none"},
        "timm",
    ),
    "LayerScale and an MLP of 50": ("transformers", {"layer_scale": 0.1, "mlp_dim": 50}, {}, "timm"),
    "an epsilon": ("timm", {"norm_eps": 1e-12}, {}, "transformers"),
    "registers": ("torchvision", {"registers": 4}, {}, "timm"),
    "an activation": ("torchvision", {"activation": "relu", "norm_eps": 1e-12}, {}, "transformers"),
    "both": ("torchvision", {"pooling": "mean", "head_dim": 10}, {}, "onnx"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_library_cannot_express_is_refused_and_leads_on(name: str, tmp_path: Path) -> None:
    target, fields, parts, other = REFUSED[name]
    model = model_of(parts, **fields)
    with must_raise(UsageError, target) as caught:
        WRITE[target](model, tmp_path / "out")
    assert caught.value.hint.flags == {"to": other}
    assert not list(tmp_path.iterdir())
    if other in WRITE:
        assert WRITE[other](model, tmp_path / "other").opened_by


@pytest.mark.parametrize(
    ("target", "reads"),
    [
        ("transformers", replace(READS, resize="pad", crop_pct=1.0)),
        ("torchvision", replace(READS, resize="pad", crop_pct=1.0)),
        ("transformers", replace(READS, size=(24, 32))),
        ("torchvision", replace(READS, channels=1, mean=(0.5,), std=(0.5,))),
    ],
    ids=str,
)
def test_images_that_go_in_otherwise_are_refused(target: str, reads: Preprocessing, tmp_path: Path) -> None:
    with must_raise(UsageError, target):
        WRITE[target](model_of(reads=reads), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def edited(file: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    """Changes a file of JSON or tensors, as a fault of whoever writes it would."""

    def edit(folder: Path) -> None:
        if file == WEIGHTS:
            save_file(change(load_file(folder / file)), folder / file)
        else:
            (folder / file).write_text(json.dumps(change(json.loads((folder / file).read_text()))))

    return edit


def of(pattern: str, change: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    def changed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        names = [name for name in tensors if re.search(pattern, name)]
        assert names
        return {**tensors, **{name: change(tensors[name]).contiguous() for name in names}}

    return changed


def without(pattern: str) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda tensors: {name: tensor for name, tensor in tensors.items() if not re.search(pattern, name)}


PLANTED: dict[str, tuple[str, Callable[[Path], None]]] = {
    "an epsilon": ("transformers", edited(CONFIG, lambda keys: {**keys, "layer_norm_eps": 1e-12})),
    "an activation": ("transformers", edited(CONFIG, lambda keys: {**keys, "hidden_act": "gelu_new"})),
    "heads": ("transformers", edited(CONFIG, lambda keys: {**keys, "num_attention_heads": 6})),
    "a tensor is missing": ("transformers", edited(WEIGHTS, without(r"layer\.1\.layernorm_after\.bias"))),
    "a tensor too many": ("transformers", edited(WEIGHTS, lambda all: {**all, "vit.more": torch.zeros(1)})),
    "queries and keys": ("transformers", edited(WEIGHTS, of("0.*query", lambda tensor: tensor.flip(0)))),
    "the order of classes": ("transformers", edited(WEIGHTS, of("classifier", lambda tensor: tensor.roll(1, 0)))),
    "mean and std": (
        "transformers",
        edited("preprocessor_config.json", lambda keys: {**keys, "image_mean": [0.5, 0.4, 0.31]}),
    ),
    "another resize": ("transformers", edited("preprocessor_config.json", lambda keys: {**keys, "resample": 2})),
    "a pooling": (
        "timm",
        edited(
            CONFIG, lambda keys: {**keys, "model_args": {**keys["model_args"], "global_pool": "avg", "fc_norm": False}}
        ),
    ),
    "a crop": (
        "timm",
        edited(CONFIG, lambda keys: {**keys, "pretrained_cfg": {**keys["pretrained_cfg"], "crop_pct": 0.9}}),
    ),
    "half the numbers": ("torchvision", edited(WEIGHTS, of("mlp.0.weight", lambda tensor: tensor.half().float()))),
    "a bias is missing": ("torchvision", edited(WEIGHTS, without("ln_1.bias"))),
}


def plant(monkeypatch: pytest.MonkeyPatch, target: str, fault: Callable[[Path], None]) -> None:
    whole = layouts.TARGETS[target]

    def write(model: Model, folder: Path) -> tuple[str, tuple[str, ...]]:
        found = whole.write(model, folder)
        fault(folder)
        return found

    monkeypatch.setitem(layouts.TARGETS, target, whole._replace(write=write))  # pyrefly: ignore[bad-argument-type]


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_leaves_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, fault = PLANTED[name]
    plant(monkeypatch, target, fault)
    with must_raise(RunError, target):
        WRITE[target](model_of(norm_eps=1e-5 if name == "an epsilon" else 1e-6), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_head_of_zeros_hides_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of()
    torch.nn.init.zeros_(model.network.head.weight)
    WRITE["transformers"](model, tmp_path / "right")
    plant(monkeypatch, "transformers", PLANTED["queries and keys"][1])
    with must_raise(RunError, "logits"):
        WRITE["transformers"](model, tmp_path / "wrong")
    assert [each.name for each in tmp_path.iterdir()] == ["right"]


@pytest.mark.parametrize("target", WRITE)
@torch.no_grad()
def test_the_card_says_how_it_is_used_and_that_works(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(reads=replace(READS, centre="even"))
    facts = {**model.facts, "data": str(tmp_path / "bees"), "unpickled": f"cached in {tmp_path}"}
    made = WRITE[target](replace(model, loaded_from=str(tmp_path), facts=facts), tmp_path / "out")
    card = (made.folder / "README.md").read_text()
    assert f"library_name: {target}\n" in card
    assert "license: mit\n" in card
    assert all(words in card for words in ("made by hand", *made.notes))
    assert {name: (made.folder / name).stat().st_size for name in made.files} == made.files
    assert {each.name for each in made.folder.iterdir()} == made.files.keys()
    for file in made.folder.iterdir():
        assert str(tmp_path).encode() not in file.read_bytes(), file
    x = torch.arange(96 * 80 * 3).reshape(96, 80, 3) % 251
    Image.fromarray(x.to(torch.uint8).numpy()).save(made.folder / "image.png")
    monkeypatch.chdir(made.folder)
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, "README.md", "exec"), {})
    found = torch.tensor([float(number) for number in re.findall(r"-?\d+\.\d+(?:e-?\d+)?", printed.getvalue())])
    wanted = model.network(model.tensor(["image.png"]))[0]
    assert wanted.std() > 0.1
    assert differ(found, wanted) < 0.02  # one level of 255 of a pixel


def test_what_answers_need_beside_the_network_is_said_and_the_background_stays(tmp_path: Path) -> None:
    model = model_of()
    background = torch.zeros(4, 3, 32, 32, dtype=torch.uint8)
    made = {target: write(replace(model, background=background), tmp_path / target) for target, write in WRITE.items()}
    for each in made.values():
        assert not [name for name in each.files if "background" in name or "composites" in name]
        assert any("training image" in note and "4" in note for note in each.notes)
    labels = TASKS["multilabel"].codec_from_dict({"labels": list("abcde"), "thresholds": [0.5, 0.25, 0.5, 0.5, 0.75]})
    numbers = TASKS["regression"].codec_from_dict(
        {"numbers": list("abcde"), "means": [1.5] * 5, "deviations": [0.125] * 4 + [0.375]}
    )
    for name, output, problem, said, last in (
        ("multilabel", labels, "multi_label_classification", "b 0.25", "e 0.75"),
        ("regression", numbers, "regression", "b is 1.5 + 0.125", "e is 1.5 + 0.375"),
    ):
        other = replace(model, output=output, task=TASKS[name])
        made[name] = WRITE["transformers"](other, tmp_path / name)
        config = transformers.AutoConfig.from_pretrained(tmp_path / name)
        assert config.problem_type == problem
        assert config.id2label == dict(enumerate("abcde"))
        assert [said in note for note in made[name].notes].count(True) == 1  # one sentence, of some names
        card = (made[name].folder / "README.md").read_text()
        assert said in card
        assert last in card  # which names all
        assert not any(last in note for note in made[name].notes)


def test_tall_images_that_are_squashed_have_the_same_pixels(tmp_path: Path) -> None:
    reads = Preprocessing((224, 224), "squash", mean=READS.mean, std=READS.std)
    made = WRITE["transformers"](model_of(reads=reads, patch_size=32), tmp_path / "out")
    tall = torch.randint(0, 256, (520, 333, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)).numpy()
    (code,) = re.findall(r"```python\n(.*?)```", (made.folder / "README.md").read_text(), re.DOTALL)
    (backend,) = re.findall(r'backend="(\w+)"', code)
    processor = transformers.AutoImageProcessor.from_pretrained(made.folder, backend=backend)
    found = processor(Image.fromarray(tall), return_tensors="pt")["pixel_values"][0]
    assert (found - reads(tall)).abs().max() < 1e-5
    assert any(backend in note for note in made.notes)


def test_an_architecture_of_timm_is_named_by_its_size(tmp_path: Path) -> None:
    model = model_of(reads=replace(READS, size=(224, 224)), patch_size=16, width=192, depth=12, mlp_dim=768, classes=5)
    made = WRITE["timm"](model, tmp_path / "out")
    assert made.kind == "vit_tiny_patch16_224"
    again, own = vitrail.load(made.folder).network.state_dict(), model.network.state_dict()
    assert again.keys() == own.keys()
    assert all(torch.equal(again[key], tensor) for key, tensor in own.items())
    wide = model_of(reads=replace(READS, size=(240, 240)), patch_size=16, width=192, depth=1, mlp_dim=768)
    assert WRITE["timm"](wide, tmp_path / "none").kind == "vit_base_patch16_224"
    named, special = set(), {"registers": 4, "layer_scale": 0.1, "qkv_bias": False, "pooling": "mean"}
    for name, row in timm_architectures().items():
        sides = {key: tuple(row["facts"][key]) for key in ("image_size", "patch_size")}
        facts = {key: row["facts"][key] for key in ("heads", "width", "depth", "mlp_dim")}
        if name.startswith("vit_") and len(row["facts"]) == 9:  # those sizes, and the usual of all else
            keys = timm_keys(replace(BASE, **facts, **sides, **special), {}, READS, ())
            named.add(keys["architecture"])
            arguments = {**keys["model_args"], "depth": 1, "num_classes": 5}
            with torch.device("meta"):
                found = timm.create_model(keys["architecture"], **arguments)
                plain = timm.create_model("vit_base_patch16_224", **arguments)
            assert str(found) == str(plain), name
            assert [each.shape for each in found.parameters()] == [each.shape for each in plain.parameters()]
    assert len(named) > 10


def test_a_library_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "find_spec", lambda name: None)
    made = WRITE["timm"](model_of(), tmp_path / "out")
    assert (made.opened_by, made.gap) == ("", None)
    assert "timm" in made.notes[-1]
    assert opened(made)(torch.zeros(1, 3, 32, 32)).shape == (1, 5)


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    folder = save(model_of(), tmp_path / "mine")
    before = {each.name: each.read_bytes() for each in folder.iterdir()}
    with must_raise(UsageError, "mine"):
        WRITE["transformers"](model_of(), folder)
    assert {each.name: each.read_bytes() for each in folder.iterdir()} == before
    assert [each.name for each in tmp_path.iterdir()] == ["mine"]
