"""Adapters: what is trained, what keeps its bits, and a plain model at the end; against closed forms and peft."""

import importlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import timm
import torch
from torch import nn

import vitrail
from tests.errors import must_raise
from tests.shared_runs import once
from tests.training.test_initial import OPTIONS, SMALL, source
from tests.training.tiny import Killed, die, ended_at, saved
from vitrail.errors import UsageError
from vitrail.nn import Parts, ViT, ViTConfig
from vitrail.runs.settings import Optimization
from vitrail.training import lora
from vitrail.training.events import Event, Finished
from vitrail.training.loop import start
from vitrail.training.lora import ALPHA, adapt, adapters, check_rank, merge_adapters
from vitrail.training.optimizer import Average, groups_of, parameter_rules

pytestmark = pytest.mark.usefixtures("few_penalties", "as_a_user")
RANK = 3
CONFIG = ViTConfig(image_size=16, patch_size=4, channels=1, classes=5, width=24, depth=2, heads=3)
CHOICES = Optimization(lora=RANK, weight_decay=0.2, layer_decay=0.5)


def asked() -> vitrail.TrainOptions:
    return replace(OPTIONS, init=str(source()), lora=RANK, lr=0.0002, keep="tuned")


def train(run: Path, options: vitrail.TrainOptions, *listen: Callable[[Event], None]) -> Finished:
    """A run whose tuned network is kept, whatever it is worth."""
    return vitrail.train("digits", run, options, *listen)


def tuned() -> Path:
    """A run with adapters, whole."""
    return once("adapted-digits", lambda folder: train(folder / "run", asked())) / "run"


def moved(config: ViTConfig = CONFIG) -> ViT:
    """A network whose adapters and head do something."""
    torch.manual_seed(0)
    network = ViT(config)
    adapt(network, RANK, seed=1)
    for module in adapters(network).values():
        nn.init.normal_(module.lora_b, std=0.1)
    nn.init.normal_(network.head.weight)
    return network.eval()


def gap(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).detach().norm() / other.detach().norm())


def test_a_merged_network_is_plain_and_gives_the_same() -> None:
    network, images = moved(), torch.randn(3, 1, 16, 16, generator=torch.Generator().manual_seed(2))
    plain = merge_adapters(network)
    assert {type(module) for module in plain.modules()} == {type(module) for module in ViT(CONFIG).modules()}
    assert plain.state_dict().keys() == ViT(CONFIG).state_dict().keys()
    assert gap(plain(images), network(images)) <= 1e-6
    double = moved().double()
    for name, module in adapters(double).items():  # the closed form, row by row
        rows = [module.weight[row] + ALPHA / RANK * module.lora_b[row] @ module.lora_a for row in range(72 // 3)]
        assert torch.allclose(
            merge_adapters(double).get_submodule(name).weight[:24], torch.stack(rows), rtol=1e-12, atol=1e-14
        )
    assert gap(merge_adapters(double)(images.double()), double(images.double())) <= 1e-14
    assert merge_adapters(plain) is plain


def test_a_network_begins_as_it_was_and_by_the_seed() -> None:
    torch.manual_seed(0)
    network, images = ViT(CONFIG), torch.randn(2, 1, 16, 16)
    nn.init.normal_(network.head.weight)
    before = network(images)
    adapt(network, RANK, seed=1)
    assert torch.equal(network(images), before)
    drawn = [each.lora_a for each in adapters(network).values()]
    assert len(drawn) == 4  # two maps in each of two blocks
    assert all(torch.equal(one, each.lora_a) for one, each in zip(drawn, adapters(moved()).values(), strict=True))
    other = ViT(CONFIG)
    adapt(other, RANK, seed=2)
    assert not any(torch.equal(one, each.lora_a) for one, each in zip(drawn, adapters(other).values(), strict=True))


def test_every_parameter_stands_in_one_row_and_every_trained_one_in_one_group() -> None:
    network = moved()
    rules = parameter_rules(network, CHOICES)
    names = [name for rule in rules for name in rule.names]
    assert sorted(names) == sorted(name for name, _ in network.named_parameters())
    assert sum(rule.numbers for rule in rules) == sum(each.numel() for each in network.parameters())
    grouped = [id(each) for group in groups_of(network, rules) for each in group["params"]]
    trained = {name: each for name, each in network.named_parameters() if each.requires_grad}
    assert sorted(grouped) == sorted(map(id, trained.values()))
    assert trained.keys() == {
        *("head.weight", "head.bias"),
        *(f"blocks.{at}.attn.{of}.{factor}" for at in (0, 1) for of in ("qkv", "proj") for factor in lora.FACTORS),
    }
    kinds = {name: rule.kind for rule in rules for name in rule.names}
    assert {kinds[name] for name in trained} == {"trained", "LoRA"}
    assert {kind for name, kind in kinds.items() if name not in trained} == {"frozen"}
    assert {rule.rate for rule in rules if rule.kind == "frozen"} == {0.0}


def no_freezing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lora, "freeze", lambda network: None)


def nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pass


@pytest.mark.parametrize(("fault", "holds"), [(nothing, True), (no_freezing, False)])
def test_what_is_frozen_keeps_its_bits_and_has_no_gradient(
    fault: Callable[[pytest.MonkeyPatch], None], holds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is not copied: the planted fault, a network that was not frozen, is seen by each of these."""
    fault(monkeypatch)
    torch.manual_seed(0)
    network = ViT(CONFIG)
    plain = {name: each for name, each in network.named_parameters() if not name.startswith("head")}
    before = {name: each.detach().clone() for name, each in plain.items()}
    adapt(network, RANK, seed=1)
    state = start(network, replace(CHOICES, ema_decay=0.9))
    assert isinstance(state.average, Average)
    for _ in range(3):
        network(torch.randn(4, 1, 16, 16)).logsumexp(dim=1).sum().backward()
        state.optimizer.step()
    state.average.update(0)
    held = {id(each) for each in state.average.network.parameters()}
    assert all(torch.equal(each, before[name]) for name, each in plain.items()) == holds
    assert all(each.grad is None for each in plain.values()) == holds
    assert all(id(each) in held for each in plain.values()) == holds
    moments = sum(value.numel() for each in state.optimizer.state.values() for value in each.values() if value.ndim)
    own = [each for name, each in network.named_parameters() if name not in plain]
    assert (moments == 2 * sum(each.numel() for each in own)) == holds
    assert not held & {id(each) for each in own}


def test_the_average_is_that_of_the_adapters() -> None:
    network = moved()
    average, first = Average(network, 0.5), {name: each.detach().clone() for name, each in network.named_parameters()}
    with torch.no_grad():
        for each in network.parameters():
            if each.requires_grad:
                each.add_(1.0)
    average.update(100)
    for name, each in average.network.named_parameters():
        expected = first[name] + (0.5 if network.get_parameter(name).requires_grad else 0.0)
        torch.testing.assert_close(each, expected)


def test_a_run_leaves_a_plain_model_and_the_adapter_beside_it() -> None:
    """Whose sum, by hand, is that model: and nothing else of it has changed."""
    found = json.loads((tuned() / "evaluation.json").read_text())
    assert found["kept"] == "tuned"
    theirs = vitrail.load(source()).network.state_dict()
    ours = vitrail.load(tuned()).network.state_dict()
    tensors = safetensors.torch.load_file(tuned() / "adapter" / "adapter_model.safetensors")
    for name, tensor in ours.items():
        head, place = name.startswith("head"), f"base_model.model.{name}"
        a, b = (tensors.get(f"{place.removesuffix('weight')}lora_{factor}.weight") for factor in "AB")
        if head:
            assert torch.equal(tensor, tensors[place])
        elif a is not None and b is not None:
            assert name.endswith(("attn.qkv.weight", "attn.proj.weight"))
            assert a.shape[0] == b.shape[1] == RANK
            torch.testing.assert_close(tensor, theirs[name] + ALPHA / RANK * b @ a, rtol=0, atol=1e-6)
            assert not torch.equal(tensor, theirs[name])
        else:
            assert torch.equal(tensor, theirs[name]), name
    start = vitrail.load(tuned() / "probe").network.state_dict()  # plain, and as it was
    assert start.keys() == theirs.keys()
    assert all(torch.equal(start[name], theirs[name]) for name in theirs if not name.startswith("head"))


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.soak), 7])
def test_a_run_goes_on_with_the_same_bits(step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(monkeypatch, often=step > 1)
    run = tmp_path / "run"
    with pytest.raises(Killed):
        train(run, asked(), ended_at(step, die))
    (run / "lock").unlink(missing_ok=True)
    with must_raise(UsageError, "lora: 3 -> 4"):
        vitrail.train("digits", run, replace(asked(), lora=4, resume="auto"))
    finished = train(run, vitrail.TrainOptions(resume="auto", verdicts=0))
    assert finished.weights == json.loads((tuned() / "evaluation.json").read_text())["weights"]
    for file in (tuned() / "adapter").iterdir():
        assert (run / "adapter" / file.name).read_bytes() == file.read_bytes()


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    for changes in ({"init": None}, {"probe": True}, {"lora": 0}, {"lora": 25}):
        with must_raise(UsageError, "lora"):
            vitrail.train("digits", tmp_path / "run", replace(asked(), **changes))
        assert not (tmp_path / "run").exists()
    with must_raise(UsageError, "lora"):
        vitrail.distill("digits", source(), tmp_path / "run", vitrail.DistillOptions(lora=2))
    own = ViT(CONFIG, Parts(attention=lambda config: Still()))
    with must_raise(UsageError, "Still"):
        check_rank(own, 2)
    check_rank(ViT(CONFIG), 24)


class Still(nn.Module):
    """Attention without a map."""

    def forward(self, tokens: torch.Tensor, record: object = None) -> torch.Tensor:
        return tokens


def test_peft_opens_the_adapter(tmp_path: Path) -> None:
    """On timm's own network, whose logits are then ours."""
    if importlib.util.find_spec("peft") is None:
        pytest.skip("peft is not installed")
    from peft import PeftModel

    folder = shutil.copytree(tuned() / "adapter", tmp_path / "adapter")
    base = timm.create_model("vit_tiny_patch16_224", **{**SMALL, "num_classes": 10})
    tensors = safetensors.torch.load_file(source() / "model.safetensors")
    base.load_state_dict({name: each for name, each in tensors.items() if "head" not in name}, strict=False)
    theirs = PeftModel.from_pretrained(base, str(folder)).eval()
    ours, images = vitrail.load(tuned()).network, torch.randn(4, 1, 16, 16)
    with torch.no_grad():
        assert gap(theirs(images), ours(images)) <= 1e-5
        assert gap(theirs.merge_and_unload()(images), ours(images)) <= 1e-5
