"""What all methods share: one forward pass with a record, what is explained of it, and which tokens are read out.

A method multiplies a row over tokens through the layers. That row starts as the *readout*: how much each token
contributes to the vector that the head reads. The pooling defines it: 1 at the class token, 1 / patches at every patch
for the mean. The row that comes out is put on the grid; prefix tokens are never shown as patches.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vitrail.errors import UsageError
from vitrail.explain.attribution import Attribution, caveats
from vitrail.explain.layers import Layer
from vitrail.explain.methods.method import Method
from vitrail.explain.target import ChosenTarget, Target, choose_target, refuse_constant
from vitrail.nn import Record
from vitrail.nn.embedding import Size
from vitrail.nn.parts import WeighsTokens
from vitrail.nn.twin import wide
from vitrail.nn.vit import Images, ViT


@dataclass(frozen=True, eq=False)
class ForwardPass:
    """One forward pass of a network, with what is explained of it.

    Attributes:
        network: What ran.
        record: What the pass left behind.
        chosen: What is explained of each image.
        logit: (b,), that number; inside the graph when the pass was made with gradients.
        pixels: The images; gradients reach them when the pass was made with gradients.
        grid: (rows, columns) of patches.
    """

    network: ViT
    record: Record
    chosen: ChosenTarget
    logit: Float[Tensor, "b"]
    pixels: Images
    grid: Size

    @property
    def prefix(self) -> int:
        """Number of tokens in front of the patches."""
        return self.network.config.prefix

    @cached_property
    def readout(self) -> Float[Tensor, "b n"]:
        """How much each token contributes to what the head reads; each row sums to 1.

        Raises:
            UsageError: If the pooling does not define it.
        """
        return readout_of(self.network, self.record[last_output(self.network)].detach()).to(wide(self.logit))

    def layers(self, gradients: bool = False) -> list[Layer]:
        """The layers whose attention was recorded, first layer first.

        Args:
            gradients: Whether each gets the gradient of the explained number, in one pass back that ends the graph.
        """
        places = self.record.attentions()
        if not gradients:
            return [Layer(self.record.kept(place)) for place in places]
        at_attended = self.record.attended_gradient(self.logit.sum())  # images do not mix: each gets its own
        return [Layer(self.record.kept(place), at_attended[place]) for place in places]

    def attribution(
        self,
        values: Float[Tensor, "b n"] | Float[Tensor, "b rows columns"],
        method: Method,
        notes: Sequence[tuple[str, ...]] = (),
    ) -> Attribution:
        """The attribution of a method, with the caveats that its values show.

        Args:
            values: One number per patch, or a row over all tokens.
            method: Whose values.
            notes: More caveats, one tuple for each image.
        """
        values = (on_grid(values, self.prefix, self.grid) if values.dim() == 2 else values).detach()
        found = caveats(values)
        if notes:
            found = tuple(one + more for one, more in zip(found, notes, strict=True))
        return Attribution(
            values,
            self.chosen.target,
            self.logit.detach(),
            method.name,
            method.signed,
            method.class_specific,
            found,
            self.chosen.contrast,
        )


def forward_pass(
    network: ViT, images: Images, target: Target, *names: str, gradients: bool = False, method: Method | None = None
) -> ForwardPass:
    """Run `network` once and record what `names` select; nothing of the network or of `images` changes.

    Works under `torch.no_grad` and with frozen parameters: gradients flow to a copy of the images. A method leaves
    `torch.inference_mode` first, by `@torch.inference_mode(False)`.

    Args:
        network: In eval mode.
        images: (b, c, h, w), any size that the patches divide.
        target: See `vitrail.explain.target`.
        *names: Which names to record, as in `Record`.
        gradients: Whether the record and the logit stay in the graph.
        method: Whose pass it is; needed of one that cannot tell classes apart, and so cannot explain a contrast.

    Raises:
        UsageError: If such a method is to explain a contrast, if the network is in training mode or has an attention
            that cannot be read, if gradients are wanted of weights made in inference mode or of a target function that
            does not depend on the logits, or if images or target do not fit.
    """
    if method is not None and not method.class_specific and isinstance(target, tuple):
        raise UsageError(
            f"{method.name} cannot tell classes apart, so it cannot explain a contrast",
            "generic_attention, or another method that is class-specific",
        )
    check(network, images, gradients)
    grid = network.grid(images)
    record = Record(*names, last_output(network), gradients=gradients)
    with torch.set_grad_enabled(gradients):
        pixels = images.detach().clone().requires_grad_() if gradients else images
        logits = network(pixels, record)
        chosen = choose_target(logits.detach(), target)
        logit = chosen.of(logits)
        if gradients:
            refuse_constant(logit)
    for place in (f"blocks.{index}" for index in range(network.config.depth)):
        if place not in record.attentions() and any(fnmatchcase(f"{place}.attention", name) for name in names):
            raise UsageError(
                f"the attention of {place} leaves no weights in the record",
                "an attention that calls record.keep_attention(queries, keys, values, attended, mask)",
            )
    return ForwardPass(network, record, chosen, logit, pixels, grid)


def check(network: ViT, images: Tensor, gradients: bool) -> None:
    """Refuse what would give a wrong or a random map.

    Raises:
        UsageError: See `forward_pass`.
    """
    if not isinstance(network, ViT):
        raise UsageError(f"network must be a module, got {type(network).__name__}", "model.network")
    check_eval(network)
    if not images.is_floating_point():
        raise UsageError(
            f"images must be floating point, got {images.dtype}",
            "model.preprocessing(image), which converts any file to what this network expects",
        )
    weights = next(network.parameters()).dtype
    if images.dtype != weights and not torch.is_autocast_enabled(images.device.type):
        problem = f"the network computes in {weights}, but the images are {images.dtype}"
        raise UsageError(problem, f"images.to({weights})")
    check_finite(images)
    if gradients and any(parameter.is_inference() for parameter in network.parameters()):
        raise UsageError(
            "the weights of this network were created under torch.inference_mode, so they have no gradients",
            "create or load the network outside torch.inference_mode",
        )


def check_finite(images: Tensor) -> None:
    """Refuse images with non-finite values: every map of them would have some, and their top class would be the first.

    Raises:
        UsageError: Names the first such image.
    """
    broken = (~all_finite(images)).nonzero()[:, 0].tolist()
    if broken:
        more = f", and {len(broken) - 1} more have" if len(broken) > 1 else " has"
        raise UsageError(
            f"image {broken[0]} of {len(images)}{more} non-finite values (NaN or infinity)",
            "images without NaN and infinity; images.isfinite() finds them",
        )


def check_eval(network: nn.Module, what: str = "an explanation") -> None:
    """Refuse a network whose answers are random.

    Args:
        network: Any.
        what: Needs it, for the message.

    Raises:
        UsageError: If any part is in training mode; names it.
    """
    training = [name or "the network" for name, module in network.named_modules() if module.training]
    if training:
        raise UsageError(
            f"{what} needs a network in eval mode, and {training[0]} is in training mode", "network.eval()"
        )


def last_output(network: ViT) -> str:
    """The record's name of the tokens behind the last block."""
    return f"blocks.{network.config.depth - 1}.output"


@torch.no_grad()
def readout_of(network: ViT, tokens: Float[Tensor, "b n d"]) -> Float[Tensor, "b n"]:
    """How much each token contributes to what the heads read, as the pooling defines it; each row sums to 1.

    A distillation token has a head of its own, and both heads are averaged (DeiT, 2021, section 4): it takes one half.

    Args:
        network: Whose pooling.
        tokens: Behind the last block.

    Raises:
        UsageError: If the pooling does not define it.
    """
    pool, config = network.pool, network.config
    if not isinstance(pool, WeighsTokens):
        name = type(pool).__name__
        raise UsageError(
            f"the pooling {name} has no method token_weights, which gives the weight of each token",
            f"a method `token_weights(self, tokens, prefix)` of {name}; or saliency, which takes any part",
        )
    weights = wide(pool.token_weights(network.norm(tokens), config.prefix))
    if config.distillation_token:
        weights = weights / 2
        weights[:, int(config.class_token)] += 0.5
    return weights


def on_grid(row: Float[Tensor, "b n"], prefix: int, grid: Size) -> Float[Tensor, "b rows columns"]:
    """Put a row over tokens on the grid of patches, without the prefix tokens."""
    return row[:, prefix:].unflatten(1, grid)


def all_finite(batch: Float[Tensor, "b *x"]) -> Bool[Tensor, "b"]:
    """Which images or maps hold neither NaN nor infinity; a map that does has no order."""
    return batch.flatten(1).isfinite().all(dim=1)


def exact(tensor: Tensor) -> Tensor:
    """The tensor in float64, on the CPU: not every device has float64 (Apple's MPS has none)."""
    return tensor.cpu().double()
