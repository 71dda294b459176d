"""What stands where a patch was covered, and pictures in which some patches are covered.

    fill = donor(references)                                      # (r, c, h, w) pictures like those of training
    filler = fill.make(images, patch, draws, seed)                # (m, b, c, h, w)
    covered = composite(images, filler, mask, patch)              # (m, b, c, h, w)

A score that covers patches says as much about what stands in their place as about the map: with a grey or a blurred
fill a map can do better than the truth itself, because grey squares are evidence too. So the fill is always named, and
the one that may be trusted is *donor*: the patch of another picture at the same position, which the network knows such
pictures by. All pictures here are as the network reads them, after the model's normalisation.

Every random choice comes from the seed and the draw alone, so that a picture gets the same filler in every batch. Two
generators with the same seed give the same bits. So where one seed serves several uses, or several pictures, each draws
from a stream of its own, here and in all that is tested and scored. What draws one thing for all pictures takes the
seed as it is: SmoothGrad's noise, RISE's masks, KernelSHAP's sets, the weights of a scrambled network, and the noise
that a self-test looks at.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vitrail.errors import UsageError
from vitrail.explain.readout import check_eval
from vitrail.nn.embedding import Size, grid_of


def stream(seed: int, use: str, key: int = 0) -> torch.Generator:
    """A generator that depends on the seed, the use and a key; on the CPU, so that all devices see the same numbers."""
    return torch.Generator().manual_seed(seed_of(seed, use, key))


def seed_of(seed: int, use: str, key: int = 0) -> int:
    """The seed of that stream, to hand to what takes one: for the draw of a number, or for one part of a whole."""
    return zlib.crc32(f"{use} {seed} {key}".encode())


def keys_of(images: Float[Tensor, "b c h w"]) -> list[int]:
    """A number made of each picture's pixels: the same for a picture in every batch, another for another picture."""
    return [zlib.crc32(image.contiguous().view(torch.uint8).numpy().tobytes()) for image in images.detach().cpu()]


Pictures = Float[Tensor, "b c h w"]
Make = Callable[[Tensor, Size, int, int], Tensor]


@dataclass(frozen=True, eq=False)
class Fill:
    """What a covered patch is replaced by.

    Attributes:
        name: What a score names as its fill: "donor", "own patches", "grey", "mean", "blur".
        in_distribution: Whether a filled patch is such as the network has learnt from, without evidence of this
            picture. Only then may a verdict be built on it.
        make: `make(images (b, c, h, w), patch (height, width), draws, seed)` gives (m, b, c, h, w), whole pictures to
            take covered patches from: m is `draws`, or 1 where nothing is drawn.
    """

    name: str
    in_distribution: bool
    make: Make


def donor(references: Float[Tensor, "r c h w"]) -> Fill:
    """Every patch from a random reference picture, at the same position.

    Args:
        references: Pictures of the network's size, normalised like what it reads. Each position of each draw takes its
            patch from a reference of its own, so patches that were shuffled by position serve as well.

    Raises:
        UsageError: If there is no reference; `make` raises it if they are not of the pictures' size.
    """
    if not len(references):
        raise UsageError("a donor fill needs at least one reference picture", "a folder of pictures as --background")

    def make(images: Pictures, patch: Size, draws: int, seed: int) -> Float[Tensor, "m b c h w"]:
        if references.shape[1:] != images.shape[1:]:
            raise UsageError(
                f"references must be {tuple(images.shape[1:])} like the pictures, got {tuple(references.shape[1:])}",
                "references that went through the model's preprocessing",
            )
        cut = _cut(references.to(images), patch)  # r p c ph pw
        generator = stream(seed, "donor")
        size = (_positive(draws), cut.shape[1])
        chosen = torch.randint(cut.shape[0], size, generator=generator, device="cpu").to(images.device)
        picked = cut[chosen, torch.arange(cut.shape[1], device=images.device)]
        return _joined(picked, images)[:, None].expand(-1, images.shape[0], -1, -1, -1)

    return Fill("donor", True, make)


def own_patches() -> Fill:
    """Every patch from a random other position of the same picture.

    For when there are no references. It is not in distribution: a patch stands where it never stood, and it may carry
    the very evidence that was to be removed.
    """

    def make(images: Pictures, patch: Size, draws: int, seed: int) -> Float[Tensor, "m b c h w"]:
        cut = _cut(images, patch)  # b p c ph pw
        positions = cut.shape[1]
        if positions < 2:
            raise UsageError("a picture of one patch has no other patches", "donor(references)")
        generator = stream(seed, "own patches")
        away = torch.randint(1, positions, (_positive(draws), positions), generator=generator, device="cpu")
        source = ((torch.arange(positions, device="cpu") + away) % positions).to(images.device)
        return torch.stack([_joined(cut[:, one], images) for one in source])

    return Fill("own patches", False, make)


def grey(level: float | Float[Tensor, "c"], name: str = "grey") -> Fill:
    """One colour for all.

    Args:
        level: The colour in the network's own units, after normalisation, one number or one for each channel. Middle
            grey is `normalise(0.5)`; 0 is the mean colour of what the model was normalised by; and black,
            `normalise(0.0)`, is what Chefer et al. (2021) cover with (they cover before they normalise).
        name: What a score names as its fill, "black" for instance.
    """

    def make(images: Pictures, patch: Size, draws: int, seed: int) -> Float[Tensor, "m b c h w"]:
        colour = torch.as_tensor(level, device="cpu").to(images)
        if colour.shape not in ((), (1,), images.shape[1:2]):
            raise UsageError(
                f"a colour is one number or one for each of {images.shape[1]} channels, got {tuple(colour.shape)}",
                "grey(0.0)",
            )
        return colour.reshape(-1, 1, 1).expand_as(images)[None]

    return Fill(name, False, make)


def mean_of_picture() -> Fill:
    """The mean colour of the picture itself, channel by channel."""

    def make(images: Pictures, patch: Size, draws: int, seed: int) -> Float[Tensor, "m b c h w"]:
        return images.mean(dim=(2, 3), keepdim=True).expand_as(images)[None]

    return Fill("mean", False, make)


def blur(deviation: float = 1.0) -> Fill:
    """The picture itself, blurred by a Gaussian.

    Args:
        deviation: Standard deviation of the Gaussian, in patches; at the border its weights are shared out among the
            pixels that there are.

    Raises:
        UsageError: If the deviation is not above 0.
    """
    if not deviation > 0:
        raise UsageError(f"a blur has a deviation above 0, got {deviation}", "blur(1.0), one patch")

    def make(images: Pictures, patch: Size, draws: int, seed: int) -> Float[Tensor, "m b c h w"]:
        down, across = (_gaussian(images, axis, deviation * patch[axis]) for axis in (0, 1))
        return (down @ images @ across.T)[None]

    return Fill("blur", False, make)


def composite(
    images: Pictures,
    filler: Float[Tensor, "f b c h w"],
    covered: Bool[Tensor, "m b gh gw"] | Bool[Tensor, "b gh gw"],
    patch: Size,
) -> Float[Tensor, "x b c h w"]:
    """Pictures with some patches covered.

    Args:
        images: (b, c, h, w).
        filler: (f, b, c, h, w), what stands in covered patches.
        covered: Which patches are covered: one mask for each picture, or one for each draw too. A first axis of 1, of
            the filler or of the masks, serves all draws of the other.
        patch: (height, width) in pixels; (1, 1) covers single pixels.
    """
    masks = covered if covered.dim() == 4 else covered[None]
    pixels = masks.repeat_interleave(patch[0], dim=2).repeat_interleave(patch[1], dim=3)
    return torch.where(pixels[:, :, None], filler, images)


@torch.no_grad()
def logits_in_chunks(network: nn.Module, images: Float[Tensor, "m b c h w"], batch: int) -> Float[Tensor, "m b v"]:
    """Logits of pictures, `batch` of them at a time, in the precision of the network's weights.

    Raises:
        UsageError: If the network is in training mode, where its answers are random.
    """
    check_eval(network, "a score")
    draws, pictures = images.shape[:2]
    chunks = torch.arange(draws * pictures, device=images.device).split(_positive(batch))
    logits = [logits_of(network, images[chunk // pictures, chunk % pictures]) for chunk in chunks]
    return torch.cat(logits).unflatten(0, (draws, pictures))


def logits_of(network: nn.Module, images: Pictures) -> Float[Tensor, "b v"]:
    """Logits of pictures, which are brought to the precision of the network's weights."""
    return network(images.to(next((weight.dtype for weight in network.parameters()), images.dtype)))


def _cut(images: Pictures, patch: Size) -> Float[Tensor, "b p c ph pw"]:
    rows, columns = grid_of((images.shape[2], images.shape[3]), patch)
    cut = images.unflatten(3, (columns, patch[1])).unflatten(2, (rows, patch[0]))  # b c gh ph gw pw
    return cut.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)


def _joined(patches: Float[Tensor, "b p c ph pw"], images: Float[Tensor, "i c h w"]) -> Pictures:
    height, width = images.shape[2:]
    columns = width // patches.shape[4]
    grid = patches.unflatten(1, (-1, columns))  # b gh gw c ph pw
    return grid.permute(0, 3, 1, 4, 2, 5).reshape(len(patches), -1, height, width)


def _gaussian(images: Pictures, axis: int, deviation: float) -> Float[Tensor, "n n"]:
    """A matrix that blurs along one axis; every row sums to 1."""
    places = torch.arange(images.shape[2 + axis], dtype=torch.float64, device="cpu")
    weights = torch.exp(-((places[:, None] - places) ** 2) / (2 * deviation**2))
    return (weights / weights.sum(dim=1, keepdim=True)).to(images)


def _positive(count: int) -> int:
    if count < 1:
        raise UsageError(f"draws and batches are at least 1, got {count}", "10 draws, 64 pictures at a time")
    return count
