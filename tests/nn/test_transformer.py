"""The Transformer is the paper's: equal to torch's stacks, blind to padding and to the future, right in its counts."""

import json
from collections.abc import Callable
from dataclasses import asdict, fields, replace

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

from tests.nn.reference import explicit_attention, explicit_weights, redraw
from tests.nn.sequences import (
    BEGIN,
    PADDING,
    SMALL,
    by_torch,
    positions,
    sources,
    targets,
    transformer,
    without_dropout,
    words,
)
from vitrail.errors import UsageError
from vitrail.nn import SILENT, DecoderBlock, Parts, Record, TokenEmbedding, Transformer, TransformerConfig, generate

BOTH_ORDERS = pytest.mark.parametrize("norm", ["post", "pre"])
VARIANTS = {
    "relu, separate": SMALL,
    "gelu, tied": replace(SMALL, activation="gelu", embeddings="tied"),
    "shared": replace(SMALL, source_vocab_size=11, embeddings="shared"),
    "one block each": replace(SMALL, encoder_depth=1, decoder_depth=1, norm_eps=1e-3),
}


def outcome(logits: Tensor, network: nn.Module) -> list[Tensor]:
    """The logits, and every parameter's gradient for a fixed direction."""
    direction = torch.linspace(-1, 1, logits.numel(), dtype=logits.dtype).view(logits.shape)
    return [logits, *torch.autograd.grad(logits, list(network.parameters()), direction)]


def differences(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """The greatest difference, in each tensor's own size."""
    pairs = zip(ours, theirs, strict=True)
    return max(((a - b).abs().max() / b.abs().max().clamp(min=1)).item() for a, b in pairs)


# ---- equal to torch


@BOTH_ORDERS
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_logits_and_gradients_equal_torchs_stacks(norm: str, variant: str, dtype: torch.dtype, most: float):
    network = transformer(replace(without_dropout(VARIANTS[variant]), norm=norm)).train().to(dtype)
    source, target = sources().clamp(max=10), targets()
    target[1, 4:] = PADDING
    if dtype == torch.float64:
        network.decoder.embed.positions = positions(12, 16)
        if network.source_embed is not None:
            network.source_embed.positions = positions(12, 16)
    written = (target != PADDING)[..., None]  # what stands at padding means nothing
    ours = outcome(network(source, target) * written, network)
    theirs = outcome(by_torch(network, source, target) * written, network)
    assert ours[0].std() > 0.1
    assert all(gradient.abs().max() > 1e-4 for gradient in ours)  # every parameter matters
    assert differences(ours, theirs) <= most


def _swap_values_and_keys(network: Transformer) -> None:
    weight = network.decoder.blocks[1].cross_attn.qkv.weight
    with torch.no_grad():
        weight.copy_(weight.unflatten(0, (3, -1))[[0, 2, 1]].flatten(0, 1))


def _swap_norms(network: Transformer) -> None:
    block = network.decoder.blocks[0]
    block.norm1, block.norm2 = block.norm2, block.norm1


def _add_a_last_norm(network: Transformer) -> None:
    network.encoder.norm = nn.LayerNorm(16)


FAULTS: dict[str, Callable[[Transformer], None]] = {
    "values and keys swapped": _swap_values_and_keys,
    "norms swapped": _swap_norms,
    "a norm that the paper does not have": _add_a_last_norm,
    "the other order": lambda network: setattr(network.decoder.blocks[1], "__class__", DecoderBlock),
    "positions left out": lambda network: network.source_embed.positions.zero_(),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_makes_the_comparison_red(fault: str):
    network, faulty = transformer(), transformer()
    expected = by_torch(network, sources(), targets())
    assert differences([network(sources(), targets())], [expected]) <= 1e-5
    FAULTS[fault](faulty)
    assert differences([faulty(sources(), targets())], [expected]) > 1e-2


# ---- what may not be seen


@BOTH_ORDERS
@settings(deadline=None, max_examples=8)
@given(place=st.integers(1, 5), new=st.integers(0, 10), seed=st.integers(0, 9))
def test_changing_a_target_id_never_changes_what_comes_before(norm: str, place: int, new: int, seed: int):
    network, source, target = transformer(replace(SMALL, norm=norm)), sources(2), targets(2, 6, seed)
    changed = target.clone()
    changed[:, place] = new
    with torch.no_grad():
        before, after = network(source, target), network(source, changed)
    assert torch.equal(before[:, :place], after[:, :place])
    if not torch.equal(changed, target):
        assert not torch.equal(before[:, place:], after[:, place:])


def padded(ids: Tensor, places: list[int]) -> tuple[Tensor, Tensor]:
    """The ids with padding put in at each of `places`, and where the ids now stand."""
    rows = [[*row] for row in ids.tolist()]
    marks = list(range(ids.shape[1]))
    for place in places:
        at = min(place, len(marks))
        marks.insert(at, -1)
        for row in rows:
            row.insert(at, PADDING)
    return torch.tensor(rows), torch.tensor([index for index, mark in enumerate(marks) if mark >= 0])


@BOTH_ORDERS
@settings(deadline=None, max_examples=8)
@given(in_source=st.lists(st.integers(0, 9), max_size=4), in_target=st.lists(st.integers(0, 9), max_size=4))
def test_padding_never_changes_an_output_wherever_it_stands(norm: str, in_source: list[int], in_target: list[int]):
    network = transformer(replace(SMALL, norm=norm))
    source, target = words(2, 4, vocabulary=13), targets(2, 4)
    (more_source, _), (more_target, kept) = padded(source, in_source), padded(target, in_target)
    with torch.no_grad():
        expected = network(source, target)
        torch.testing.assert_close(network(more_source, more_target)[:, kept], expected, rtol=1e-5, atol=2e-6)
        filled = more_source.masked_fill(more_source == PADDING, 5)  # the planted fault: filled up with a word
        if in_source:
            assert (network(filled, more_target)[:, kept] - expected).abs().max() > 1e-3


def test_a_row_does_not_depend_on_the_rows_beside_it():
    network, source, target = transformer(), sources(), targets()
    together = network(source, target)
    for row in range(3):
        alone = network(source[row : row + 1, : int((source[row] != PADDING).sum())], target[row : row + 1])
        torch.testing.assert_close(alone[0], together[row], rtol=1e-5, atol=2e-6)


@BOTH_ORDERS
def test_a_row_of_nothing_but_padding_is_finite_also_in_its_gradients(norm: str):
    network, source, target = transformer(replace(SMALL, norm=norm)), sources(), targets()
    others = network(source[:2], target[:2])
    source[2] = PADDING
    target[2, 1:] = PADDING
    logits, *gradients = outcome(network(source, target), network)
    assert torch.isfinite(logits).all()
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
    torch.testing.assert_close(logits[:2], others, rtol=1e-5, atol=2e-6)
    nothing = torch.full((1, 3), PADDING)
    assert torch.isfinite(network(nothing, nothing)).all()


def test_the_callers_tensors_are_untouched():
    network, source, target = transformer(), sources(), targets()
    copies = source.clone(), target.clone()
    memory = network.encode(source)
    read = memory.tokens.detach().clone()
    network(source, target)
    network.decode(target, memory)
    generate(network, source)
    state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    assert torch.equal(source, copies[0])
    assert torch.equal(target, copies[1])
    assert torch.equal(memory.tokens, read)
    assert all(torch.equal(tensor, state[name]) for name, tensor in network.state_dict().items())


def test_forward_is_encode_then_decode():
    network = transformer()
    assert torch.equal(network(sources(), targets()), network.decode(targets(), network.encode(sources())))


# ---- the record


def test_the_record_holds_both_stacks_by_name():
    record = Record()
    network, source, target = transformer(), sources(), targets()
    logits = network(source, target, record)
    assert torch.equal(logits, network(source, target))
    assert torch.equal(record["logits"], logits)
    places = ["encoder.blocks.0", "encoder.blocks.1"]
    places += [f"decoder.blocks.{index}.{part}" for index in range(2) for part in ("self", "cross")]
    assert record.attentions() == tuple(places)
    block = {f"decoder.blocks.1.{name}" for name in ("input", "mlp", "output", "self.attention", "cross.values")}
    assert block | {"encoder.tokens", "memory", "decoder.tokens", "encoder.blocks.1.norm1"} <= set(record)
    assert record["decoder.blocks.1.cross.attention"].shape == (3, 4, 5, 6)
    assert torch.equal(record["decoder.blocks.0.input"], record["decoder.tokens"])
    assert torch.equal(record["memory"], network.encode(source).tokens)


def test_cross_attention_in_the_record_is_the_explicit_form():
    record, network, source, target = Record(), transformer(), sources(), targets()
    network(source, target, record)
    attention, block = network.decoder.blocks[1].cross_attn, network.decoder.blocks[1]
    mixed = record["decoder.blocks.1.input"]
    at_self = record["decoder.blocks.1.self.attended"].transpose(1, 2).flatten(2)
    asking = block.norm1(mixed + block.self_attn.proj(at_self))  # post-norm
    weight, bias = attention.qkv.weight.chunk(3), attention.qkv.bias.chunk(3)
    parts = [
        (tokens @ weight[index].T + bias[index]).unflatten(-1, (4, 4)).transpose(1, 2)
        for index, tokens in enumerate([asking, record["memory"], record["memory"]])
    ]
    visible = (source != PADDING)[:, None, None, :]
    weights = record["decoder.blocks.1.cross.attention"]
    torch.testing.assert_close(weights, explicit_weights(parts[0], parts[1], visible).float(), rtol=1e-4, atol=1e-6)
    attended = explicit_attention(*parts, visible).float()
    torch.testing.assert_close(record["decoder.blocks.1.cross.attended"], attended, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 4, 5))
    assert (weights.masked_select(~visible) == 0).all()
    assert (weights - explicit_weights(parts[0], parts[1]).float()).abs().max() > 1e-3  # a mask forgotten is found


def test_self_attention_of_the_decoder_looks_back_only():
    record, target = Record("decoder.*"), targets()
    target[0, 3:] = PADDING
    transformer()(sources(), target, record)
    weights = record["decoder.blocks.0.self.attention"]
    assert (weights.triu(1) == 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 4, 5))
    assert (weights[0, :, :, 3:] == 0).all()


def test_gradients_of_attention_reach_through_the_record():
    record, network = Record(gradients=True), transformer()
    logits = network(sources(), targets(), record)
    gradients = record.gradient(logits[:, -1, 5].sum(), "decoder.blocks.1.cross", "encoder.blocks.0")
    assert gradients["decoder.blocks.1.cross"].shape == (3, 4, 5, 6)
    assert gradients["decoder.blocks.1.cross"][:, :, -1].abs().max() > 0
    assert gradients["decoder.blocks.1.cross"][:, :, :-1].abs().max() == 0  # in the last block, row by row
    assert gradients["encoder.blocks.0"].abs().max() > 0


# ---- embeddings and positions


def test_an_embedding_is_its_row_times_the_root_of_the_width_plus_the_position():
    embed = TokenEmbedding(9, 16, max_length=20)
    redraw(embed)
    ids, visible = torch.tensor([[3, 8, 3]]), torch.ones(1, 20, dtype=torch.bool)
    for hidden, places in ((0, [17, 18, 19]), (6, [11, 12, 13]), (18, [0, 0, 1])):
        visible[:, :hidden] = False
        expected = embed.weight[ids] * 4 + positions(20, 16)[torch.tensor([places])].float()
        torch.testing.assert_close(embed(ids, visible), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("length", [12, 300])
def test_positions_have_the_frequencies_of_the_paper_and_differ_per_column(length: int):
    embed = TokenEmbedding(9, 16, max_length=12)
    nn.init.zeros_(embed.weight)
    table = embed(torch.zeros(1, length, dtype=torch.long), torch.ones(1, length, dtype=torch.bool))[0].detach()
    expected = positions(length, 16).float()
    torch.testing.assert_close(table, expected, rtol=0, atol=2e-6)
    assert columns_that_agree(table) == 0
    one_frequency = torch.arange(length).float()[:, None].expand(-1, 8)  # the planted fault: dim // width is 0
    assert columns_that_agree(torch.stack([one_frequency.sin(), one_frequency.cos()], -1).flatten(1)) > 0


def columns_that_agree(table: Tensor) -> int:
    """Pairs of columns with the same numbers."""
    apart = (table[:, :, None] - table[:, None, :]).abs().amax(dim=0)
    return int((apart < 1e-6).sum()) - len(apart)


def test_a_source_may_be_longer_than_the_longest_target():
    network, long = transformer(), words(1, 30, vocabulary=13)
    logits = network(long, targets(1))
    torch.testing.assert_close(logits, by_torch(network, long, targets(1)), rtol=1e-4, atol=1e-5)


def test_dropout_acts_on_the_sum_in_training_only():
    torch.manual_seed(0)
    embed = TokenEmbedding(9, 64, max_length=200, dropout=0.25)
    ids, visible = torch.full((1, 200), 4), torch.ones(1, 200, dtype=torch.bool)
    noisy, calm = embed(ids, visible), embed.eval()(ids, visible)
    kept = noisy != 0
    assert kept.float().mean().item() == pytest.approx(0.75, abs=0.02)
    torch.testing.assert_close(noisy[kept], calm[kept] / 0.75)
    network = transformer(replace(SMALL, dropout=0.5)).train()
    assert not torch.equal(network(sources(), targets()), network(sources(), targets()))
    network.eval()
    assert torch.equal(network(sources(), targets()), network(sources(), targets()))


def test_tied_and_shared_embeddings_are_one_matrix():
    record = Record("decoder.blocks.1.output")
    shared = transformer(VARIANTS["shared"])
    logits = shared(sources().clamp(max=10), targets(), record)
    matrix = shared.decoder.embed.weight
    torch.testing.assert_close(logits, record["decoder.blocks.1.output"] @ matrix.T)
    of_ids = 11 * 16
    counts = {
        kind: sum(p.numel() for p in Transformer(replace(VARIANTS["shared"], embeddings=kind)).parameters())
        for kind in ("separate", "tied", "shared")
    }
    assert counts["separate"] - counts["tied"] == counts["tied"] - counts["shared"] == of_ids
    for kind in ("separate", "tied", "shared"):
        state = Transformer(replace(VARIANTS["shared"], embeddings=kind)).state_dict()
        assert len({tensor.data_ptr() for tensor in state.values()}) == len(state)  # nothing is saved twice
        assert not any("positions" in name for name in state)


# ---- size and start


def closed_form(config: TransformerConfig) -> int:
    """Parameters by hand."""
    d, f, inner = config.width, config.mlp_dim, config.heads * config.head_width
    attention = 3 * (d * inner + inner) + inner * d + d
    mlp = d * f + f + f * d + d
    stacks = config.encoder_depth * (attention + mlp + 2 * 2 * d)
    stacks += config.decoder_depth * (2 * attention + mlp + 3 * 2 * d)
    last_norms = 2 * 2 * d if config.norm == "pre" else 0
    source, target = config.source_vocab_size * d, config.target_vocab_size * d
    return (
        stacks
        + last_norms
        + {"separate": source + 2 * target, "tied": source + target, "shared": target}[config.embeddings]
    )


PAPER = TransformerConfig(source_vocab_size=37_000, target_vocab_size=37_000, embeddings="shared")


@pytest.mark.parametrize(
    ("config", "count"),
    [
        (PAPER, 63_082_496),  # table 3, base: "65 x 10^6"
        (replace(PAPER, width=1024, heads=16, head_dim=None, mlp_dim=4096), 214_245_376),  # the same, big: 213
        (replace(PAPER, encoder_depth=2, decoder_depth=2), 33_656_832),  # the same, row C with N = 2: 36
        (replace(SMALL, norm="pre", head_dim=6), None),
    ],
)
def test_the_number_of_parameters_is_the_closed_form(config: TransformerConfig, count: int | None):
    with torch.device("meta"):
        counted = sum(parameter.numel() for parameter in Transformer(config).parameters())
    assert counted == closed_form(config)
    assert count is None or counted == count


def test_only_pre_norm_stacks_end_in_a_norm():
    def last(norm: str) -> list[str]:
        names = dict(Transformer(replace(SMALL, norm=norm)).named_parameters())
        return [name for name in names if name.split(".")[1] == "norm"]

    assert last("post") == []
    assert last("pre") == ["encoder.norm.weight", "encoder.norm.bias", "decoder.norm.weight", "decoder.norm.bias"]


def test_start_weights():
    torch.manual_seed(0)
    network = Transformer(
        replace(SMALL, width=64, heads=8, head_dim=None, source_vocab_size=500, target_vocab_size=500)
    )
    for embed in (network.source_embed, network.decoder.embed):
        assert embed.weight.std().item() == pytest.approx(64**-0.5, rel=0.03)
    attention = network.decoder.blocks[0].cross_attn
    for matrix in (*attention.qkv.weight.chunk(3), attention.proj.weight, network.decoder.blocks[1].mlp.fc1.weight):
        bound = (6 / sum(matrix.shape)) ** 0.5
        assert bound * 0.98 < matrix.abs().max().item() <= bound
    assert network.decoder.head.weight.abs().max().item() <= (6 / 564) ** 0.5
    assert attention.qkv.bias.abs().max() == 0
    tokens = network.source_embed.weight[3:] * 8
    assert tokens.std().item() == pytest.approx(1, rel=0.05)


def test_a_part_comes_in_through_a_factory():
    class Mean(nn.Module):
        def forward(self, tokens, context=None, mask=None, record=SILENT, cache=None):
            return (tokens if context is None else context).mean(dim=1, keepdim=True).expand_as(tokens)

    parts = Parts(attention=lambda config: Mean(), norm=lambda config: nn.RMSNorm(config.width))
    network = Transformer(SMALL, parts)
    assert network.parts is parts
    assert network(sources(), targets()).shape == (3, 5, 11)
    assert sum(isinstance(module, Mean) for module in network.modules()) == 2 + 2 * 2


# ---- configuration and errors


def test_a_configuration_survives_json_and_refuses_unknown_keys():
    assert TransformerConfig.from_dict(json.loads(json.dumps(asdict(SMALL)))) == SMALL
    assert (SMALL.head_dim, SMALL.head_width) == (None, 4)
    with pytest.raises(UsageError):
        TransformerConfig.from_dict({**asdict(SMALL), "head": 3})
    with pytest.raises(UsageError):
        TransformerConfig.from_dict({"source_vocab_size": 9})


WHOLE = [0, -1, 2.0, "3", None, True]
INVALID: dict[str, list] = {
    **dict.fromkeys(("source_vocab_size", "target_vocab_size", "encoder_depth", "decoder_depth", "mlp_dim"), WHOLE),
    **{key: [-1, 1.0, "0", None, True, 99] for key in ("pad_id", "bos_id", "eos_id")},
    **{key: [-0.1, 1.0, 2, float("nan"), "0.1", None, True] for key in ("dropout", "attention_dropout")},
    "width": [*WHOLE, 18, 15],
    "heads": [*WHOLE, 3],
    "head_dim": [0, -1, 64.0, "64"],
    "activation": ["geluu", "swish", None, 0],
    "norm": ["poste", "", None, 1],
    "embeddings": ["tie", "shared", None],
    "max_length": WHOLE,
    "norm_eps": [-1e-6, float("inf"), float("nan"), "1e-6", None],
}


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(("name", "value"), [(name, value) for name in INVALID for value in INVALID[name]])
def test_an_invalid_field_is_an_error_of_two_lines(name: str, value: object):
    assert set(INVALID) == {field.name for field in fields(TransformerConfig)}
    with pytest.raises(UsageError) as raised:
        TransformerConfig(**{**asdict(SMALL), "head_dim": None, name: value})
    _, hint = str(raised.value).split("\n")
    assert hint.startswith("try: ")


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    "changes",
    [
        {"width": 15},
        {"width": 15, "head_dim": 4},
        {"width": 0},
        {"source_vocab_size": 0},
        {"target_vocab_size": 2},
        {"pad_id": 1},
        {"eos_id": 12},
        {"bos_id": -1},
        {"dropout": 1.0},
        {"norm": "pst"},
        {"activation": "rely"},
        {"embeddings": "share"},
        {"embeddings": "shared"},
        {"max_length": 0},
        {"encoder_depth": True},
    ],
)
def test_what_cannot_be_built_is_refused(changes: dict):
    with pytest.raises(UsageError):
        replace(replace(SMALL, head_dim=None), **{"head_dim": None, **changes})


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    ("source", "target"),
    [
        ([[3, 13]], [[1, 3]]),
        ([[3, -1]], [[1, 3]]),
        ([[3, 4]], [[1, 11]]),
        ([[]], [[1, 3]]),
        ([[3, 4]], [[]]),
        ([[3, 4]], [[BEGIN] * 13]),
        ([[3, 4]], [[1, 3]] * 2),
    ],
)
def test_what_cannot_be_read_is_refused(source: list, target: list):
    with pytest.raises(UsageError):
        transformer()(torch.tensor(source).long(), torch.tensor(target).long())


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize("source", [torch.zeros(2, 3), torch.zeros(3).long(), torch.zeros(2, 3, dtype=torch.bool)])
def test_what_is_no_batch_of_ids_is_refused(source: Tensor):
    with pytest.raises(UsageError):
        transformer()(source, targets(2))


def test_a_batch_without_rows_gives_logits_without_rows():
    assert transformer()(sources()[:0], targets()[:0]).shape == (0, 5, 11)
