"""A record never changes the answer, and what it shows equals the explicit network, weights and gradients alike."""

import re
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import vitrail
from tests.nn.reference import explicit_vit, explicit_weights, redraw, some_images
from tests.nn.sequences import SMALL, sources, targets, transformer
from vitrail.errors import UsageError
from vitrail.nn import SILENT, Attention, Parts, Record, Silent, ViT, ViTConfig, causal_mask, run_with_record
from vitrail.nn.record import weights_gradient

PLAIN = ViTConfig(image_size=(16, 24), patch_size=8, classes=7, width=24, depth=3, heads=3)
FORMS = {
    "class token": PLAIN,
    "class and registers": replace(PLAIN, registers=4),
    "distilled": replace(PLAIN, distillation_token=True),
    "mean of patches": replace(PLAIN, pooling="mean", registers=2),
    "no prefix": replace(PLAIN, pooling="mean", class_token=False),
    "rectangular patches, relu": replace(PLAIN, patch_size=(4, 6), activation="relu"),
    "free head_dim, LayerScale, no qkv bias": replace(PLAIN, heads=2, head_dim=5, layer_scale=0.1, qkv_bias=False),
    "sinusoidal": replace(PLAIN, positions="sinusoidal"),
}
BLOCK = ["input", "norm1", "attn_out", "mlp", "output", "attention", "queries", "keys", "values", "attended"]


def built(config: ViTConfig, parts: Parts | None = None) -> ViT:
    network = ViT(config, parts) if parts else ViT(config)
    redraw(network)
    return network.eval()


def images_for(config: ViTConfig, count: int = 3) -> Tensor:
    return some_images(count, config.channels, *config.image)


@pytest.fixture(scope="module")
def run() -> tuple[ViT, Tensor, Record, Tensor]:
    """A small network, its images, the record of a run with gradients, and the logits."""
    network = built(FORMS["class and registers"])
    images, record = images_for(network.config), Record(gradients=True)
    return network, images, record, network(images, record)


class Operations(TorchDispatchMode):
    """Lists what a network calls; `detach` is no arithmetic and is left out."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if "detach" not in str(function):
            self.names.append(str(function))
        return function(*args, **(kwargs or {}))


RECORDS = {
    "all": lambda: Record(),
    "with gradients": lambda: Record(gradients=True),
    "one name": lambda: Record("blocks.1.attention"),
    "nothing that exists": lambda: Record("elsewhere.*"),
}


@pytest.mark.parametrize("kind", RECORDS)
@pytest.mark.parametrize("form", FORMS)
def test_a_record_changes_no_bit(form: str, kind: str):
    network = built(FORMS[form])
    images = images_for(network.config)
    assert torch.equal(network(images), network(images, RECORDS[kind]()))
    with torch.no_grad():
        assert torch.equal(network(images), network(images, RECORDS[kind]()))


@pytest.mark.parametrize("kind", RECORDS)
def test_a_record_changes_no_operation_and_no_gradient(kind: str):
    network = built(FORMS["class and registers"])
    images, lists, gradients = images_for(network.config), [], []
    for record in (SILENT, RECORDS[kind]()):
        with Operations() as operations:
            logits = network(images, record)
        lists.append(operations.names)
        gradients.append(torch.autograd.grad(logits.square().sum(), list(network.parameters())))
    assert lists[0] == lists[1]
    assert len(lists[0]) > 20
    assert all(torch.equal(without, recorded) for without, recorded in zip(*gradients, strict=True))


def test_a_record_changes_no_bit_in_training_with_dropout():
    network = built(replace(PLAIN, dropout=0.2, attention_dropout=0.2, stochastic_depth=0.3)).train()
    images, answers = images_for(PLAIN), []
    for record in (SILENT, Record(), Record(gradients=True)):
        torch.manual_seed(3)
        answers.append(network(images, record))
    assert torch.equal(answers[0], answers[1])
    assert torch.equal(answers[0], answers[2])


def test_in_training_with_attention_dropout_the_weights_are_those_before_it():
    """`attention` sums to 1 and is what is dropped from; `attended` is what came out, by the weights that were left."""
    network = built(replace(PLAIN, depth=1, attention_dropout=0.5)).train()
    images, record, silent = images_for(PLAIN), Record(), Record()
    network(images, record)
    weights = record["blocks.0.attention"]
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:3]), rtol=0, atol=1e-5)
    network.eval()(images, silent)
    torch.testing.assert_close(weights, silent["blocks.0.attention"], rtol=0, atol=1e-6)
    torch.testing.assert_close(silent["blocks.0.attended"], weights @ silent["blocks.0.values"], rtol=0, atol=1e-5)
    assert (record["blocks.0.attended"] - weights @ record["blocks.0.values"]).abs().max() > 0.01


class Meddling(Record):
    """A planted fault: a record that changes what it is given."""

    def at(self, place: str) -> "Meddling":
        return self

    def keep(self, name: str, tensor: Tensor) -> None:
        if name == "norm1":
            with torch.no_grad():
                tensor.mul_(1 + 1e-6)


def test_the_comparison_of_bits_finds_a_record_that_meddles():
    network = built(PLAIN)
    images = images_for(PLAIN)
    with torch.no_grad(), pytest.raises(AssertionError):
        assert torch.equal(network(images), network(images, Meddling()))


def must_equal_the_explicit_network(network: ViT) -> None:
    """Logits, every block's weights and their gradients, in float64."""
    network = network.double()
    images, record = images_for(network.config).double(), Record(gradients=True)
    logits = network(images, record)
    explicit = explicit_vit(network, images)
    torch.testing.assert_close(logits, explicit.logits, rtol=1e-8, atol=1e-9)
    direction = torch.linspace(-1, 1, logits.numel(), dtype=logits.dtype).view(logits.shape)
    expected = torch.autograd.grad((explicit.logits * direction).sum(), explicit.weights)
    gradients = record.gradient((logits * direction).sum())
    assert list(gradients) == list(record.attentions()) == [f"blocks.{i}" for i in range(network.config.depth)]
    for place, weights, gradient in zip(gradients, explicit.weights, expected, strict=True):
        torch.testing.assert_close(record[f"{place}.attention"], weights, rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(gradients[place], gradient, rtol=1e-7, atol=1e-10)
        assert gradient.abs().max() > 1e-3
    assert weights.std() > 1e-3


@pytest.mark.parametrize("form", FORMS)
def test_weights_and_their_gradients_equal_the_explicit_network(form: str):
    must_equal_the_explicit_network(built(FORMS[form]))


class WithoutScale(nn.Module):
    """A planted fault: tells the record queries that are not those the kernel saw."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.qkv, self.proj, self.attention = attention.qkv, attention.proj, [attention]

    def forward(self, tokens: Tensor, record: Record | Silent = SILENT) -> Tensor:
        queries, keys, values = self.attention[0].project(tokens)
        attended = nn.functional.scaled_dot_product_attention(queries, keys, values)
        record.keep_attention(queries * queries.shape[-1] ** 0.5, keys, values, attended, None)
        return self.proj(attended.transpose(1, 2).flatten(2))


def test_the_comparison_finds_weights_without_their_scale():
    parts = Parts(attention=lambda config: WithoutScale(Attention(config.width, config.heads)))
    with pytest.raises(AssertionError):
        must_equal_the_explicit_network(built(PLAIN, parts))


def test_the_names_and_shapes_are_the_public_ones(run):
    network, _, record, logits = run
    names = {"tokens", "pooled", "logits", *(f"blocks.{i}.{part}" for i in range(3) for part in BLOCK)}
    assert set(record) == names
    assert len(record) == len(list(record)) == len(names)
    b, k, n, d, e = 3, 3, 5 + 2 * 3, 24, 8
    for name in names:
        part = name.rpartition(".")[2]
        per_head = (b, k, n, n) if part == "attention" else (b, k, n, e)
        shape = {"pooled": (b, d), "logits": (b, 7)}.get(part, per_head if part in BLOCK[5:] else (b, n, d))
        assert tuple(record[name].shape) == shape, name
    assert torch.equal(record["logits"], logits)
    assert record["tokens"] is record["blocks.0.input"]
    assert torch.equal(record["blocks.1.output"], record["blocks.2.input"])
    assert torch.equal(record["blocks.1.norm1"], network.blocks[1].norm1(record["blocks.1.input"]))
    added = record["blocks.1.attn_out"] + record["blocks.1.mlp"]
    torch.testing.assert_close(record["blocks.1.output"], record["blocks.1.input"] + added)
    after_attention = record["blocks.1.attended"].transpose(1, 2).flatten(2)
    torch.testing.assert_close(record["blocks.1.attn_out"], network.blocks[1].attn.proj(after_attention))
    explicit = record["blocks.1.attention"] @ record["blocks.1.values"]
    torch.testing.assert_close(record["blocks.1.attended"], explicit)
    torch.testing.assert_close(record["logits"], network.head(record["pooled"]))


def test_every_layer_can_be_read_out(run):
    network, _, record, logits = run
    torch.testing.assert_close(network.readout(record["blocks.2.output"]), logits)
    assert network.readout(record["blocks.0.output"]).shape == logits.shape


def test_without_gradients_what_is_kept_is_outside_the_graph():
    network, record = built(PLAIN), Record()
    network(images_for(PLAIN), record)
    assert not any(record[name].requires_grad for name in record)
    with pytest.raises(UsageError):
        record.gradient(torch.ones((), requires_grad=True))


def test_a_gradient_touches_no_parameter_and_can_be_taken_again(run):
    network, images, _, _ = run
    record = Record(gradients=True)
    logits = network(images, record)
    first = record.gradient(logits[:, 2].sum(), "blocks.1", keep_graph=True)
    again = record.gradient(logits[:, 2].sum())
    assert list(first) == ["blocks.1"]
    assert torch.equal(first["blocks.1"], again["blocks.1"])
    assert all(parameter.grad is None for parameter in network.parameters())
    assert not any(gradient.requires_grad for gradient in again.values())


def test_the_gradient_can_be_made_of_some_heads_and_rows(run):
    """From what arrives at the output of attention, which is all that has to be held."""
    network, images, _, _ = run
    record = Record(gradients=True)
    logits = network(images, record)
    number = logits[:, 2].sum()
    whole = record.gradient(number, keep_graph=True)
    arriving = record.attended_gradient(number)
    assert list(arriving) == list(whole)
    for place, at_attended in arriving.items():
        kept = record.kept(place)
        assert at_attended.shape == kept.attended.shape
        some = weights_gradient(at_attended[:, [2, 0]][:, :, [3, 1]], kept.values[:, [2, 0]])
        torch.testing.assert_close(some, whole[place][:, [2, 0]][:, :, [3, 1]])
        torch.testing.assert_close(kept.weights([2, 0], [3, 1]), record[f"{place}.attention"][:, [2, 0]][:, :, [3, 1]])
    assert all(parameter.grad is None for parameter in network.parameters())


def test_a_gradient_of_something_earlier_is_zero(run):
    network, images, _, _ = run
    record = Record(gradients=True)
    network(images, record)
    gradients = record.gradient(record["blocks.1.output"].sum())
    assert gradients["blocks.0"].any()
    assert not gradients["blocks.2"].any()


def test_a_run_without_a_graph_is_told():
    network, record = built(PLAIN), Record(gradients=True)
    with torch.no_grad():
        logits = network(images_for(PLAIN), record)
    with pytest.raises(UsageError):
        record.gradient(logits.sum())


def test_a_frozen_network_can_be_differentiated_from_its_images():
    network, record = built(PLAIN).requires_grad_(False), Record(gradients=True)
    logits = network(images_for(PLAIN).requires_grad_(), record)
    assert record.gradient(logits.sum())["blocks.0"].any()


@pytest.mark.parametrize(
    ("patterns", "kept"),
    [
        (("blocks.2.attention",), {"blocks.2.attention"}),
        (("blocks.1.*", "pooled"), {"pooled", *(f"blocks.1.{part}" for part in BLOCK)}),
        (("*.values",), {f"blocks.{i}.values" for i in range(3)}),
        (("blocks.[02].mlp", "tokens"), {"blocks.0.mlp", "blocks.2.mlp", "tokens"}),
        (("nowhere",), set()),
    ],
)
def test_only_what_is_asked_for_is_kept(run, patterns: tuple[str, ...], kept: set[str]):
    network, images, full, _ = run
    record = Record(*patterns)
    network(images, record)
    assert set(record) == kept
    assert len(record) == len(kept)
    assert all(name in record for name in kept)
    assert "blocks.0.norm1" not in record
    for name in kept:
        assert torch.equal(record[name], full[name])


@pytest.mark.parametrize("heads", [None, [0], (2, 0), range(2), [-1]])
@pytest.mark.parametrize("queries", [None, [0], (3, 1, 1), range(4, 6)])
def test_heads_and_query_rows_can_be_chosen(run, heads, queries):
    record = run[2]
    whole = record["blocks.1.attention"]
    expected = whole if heads is None else whole[:, list(heads)]
    expected = expected if queries is None else expected[:, :, list(queries)]
    torch.testing.assert_close(record.attention("blocks.1", heads=heads, queries=queries), expected)


MASKS = {
    "rows and keys": (5, 5),
    "per head without a batch": (4, 5, 5),
    "per image": (2, 1, 5, 5),
    "per head": (2, 4, 5, 5),
    "padding": (2, 1, 1, 5),
}


@pytest.mark.parametrize("kind", MASKS)
def test_masks_are_chosen_with_their_heads_and_rows(kind: str):
    mask = torch.rand(MASKS[kind], generator=torch.Generator().manual_seed(5)) < 0.5
    attention, record = Attention(12, 4), Record(gradients=True)
    tokens = some_images(1, 2, 5, 12)[0]
    output = attention(tokens, mask=mask, record=record.at("decoder").at("self"))
    assert record.attentions() == ("decoder.self",)
    queries, keys, _ = attention.project(tokens)
    whole = explicit_weights(queries, keys, mask).float()
    torch.testing.assert_close(record["decoder.self.attention"], whole, rtol=1e-5, atol=1e-6)
    chosen = record.attention("decoder.self", heads=[3, 1], queries=[4, 0, 2])
    torch.testing.assert_close(chosen, whole[:, [3, 1]][:, :, [4, 0, 2]], rtol=1e-5, atol=1e-6)
    assert record.gradient(output.sum())["decoder.self"].isfinite().all()


def test_causal_and_cross_attention_are_recorded():
    attention, record = Attention(12, 4), Record()
    tokens, context = some_images(2, 2, 5, 12)
    attention(tokens, mask=causal_mask(5, 5), record=record.at("self"))
    attention(tokens, context[:, :3], record=record.at("cross"))
    assert not record["self.attention"][..., ~causal_mask(5, 5)].any()
    assert record["cross.attention"].shape == (2, 4, 5, 3)


@pytest.mark.parametrize(
    ("asked", "offered"),
    [("blocks.1.atention", "blocks.1.attention"), ("poled", "pooled"), ("blocks.7.mlp", "blocks."), ("zzz", "one of")],
)
def test_a_name_that_is_not_kept_is_an_error_with_the_nearest(run, asked: str, offered: str):
    with pytest.raises(UsageError) as raised:
        run[2][asked]
    assert offered in str(raised.value.hint)


def test_a_place_that_did_not_attend_and_an_empty_record_are_errors(run):
    with pytest.raises(UsageError):
        run[2].attention("blocks.9")
    with pytest.raises(UsageError):
        run[2].gradient(run[3].sum(), "blocks.9")
    empty = Record()
    assert len(empty) == 0
    assert "logits" not in empty
    with pytest.raises(UsageError):
        empty["logits"]


def test_the_silent_record_is_itself_everywhere():
    assert SILENT.at("blocks.0").at("cross") is SILENT
    SILENT.keep("tokens", torch.ones(1))
    assert vars(SILENT) == {}


def test_one_call_gives_the_answer_and_the_record():
    network, images = built(PLAIN), images_for(PLAIN)
    logits, record = run_with_record(network, images, "blocks.*.attention", "pooled")
    assert torch.equal(logits, network(images))
    assert not logits.requires_grad
    assert set(record) == {"pooled", *(f"blocks.{index}.attention" for index in range(PLAIN.depth))}
    logits, record = run_with_record(network, images, gradients=True)
    assert record.gradient(logits[:, 0].sum())["blocks.0"].abs().max() > 0
    with pytest.raises(UsageError):
        run_with_record(network, images, "blocks.*.atention")
    source, target = sources(), targets()
    logits, record = run_with_record(transformer(), (source, target), "decoder.blocks.?.*.attn_out")
    names = {f"decoder.blocks.{index}.{place}.attn_out" for index in range(2) for place in ("self", "cross")}
    assert set(record) == names
    assert vitrail.run_with_record is run_with_record


def documented(first: str, behind: str) -> list[str]:
    """The names of the table in `record.py` from one line to another; of `blocks.3.queries, .keys` both."""
    text = vitrail.nn.record.__doc__ or ""
    names: list[str] = []
    for line in text[text.index(first) : text.index(behind)].splitlines():
        ahead, *more = re.split(r" {2,}", line.strip())[0].split(", ")
        names += [ahead, *(ahead.rpartition(".")[0] + other for other in more)] if ahead else []
    return names


def test_the_names_that_are_documented_are_those_that_are_kept():
    """Block 3 stands for all."""
    network = built(replace(PLAIN, depth=4))
    _, record = run_with_record(network, images_for(PLAIN))
    kept = [name for name in record if "blocks" not in name or "blocks.3" in name]
    assert sorted(documented("    tokens", "A network that generates text")) == sorted(kept)
    page = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
    table = page.partition("| name | content | shape |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert sorted(re.findall(r"`([\w.]+)`", " ".join(rows))) == sorted(kept)
    config = replace(SMALL, encoder_depth=4, decoder_depth=4)
    _, record = run_with_record(transformer(config), (sources(), targets()))
    patterns = documented("    memory", "The attention weights")
    assert all(any(fnmatchcase(kept, pattern) for kept in record) for pattern in patterns)
    decoder = [
        name for name in record if not name.startswith("encoder.") and name.count("blocks.3") == name.count("blocks")
    ]
    assert all(any(fnmatchcase(kept, pattern) for pattern in patterns) for kept in decoder)
