"""Attention equals torch's kernel, torch's module and the explicit form in float64, forward and gradient."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

from tests.nn.reference import explicit_attention, explicit_weights
from vitrail.errors import UsageError
from vitrail.nn import Attention, attend, attention_weights, causal_mask

MASKS = ["none", "rows and keys", "per image", "per head", "padding", "causal", "some rows see nothing"]


def drawn(seed: int, *shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]


def a_mask(kind: str, b: int, k: int, n: int, m: int, seed: int = 0) -> Tensor | None:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"rows and keys": (n, m), "per image": (b, 1, n, m), "per head": (b, k, n, m), "padding": (b, 1, 1, m)}
    if kind == "none":
        return None
    if kind == "causal":
        return causal_mask(n, m)
    if kind == "some rows see nothing":
        mask = torch.rand(b, k, n, m, generator=generator) < 0.5
        mask[:, :, 0] = False
        mask[-1, -1] = False
        return mask
    mask = torch.rand(shapes[kind], generator=generator) < 0.6
    mask[..., 0] = True  # every row sees something
    return mask


def outcome(function: Callable[..., Tensor], inputs: list[Tensor], mask: Tensor | None) -> list[Tensor]:
    """The output, and its gradients for a fixed direction."""
    output = function(*inputs, mask)
    direction = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view(output.shape)
    return [output, *torch.autograd.grad(output, inputs, direction)]


def must_agree(
    function: Callable[..., Tensor], reference: Callable[..., Tensor], inputs: list[Tensor], mask: Tensor | None
) -> None:
    """Finite outputs and gradients, and those of the reference."""
    for ours, theirs in zip(outcome(function, inputs, mask), outcome(reference, inputs, mask), strict=True):
        assert torch.isfinite(ours).all()
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize(("n", "m"), [(5, 5), (4, 7), (7, 4), (1, 3)])
def test_attend_equals_the_explicit_form(kind: str, n: int, m: int):
    inputs = drawn(1, (2, 3, n, 6), (2, 3, m, 6), (2, 3, m, 6))
    must_agree(attend, explicit_attention, inputs, a_mask(kind, 2, 3, n, m))


@pytest.mark.parametrize("kind", ["none", "rows and keys", "per image", "per head", "padding"])
def test_attend_equals_torch_where_every_row_sees_a_key(kind: str):
    inputs = drawn(2, (2, 3, 5, 6), (2, 3, 7, 6), (2, 3, 7, 6))
    must_agree(attend, F.scaled_dot_product_attention, inputs, a_mask(kind, 2, 3, 5, 7))


def test_causal_attention_equals_torch():
    inputs = drawn(3, *[(2, 3, 6, 4)] * 3)
    must_agree(
        attend, lambda q, k, v, _: F.scaled_dot_product_attention(q, k, v, is_causal=True), inputs, causal_mask(6, 6)
    )


@pytest.mark.parametrize("kind", MASKS)
def test_in_bf16_on_a_processor_it_equals_float64_up_to_rounding(kind: str):
    """The written-out form of that precision, forward and gradient; torch's kernel there is as far from float64."""
    exact = drawn(8, (2, 3, 50, 16), (2, 3, 60, 16), (2, 3, 60, 16))
    rounded = [each.detach().bfloat16().requires_grad_() for each in exact]
    exact = [each.detach().double().requires_grad_() for each in rounded]
    mask = a_mask(kind, 2, 3, 50, 60)
    for ours, theirs in zip(outcome(attend, rounded, mask), outcome(explicit_attention, exact, mask), strict=True):
        assert ours.dtype == torch.bfloat16
        assert (ours.double() - theirs).norm() <= 0.01 * theirs.norm()


def test_in_bf16_on_a_processor_weights_are_dropped_and_the_others_grow():
    torch.manual_seed(0)
    queries, keys = torch.randn(2, 16, 8, 16, 16, dtype=torch.bfloat16)
    values = torch.eye(16, dtype=torch.bfloat16).expand(16, 8, 16, 16)  # what is attended are the weights
    whole, dropped = attend(queries, keys, values).float(), attend(queries, keys, values, dropout=0.3).float()
    some = whole > 1e-3
    assert abs((dropped[some] == 0).float().mean() - 0.3) < 0.01
    torch.testing.assert_close(dropped[dropped > 0], (whole / 0.7)[dropped > 0], rtol=0.01, atol=1e-6)


@settings(deadline=None, max_examples=40)
@given(
    sides=st.tuples(*[st.integers(1, 4)] * 2, *[st.integers(1, 9)] * 3), share=st.floats(0, 1), seed=st.integers(0, 99)
)
def test_attend_equals_the_explicit_form_for_any_shape_and_mask(sides: tuple[int, ...], share: float, seed: int):
    b, k, n, m, e = sides
    mask = torch.rand(b, k, n, m, generator=torch.Generator().manual_seed(seed)) < share
    must_agree(attend, explicit_attention, drawn(seed, (b, k, n, e), (b, k, m, e), (b, k, m, e)), mask)


FAULTS: dict[str, Callable[..., Tensor]] = {
    "queries and keys swapped": lambda q, k, v, mask: attend(k, q, v, mask),
    "no scale": lambda q, k, v, mask: attend(q * q.shape[-1] ** 0.5, k, v, mask),
    "mask inverted": lambda q, k, v, mask: attend(q, k, v, ~mask),
    "mask ignored": lambda q, k, v, mask: attend(q, k, v),
    "no gradient to the keys": lambda q, k, v, mask: attend(q, k.detach() + 0 * k, v, mask),
    "a row that sees nothing gets the mean": lambda q, k, v, mask: attend(q, k, v, mask | ~mask.any(-1, keepdim=True)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_comparison_finds_a_planted_fault(fault: str):
    inputs, mask = drawn(4, *[(2, 3, 5, 6)] * 3), a_mask("some rows see nothing", 2, 3, 5, 5)
    with pytest.raises(AssertionError):
        must_agree(FAULTS[fault], explicit_attention, inputs, mask)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_row_that_sees_nothing_is_zero_and_has_finite_gradients(dtype: torch.dtype):
    inputs, mask = drawn(5, *[(2, 3, 5, 8)] * 3, dtype=dtype), a_mask("some rows see nothing", 2, 3, 5, 5)
    output, *gradients = outcome(attend, inputs, mask)
    assert mask is not None
    assert torch.equal(output[:, :, 0], torch.zeros_like(output[:, :, 0]))
    assert output.dtype == dtype
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
    assert torch.equal(gradients[0][:, :, 0], torch.zeros_like(gradients[0][:, :, 0]))
    sums = attention_weights(*inputs[:2], mask).sum(-1)
    torch.testing.assert_close(sums, mask.any(-1).to(dtype), rtol=0, atol=1e-2 if dtype.itemsize == 2 else 1e-5)


@pytest.mark.parametrize("kind", MASKS)
def test_weights_equal_the_explicit_form(kind: str):
    queries, keys = drawn(6, (2, 3, 5, 6), (2, 3, 7, 6))
    mask = a_mask(kind, 2, 3, 5, 7)
    ours, theirs = attention_weights(queries, keys, mask), explicit_weights(queries, keys, mask)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    gradients = [torch.autograd.grad(weights.square().sum(), [queries, keys]) for weights in (ours, theirs)]
    for by_us, by_them in zip(*gradients, strict=True):
        torch.testing.assert_close(by_us, by_them, rtol=1e-9, atol=1e-12)


def test_huge_scores_stay_finite():
    queries, keys, values = drawn(7, *[(1, 2, 4, 8)] * 3, dtype=torch.float32)
    output = attend(queries * 1e4, keys * 1e4, values, causal_mask(4, 4))
    assert torch.isfinite(output).all()


@pytest.mark.parametrize(("n", "m"), [(4, 4), (2, 5), (5, 2), (1, 1)])
def test_causal_mask_is_aligned_at_the_last_query_and_key(n: int, m: int):
    expected = torch.tensor([[m - 1 - key >= n - 1 - query for key in range(m)] for query in range(n)])
    assert torch.equal(causal_mask(n, m), expected)


def as_torch(attention: Attention, width: int) -> nn.MultiheadAttention:
    module = nn.MultiheadAttention(width, attention.heads, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        module.in_proj_weight.copy_(attention.qkv.weight)
        module.in_proj_bias.copy_(attention.qkv.bias)
        module.out_proj.weight.copy_(attention.proj.weight)
        module.out_proj.bias.copy_(attention.proj.bias)
    return module


@pytest.mark.parametrize("form", ["self", "cross", "mask", "causal", "causal and mask"])
def test_the_module_equals_torchs(form: str):
    attention = Attention(12, 3).double()
    tokens, context = drawn(8, (2, 5, 12), (2, 7, 12))
    context = context if form == "cross" else None
    padding = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    mask = padding[:, None, None] if form.endswith("mask") else None
    hidden = ~causal_mask(5, 5) if form.startswith("causal") else None
    theirs = as_torch(attention, 12)(
        *[tokens, *([tokens if context is None else context] * 2)],
        key_padding_mask=None if mask is None else ~padding,
        attn_mask=hidden,
        need_weights=False,
    )[0]
    if form.startswith("causal"):
        order = causal_mask(tokens.shape[1], (tokens if context is None else context).shape[1])
        mask = order if mask is None else mask & order
    ours = attention(tokens, context, mask)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    inputs = [tokens] if context is None else [tokens, context]
    for by_us, by_them in zip(*(torch.autograd.grad(o.sin().sum(), inputs) for o in (ours, theirs)), strict=True):
        torch.testing.assert_close(by_us, by_them, rtol=1e-9, atol=1e-11)


def test_a_context_of_the_tokens_themselves_is_self_attention():
    for bias in (True, False):
        attention = Attention(12, 2, 5, qkv_bias=bias).double()
        (tokens,) = drawn(9, (2, 4, 12))
        torch.testing.assert_close(attention(tokens, tokens), attention(tokens), rtol=1e-12, atol=1e-14)


def test_causal_attention_never_looks_ahead():
    attention = Attention(12, 2)
    (tokens,) = drawn(10, (1, 6, 12), dtype=torch.float32)
    changed, order = torch.cat([tokens[:, :3], tokens[:, 3:] + 5], dim=1), causal_mask(6, 6)
    assert torch.equal(attention(tokens, mask=order)[:, :3], attention(changed, mask=order)[:, :3])
    assert not torch.allclose(attention(tokens)[:, :3], attention(changed)[:, :3])  # so the change does matter


@pytest.mark.parametrize(("width", "heads", "head_dim"), [(10, 3, 4), (8, 5, 1), (6, 1, 32), (12, 4, None)])
@pytest.mark.parametrize("bias", [True, False])
def test_head_dim_is_free_and_biases_can_be_left_out(width: int, heads: int, head_dim: int | None, bias: bool):
    attention = Attention(width, heads, head_dim, qkv_bias=bias, out_bias=bias).double()
    inner = heads * (head_dim or width // heads)
    assert sum(p.numel() for p in attention.parameters()) == 4 * inner * width + bias * (3 * inner + width)
    names = {name.rpartition(".")[2] for name, _ in attention.named_parameters()}
    assert names == ({"weight", "bias"} if bias else {"weight"})
    (tokens,) = drawn(11, (2, 4, width))
    queries, keys, values = attention.project(tokens)
    assert queries.shape == (2, heads, 4, inner // heads)
    weight = attention.qkv.weight.view(3, heads, inner // heads, width)
    expected = torch.einsum("bnd,phed->pbhne", tokens, weight)
    if bias:
        expected = expected + attention.qkv.bias.view(3, 1, heads, 1, inner // heads)
    torch.testing.assert_close(torch.stack([queries, keys, values]), expected)
    merged = explicit_attention(queries, keys, values).permute(0, 2, 1, 3).reshape(2, 4, inner)
    torch.testing.assert_close(attention(tokens), attention.proj(merged))


@pytest.mark.parametrize("where", ["attention_dropout", "dropout"])
def test_dropout_acts_only_in_training_and_is_unbiased(where: str):
    torch.manual_seed(0)
    attention, (tokens,) = Attention(16, 2, **{where: 0.3}), drawn(12, (1, 5, 16), dtype=torch.float32)
    plain = Attention(16, 2)
    plain.load_state_dict(attention.state_dict())
    assert torch.equal(attention.eval()(tokens), plain.eval()(tokens))
    with torch.no_grad():
        noisy = attention.train()(tokens.expand(20_000, -1, -1))
    assert noisy.std(dim=0).mean() > 0.01
    torch.testing.assert_close(noisy.mean(dim=0), plain(tokens)[0], rtol=0, atol=0.02)


def test_a_width_that_the_heads_do_not_divide_is_refused_and_not_rounded() -> None:
    with pytest.raises(UsageError):
        Attention(10, 3)
    assert Attention(10, 3, 3).qkv.weight.shape == (27, 10)
