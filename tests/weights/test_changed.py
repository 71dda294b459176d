"""What is not as it was in the files is done as the source does it, and said: a size, a head, an average, names."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import transformers
from PIL import Image
from safetensors.torch import save_file
from timm.models import load_checkpoint, save_for_hf
from torch import nn
from torch.optim.swa_utils import AveragedModel

import vitrail
from tests.cli.command import USAGE, call, must_refuse, retyped
from tests.errors import must_raise
from tests.weights.families import DINOV2, NETWORK, SMALL
from tests.weights.redraw import redrawn
from tests.weights.small import PLAIN, READS, network
from vitrail.data.tensor_files import digest_of
from vitrail.errors import UsageError
from vitrail.model.facts import UNVERIFIED, UNVERIFIED_HEAD
from vitrail.model.foreign import identify
from vitrail.tasks.features import Numbers
from vitrail.weights import adapt

PHOTO = Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 70, 3), dtype=np.uint8)).resize((280, 360), 3)


def of_transformers(folder: Path, kind: str, config: Any, **size: Any) -> tuple[Any, Any]:
    """A network and its processor, as transformers saves them."""
    t: Any = transformers
    module: Any = redrawn(getattr(t, kind)(config))
    module.save_pretrained(folder)
    processor = t.BitImageProcessorPil(**size)
    processor.save_pretrained(folder)
    return module, processor


@pytest.mark.parametrize(("edge", "crop"), [(40, 24), (72, 64)])
@torch.no_grad()
def test_the_size_is_that_of_the_processor(edge: int, crop: int, tmp_path: Path) -> None:
    """As transformers does: DINOv2's configuration says 518 pixels, and its processor gives 224."""
    config = transformers.Dinov2Config(**DINOV2)
    size = {"size": {"shortest_edge": edge}, "crop_size": {"height": crop, "width": crop}}
    module, processor = of_transformers(tmp_path, "Dinov2Model", config, **size)
    theirs = module(**processor(PHOTO, return_tensors="pt")).pooler_output
    model = vitrail.load(tmp_path)
    assert model.preprocessing.size == model.network.config.image == (crop, crop)
    ours = model.network(model.tensor([PHOTO]))
    assert float((ours - theirs).abs().max() / theirs.abs().max()) < 1e-4
    assert "transformers" in model.facts["resized"]
    assert vitrail.load(tmp_path, image_size=32).facts.get("resized") is None
    assert vitrail.load(tmp_path, image_size=48).network.config.image == (48, 48)


def test_labels_that_are_no_names(tmp_path: Path) -> None:
    size = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    for labels in ({0: "LABEL_0", 1: "LABEL_1"}, {0: "LABEL_1", 1: "LABEL_0"}):
        config = transformers.ViTConfig(**SMALL, id2label=labels)
        of_transformers(tmp_path, "ViTForImageClassification", config, **size)
        model = vitrail.load(tmp_path)
        nameless = labels[0] == "LABEL_0"
        assert model.classes == (("0", "1") if nameless else ("LABEL_1", "LABEL_0"))
        assert ("class_names" in model.facts) == nameless


def test_a_size_that_memory_has_no_room_for_is_refused_before_any_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a file, of a folder of ours and when a training starts from it; what is offered is taken."""
    module = redrawn(timm.create_model(PLAIN, **NETWORK, img_size=32))
    file, ours = tmp_path / "bare.safetensors", tmp_path / "ours"
    save_file(module.state_dict(), file)
    vitrail.save(vitrail.convert(module), ours)
    assume = {"heads": NETWORK["num_heads"], "mean": 0.5, "std": 0.5}
    words = ["--assume", f"heads={assume['heads']}", "--mean", 0.5, "--std", 0.5]
    PHOTO.save(tmp_path / "photo.png")

    def wanted(network: nn.Module, size: Any) -> nn.Module:
        raise AssertionError(f"memory is taken for {size}")

    with monkeypatch.context() as patched:
        patched.setattr(adapt, "resize_network", wanted)
        for path, said in ((file, {"assume": assume}), (ours, {})):
            for size in (160_000, (16, 16 * 10**12)):
                with must_raise(UsageError, str(16 * 10**12) if isinstance(size, tuple) else "160000x160000") as caught:
                    vitrail.load(path, **said, image_size=size)
        typed = ["predict", str(file), str(tmp_path / "photo.png"), *map(str, words), "--image-size", "160000"]
        must_refuse(call(*typed), USAGE, "160000x160000")
        for start in ((), ("--init", ours)):
            run = call("train", "digits", *start, "--image-size", 160_000, "--out", tmp_path / "run")
            must_refuse(run, USAGE, "160000x160000")
        assert not (tmp_path / "run").exists()
    assert caught.value.hint.flags == {"image_size": (32, 32)}
    again = retyped(typed, call(*typed))
    assert again is not None
    assert call(*again).code == 0
    numbers = 3 * 64 * 64 + 16 * vitrail.load(ours).network.patch_embed.proj.out_channels  # of pixels and positions
    monkeypatch.setattr(adapt, "free_memory", lambda device: 4 * numbers)
    with must_raise(UsageError, "64x64"):
        vitrail.load(ours, image_size=64)
    monkeypatch.setattr(adapt, "free_memory", lambda device: 2**24)
    assert vitrail.load(ours, image_size=64).preprocessing.size == (64, 64)


# ---- checkpoints of training


@torch.no_grad()
def test_an_average_is_taken_as_timm_takes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    weights, average = network(0).state_dict(), network(1).state_dict()
    beside, file = {"epoch": 3, "optimizer": {"lr": 0.1}}, tmp_path / "last.pth"
    checkpoints = {
        "state_dict_ema": {**beside, "state_dict": weights, "state_dict_ema": average},
        "model_ema": {**beside, "model": weights, "model_ema": average},
        "state_dict": {**beside, "state_dict": weights, "state_dict_ema": None},
        "model": {**beside, "model": weights},
        "": dict(weights),
    }
    for name, checkpoint in checkpoints.items():
        torch.save(checkpoint, file)
        theirs = network(2)
        load_checkpoint(theirs, str(file))
        model = vitrail.load(file, assume={"heads": 3}, preprocessing=READS)
        ours = model.network.state_dict()
        assert all(torch.equal(tensor, ours[key]) for key, tensor in theirs.state_dict().items())
        assert ("weights" in model.facts) == name.endswith("ema")
        assert name.partition("_ema")[0] in model.facts.get("weights", name)
    torch.save(checkpoints["model_ema"], file)
    for _ in range(2):  # the second time from the cache
        model = vitrail.load(file, assume={"heads": 3}, preprocessing=READS)
        assert torch.equal(model.network.head.weight, average["head.weight"])
        assert "model_ema" in model.facts["weights"]


def test_what_wraps_a_network_is_looked_through(tmp_path: Path) -> None:
    """What torch averages, compiles or spreads is the network inside."""
    own = network(0)
    wrapped = {"averaged": AveragedModel(own), "compiled": torch.compile(AveragedModel(own))}
    for name, wrapper in wrapped.items():
        save_file(wrapper.state_dict(), tmp_path / f"{name}.safetensors")
        model = vitrail.load(tmp_path / f"{name}.safetensors", assume={"heads": 3}, preprocessing=READS)
        assert model.network.state_dict().keys() == vitrail.convert(own).network.state_dict().keys()
        assert torch.equal(model.network.head.weight, own.get_parameter("head.weight"))
        assert "n_averaged" in model.facts["left_out"]


# ---- a head of another size


def heads_of(model: Any) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in model.network.state_dict().items() if name.startswith("head")}


def test_a_head_of_another_size_is_made_anew_and_said(tmp_path: Path) -> None:
    save_for_hf(network(0), str(tmp_path), safe_serialization=True)
    old = vitrail.load(tmp_path)
    new = vitrail.load(tmp_path, assume={"classes": 5}, classes=list("abcde"))
    fresh = vitrail.ViT(new.network.config)
    assert new.classes == tuple("abcde")
    assert "head" in new.facts
    assert vitrail.load(tmp_path, assume={"classes": 5}).classes == tuple("01234")
    for name, tensor in new.network.state_dict().items():
        kept = fresh.state_dict()[name] if name.startswith("head") else old.network.state_dict()[name]
        assert torch.equal(tensor, kept), name
    loss = new.network(torch.randn(2, 3, 32, 32)).square().sum() + sum(p.sum() for p in new.network.parameters())
    loss.backward()
    assert all(parameter.grad is not None for parameter in new.network.parameters())
    again = vitrail.load(vitrail.save(new, tmp_path / "saved"))
    assert again.facts["head"] == new.facts["head"]

    assert "head" not in old.facts
    same = vitrail.load(tmp_path, assume={"classes": 7})
    assert "head" not in same.facts
    assert all(torch.equal(one, heads_of(old)[name]) for name, one in heads_of(same).items())
    with must_raise(UsageError):  # nothing else makes it so
        vitrail.load(tmp_path, classes=list("abcde"))


@pytest.mark.parametrize(
    "name", ["vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224", "vit_base_patch16_siglip_224"]
)
@torch.no_grad()
def test_no_head_is_as_timm_has_none(name: str, tmp_path: Path) -> None:
    """`num_classes=0` in timm; and of a file, whose head is among what is left out."""
    module = redrawn(timm.create_model(name, **NETWORK, img_size=32, num_classes=7))
    save_file(module.state_dict(), tmp_path / "weights.safetensors")
    heads = {key for key in module.state_dict() if key.startswith("head")}
    module.reset_classifier(0)  # pyrefly: ignore[not-callable]
    images = torch.randn(2, 3, 32, 32)
    for classes in (0, 5):
        assume = {"heads": 3, "classes": classes, "mean": 0.5, "std": 0.5}
        model = vitrail.load(tmp_path / "weights.safetensors", assume=assume)
        assert set(model.facts["left_out"].split(", ")) == heads
        known = identify(tmp_path / "weights.safetensors", assume).converted
        assert {*known.used, *known.skipped} == {*module.state_dict(), *heads}
        assert heads == known.skipped.keys()
        if not classes:
            assert isinstance(model.output, Numbers)
            assert float((model.network(images) - module.eval()(images)).abs().max()) < 1e-5
            again = vitrail.load(vitrail.save(model, tmp_path / "saved"))
            assert torch.equal(again.network(images), model.network(images))


def test_a_head_of_more_than_a_token_cannot_be_left_out() -> None:
    config = transformers.Dinov2Config(**DINOV2, num_labels=7)
    module = redrawn(transformers.Dinov2ForImageClassification(config))
    with must_raise(UsageError, "classes"):
        vitrail.convert(module, assume={"classes": 0}, preprocessing=READS)
    assert len(vitrail.convert(module, assume={"classes": 3}, preprocessing=READS).classes) == 3


def test_two_heads_and_none(tmp_path: Path) -> None:
    torch.manual_seed(0)
    distilled = timm.create_model("deit_tiny_distilled_patch16_224", **NETWORK, img_size=32)
    two = vitrail.convert(redrawn(distilled), assume={"classes": 4})
    assert {name: len(tensor) for name, tensor in heads_of(two).items()} == dict.fromkeys(
        ("head.weight", "head.bias", "head_dist.weight", "head_dist.bias"), 4
    )
    bare = network(0, num_classes=0)
    assert isinstance(vitrail.convert(bare).output, Numbers)
    assert vitrail.convert(bare, assume={"classes": 3}).classes == ("0", "1", "2")
    clip = timm.create_model("vit_base_patch32_clip_224.openai", **NETWORK, img_size=64, num_classes=512)
    assert vitrail.convert(redrawn(clip), assume={"classes": 3}).task.name == "classify"


def test_weights_that_differ_in_one_number_are_not_known(verified: Path) -> None:
    """In any tensor, though all that the row compares and answers is as it was."""
    whole = network(0).state_dict()
    for name in ("head.weight", "blocks.0.norm2.bias", "pos_embed"):
        other = {each: tensor.clone() for each, tensor in whole.items()}
        other[name].view(-1)[7] += 1e-6
        save_file(other, verified)
        assert vitrail.load(verified, assume={"heads": 3}, preprocessing=READS).facts["verified"] == UNVERIFIED, name


def test_a_head_of_known_weights(verified: Path) -> None:
    """The row of the rest still says how images go in; the answers are not verified."""
    assert "a row" in vitrail.load(verified, assume={"heads": 3}).facts["verified"]
    new = vitrail.load(verified, assume={"heads": 3, "classes": 4})
    assert new.preprocessing == READS
    assert new.facts["licence"] == "mit"
    assert new.facts["verified"].startswith(UNVERIFIED_HEAD)
    assert "name" not in new.facts
    assert "assumed" not in new.facts, "who verified the rest knows it"
    with must_raise(UsageError):
        vitrail.load(verified, assume={"heads": 4, "classes": 4})


@pytest.mark.parametrize("asked", [{"image_size": 48}, {"channels": 1}, {"image_size": 48, "channels": 1}])
def test_verified_is_the_network_before_it_was_adapted(asked: dict[str, int], verified: Path) -> None:
    """In the facts, in a saved folder and its card, and where a saved one is adapted later; both say the same."""
    assume, changes = {"heads": 3}, {"image_size": "resized", "channels": "grey"}
    plain, other = vitrail.load(verified, assume=assume), vitrail.load(verified, assume=assume, **asked)
    wanted = {changes[name] for name in asked}
    assert {name for name in changes.values() if name in other.facts} == wanted
    assert not {*changes.values(), "changed_weights"} & plain.facts.keys()
    assert other.facts["verified"].startswith(f"{plain.facts['verified']}, before ")
    assert ("48 x 48" in other.facts["verified"]) == ("image_size" in asked)
    assert ("grey" in other.facts["verified"]) == ("channels" in asked)
    assert other.facts["verified_weights"] == plain.facts["verified_weights"]  # of what was verified
    assert other.facts["changed_weights"] == digest_of(other.network.state_dict())
    assert "assume" not in other.facts.get("resized", ""), "the row says whose positions they are"

    saved = vitrail.save(other, verified.parent / "saved")
    assert vitrail.load(saved).facts == other.facts
    assert f"| verified | {other.facts['verified']} |" in (saved / "README.md").read_text()
    assert vitrail.load(vitrail.save(plain, verified.parent / "plain"), **asked).facts == other.facts
    with torch.no_grad():
        other.network.head.bias += 1
    facts = vitrail.load(vitrail.save(other, saved)).facts
    assert not {"name", "changed_weights"} & facts.keys()
    assert facts["verified"] == UNVERIFIED
    assert "weights" in facts


def test_every_change_is_said_at_the_terminal(verified: Path, tmp_path: Path) -> None:
    PHOTO.save(tmp_path / "photo.png")
    words = ("--assume", "heads=3,classes=4", "--image-size", 48, "--channels", 1)
    facts = vitrail.load(verified, assume={"heads": 3, "classes": 4}, image_size=48, channels=1).facts
    found = call("predict", verified, tmp_path / "photo.png", *words)
    assert found.code == 0, found.err
    models = json.loads(call("models", verified, *words, "--json").out)
    for name in ("head", "resized", "grey"):
        assert facts[name] in found.err
        assert models[name] == facts[name]
    page = tmp_path / "page.html"
    photo = tmp_path / "photo.png"
    assert call("explain", verified, photo, *words, "--out", page, "--method", "rollout").code == 2  # it learnt nothing
    asked = ("--out", page, "--method", "rollout", "--similar-to", photo)
    assert call("explain", verified, photo, *words, *asked).code == 0
    assert all(facts[name] in page.read_text() for name in ("head", "resized", "grey"))
