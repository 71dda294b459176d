"""What methods read of a network: one forward pass with a record, what is explained of it, and its attention in pieces.

A method multiplies a row over tokens through the layers. That row starts as the *readout*: how much each token
contributes to the vector that the head reads. The pooling defines it: 1 at the class token, 1 / patches at every patch
for the mean. The row that comes out is put on the grid; prefix tokens are never shown as patches.

The attention of a layer comes some heads and some query rows at a time, within a fixed budget of memory:

    A_l[h, i, :] = softmax(q_i k^T / sqrt(e))         d y / d A_l[h, i, :] = (d y / d O_l[h, i]) V^T

Both are made, row by row, from what a record keeps. So a method that joins the heads (by their mean, maximum or
minimum) never holds the weights (b, k, n, n) of a layer: with 4,097 tokens and 12 heads they take 0.8 GB, each layer.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property, partial
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vitrail.arguments import typed
from vitrail.errors import UsageError, check_option
from vitrail.explain.attribution import Attribution, caveats
from vitrail.explain.methods.table import METHODS, MethodLike, method_of
from vitrail.explain.target import Target, choose_target, refuse_constant
from vitrail.model import Model
from vitrail.nn import Record
from vitrail.nn.embedding import Size
from vitrail.nn.parts import WeighsTokens
from vitrail.nn.record import SILENT, AnyRecord, Attended, weights_gradient
from vitrail.nn.twin import wide, without_autocast
from vitrail.nn.vit import Images, ViT
from vitrail.tasks.target import ChosenTarget


@typed
class Gridded(nn.Module):
    """Any network of images with a grid of patches, for all that asks for its outputs or gradients alone.

    Args:
        network: Returns numbers (b, v) for images (b, c, h, w), each image's by itself.
        sides: (rows, columns) of patches, which divide the images.
    """

    def __init__(self, network: nn.Module, sides: Size) -> None:
        super().__init__()
        fits = isinstance(sides, tuple | list) and [type(side) for side in sides] == [int, int] and min(sides) >= 1
        check_option("grid", sides, fits, "(rows, columns) of patches, whole numbers of at least 1", (7, 7))
        self.network, self.sides = network, (sides[0], sides[1])
        self.training = False  # its network alone has a mode

    def forward(self, images: Images, record: AnyRecord = SILENT) -> Float[Tensor, "b v"]:
        """What the network returns; nothing is recorded.

        Raises:
            UsageError: That is not so many numbers for each image.
        """
        found = self.network(images)
        if not isinstance(found, Tensor) or found.dim() != 2 or len(found) != len(images):
            got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            problem = f"a network must return numbers (b, v) for {len(images)} images, got {got}"
            raise UsageError(problem, "a module around it whose forward returns logits (b, v)")
        return found

    def grid(self, images: Images) -> Size:
        """(rows, columns) of patches in these images.

        Raises:
            UsageError: They do not divide the size.
        """
        size = tuple(images.shape[2:])
        near = tuple(max(1, pixels // side) * side for pixels, side in zip(size, self.sides, strict=False))
        if len(size) != 2 or near != size:
            problem = f"a grid of {self.sides} patches does not divide images of the shape {tuple(images.shape)}"
            raise UsageError(problem, f"another grid, or images of the size {near}")
        return self.sides


WithGrid = ViT | Gridded
MOST_PATCHES = 14  # along a side of the grid of a hint
Grid = Size | None  # (rows, columns) of patches; None for those of a ViT


def with_grid(network: nn.Module, grid: Grid = None, images: Tensor | None = None) -> WithGrid:
    """The network with a grid of patches: the one that is named, else its own; a hint has one that divides the images.

    Raises:
        UsageError: It has none and none is named; or it is no module.
    """
    check_module(network)
    if grid is not None:
        return Gridded(network, grid)
    if isinstance(network, WithGrid):
        return network
    problem = f"{type(network).__name__} has no patches of its own, so a map needs a grid of them"
    sides = (MOST_PATCHES, MOST_PATCHES) if images is None else images.shape[-2:]
    fits = tuple(max(n for n in range(1, MOST_PATCHES + 1) if side % n == 0) for side in sides)
    raise UsageError(problem, f"grid={fits}; in a vitrail.Model, network=vitrail.explain.Gridded(network, {fits})")


@torch.no_grad()
def target_of_model(model: Model, images: Images, target: Target, grid: Grid = None) -> Target:
    """What its codec makes of a target, as methods take it; where its outputs have nothing to explain, the same."""
    if model.output.choose is None:
        return target
    whole = with_grid(model.network, grid, images)
    check_explainable(whole, images, False)
    return choose_target(whole(images), target, model.output).plain


def check_module(network: object) -> None:
    """Refuse what is no network, such as a model; names its class."""
    if not isinstance(network, nn.Module):
        raise UsageError(f"network must be a module, got {type(network).__name__}", "model.network")


def check_tokens(network: nn.Module) -> ViT:
    """The network, where it has tokens; others are refused, with the methods that explain them.

    Raises:
        UsageError: It is no ViT.
    """
    check_module(network)
    if not isinstance(network, ViT):
        able = ", ".join(each.name for each in METHODS.values() if each.any_network)
        problem = "this reads the tokens of a ViT, and the network is none"
        raise UsageError(problem, f"{able}: they take any network and grid=(rows, columns)")
    return network


@dataclass(frozen=True, eq=False)
class ForwardPass:
    """One forward pass of a network, with what is explained of it.

    Attributes:
        network: What ran.
        record: What the pass left behind; nothing of a network without tokens.
        chosen: What is explained of each image.
        logit: (b,), that number; inside the graph when the pass was made with gradients.
        pixels: The images; gradients reach them when the pass was made with gradients.
        grid: (rows, columns) of patches.
    """

    network: WithGrid
    record: Record
    chosen: ChosenTarget
    logit: Float[Tensor, "b"]
    pixels: Images
    grid: Size

    @property
    def patch(self) -> Size:
        """(height, width) of a patch, in pixels."""
        return self.pixels.shape[2] // self.grid[0], self.pixels.shape[3] // self.grid[1]

    @property
    def vit(self) -> ViT:
        """The network of a pass with a record."""
        return check_tokens(self.network)

    @property
    def prefix(self) -> int:
        """Number of tokens in front of the patches."""
        return self.vit.config.prefix

    @cached_property
    def readout(self) -> Float[Tensor, "b n"]:
        """How much each token contributes to what the head reads; each row sums to 1.

        Raises:
            UsageError: If the pooling does not define it.
        """
        return readout_of(self.vit, self.record[last_output(self.vit)].detach()).to(wide(self.logit))

    def layers(self, gradients: bool = False) -> "list[LayerAttention]":
        """The layers whose attention was recorded, first layer first.

        Args:
            gradients: Whether each gets the gradient of the explained number, in one pass back that ends the graph.
        """
        places = self.record.attentions()
        if not gradients:
            return [self.layer(place) for place in places]
        at_attended = self.record.attended_gradient(self.logit.sum())  # images do not mix: each gets its own
        return [self.layer(place, at_attended[place]) for place in places]

    def layer(self, place: str, at_attended: Float[Tensor, "b k n e"] | None = None) -> "LayerAttention":
        """One of them; how it makes its weights is its class's."""
        return LayerAttention(self.record.kept(place), at_attended)

    def attribution(
        self,
        values: Float[Tensor, "b n"] | Float[Tensor, "b rows columns"],
        method: MethodLike,
        notes: Sequence[tuple[str, ...]] = (),
        drowned: Bool[Tensor, "b"] | None = None,
    ) -> Attribution:
        """The attribution of a method, with the caveats that its values show.

        Args:
            values: One number per patch, or a row over all tokens.
            method: Whose values, by its name or as its row.
            notes: More caveats, one tuple for each image.
            drowned: See `caveats`.

        Raises:
            UsageError: If a contrast is to be explained by a method that is class-agnostic.
        """
        row = method_of(method)
        if self.chosen.contrast is not None and not row.class_specific:
            problem = f"{row.name} is class-agnostic, so it cannot explain a contrast"
            raise UsageError(problem, "generic_attention, or another method that is class-specific")
        values = (on_grid(values, self.prefix, self.grid) if values.dim() == 2 else values).detach()
        found = caveats(values, drowned)
        if notes:
            found = tuple(one + more for one, more in zip(found, notes, strict=True))
        return Attribution(
            values,
            self.chosen.target,
            self.logit.detach(),
            row.name,
            row.signed,
            row.class_specific,
            found,
            self.chosen.contrast,
            (self.pixels.shape[2], self.pixels.shape[3]),
        )


def forward_pass(
    network: nn.Module, images: Images, target: Target, *names: str, gradients: bool = False, grid: Grid = None
) -> ForwardPass:
    """Run `network` once and record what `names` select; nothing of the network or of `images` changes.

    Works under `torch.no_grad` and with frozen parameters: gradients flow to a copy of the images. A method leaves
    `torch.inference_mode` first, by `@explaining`.

    Args:
        network: In eval mode.
        images: (b, c, h, w), any size that the patches divide.
        target: See `vitrail.explain.target`.
        *names: Which names to record, as in `Record`, which only a ViT has.
        gradients: Whether the record and the logit stay in the graph.
        grid: (rows, columns) of patches, for any network; those of a ViT when None.

    Raises:
        UsageError: If the network is in training mode, has no tokens where names are recorded or an attention that
            cannot be read, if gradients are wanted of weights made in inference mode or of a target function that does
            not depend on the logits, or if images or target do not fit.
    """
    whole = check_tokens(network) if names else with_grid(network, grid, images)
    check_explainable(whole, images, gradients)
    patches = whole.grid(images)
    blocks = [f"blocks.{index}" for index in range(check_tokens(network).config.depth)] if names else []
    record = Record(*names, f"{blocks[-1]}.output" if names else "logits", gradients=gradients)
    with torch.set_grad_enabled(gradients):
        pixels = images.detach().clone().requires_grad_() if gradients else images
        logits = whole(pixels, record)
        chosen = choose_target(logits.detach(), target)
        logit = chosen(logits)
        if gradients:
            refuse_constant(logit)
    for place in blocks:
        if place not in record.attentions() and any(fnmatchcase(f"{place}.attention", name) for name in names):
            raise UsageError(
                f"the attention of {place} leaves no weights in the record",
                "an attention that calls record.keep_attention(queries, keys, values, attended, mask)",
            )
    return ForwardPass(whole, record, chosen, logit, pixels, patches)


def check_explainable(network: nn.Module, images: Tensor, gradients: bool) -> None:
    """Refuse what would give a wrong or a random map.

    Raises:
        UsageError: See `forward_pass`.
    """
    check_eval(network)
    if not images.is_floating_point():
        raise UsageError(
            f"images must be floating point, got {images.dtype}",
            "model.preprocessing(image), which converts any file to what this network expects",
        )
    weights = next((one.dtype for one in network.parameters()), images.dtype)
    if images.dtype != weights and not torch.is_autocast_enabled(images.device.type):
        problem = f"the network computes in {weights}, but the images are {images.dtype}"
        raise UsageError(problem, f"images.to({weights})")
    check_finite_images(images)
    if gradients and any(parameter.is_inference() for parameter in network.parameters()):
        raise UsageError(
            "the weights of this network were created under torch.inference_mode, so they have no gradients",
            "create or load the network outside torch.inference_mode",
        )


def check_finite_images(images: Tensor) -> None:
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


def to_float64(tensor: Tensor) -> Tensor:
    """The tensor in float64, on the CPU: not every device has float64 (Apple's MPS has none)."""
    return tensor.cpu().double()


# ---- attention in pieces

BUDGET = 256 * 2**20  # bytes that the pieces of a layer may take at a time
ALIVE = 4  # pieces that are there at a time: scores, weights, gradient, product

Join = Literal["mean", "max", "min"]
Indices = Sequence[int] | slice  # a slice where rows are read as a whole
Pieces = Iterator[tuple[Indices, Float[Tensor, "b q n"]]]  # some query rows' indices, and these rows
# How heads are joined: those of one piece, and what two pieces give; a mean is divided when all heads are there.
JOINS: dict[Join, tuple[Callable[..., Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    "mean": (torch.sum, torch.add),
    "max": (torch.amax, torch.maximum),
    "min": (torch.amin, torch.minimum),
}


class LayerAttention:
    """The attention of one layer, whose weights and gradient are made when they are read.

    Attributes:
        images: How many.
        heads: How many.
        tokens: How many; the weights are (images, heads, tokens, tokens).
        like: An empty tensor of their type, at least float32, and on their device.

    Args:
        kept: What its attention did, `Record.kept(place)`.
        at_attended: The gradient of what it attended, of `Record.attended_gradient`; None where none is read.
    """

    def __init__(self, kept: Attended, at_attended: Float[Tensor, "b k n e"] | None = None) -> None:
        self._kept, self._at_attended = kept, at_attended
        self.images, self.heads, self.tokens, _ = kept.queries.shape
        self.like = wide(kept.queries.detach().flatten()[:0])

    @torch.no_grad()
    def weights(self, heads: Indices, queries: Indices) -> Float[Tensor, "b h q n"]:
        """Attention weights of these heads and query rows, at least in float32."""
        return wide(self._kept.weights(heads, queries))

    @torch.no_grad()
    def gradient(self, heads: Indices, queries: Indices) -> Float[Tensor, "b h q n"]:
        """The gradient of the explained number by them, at least in float32."""
        assert self._at_attended is not None
        return wide(weights_gradient(self._at_attended[:, heads][:, :, queries], self._kept.values[:, heads]))

    @torch.no_grad()
    def join_heads(
        self, each: "Each", queries: Indices | None = None, *, heads: Indices | None = None, join: Join = "mean"
    ) -> Pieces:
        """The heads joined to one, some query rows at a time.

        Args:
            each: What is joined of each head: a function of layer, heads and query rows.
            queries: Which query rows; all when None.
            heads: Which heads; all when None.
            join: How they are joined.

        Yields:
            Some of the query rows' indices, and these rows.
        """
        queries = range(self.tokens) if queries is None else queries
        heads = range(self.heads) if heads is None else heads
        assert not isinstance(queries, slice)
        assert not isinstance(heads, slice)
        row = ALIVE * self.images * self.tokens * self.like.element_size()  # bytes of a single head's
        rows = max(1, BUDGET // max(1, row))
        heads_at_once = min(rows, len(heads))
        rows_at_once = rows // heads_at_once
        inside, between = JOINS[join]
        for first in range(0, len(queries), rows_at_once):
            some, whole = queries[first : first + rows_at_once], None
            for head in range(0, len(heads), heads_at_once):
                part = inside(each(self, heads[head : head + heads_at_once], some), dim=1)
                whole = part if whole is None else between(whole, part)
            assert whole is not None
            yield some, whole / len(heads) if join == "mean" else whole

    def start_rows(self, readout: Float[Tensor, "*b r n"] | None) -> Float[Tensor, "b r n"]:
        """The readout's rows, which may be the same for each image; or all of the identity when None."""
        start = torch.eye(self.tokens, device="cpu") if readout is None else readout
        return start.to(self.like).expand(self.images, -1, -1)

    def through(self, rows: Float[Tensor, "b r n"], each: "Each", heads: Indices | None = None) -> Tensor:
        """`rows` times the mean over heads: mixtures of tokens behind it become mixtures of those before it.

        Args:
            rows: (b, r, n); only the query rows that they read are made.
            each: What the mean is taken of: a function of layer, heads and query rows.
            heads: Which heads; all when None.

        Returns:
            (b, r, n).
        """
        return self.multiply(rows, partial(self.join_heads, each, heads=heads))

    def multiply(self, rows: Float[Tensor, "b r n"], pieces_of: Callable[[Indices], Pieces]) -> Float[Tensor, "b r n"]:
        """`rows` times a matrix that comes in pieces, and of which only the query rows are made that they read."""
        product = torch.zeros_like(rows)
        for queries, piece in pieces_of(self.rows_read(rows)):
            with without_autocast(rows):
                product = product + rows[:, :, queries] @ piece
        return product

    def rows_read(self, rows: Float[Tensor, "*b n"]) -> Indices:
        """The tokens that have a part in any of these rows; the rows of the others need not be made."""
        return (rows != 0).flatten(0, -2).any(dim=0).nonzero()[:, 0].tolist()

    def read_row(
        self, each: "Each", readout: Float[Tensor, "*b n"], heads: Indices | None = None
    ) -> Float[Tensor, "b n"]:
        """The readout's row, in the mean over some heads; only the query rows that are read out are made."""
        return self.through(self.start_rows(readout[..., None, :]), each, heads)[:, 0]

    def read_heads(self, each: "Each", readout: Float[Tensor, "*b n"]) -> Float[Tensor, "b h n"]:
        """The readout's row of each head."""
        return torch.stack([self.read_row(each, readout, [head]) for head in range(self.heads)], dim=1)

    def mean_over_queries(self, each: "Each") -> Float[Tensor, "b n"]:
        """What each token gets, in the mean over all heads and queries."""
        total = self.like.new_zeros(self.images, self.tokens)
        for _, piece in self.join_heads(each):
            total = total + piece.sum(dim=1)
        return total / self.tokens


Each = Callable[[LayerAttention, Indices, Indices], Float[Tensor, "b h q n"]]


def attention(layer: LayerAttention, heads: Indices, queries: Indices) -> Float[Tensor, "b h q n"]:
    """The weights A of some heads and query rows: one thing that `LayerAttention.join_heads` joins."""
    return layer.weights(heads, queries)


def gradient(layer: LayerAttention, heads: Indices, queries: Indices) -> Float[Tensor, "b h q n"]:
    """Their gradient d y / d A, to be joined."""
    return layer.gradient(heads, queries)


def attention_x_gradient(layer: LayerAttention, heads: Indices, queries: Indices) -> Float[Tensor, "b h q n"]:
    """Weights times gradient, A * d y / d A, to be joined."""
    return layer.gradient(heads, queries) * layer.weights(heads, queries)


def layer_index(depth: int, layer: int, option: str = "layer") -> int:
    """The number of one of `depth` layers, counted from 0; -1 is the last. `option` is what the caller calls it.

    Raises:
        UsageError: If there is no such layer; names those that there are.
    """
    check_option(option, layer, -depth <= layer < depth, f"one of {-depth}..{depth - 1}", -1)
    return layer % depth


def chosen_heads(heads: int, head: int | None) -> list[int] | None:
    """One of `heads` heads, counted from 0; None, for all, where none is named.

    Raises:
        UsageError: If there is no such head; names those that there are.
    """
    check_option("head", head, head is None or 0 <= head < heads, f"one of 0..{heads - 1}", None)
    return None if head is None else [head]
