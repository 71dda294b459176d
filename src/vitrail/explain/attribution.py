"""What an explanation returns: one number per patch, what it explains, and its caveats.

In a notebook it shows itself: patches in the colours of the pages, the range that they stand for, and the caveats, as
small, static HTML without a script. The full page, with the image below the map and the verdict beside it, is
`vitrail explain`.
"""

import inspect
import io
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, Literal, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from PIL import Image
from torch import Tensor, nn

from vitrail.arguments import typed
from vitrail.data.images import open_image
from vitrail.errors import UsageError, check_choice, check_index, check_option, some_of
from vitrail.explain.target import Target
from vitrail.io import plain, to_json, write_file
from vitrail.model import Model
from vitrail.model.model import Answer, Options
from vitrail.nn.twin import wide
from vitrail.nn.vit import Images
from vitrail.pages.colour import is_flat, overlay, png
from vitrail.pages.render import attribution_html

NO_SIGNAL = "no signal"
NOT_FINITE = "not finite"
Interpolation = Literal["nearest", "bilinear"]


def explaining(
    method: Callable[Concatenate[Any, Options], Answer],
) -> Callable[Concatenate[nn.Module | Model, Options], Answer]:
    """A public function of a network, which takes a model in its place: then a target may be a name, too.

    It leaves `torch.inference_mode`, and an argument of a wrong type is an error of two lines.
    """
    signature, inner = inspect.signature(method), cast(Any, torch.inference_mode(False)(method))

    @wraps(method)
    def call(*values: Any, **named: Any) -> Any:
        given = signature.bind(*values, **named).arguments
        if not isinstance(model := given.get("network"), Model):
            return inner(*values, **named)
        if "target" in signature.parameters:
            from vitrail.explain.forward import target_of_model  # which makes attributions

            images, grid = given["images"], given.get("grid")
            given["target"] = target_of_model(model, images, given.get("target"), grid)
        return inner(**{**given, "network": model.network})

    call.__annotations__ = {**method.__annotations__, "network": method.__annotations__["network"] | Model}
    return typed(call)


@typed
@dataclass(frozen=True, eq=False)
class Attribution:
    """The explanation of a batch of images by one method.

    Attributes:
        values: (b, rows, columns), one number per patch in the method's own unit; never rescaled per image. For a
            sequence model, an axis of the generated tokens stands before the grid: (b, t, rows, columns).
        target: (b,), index of the class that is explained, -1 where a function of the logits is; for a network that
            writes (b, t), the ids, filled up with its padding where a text is shorter.
        logit: The number that is explained, of the same shape: the target's logit, or the difference to the other's.
        method: Name of the method; for classes, a key of `vitrail.explain.METHODS`.
        signed: Whether the sign means for and against the class; otherwise a number is only a size.
        class_specific: Whether another target would give other values.
        notes: One tuple per image: `notes[i]` holds the caveats of image i, and is empty when there is nothing to
            say. What concerns all images stands with each. `"no signal"` means that the map is zero or constant, so
            it does not prefer any patch; `"not finite"` that it holds infinities or is not a number.
        contrast: (b,), the class that the target is held against; None where it stands alone.
        size: (height, width) of the images that the network read, in pixels; None where it is not known.
    """

    values: Float[Tensor, "b *t rows columns"]
    target: Int[Tensor, "b *t"]
    logit: Float[Tensor, "b *t"]
    method: str
    signed: bool
    class_specific: bool
    notes: tuple[tuple[str, ...], ...]
    contrast: Int[Tensor, "b"] | None = None
    size: tuple[int, int] | None = None

    @staticmethod
    @typed
    def of_pixels(
        pixels: Tensor | np.ndarray,
        images: Images,
        network: nn.Module | Model,
        target: Target = None,
        *,
        join: Literal["sum", "mean"] = "sum",
        method: str = "pixels",
        signed: bool | None = None,
        class_specific: bool = True,
        grid: tuple[int, int] | None = None,
    ) -> "Attribution":
        """What any tool says of pixels as an attribution, so that it can be tested, compared and shown like any other.

        Args:
            pixels: (b, c, h, w) or (b, h, w), a number for each pixel of the images; several of a pixel are added up.
                Of a single image (h, w), too.
                Numbers that are of patches already, (b, rows, columns), are taken as they are.
            images: (b, c, h, w), as the network read them.
            network: In eval mode, or its model.
            target: What was explained, see `vitrail.explain.target`; None for each image's top class.
            join: Whether a patch has the sum of its pixels, which keeps what adds up to a logit, or their mean.
            method: What the tool is called.
            signed: Whether the sign means for and against; whether any number is negative when None.
            class_specific: Whether another target would give other numbers.
            grid: (rows, columns) of patches, for any network; those of a ViT when None.

        Raises:
            UsageError: The numbers are not of these images, or network, images or target do not fit each other.
        """
        from vitrail.explain.forward import forward_pass, target_of_model  # which make attributions
        from vitrail.explain.methods.pixels import by_patch

        if isinstance(network, Model):
            target, network = target_of_model(network, images, target, grid), network.network
        forward = forward_pass(network, images, target, grid=grid)
        values = torch.as_tensor(pixels).detach().to(wide(forward.logit))
        values = values[None] if values.dim() == 2 else values.sum(dim=1) if values.dim() > 3 else values
        if values.shape == (len(images), *images.shape[2:]):
            values = by_patch(values[:, None], forward.grid) / (math.prod(forward.patch) if join == "mean" else 1)
        if values.shape != (wanted := (len(images), *forward.grid)):
            problem = f"numbers of these images must be {(len(images), *images.shape[2:])} or {wanted}"
            hint = "torch.nn.functional.interpolate(pixels, images.shape[2:]), of (b, c, h, w)"
            raise UsageError(f"{problem}, got the shape {tuple(np.shape(pixels))}", hint)
        signed, chosen = bool((values < 0).any()) if signed is None else signed, forward.chosen
        facts = method, signed, class_specific, caveats(values), chosen.contrast, (images.shape[2], images.shape[3])
        return Attribution(values, chosen.target, forward.logit, *facts)

    def __repr__(self) -> str:
        """In at most five lines: by which method, of how many patches, what the first maps are of, and their notes."""
        maps = [f"  {each}" for image in range(len(self.values))[:3] for each in self._titles(image)][:3]
        notes = some_of(sorted({note for each in self.notes for note in each}), 2) or "none"
        values = " x ".join(map(str, self.values.shape))
        return "\n".join([f"Attribution by {self.method}, values {values}", *maps, f"  notes: {notes}"])

    def __post_init__(self) -> None:
        """Refuse what cannot be read as one number per patch of what is explained."""
        values, target = self.values, self.target
        if not isinstance(values, Tensor) or not values.is_floating_point() or values.dim() not in (3, 4):
            problem = f"values of {self.method} must be a floating-point tensor (b, rows, columns), got {_seen(values)}"
            raise UsageError(problem, "torch.as_tensor(values).float(); of (b, n) .unflatten(1, network.grid(images))")
        wanted = tuple(values.shape[:-2])
        for name, each in (("target", target), ("contrast", target if self.contrast is None else self.contrast)):
            if not isinstance(each, Tensor) or each.is_floating_point() or tuple(each.shape) != wanted:
                problem = (
                    f"{name} of {self.method} must be a tensor of class indices, shape {wanted}, got {_seen(each)}"
                )
                raise UsageError(problem, f"{name}=logits.argmax(dim=1)")
        if len(self.notes) != len(values):
            problem = f"notes of {self.method} must have one tuple per image, {len(values)}, got {len(self.notes)}"
            raise UsageError(problem, "notes=((),) * len(values)")

    def __len__(self) -> int:
        """How many images it explains."""
        return len(self.values)

    def __getitem__(self, image: int) -> "Attribution":
        """What it holds of one image, still as a batch: values (1, rows, columns)."""
        index = check_index("image", image, len(self))
        tensors = {name: each[index : index + 1] for name, each in vars(self).items() if isinstance(each, Tensor)}
        return replace(self, notes=(self.notes[index],), **tensors)

    @typed
    def token(self, index: int) -> "Attribution":
        """Of a sequence model, what it holds of one generated token: values (b, rows, columns)."""
        if self.target.dim() < 2:
            raise UsageError("this attribution is of classes, and has no tokens", "attribution[0], of the first image")
        index = check_index("index", index, self.target.shape[1])
        notes = tuple(tuple(note for note in each if note.startswith(f"token {index + 1}:")) for each in self.notes)
        values, target, logit = (each[:, index] for each in (self.values, self.target, self.logit))
        return replace(self, values=values, target=target, logit=logit, notes=notes)

    @typed
    def upsampled(self, size: tuple[int, int], mode: Interpolation = "bilinear") -> Tensor:
        """One number for each pixel, (b, height, width), in float32 at least.

        Args:
            size: (height, width) in pixels.
            mode: "nearest" gives each pixel the number of its patch, "bilinear" what lies between the middles of
                patches (as torchvision and pytorch-grad-cam draw maps).

        Raises:
            UsageError: If size or mode is another, or it has a map for each of several tokens.
        """
        sides = tuple(size) if isinstance(size, tuple | list) else (size, size)
        fits = len(sides) == 2 and all(isinstance(side, int | np.integer) and side >= 1 for side in sides)
        check_option("size", size, fits, "(height, width) in whole pixels, at least 1", (224, 224))
        check_choice("mode", mode, Interpolation)
        values = wide(self._of_patches("upsampled").detach())[:, None]
        smooth = {} if mode == "nearest" else {"align_corners": False}
        return torch.nn.functional.interpolate(values, size=[int(side) for side in sides], mode=mode, **smooth)[:, 0]

    @typed
    def overlay(
        self, image: Image.Image | str | Path | UInt8[np.ndarray, "h w *c"], *, pale: bool = False
    ) -> Image.Image:
        """The attribution of a single image over this image, in the colours of the pages; small ones are enlarged.

        Args:
            image: Pixels, or a file of pixels, as the model saw them (`model.preprocessing.to_array(image)`, or `image`
                of what a report explains): a map is of the pixels that the network reads, and not of what was cut off
                before. So their size has to be `size`; where that is not known, whole pixels for each patch.
            pale: In faint colours, as pages draw what no test supports.

        Raises:
            UsageError: If it explains several images: `attribution[0]` is that of the first; or this is no image, or
                one of another size.
            DataError: The file cannot be read.
        """
        pixels = np.asarray(open_image(image).convert("RGB"))
        values, (height, width) = self._of_patches("overlay").detach(), pixels.shape[:2]
        if len(values) != 1:
            problem = f"overlay takes an attribution of one image, but this explains {len(values)}"
            raise UsageError(problem, "attribution[0]")
        _, rows, columns = values.shape
        read = self.size or (height // rows * rows, width // columns * columns)
        if (height, width) != tuple(read):
            what = f"the {read[0]} x {read[1]} pixels the network read" if self.size else f"{rows} x {columns} patches"
            problem = f"this map is of {what}, and cannot be drawn over an image of {height} x {width} pixels"
            raise UsageError(problem, "report[i].overlay(), or model.preprocessing.to_array(image) as the image")
        return overlay(pixels, values[0].float().cpu().numpy(), self.signed, None, pale)

    @typed
    def save(
        self, path: str | Path, image: Image.Image | str | Path | UInt8[np.ndarray, "h w *c"] | None = None
    ) -> None:
        """Write it: `.png` over its image, `.npz` or `.json` as numbers with all that belongs to them.

        Args:
            path: Its ending decides which.
            image: As of `overlay`; for `.png`.

        Raises:
            UsageError: If the ending is another, a `.png` is to have no image, or has several.
        """
        path = Path(path)
        facts = {name: each for name, each in vars(self).items() if name != "values"}
        values = self.values.detach().float().cpu()
        match path.suffix.lower():
            case ".png" if image is not None:
                write_file(path, png(self.overlay(image), {"method": self.method}))
            case ".png":
                raise UsageError("an overlay needs the image, and none was passed", "save(path, image)")
            case ".json":
                write_file(path, to_json({**facts, "values": values}))
            case ".npz":
                content = io.BytesIO()
                np.savez_compressed(content, values=values.numpy(), facts=np.array(json.dumps(plain(facts))))
                write_file(path, content.getvalue())
            case other:
                problem = f"an attribution is saved as .png, .npz or .json, not as '{other}'"
                raise UsageError(problem, f"{path.stem}.png")

    def _of_patches(self, what: str) -> Float[Tensor, "b rows columns"]:
        if self.values.dim() != 3:
            problem = f"{what} needs one map per image, but this has one for each of {self.values.shape[1]} tokens"
            raise UsageError(problem, "attribution.token(0), the attribution of the first token")
        return self.values

    def _repr_html_(self) -> str:
        """The maps in colours, for a notebook."""
        shown = []
        for image, notes in enumerate(self.notes):
            titles, values = self._titles(image), wide(self.values[image].detach()).cpu()
            maps = values[None] if values.dim() == 2 else values
            shown += [(title, one.numpy(), notes) for title, one in zip(titles, maps, strict=True)]
        return attribution_html(self.method.replace("_", " "), shown, self.signed, self.class_specific)

    def _titles(self, image: int) -> list[str]:
        """What each map of one image is of; a sequence model has one for each token."""
        targets, logits = self.target[image].reshape(-1).tolist(), self.logit[image].reshape(-1).tolist()
        if self.target.dim() > 1:
            return [f"image {image}, token {i}: {target}" for i, target in enumerate(targets)]
        what = "a function of the logits" if targets[0] < 0 else f"class {targets[0]}"
        against = "" if self.contrast is None else f" rather than {int(self.contrast[image])}"
        return [f"image {image}: {what}{against} ({logits[0]:.3g})"]


def _seen(value: object) -> str:
    """What stands in place of a tensor that is wanted, in words."""
    return f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"{value!r:.60}"


def caveats(
    values: Float[Tensor, "b rows columns"], drowned: Bool[Tensor, "b"] | None = None
) -> tuple[tuple[str, ...], ...]:
    """The caveats that a map shows by its own values, for each image: nothing, `"no signal"` or `"not finite"`.

    Args:
        values: The maps.
        drowned: Which hold what rounding left, as their method knows, where the values do not show it.
    """
    maps = wide(values.detach()).cpu().numpy()  # half precision has not as many places
    lost = [False] * len(maps) if drowned is None else drowned.tolist()
    return tuple(
        (NOT_FINITE,) if not np.isfinite(one).all() else (NO_SIGNAL,) if is_lost or is_flat(one) else ()
        for one, is_lost in zip(maps, lost, strict=True)
    )
