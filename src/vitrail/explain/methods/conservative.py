"""Conservative propagation (CP-LRP): "XAI for transformers" (Ali et al., 2022), and its balance sheet.

    R_i = x_i * d y / d x_i       on a twin whose attention weights, standard deviations and gates are held

That twin (`nn/twin.py`) is linear, so the parts of a logit add up to it. `conservative` shows what the pixels of each
patch give, for the class or against it, by their sign. `balance_sheet` shows all parts:

    pixels + positions + class token (and other prefix tokens) + biases = logit

exactly, up to rounding. What is not in the image is not hidden: positions, prefix tokens and biases often give a
large part. Input times gradient on the network itself has no such sheet: a norm hardly feels the scale of its input, so
its shares do not add up.

The number shared out must be linear in the logits without a constant: a class, or one rather than another. For any
other function y of the logits z the sheet leaves the gap y - sum z dy/dz, and the attribution has a note.

The authors of another package of such rules (lxt) report a patent on layer-wise relevance propagation that leaves it
free for personal and scientific use only. So this method is there for those who name it: no default and no comparison
takes it unasked; the self-test runs it, to check it.
"""

from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail.errors import UsageError, nearest
from vitrail.explain.attribution import Attribution
from vitrail.explain.methods.held import Count, Counted, held, uncounted
from vitrail.explain.methods.method import Method
from vitrail.explain.methods.pixels import by_patch, gradients_of
from vitrail.explain.readout import Opened, attribution_of, check, on_grid, open_run, wide
from vitrail.explain.target import Target
from vitrail.nn import ViT
from vitrail.nn.vit import Images

At = Literal["pixels", "tokens"]
BIASES = {  # whose bias, by a word in the name of its place; the others are norms
    "patch_embed": "patch map",
    "attn": "attention",
    "mlp": "MLPs",
    "pool": "pooling",
    "head": "head",
    "head_dist": "head",
}
NOT_LINEAR = 1e-3  # relative gap from which on a function of the logits is said not to be linear


@dataclass(frozen=True, eq=False)
class Balance:
    """Where a logit comes from, without a rest: pixels + positions + prefix + biases = logit, for each image.

    Attributes:
        pixels: (b, rows, columns), what the pixels of each patch give; for the class or against it.
        positions: (b,), what the positions of all tokens give.
        prefix: What the "class token", "distillation token" and "registers" give, (b,) for each that is there.
        biases: What the biases of the "patch map", "norms", "attention", "MLPs", "pooling" and "head" give, (b,) each.
        logit: (b,), the number that is shared out.
        target: (b,), the class it belongs to, as in `Attribution`.
        contrast: (b,), the class that it is held against, or None.
    """

    pixels: Float[Tensor, "b rows columns"]
    positions: Float[Tensor, "b"]
    prefix: dict[str, Float[Tensor, "b"]]
    biases: dict[str, Float[Tensor, "b"]]
    logit: Float[Tensor, "b"]
    target: Int[Tensor, "b"] = field(repr=False)
    contrast: Int[Tensor, "b"] | None = field(default=None, repr=False)

    @property
    def parts(self) -> dict[str, Float[Tensor, "b"]]:
        """All parts in words, (b,) each, in the order of a sheet."""
        biases = {f"biases of the {kind}": part for kind, part in self.biases.items()}
        return {"pixels": self.pixels.sum(dim=(1, 2)), "positions": self.positions, **self.prefix, **biases}

    @property
    def gap(self) -> Float[Tensor, "b"]:
        """Logit less the sum of all parts: rounding, for a target that is linear in the logits."""
        return self.logit - torch.stack(list(self.parts.values())).sum(dim=0)


@torch.inference_mode(False)
def conservative(network: ViT, images: Images, target: Target = None, *, at: At = "pixels") -> Attribution:
    """What each patch gives to the target's logit, for it or against it.

    Args:
        network: In eval mode, of parts that say how they are held fixed; left as it is, gradients included.
        images: (b, c, h, w), any size that the patches divide.
        target: What to explain, see `vitrail.explain.target`; None for each image's top class.
        at: "pixels" (normalised, as the network reads them), summed over a patch; or "tokens", which enter the first
            block, with their positions and the bias of the patch map.

    Returns:
        A share of the logit per patch, signed. With at="tokens" the prefix tokens have shares too, which are not shown.

    Raises:
        UsageError: If the network is in training mode or has a part that does not say how it is held fixed, or if
            images, target or at do not fit.
    """
    if at not in get_args(At):
        guess = nearest(at, get_args(At)) or "pixels"
        raise UsageError(f"at must be one of {', '.join(get_args(At))}, got {at!r}", f"at={guess!r}")
    opened = _opened(network, images, target)
    tokens, logits = opened.record["tokens"], opened.record["logits"]
    place = tokens if at == "tokens" else opened.pixels
    gradient, by_logits = gradients_of(opened.logit, place, logits)
    shares = (wide(place) * wide(gradient)).detach()
    if at == "tokens":
        values = on_grid(shares.sum(dim=-1), opened.prefix, opened.grid)
    else:
        values = by_patch(shares, opened.grid)
    notes: list[tuple[str, ...]] = []
    if opened.chosen.function is not None:
        gap = (opened.logit - (logits * by_logits).sum(dim=1)).detach()
        far = gap.abs() > NOT_LINEAR * opened.logit.detach().abs().clamp(min=NOT_LINEAR)
        said = "the target is not linear in the logits, so {:.3g} of it belongs to no part"
        notes = [(said.format(one),) if is_far else () for one, is_far in zip(gap.tolist(), far.tolist(), strict=True)]
    return attribution_of(values, opened.chosen, opened.logit, METHOD, notes)


@torch.inference_mode(False)
def balance_sheet(network: ViT, images: Images, target: Target = None) -> Balance:
    """All that a logit is made of, in one pass forward and one back.

    Args:
        network: In eval mode, of parts that say how they are held fixed; left as it is, gradients included.
        images: (b, c, h, w), any size that the patches divide.
        target: What to share out, see `vitrail.explain.target`; None for each image's top class.

    Returns:
        The parts, for each image of the batch. The gap is rounding (below 1e-10 of the logit in float64) where the
        target is linear in the logits; for another function of the logits, what no part accounts for.

    Raises:
        UsageError: As in `conservative`.
    """
    counted = _CountedBiases(len(images))
    opened = _opened(network, images, target, counted.count)
    shares = counted.shares
    gradients = gradients_of(opened.logit, opened.pixels, opened.record["tokens"], *shares.values())
    by_pixels, by_tokens = (wide(gradient) for gradient in gradients[:2])
    with torch.no_grad():
        return Balance(
            pixels=by_patch(wide(opened.pixels) * by_pixels, opened.grid),
            positions=_of_positions(network, opened, by_tokens),
            prefix=_of_prefix(network, by_tokens),
            biases=dict(zip(shares, gradients[2:], strict=True)),
            logit=wide(opened.logit.detach()),
            target=opened.chosen.target,
            contrast=opened.chosen.contrast,
        )


@dataclass(frozen=True, eq=False)
class _CountedBiases:
    """The biases of a twin, counted by kind.

    Attributes:
        images: How many there are, b.
        shares: Of each kind of `BIASES` that was met, or "norms": (b,) ones, whose gradient is what its biases gave.
    """

    images: int
    shares: dict[str, Tensor] = field(default_factory=dict)

    def count(self, part: nn.Module, bias: Tensor, name: str) -> nn.Module:
        """The part, whose bias is taken by its kind's share; for `held`."""
        kind = next((BIASES[word] for word in name.split(".") if word in BIASES), "norms")
        if kind not in self.shares:
            ones = torch.ones(self.images, dtype=wide(bias).dtype, device=bias.device, requires_grad=True)
            self.shares[kind] = ones
        return Counted(part, bias, self.shares[kind])


def _of_positions(network: ViT, opened: Opened, by_tokens: Float[Tensor, "b n d"]) -> Float[Tensor, "b"]:
    """What the positions of all tokens give; nothing in a network without positions."""
    positions = network.positions(opened.grid)
    return by_tokens.new_zeros(len(by_tokens)) if positions is None else (wide(positions) * by_tokens).sum(dim=(1, 2))


def _of_prefix(network: ViT, by_tokens: Float[Tensor, "b n d"]) -> dict[str, Float[Tensor, "b"]]:
    """What each kind of prefix token gives, in words, of those that are there."""
    found, start = dict[str, Tensor](), 0
    names = ("class token", "distillation token", "registers")
    for name, token in zip(names, (network.cls_token, network.dist_token, network.reg_token), strict=True):
        if token is not None:
            end = start + token.shape[1]
            found[name] = (wide(token) * by_tokens[:, start:end]).sum(dim=(1, 2))
            start = end
    return found


def _opened(network: ViT, images: Images, target: Target, count: Count = uncounted) -> Opened:
    """A run of the twin; what explanations cannot read at all is refused first."""
    check(network, images, gradients=True)
    return open_run(held(network, count), images, target, "tokens", "logits", gradients=True)


METHOD = Method(
    function=conservative,
    name="conservative",
    title="Conservative propagation",
    signed=True,
    class_specific=True,
    says="what the pixels of each patch contribute to the class's logit, for or against it; the parts sum to it",
    about=(
        "Conservative propagation (Ali and others, 2022) keeps the attention and the scale of every layer fixed and "
        "distributes the score over the pixels, for and against it. Together with the parts of positions, prefix "
        "tokens and biases, which no map of the image can show, the numbers add up to the score exactly. That they "
        "add up does not show that they are right. The authors of another package report a patent on this family of "
        "methods (layer-wise relevance propagation)."
    ),
    paper="XAI for transformers: better explanations through conservative propagation (Ali et al., ICML 2022)",
    options={
        "at": "what the logit is distributed over: the pixels, or the tokens that enter the first block",
    },
    cost="3",
    opt_in="others report a patent on rules of its kind",
)
