"""Generic attention: "Generic attention-model explainability" (Chefer, Gur and Wolf, ICCV 2021), rules 5 and 6.

    R   <- R + M_l R        M_l = E_h(pos(G_l * A_l)), l from first to last, R = I at the start
    map  = readout (R - I)

G_l = d y / d A_l, y the logit of the target (a probability's gradient shrinks with p (1 - p) and vanishes for a sure
network), E_h the mean over heads, pos(x) = max(x, 0). What each token was at the start is taken out (R - I): with a
class token it stands in the class token's own column, which is not shown, but with mean pooling it would lie on all
patches and hide the rest. The method tells classes apart; it cannot show evidence against a class.

Where heads disagree, the order of pos and E_h matters. The paper's equation 5 and its authors' code clamp each head
before the mean. With `clamp="mean"`, pos(E_h(G_l * A_l)), a head that speaks against the class weakens those that speak
for it; on digits with a known place that pointed no better (tests/explain/test_digits_lab.py has the figures).
"""

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.errors import UsageError, nearest
from vitrail.explain.attribution import Attribution
from vitrail.explain.layers import (
    Each,
    Indices,
    Layer,
    attention_x_gradient,
    given_layers,
    recorded,
    start_rows,
    through,
)
from vitrail.explain.methods.method import Method
from vitrail.explain.readout import open_run
from vitrail.explain.target import Target
from vitrail.nn import ViT
from vitrail.nn.vit import Images

Clamp = Literal["head", "mean"]


@torch.no_grad()
def relevance_of(
    layers: Sequence[Layer], readout: Float[Tensor, "*b r n"] | None, clamp: Clamp
) -> Float[Tensor, "b r n"]:
    """Rows of R - I, where R = (I + M_L) ... (I + M_1), of layers first to last.

    A row is made from the last layer to the first. The identity is left out on the way, not subtracted at the end, so
    that small relevance keeps its digits.
    """
    each, then = RAISING[clamp]  # M_l = E_h(pos(G_l * A_l))
    start = start_rows(layers[-1], readout)
    relevance = torch.zeros_like(start)
    for layer in reversed(layers):
        relevance = relevance + through(start + relevance, layer, each, then)
    return relevance


def positive(entries: Tensor) -> Tensor:
    """pos(x) = max(x, 0)."""
    return entries.clamp(min=0)


def raising_in_each_head(layer: Layer, heads: Indices, queries: Indices) -> Float[Tensor, "b h q n"]:
    """pos(G * A), for `through`."""
    return positive(attention_x_gradient(layer, heads, queries))


# Of what the mean over heads is taken, and what is done with it, by what is clamped.
RAISING: dict[Clamp, tuple[Each, Callable[[Tensor], Tensor] | None]] = {
    "head": (raising_in_each_head, None),
    "mean": (attention_x_gradient, positive),
}


@torch.inference_mode(False)
def generic_attention(network: ViT, images: Images, target: Target = None, *, clamp: Clamp = "head") -> Attribution:
    """Attention that raises the target's logit, gathered through all layers.

    Args:
        network: In eval mode; left as it is, gradients included.
        images: (b, c, h, w), any size that the patches divide.
        target: What to explain, see `vitrail.explain.target`; None for each image's top class.
        clamp: What is cut at zero: each head before the mean (the paper), or the mean over heads.

    Returns:
        A number of at least 0 per patch; how much the logit reacts to attention that comes from there.

    Raises:
        UsageError: If the network is in training mode, or if images, target or clamp do not fit.
    """
    _check(clamp)
    opened = open_run(network, images, target, "blocks.*.attention", gradients=True)
    at_attended = opened.record.attended_gradient(opened.logit.sum())  # images do not mix: each gets its own
    rows = relevance_of(recorded(opened.record, at_attended), opened.readout[:, None], clamp)
    return opened.attribution(rows[:, 0], METHOD)


@torch.no_grad()
def generic_relevance_of(
    attentions: Sequence[Float[Tensor, "b k n n"]],
    gradients: Sequence[Float[Tensor, "b k n n"]],
    readout: Float[Tensor, "*b r n"] | None = None,
    *,
    clamp: Clamp = "head",
) -> Float[Tensor, "b r n"]:
    """Rows of R - I for given attention weights and their gradients.

    Args:
        attentions: Of each layer, first layer first.
        gradients: Of each layer, in the same order.
        readout: Rows to propagate, each a mixture of tokens; all of R - I when None.
        clamp: What is cut at zero: each head before the mean, or the mean over heads.

    Returns:
        (b, r, n), at least 0 when the readout is.

    Raises:
        UsageError: If there is no layer, or not one gradient for each, or if clamp does not fit.
    """
    _check(clamp)
    return relevance_of(given_layers(attentions, gradients), readout, clamp)


def _check(clamp: str) -> None:
    if clamp not in get_args(Clamp):
        guess = nearest(clamp, get_args(Clamp)) or "head"
        raise UsageError(f"clamp must be one of {', '.join(get_args(Clamp))}, got {clamp!r}", f"clamp={guess!r}")


METHOD = Method(
    function=generic_attention,
    name="generic_attention",
    title="Generic attention",
    signed=False,
    class_specific=True,
    says="from which patches the attention that raises the class's logit comes, through all layers",
    about=(
        "Generic attention (Chefer, Gur and Wolf, 2021) multiplies the attention of every block by the gradient of the "
        "class's score, keeps what raises the score, and accumulates it over the blocks. It shows only what counts "
        "for the class, never what counts against it, and it is a rule of thumb: its values do not sum to the score."
    ),
    paper="Generic attention-model explainability (Chefer, Gur and Wolf, ICCV 2021), rules 5 and 6",
    options={
        "clamp": "what is clamped at zero: each head before the mean, as in the paper, or the mean over heads",
    },
    cost="3",
)
