"""Conservative propagation (CP-LRP): "XAI for transformers" (Ali et al., 2022), and its balance sheet.

    R_i = x_i * d y / d x_i       on a twin whose attention weights, standard deviations and gates are held

That twin (`nn/twin.py`) is linear, so the parts of a logit add up to it. `conservative` shows what the pixels of each
patch give, for the class or against it, by their sign. `balance_sheet` shows all parts:

    pixels + positions + class token (and other prefix tokens) + biases = logit

exactly, up to rounding. What is not in the image is not hidden: positions, prefix tokens and biases often give a
large part. Input times gradient on the network itself has no such sheet: a norm hardly feels the scale of its input, so
its parts do not add up.

The number must be linear in the logits without a constant: a class, or one rather than another. For any
other function y of the logits z the sheet leaves the gap y - sum z dy/dz, and the attribution has a note.

The authors of another package of such rules (lxt) report a patent on layer-wise relevance propagation that leaves it
free for personal and scientific use only. So this method is there for those who name it: no default and no comparison
takes it unasked; the sanity checks run it, to check it.
"""

from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail.errors import check_choice
from vitrail.explain.attribution import Attribution, explaining
from vitrail.explain.forward import ForwardPass, check_explainable, check_tokens, forward_pass
from vitrail.explain.methods.pixels import by_patch, gradients_of
from vitrail.explain.target import Target
from vitrail.nn.twin import ScaledBias, Wrap, bias_of, detached, wide
from vitrail.nn.vit import Images, ViT
from vitrail.text import ShortRepr

At = Literal["pixels", "tokens"]
BIASES = {  # whose bias, by a word in the name of its place; the others are norms
    "patch_embed": "patch map",
    "attn": "attention",
    "mlp": "MLPs",
    "pool": "pooling",
    "head": "head",
    "head_dist": "head",
}
NOT_LINEAR = 1e-3  # relative gap from which on a function of the logits counts as not linear


@dataclass(frozen=True, eq=False, repr=False)
class Balance(ShortRepr):
    """Where a logit comes from, without a rest: pixels + positions + prefix + biases = logit, for each image.

    Attributes:
        pixels: (b, rows, columns), what the pixels of each patch give; for the class or against it.
        positions: (b,), what the positions of all tokens give.
        prefix: What the "class token", "distillation token" and "registers" give, (b,) for each that is there.
        biases: What the biases of the "patch map", "norms", "attention", "MLPs", "pooling" and "head" give, (b,) each.
        logit: (b,), the number that is taken apart.
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


@explaining
def conservative(network: ViT, images: Images, target: Target = None, *, at: At = "pixels") -> Attribution:
    """What each patch gives to the target's logit, for it or against it.

    Args:
        network: In eval mode, of parts with a detached form; left as it is, gradients included.
        images: (b, c, h, w), any size that the patches divide.
        target: What to explain, see `vitrail.explain.target`; None for each image's top class.
        at: "pixels" (normalised, as the network reads them), summed over a patch; or "tokens", which enter the first
            block, with their positions and the bias of the patch map.

    Returns:
        A part of the logit per patch, signed. With at="tokens" the prefix tokens have parts too, which are not shown.

    Raises:
        UsageError: If the network is in training mode or has a part without a detached form, or if
            images, target or at do not fit.
    """
    check_choice("at", at, At)
    forward = _detached_pass(network, images, target)
    tokens, logits = forward.record["tokens"], forward.record["logits"]
    place = tokens if at == "tokens" else forward.pixels
    gradient, by_logits = gradients_of(forward.logit, place, logits)
    parts = wide(place) * gradient
    values = parts.sum(dim=-1) if at == "tokens" else by_patch(parts, forward.grid)
    notes: list[tuple[str, ...]] = []
    if forward.chosen.kind is not None:  # no class
        gap = (forward.logit - (logits * by_logits).sum(dim=1)).detach()
        far = gap.abs() > NOT_LINEAR * forward.logit.detach().abs().clamp(min=NOT_LINEAR)
        note = "the target is not linear in the logits, so {:.3g} of it is not attributed"
        notes = [(note.format(one),) if is_far else () for one, is_far in zip(gap.tolist(), far.tolist(), strict=True)]
    return forward.attribution(values, "conservative", notes)


@explaining
def balance_sheet(network: ViT, images: Images, target: Target = None) -> Balance:
    """All that a logit is made of, in one pass forward and one back.

    Args:
        network: In eval mode, of parts with a detached form; left as it is, gradients included.
        images: (b, c, h, w), any size that the patches divide.
        target: What to take apart, see `vitrail.explain.target`; None for each image's top class.

    Returns:
        The parts, for each image of the batch. The gap is rounding (below 1e-10 of the logit in float64) where the
        target is linear in the logits; for another function of the logits, what no part accounts for.

    Raises:
        UsageError: As in `conservative`.
    """
    scales: dict[str, Tensor] = {}

    def by_kind(part: nn.Module, name: str) -> nn.Module:
        kind = next((BIASES[word] for word in name.split(".") if word in BIASES), "norms")
        if (bias := bias_of(part)) is not None and kind not in scales:
            scales[kind] = torch.ones(len(images), dtype=wide(bias).dtype, device=bias.device, requires_grad=True)
        return part if bias is None else ScaledBias(part, bias, scales[kind])

    forward = _detached_pass(network, images, target, by_kind)
    places = (forward.pixels, forward.record["tokens"], *scales.values())
    by_pixels, by_tokens, *biases = gradients_of(forward.logit, *places)
    with torch.no_grad():
        positions = network.positions(forward.grid)
        front = {"class token": network.cls_token, "distillation token": network.dist_token}
        front["registers"] = network.reg_token
        there = {name: token for name, token in front.items() if token is not None}
        parts = by_tokens[:, : network.config.prefix].split([token.shape[1] for token in there.values()], dim=1)
        pairs = zip(there.items(), parts, strict=True)
        return Balance(
            pixels=by_patch(wide(forward.pixels) * by_pixels, forward.grid),
            positions=(by_tokens * (0 if positions is None else wide(positions))).sum(dim=(1, 2)),
            prefix={name: (wide(token) * part).sum(dim=(1, 2)) for (name, token), part in pairs},
            biases=dict(zip(scales, biases, strict=True)),
            logit=wide(forward.logit.detach()),
            target=forward.chosen.target,
            contrast=forward.chosen.contrast,
        )


def _detached_pass(network: ViT, images: Images, target: Target, wrap: Wrap = lambda form, place: form) -> ForwardPass:
    """A pass of the twin whose parts are held fixed; what explanations cannot read at all is refused first."""
    check_explainable(network, images, gradients=True)
    return forward_pass(detached(check_tokens(network), wrap=wrap), images, target, "tokens", "logits", gradients=True)
