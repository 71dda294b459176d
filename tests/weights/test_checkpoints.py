"""Checkpoints as trainings leave them: one network out of them opens and answers as it did, or they are refused."""

import copy
import functools
import random
import re
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

import vitrail
from tests.cli.command import DATA, call, must_refuse
from tests.errors import must_raise
from tests.weights.families import ROWS, answer
from tests.weights.redraw import redrawn
from tests.weights.small import READS, network
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import DataError, UsageError, VitrailError
from vitrail.model.foreign import identify
from vitrail.nn.networks import without_numbers
from vitrail.nn.parts import names_of
from vitrail.weights.family import ADAPTERS, RELATIVE, WINDOWS, why_not, why_not_bare
from vitrail.weights.rotations import PUBLISHED
from vitrail.weights.unpickle import NUMPY

IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(3))
STATED = {"heads": 3}
State = Mapping[str, Any]
WORDS = (  # modules in which trainings keep a network
    *("net", "vit", "encoder", "model", "base_model", "student_backbone", "teacher", "student", "backbone", "module"),
    *("feature_extractor", "trunk", "visual", "base_encoder", "online_network", "image_tower", "0", "ema", "f"),
)
LOSSES = {
    "criterion.weight": torch.ones(7),
    "loss_fn.pos_weight": torch.ones(7),
    "train_acc.tp": torch.zeros(7),
    "val_metric.confmat": torch.zeros(7, 7),
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def under(prefix: str, state: State) -> dict[str, Any]:
    return {prefix + name: value for name, value in state.items()}


def write(folder: Path, content: Any, name: str = "last.ckpt") -> Path:
    if name.endswith("safetensors"):
        save_file({key: value.clone().contiguous() for key, value in content.items()}, folder / name)
    else:
        torch.save(content, folder / name)
    return folder / name


def opened(file: Path, **assume: Any) -> vitrail.Model:
    return vitrail.load(file, assume=STATED | assume, preprocessing=READS)


def skipped(file: Path) -> set[str]:
    return set(identify(file, STATED).converted.skipped)


@torch.no_grad()
def same(model: vitrail.Model, peer: nn.Module, images: Tensor = IMAGES) -> None:
    ours, theirs = model.network(images), answer(peer, images)
    assert theirs.std() > 0.1
    assert ours.shape == theirs.shape
    assert float((ours - theirs).abs().max() / theirs.abs().max()) <= 1e-5


class Holding(nn.Module):
    """A module of a user's own, which holds a network; and may change what it gives."""

    def __init__(self, name: str, inside: nn.Module, head: nn.Module | None = None) -> None:
        super().__init__()
        self.add_module(name, inside)
        self.name, self.head = name, head

    def forward(self, images: Tensor) -> Tensor:
        found = answer(self.get_submodule(self.name), images)
        return found if self.head is None else self.head(found)


class Bare(nn.Module):
    """One without a forward pass, whose training step calls what it holds."""

    def __init__(self, **held: nn.Module) -> None:
        super().__init__()
        for name, one in held.items():
            self.add_module(name, one)


# ---- prefixes


DAILY = (
    *("timm DeiT, distilled", "torchvision", "transformers ViT", "transformers DINOv2 classifier"),
    "transformers SigLIP classifier",
)
STATED_ALONE = "Google", "non-square image", "Encoder, spatial"  # in other files, or a rotation that no tensor shows
OFTEN = [
    pytest.param(name, marks=[pytest.mark.soak] * (name not in DAILY))
    for name in ROWS
    if not any(word in name for word in STATED_ALONE)
]


@pytest.mark.parametrize("row", OFTEN)
def test_behind_any_prefix_from_a_file_and_live(row: str, tmp_path: Path) -> None:
    """Every network of the table, in modules drawn by its name, with metrics and losses beside it."""
    module, size = ROWS[row].make(tmp_path)[0], ROWS[row].size
    words = random.Random(row).choices(WORDS, k=3)
    reads, images = Preprocessing(size), torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(7))
    plain, held = vitrail.convert(module, preprocessing=reads), module
    for word in words[::-1]:
        held = Holding(word, held)
    live = vitrail.convert(held, preprocessing=reads)
    same(live, module, images)
    assert live.network.config == plain.network.config
    assert live.output == plain.output
    config = plain.network.config
    assume = {name: getattr(config, name) for name in ("heads", "position_resize", "norm_eps", "activation")}
    assume |= {"pooling": names_of(plain.network.parts).get("pooling", config.pooling)}
    assume |= {"image_size": config.image, "distillation_token": config.distillation_token or None}
    if row.startswith("timm") and config.rotary is not None:
        rotary = next(name for name, each in PUBLISHED.items() if each.rotary == config.rotary)
        assume |= {"rotary": rotary, "norms": "before"}
    prefix = "".join(f"{word}." for word in words)
    file = write(tmp_path, under(prefix, module.state_dict()) | LOSSES, "own.safetensors")
    if why := why_not_bare(module.state_dict()):
        with must_raise(DataError, re.escape(why)):
            vitrail.load(file, assume=assume, preprocessing=reads)
        return
    model = vitrail.load(file, assume=assume, preprocessing=reads)
    same(model, module, images)
    assert model.network.config == plain.network.config
    own = write(tmp_path, module.state_dict(), "plain.safetensors")
    left = {f"{prefix}{name}" for name in identify(own, assume).converted.skipped}
    assert {*identify(file, assume).converted.skipped} == left | LOSSES.keys()


def test_what_torch_puts_into_names_is_taken_out(tmp_path: Path) -> None:
    own = network(0)
    for inner in ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module."):
        state = {name.replace("blocks.1.", f"blocks.1.{inner}"): each for name, each in own.state_dict().items()}
        same(opened(write(tmp_path, under(f"net.{inner}", state), "own.safetensors")), own)
    same(opened(write(tmp_path, AveragedModel(Holding("net", own)).state_dict(), "own.safetensors")), own)
    for wrapped in (
        AveragedModel(Holding("net", own)),
        Holding("net", torch.compile(own, backend="eager")),
        nn.Sequential(own),
    ):  # pyrefly: ignore[bad-argument-type]
        with torch.compiler.set_stance("force_eager"):  # what it is wrapped in is asked for, and nothing compiled
            converted = vitrail.convert(wrapped.eval(), preprocessing=READS)
        assert torch.equal(converted.network.state_dict()["head.weight"], own.get_parameter("head.weight"))


# ---- checkpoints of trainings


def chunked(state: State, size: int) -> dict[str, Any]:
    """As DINOv2's training names blocks: of a chunk, then of the network."""
    parts = {name: name.split(".") for name in state}
    return {
        ".".join(["blocks", str(int(part[1]) // size), *part[1:]]) if part[0] == "blocks" else name: state[name]
        for name, part in parts.items()
    }


def projection(layers: int) -> dict[str, Tensor]:
    """The head of MoCo v3: maps without bias, each with a batch norm, of which the last has no weights."""
    found: dict[str, Tensor] = {}
    for number in range(layers):
        found[f"head.{3 * number}.weight"] = torch.randn(16, 48 if number == 0 else 16)
        stats = {"running_mean": torch.randn(16), "running_var": torch.ones(16), "num_batches_tracked": torch.tensor(3)}
        found |= under(f"head.{3 * number + 1}.", stats)
    return found


def distilling(word: str = "head") -> dict[str, Tensor]:
    names = ("mlp.0.weight", "mlp.0.bias", "mlp.2.weight", "last_layer.weight_g", "last_layer.weight_v")
    return {f"{word}.{name}": torch.randn(8, 8) for name in names}


@functools.cache
def checkpoints() -> dict[str, tuple[Any, nn.Module, set[str]]]:
    """What each holds, the network in it, and what is left out; of the prefixes that a whole state is behind."""
    own, bare, other = network(0), network(0, num_classes=0), network(1, num_classes=0)
    lightning = {
        "epoch": 3,
        "pytorch-lightning_version": "2.5.0",
        "state_dict": under("model.", own.state_dict()) | LOSSES,
        "hyper_parameters": {"lr": 0.1, "weights": torch.ones(2, 2)},
        "callbacks": {"ModelCheckpoint": {"best_model_score": torch.tensor(0.9), "best_k_models": {}}},
        "loops": {"fit_loop": {"state_dict": {}}},
        "optimizer_states": [torch.optim.AdamW(own.parameters()).state_dict()],
        "lr_schedulers": [],
    }
    moco = under("module.base_encoder.", bare.state_dict() | projection(3))
    moco |= under("module.momentum_encoder.", other.state_dict() | projection(3))
    moco |= under("module.predictor.", {"0.weight": torch.randn(16, 16), "1.running_mean": torch.randn(16)})
    left = {name for name in moco if not name.startswith("module.base_encoder.") or ".head." in name}
    ibot = {"masked_embed": torch.randn(1, 48), **other.state_dict()}
    ibot = {
        "student": under("module.backbone.", ibot) | under("module.", distilling()),
        "teacher": under("backbone.", bare.state_dict()) | distilling(),
        "epoch": 3,
    }
    of_student = {f"student.{name}" for name in ibot["student"]}
    dino = under("backbone.", chunked(bare.state_dict() | {"mask_token": torch.randn(1, 48)}, 1))
    decoder = {f"decoder_blocks.0.{name}": torch.randn(8, 8) for name in ("attn.qkv.weight", "norm1.weight")}
    decoder |= {"mask_token": torch.randn(1, 1, 8), "decoder_embed.weight": torch.randn(8, 48)}
    decoder |= {"decoder_pos_embed": torch.randn(1, 5, 8), "decoder_pred.weight": torch.randn(768, 8)}
    beside = {"fc.weight": own.get_parameter("head.weight"), "fc.bias": own.get_parameter("head.bias")}
    mlp = {"fc.0.weight": torch.randn(8, 48), "fc.2.weight": torch.randn(3, 8)}
    return {
        "lightning": (lightning, own, {*LOSSES}),
        "MoCo v3": ({"epoch": 300, "arch": "vit_small", "state_dict": moco}, bare, left),
        "iBOT": (ibot, bare, of_student | {f"teacher.{name}" for name in distilling()}),
        "DINOv2's teacher": (
            {"teacher": dino | distilling("dino_head") | distilling("ibot_head")},
            bare,
            {"backbone.mask_token", *distilling("dino_head"), *distilling("ibot_head")},
        ),
        "DINOv2, in chunks of two": (chunked(bare.state_dict(), 2), bare, set()),
        "MAE": ({"model": bare.state_dict() | decoder}, bare, {*decoder}),
        "lucidrains' average": (
            under("online_model.", network(1).state_dict())
            | under("ema_model.", own.state_dict())
            | {"step": torch.ones(1)},
            own,
            {*under("online_model.", own.state_dict()), "step"},
        ),
        "an average with counts": (
            {"model": network(1).state_dict(), "ema": {"module": own.state_dict(), "updates": 9}},
            own,
            {*under("model.", own.state_dict())},
        ),
        "a head beside it": (under("backbone.", bare.state_dict()) | beside, own, set()),
        "a head of several layers beside it": (under("backbone.", bare.state_dict()) | mlp, bare, {*mlp}),
    }


NAMES = (
    *("lightning", "MoCo v3", "iBOT", "DINOv2's teacher", "DINOv2, in chunks of two", "MAE", "lucidrains' average"),
    *("an average with counts", "a head beside it", "a head of several layers beside it"),
)


@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_opens_and_says_what_it_left_out(name: str, tmp_path: Path) -> None:
    content, peer, left = checkpoints()[name]
    file = write(tmp_path, content)
    model = opened(file)
    same(model, peer)
    assert skipped(file) == left
    shown = call("models", file, "--assume", "heads=3", "--mean", 0.5, "--std", 0.5)
    assert shown.code == 0
    assert all(each in shown.out for each in {one.partition(".")[0] for one in left})
    vitrail.save(model, tmp_path / "saved")
    card = (tmp_path / "saved" / "README.md").read_text()
    assert all(each in card for each in {one.partition(".")[0] for one in left})
    if name == "a head of several layers beside it":
        assert "fc.0.weight" in model.facts["head"]


def test_mocos_smallest_has_twelve_heads(tmp_path: Path) -> None:
    """Its positions are sines and cosines, of which the class token has zeros; other encoders have six."""
    arguments = {"img_size": 32, "num_heads": 12, "num_classes": 0}
    own: Any = redrawn(timm.create_model("vit_small_patch16_224", depth=2, **arguments))
    own.pos_embed.data[:, :1] = 0
    with without_numbers():
        other = timm.create_model("vit_small_patch16_224", **arguments).state_dict()
    for heads, state in ((12, own.state_dict()), (6, {name: torch.ones(each.shape) for name, each in other.items()})):
        file = write(tmp_path, under("module.base_encoder.", state), "moco.safetensors")
        model = vitrail.load(file, preprocessing=READS)
        assert model.network.config.heads == heads
        if heads == 12:
            same(model, own)


def test_chunks_whose_blocks_are_numbered_anew(tmp_path: Path) -> None:
    """They go on from one chunk to the next, of any sizes, in the order of numbers."""
    own, ends = network(0, depth=13), (0, 2, *range(3, 14))  # 12 chunks, of which the first has two blocks

    def anew(name: str) -> str:
        word, _, rest = name.partition(".")
        number, _, last = rest.partition(".")
        chunk = max(index for index, start in enumerate(ends) if word == "blocks" and start <= int(number))
        return f"blocks.{chunk}.{int(number) - ends[chunk]}.{last}"

    state = {anew(name) if name.startswith("blocks.") else name: each for name, each in own.state_dict().items()}
    assert {"blocks.0.1.norm1.weight", "blocks.11.0.norm1.weight"} < state.keys()
    same(opened(write(tmp_path, state)), own)
    same(opened(write(tmp_path, chunked(own.state_dict(), 5))), own)


# ---- what numpy and a user's own classes write


def by_columns(tensor: Tensor) -> np.ndarray:
    return np.asfortranarray(tensor.numpy())


@pytest.mark.parametrize("older", [False, True])
def test_what_numpy_wrote_beside_or_in_place_of_tensors(older: bool, tmp_path: Path) -> None:
    own, file = network(0), tmp_path / "last.ckpt"
    state = own.state_dict()
    hyper = {"lr": np.float64(0.1), "classes": np.arange(3), "names": np.array(["a", "b"]), "any": np.array([{}])}
    beside = {"hyper_parameters": hyper, "best_acc": np.float32(0.9), "random": np.random.get_state()}
    arrays = {name: np.asarray(each) for name, each in state.items()}
    doubles = {name: np.asarray(each.double()) for name, each in state.items()}
    columns = {name: by_columns(each) for name, each in state.items()}
    for each in ({"state_dict": state, **beside}, {"model": arrays, **beside}, arrays, columns, doubles):
        torch.save(each, file, _use_new_zipfile_serialization=not older)
        if older:  # before numpy 2
            file.write_bytes(file.read_bytes().replace(b"numpy._core", b"numpy.core"))
        same(opened(file), own)
    for other in (state["norm.weight"].numpy().astype(">f4"), np.array([{}] * 48), np.array([1j] * 48)):
        with must_raise(DataError, "norm.weight"):
            opened(write(tmp_path, arrays | {"norm.weight": other}))
    assert {each.__module__ for each, _ in NUMPY} == {"vitrail.weights.unpickle"}, "numpy itself is never called"


class Options:
    """Of a user's own, whose class a checkpoint names."""


def test_a_class_is_refused_with_code_that_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own = network(0)
    for content in (
        {"state_dict": own.state_dict(), "options": Options()},
        {"model": own.state_dict(), "a": Options()},
        own,
    ):
        torch.save(content, "my own.ckpt")
        with must_raise(DataError, "Options|VisionTransformer") as caught:
            opened(Path("my own.ckpt"))
        assert "trust" in str(caught.value.hint)
        exec(str(caught.value.hint), {})
        same(opened(Path("weights.pth")), own)


class Adapted(nn.Module):
    """As PEFT puts an adapter around a linear map."""

    def __init__(self, inside: Any) -> None:
        super().__init__()
        self.base_layer = inside
        self.lora_A = nn.ModuleDict({"default": nn.Linear(inside.in_features, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, inside.out_features, bias=False)})


@pytest.mark.parametrize("part", ["attn.qkv", "mlp.fc2"])
def test_adapters_that_are_not_merged_are_named(part: str, tmp_path: Path) -> None:
    own, theirs = network(0), of_transformers()
    loose = {f"blocks.0.{part}.lora_A": torch.ones(2, 48), f"blocks.0.{part}.lora_B.default.weight": torch.ones(48, 2)}
    for state in (own.state_dict() | loose, under("base_model.model.", own.state_dict() | loose), loose):
        with must_raise(DataError, ADAPTERS) as caught:
            opened(write(tmp_path, state))
        assert "merge_and_unload()" in str(caught.value.hint)
    own.set_submodule(f"blocks.1.{part}", Adapted(own.get_submodule(f"blocks.1.{part}")))
    theirs = copy.deepcopy(theirs)
    name = next(each for each, one in theirs.named_modules() if isinstance(one, nn.Linear))
    theirs.set_submodule(name, Adapted(theirs.get_submodule(name)))
    with must_raise(DataError, ADAPTERS):
        opened(write(tmp_path, own.state_dict()))
    for live in (own, theirs, Bare(base_model=Bare(model=own)), Bare(base_model=theirs)):
        with must_raise(UsageError, ADAPTERS) as caught:
            vitrail.convert(live)
        assert "merge_and_unload()" in str(caught.value.hint)


def test_nothing_and_one_entry(tmp_path: Path) -> None:
    for name in ("empty.ckpt", "empty.safetensors"):
        with must_raise(DataError, name) as caught:
            opened(write(tmp_path, {}, name))
        assert not caught.value.problem.endswith(": ")


# ---- names of files


@pytest.mark.parametrize("name", ["best.pth.tar", "best.tar", "best.TAR", "best.pt"])
def test_names_of_files(name: str, tmp_path: Path) -> None:
    own, file = network(0), tmp_path / name
    with must_raise(DataError, name):
        vitrail.load(file)
    file.write_bytes(b"junk" * 99)
    given: list[dict[str, Any]] = [{"assume": STATED}, {"preprocessing": READS}, {"classes": ["a"]}, {"network": own}]
    with must_raise(DataError, name) as caught:
        vitrail.load(file)
    for more in [*given, {"assume": {"mean": 0.5, "std": 0.5}}, {"image_size": 32}, {"channels": 1}, {"bits": 12}]:
        with must_raise(DataError) as again:
            vitrail.load(file, **more)
        assert again.value.problem == caught.value.problem
    file.unlink()
    if name != "best.TAR":
        must_refuse(call("models", file), DATA, f"{file} weights")
    for zipped in (True, False) if name == "best.tar" else (True,):
        torch.save({"state_dict": under("module.", own.state_dict())}, file, _use_new_zipfile_serialization=zipped)
        same(opened(file), own)
    if name.lower().endswith("tar"):
        with tarfile.open(file, "w") as archive:
            archive.add(write(tmp_path, own.state_dict(), "inside.pth"), "inside.pth")
        must_refuse(call("models", file), DATA, f"{file} archive")
        with must_raise(DataError, name):
            vitrail.load(file)


# ---- what is refused


TWO = ("by key", "by prefix", "in a checkpoint", "a teacher that is no average", "two averages", "of two families")


@functools.cache
def two_networks() -> dict[str, Any]:
    first, second = network(0).state_dict(), network(1).state_dict()
    deeper = {name.replace("blocks.1.", "blocks.2."): each for name, each in second.items()} | second
    return {
        "by key": {"generator": first, "judge": second},
        "by prefix": under("generator.", first) | under("judge.", second),
        "in a checkpoint": {"state_dict": under("generator.", first) | under("judge.", second), "epoch": 1},
        "a teacher that is no average": {"student": first, "teacher": deeper},
        "two averages": {"ema": first, "teacher": second},
        "of two families": under("generator.", first) | under("judge.", of_transformers().state_dict()),
    }


@functools.cache
def of_transformers() -> Any:
    config = transformers.ViTConfig(
        hidden_size=48, num_hidden_layers=2, num_attention_heads=3, intermediate_size=96, image_size=32, patch_size=16
    )
    return redrawn(transformers.ViTForImageClassification(config))


@pytest.mark.parametrize("name", TWO)
def test_two_networks_are_never_mixed(name: str, tmp_path: Path) -> None:
    """Both are named, and each opens by what is offered; another prefix is refused."""
    content = two_networks()[name]
    file = write(tmp_path, content)
    with must_raise(DataError, file.name) as caught:
        opened(file)
    flags = caught.value.hint.flags
    must_refuse(call("models", file), DATA, str(file))
    offered = flags["assume"]["prefix"]
    whole = {key for key in content if isinstance(content[key], Mapping)} - {"state_dict"}
    for prefix in whole or {"generator", "judge"}:
        assert prefix in caught.value.problem
        state = content.get(prefix) or {
            key.removeprefix(f"{prefix}."): each
            for key, each in content.get("state_dict", content).items()
            if key.startswith(f"{prefix}.")
        }
        stated = {"norm_eps": 1e-6, "activation": "gelu"}
        alone = opened(write(tmp_path, state, "alone.safetensors"), **stated)
        for said in (prefix, f"{prefix}."):
            both = opened(file, prefix=said, **stated)
            assert torch.equal(both.network(IMAGES), alone.network(IMAGES))
        assert prefix in both.facts["weights"]
    assert offered.strip(".") in (whole or {"generator", "judge"})
    with must_raise(UsageError, "absent"):
        opened(file, prefix="absent")


def test_live_modules_that_hold_more(tmp_path: Path) -> None:
    """What holds a network, and answers as it does, is looked through; else it is said what to convert."""
    own, bare = network(0), network(0, num_classes=0)
    head = redrawn(nn.Sequential(nn.Dropout(0.5), nn.Linear(48, 3)))
    for module in (Bare(net=own), Bare(net=own, criterion=nn.CrossEntropyLoss(torch.ones(7)))):
        same(vitrail.convert(module.eval()), own)
    with_head = Holding("net", bare, head).eval()
    same(vitrail.convert(with_head), with_head)
    deep = redrawn(nn.Sequential(nn.Linear(48, 8), nn.GELU(), nn.Linear(8, 3)))
    changed = (nn.Sequential(nn.ReLU(), nn.Linear(48, 3)), deep, nn.Softmax(1), nn.LayerNorm(48))
    for other in changed:
        holding = Holding("net", bare, other).eval()
        with must_raise(DataError, "Holding") as caught:
            vitrail.convert(holding)
        assert torch.equal(vitrail.convert(holding.get_submodule("net")).network(IMAGES), bare(IMAGES))
        assert "module.net" in str(caught.value.hint)
    with must_raise(UsageError, r"module\.one.*module\.two"):
        vitrail.convert(Bare(one=own, two=bare))
    assert vitrail.convert(with_head).facts["assumed"]


def test_a_head_without_a_shape_or_of_several_layers(tmp_path: Path) -> None:
    bare = network(0, num_classes=0).state_dict()
    for shape in ((0, 48), (5, 0), (5,), (), (5, 48, 1)):
        with must_raise(DataError, "head.weight"):
            opened(write(tmp_path, bare | {"head.weight": torch.zeros(shape)}, "head.safetensors"))
    lazy: Any = network(0)
    lazy.head = nn.LazyLinear(3)
    with must_raise(UsageError, "head.weight"):
        vitrail.convert(lazy)
    with must_raise(DataError, "last.ckpt"):
        opened(write(tmp_path, lazy.state_dict()))
    several = bare | {"head.0.weight": torch.ones(8, 48), "head.2.weight": torch.ones(3, 8)}
    with must_raise(DataError, "head.0.weight") as caught:
        opened(write(tmp_path, several))
    same(opened(tmp_path / "last.ckpt", **caught.value.hint.flags["assume"]), network(0, num_classes=0))
    assert opened(tmp_path / "last.ckpt", classes=4).network.config.classes == 4


REFUSED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "blocks.0.adapter.weight": lambda state: (
        under("model.", state) | {"model.blocks.0.adapter.weight": torch.ones(3, 3)}
    ),
    "same number": lambda state: chunked(state, 2) | {"blocks.1.1.norm1.weight": torch.ones(48)},
    "norm2.weight": lambda state: {name: each for name, each in under("net.", state).items() if "1.norm2" not in name},
    "there twice": lambda state: state | {f"_orig_mod.{name}": each for name, each in state.items()},
    "family": lambda state: {"model": {"a.weight": torch.ones(2, 2)}},
    "'a'": lambda state: {"model": state | {"a": "b"}},
}


@pytest.mark.parametrize("named", REFUSED)
def test_an_unknown_or_missing_tensor_stays_an_error(named: str, tmp_path: Path) -> None:
    with must_raise(VitrailError, named):
        opened(write(tmp_path, REFUSED[named](network(0).state_dict())))


def test_a_relative_bias_is_the_reason_and_no_windows(tmp_path: Path) -> None:
    small: Any = {"embed_dim": 48, "depth": 2, "num_heads": 3, "img_size": 32}
    layers: Any = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 96}
    config = transformers.BeitConfig(**layers, image_size=32, use_relative_position_bias=True)
    shared = transformers.BeitConfig(**layers, image_size=32, use_shared_relative_position_bias=True)
    made = [
        timm.create_model("beit_base_patch16_224", **small),
        timm.create_model("vit_relpos_small_patch16_224", **small),
        *(transformers.BeitForImageClassification(each) for each in (config, shared)),
    ]
    for module in made:
        for state in (module.state_dict(), under("model.", module.state_dict())):
            with must_raise(DataError, RELATIVE) as caught:
                opened(write(tmp_path, state, "model.safetensors"))
            assert WINDOWS not in caught.value.problem
        for live in (module, Bare(net=module)):
            with must_raise(UsageError, RELATIVE):
                vitrail.convert(live)
    windowed = timm.create_model("swin_tiny_patch4_window7_224", img_size=56, window_size=7, embed_dim=24)
    assert why_not("", windowed.state_dict()) == WINDOWS
