"""Small networks in float64 on which every method can be done once more by hand: the user's own, cut, and two others.

The user's network keeps its weights, and at most four of its blocks; it looks at 3 x 5 patches, so that nothing is
square. Beside it stand two small random networks with all kinds of tokens, one for each pooling: a fault of the code in
what the user's network does not have is a fault all the same.
"""

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail.explain.selftest.plain import PlainRun, run_plainly
from vitrail.explain.selftest.report import OF_THE_METHODS, Check
from vitrail.nn import ViT, ViTConfig, twin
from vitrail.nn.embedding import Size
from vitrail.nn.vit import Images, MeanOfPatches

BLOCKS = 4  # of the user's network that a witness keeps, at most
GRID = (3, 5)
PICTURES = 3
LIMIT = 1e-6  # how far two ways to one number may be apart in float64, as a share of what is summed


@dataclass(frozen=True, eq=False)
class Gradients:
    """The gradient of each picture's explained logit, by autograd on the plain run."""

    pixels: Images
    tokens: Float[Tensor, "b n d"]
    attention: tuple[Float[Tensor, "b k n n"], ...]
    norm1: tuple[Float[Tensor, "b n d"], ...]
    output: tuple[Float[Tensor, "b n d"], ...]


@dataclass(frozen=True)
class Witness:
    """A network, pictures and targets.

    Attributes:
        name: What it is, for people.
        network: In float64, on the processor.
        images: (b, c, h, w), of `GRID` patches where the network reads pictures of any size.
        target: (b,), a class for each picture.
        random: Whether the weights are random, so that no two numbers are nearly equal by design.
    """

    name: str
    network: ViT
    images: Images
    target: Int[Tensor, "b"]
    random: bool

    # ---- the plain run

    @cached_property
    def pixels(self) -> Images:
        """The pictures, as a leaf of the graph of the plain run."""
        return self.images.clone().requires_grad_()

    @cached_property
    def run(self) -> PlainRun:
        """The plain run, inside a graph."""
        return run_plainly(self.network, self.pixels)

    @cached_property
    def attention(self) -> list[Float[Tensor, "b k n n"]]:
        """The weights of each layer."""
        return [step.attention.detach() for step in self.run.steps]

    @cached_property
    def by(self) -> Gradients:
        """Gradients of the explained logits by what stands in the plain run."""
        steps = self.run.steps
        parts = [[getattr(step, name) for step in steps] for name in ("attention", "norm1", "output")]
        leaves = [self.pixels, self.run.tokens, *(one for part in parts for one in part)]
        found = torch.autograd.grad(self.of(self.run.logits).sum(), leaves, retain_graph=True, materialize_grads=True)
        layers = [tuple(found[2 + start : 2 + start + len(steps)]) for start in range(0, 3 * len(steps), len(steps))]
        return Gradients(found[0], found[1], *layers)

    def of(self, logits: Float[Tensor, "b v"]) -> Float[Tensor, "b"]:
        """Each picture's explained logit."""
        return logits.gather(1, self.target[:, None])[:, 0]

    # ---- where things are

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, columns) of patches."""
        patch = self.network.config.patch
        return self.images.shape[2] // patch[0], self.images.shape[3] // patch[1]

    @cached_property
    def places(self) -> list[int]:
        """The token of each patch, in reading order: the one that changes when the pixels of the patch do."""
        touched = twin(self.network, {})
        touched.patch_embed = copy.deepcopy(self.network.patch_embed)
        images = self.images[:1].expand(self.grid[0] * self.grid[1], -1, -1, -1).clone()
        draw = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in touched.patch_embed.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=draw, device="cpu"))
            for index, place in enumerate(self.squares()):
                spot = images[index][place]
                spot += 1 + torch.rand(spot.shape, generator=draw, device="cpu").to(images)
            change = (touched.embed(images) - touched.embed(self.images[:1])).abs().sum(dim=2)
        return change.argmax(dim=1).tolist()

    def squares(self) -> Iterable[tuple[slice, slice, slice]]:
        """Where the pixels of each patch are, in reading order."""
        height, width = self.network.config.patch
        for row in range(self.grid[0]):
            for column in range(self.grid[1]):
                down, across = row * height, column * width
                yield slice(None), slice(down, down + height), slice(across, across + width)

    @cached_property
    def shares(self) -> Float[Tensor, "n"]:
        """How much of each token reaches the heads: its gradient where norms and heads hand on what they get."""
        plain = twin(self.network, dict.fromkeys((nn.LayerNorm, nn.Linear), lambda _: nn.Identity()))
        tokens = torch.zeros_like(self.run.tokens[:1]).requires_grad_()
        (found,) = torch.autograd.grad(plain.readout(tokens).sum(), tokens)
        return found[0, :, 0]

    def map(self, row: Float[Tensor, "*b n"]) -> Float[Tensor, "*b rows columns"]:
        """A row over tokens, as a map of patches."""
        return row[..., self.places].unflatten(-1, self.grid)

    def summed(self, pixels: Images) -> Float[Tensor, "b rows columns"]:
        """The sum over each patch's pixels and channels."""
        parts = [one[place].sum() for one in pixels for place in self.squares()]
        return torch.stack(parts).view(len(pixels), *self.grid)

    # ---- a network whose logits are linear in the pixels

    @cached_property
    def linear(self) -> ViT:
        """The patch map, the mean of all patches and the heads: nothing between them."""
        probe = twin(self.network, {nn.LayerNorm: lambda _: nn.Identity()})
        probe.blocks, probe.pool = nn.ModuleList(), MeanOfPatches().eval()
        probe.config = replace(self.network.config, pooling="mean")
        return probe.eval()

    @cached_property
    def slope(self) -> Images:
        """The gradient of the linear network's explained logits, the same at every picture."""
        pixels = torch.zeros_like(self.images).requires_grad_()
        return torch.autograd.grad(self.of(self.linear(pixels)).sum(), pixels)[0]


@dataclass(frozen=True)
class Promise:
    """Something that a method keeps on every network.

    Attributes:
        name: What it asks, for people.
        off: How far a witness is from it.
        of: The methods of `METHODS` that it is about.
        limit: How far it may be.
        random_alone: Whether only random networks are asked.
    """

    name: str
    off: Callable[[Witness], float]
    of: tuple[str, ...] = ()
    limit: float = LIMIT
    random_alone: bool = False

    def asked(self, witnesses: Iterable[Witness]) -> Check:
        """Ask the witnesses; one that cannot answer at all breaks it."""
        worst, where = 0.0, ""
        for witness in witnesses:
            if self.random_alone and not witness.random:
                continue
            try:
                off = self.off(witness)
            except Exception as error:  # a crash of one method is a line of the report, not its end
                problem = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
                return Check(self.name, False, f"stopped on {witness.name} with {problem}", OF_THE_METHODS)
            if off > worst:
                worst, where = off, witness.name
        said = (
            f"off by {worst:.1e}" if self.limit <= LIMIT else f"off by {worst:.2f}, where chance may leave {self.limit}"
        )
        passed = worst <= self.limit
        return Check(self.name, passed, said if passed else f"{said} on {where}", OF_THE_METHODS)


def off(one: Tensor, other: Tensor, size: Tensor | None = None) -> float:
    """The largest difference, as a share of the largest of `size` (of what is summed; `other` itself when None).

    Infinite where there are numbers that are none, or the shapes differ.
    """
    if one.shape != other.shape:
        return torch.inf
    largest = (other if size is None else size).abs().max().clamp(min=torch.finfo(other.dtype).tiny)
    return float(((one - other).abs().max() / largest).nan_to_num(torch.inf))


def witnesses_of(network: ViT, images: Images) -> list[Witness]:
    """The user's network, cut, and two small random ones.

    Args:
        network: In eval mode, of the standard parts.
        images: Some pictures, as it reads them.
    """
    kept = sorted({*range(network.config.depth)[: BLOCKS // 2], *range(network.config.depth)[-(BLOCKS // 2) :]})
    cut = twin(network, {})
    cut.blocks = nn.ModuleList(network.blocks[index] for index in kept)
    cut.config = replace(network.config, depth=len(kept))
    cut = copy.deepcopy(cut).cpu().double().requires_grad_(False).eval()
    turned = torch.cat([images, images.flip(3), images.flip(2)])[:PICTURES]  # where there are fewer pictures
    small = resized(turned.cpu().double(), network.config.patch, GRID)
    with torch.no_grad():
        order = cut(small).argsort(dim=1, descending=True)
    target = torch.stack([ranks[index % len(ranks)] for index, ranks in enumerate(order)])
    return [Witness("this network", cut, small, target, False), *random_witnesses()]


def resized(images: Float[Tensor, "b c h w"], patch: Size, grid: Size) -> Float[Tensor, "b c *size"]:
    """The pictures, brought to another grid of patches."""
    size = (patch[0] * grid[0], patch[1] * grid[1])
    return F.interpolate(images, size, mode="bilinear", antialias=True, align_corners=False)


def random_witnesses() -> list[Witness]:
    """One for each pooling, with all kinds of tokens, two channels, and patches that are not square."""
    config = ViTConfig(
        image_size=(12, 10),
        patch_size=(4, 2),
        channels=2,
        classes=4,
        width=12,
        depth=4,
        heads=3,
        head_dim=5,
        mlp_dim=20,
        distillation_token=True,
        registers=2,
        layer_scale=0.5,
    )
    pooled = {"its class token": config, "the mean": replace(config, pooling="mean")}
    return [_random(f"a random network that reads {name}", each) for name, each in pooled.items()]


def _random(name: str, config: ViTConfig) -> Witness:
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        network = ViT(config).double().eval().requires_grad_(False)
    draw = torch.Generator().manual_seed(1)
    for parameter in network.parameters():
        spread = 1.5 * parameter[0].numel() ** -0.5 if parameter.dim() == 2 or parameter.dim() == 4 else 0.5
        numbers = torch.randn(parameter.shape, generator=draw, dtype=torch.float64, device="cpu")
        parameter.copy_(spread * numbers + (parameter.dim() == 1) * (parameter == 1))
    size = (PICTURES, config.channels, *config.image)
    images = torch.randn(size, generator=draw, dtype=torch.float64, device="cpu")
    ranges = torch.tensor([1.0, 3.0, 0.5], dtype=torch.float64, device="cpu").view(-1, 1, 1, 1)
    return Witness(name, network, images * ranges, torch.tensor([2, 0, 3], device="cpu"), True)
