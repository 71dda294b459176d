"""Checks of the methods that look at pixels or mask patches, run on the package as it is and with planted faults.

References: captum and pytorch-grad-cam on the same weights (T6), closed forms of a network that is linear in its
pixels, and loops over patches, windows, masks and sets that share no code with the package.
"""

import itertools
import math
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import torch
from captum.attr import InputXGradient, IntegratedGradients, Occlusion, Saliency
from pytorch_grad_cam import GradCAM, HiResCAM
from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget
from torch import Tensor, nn

from tests.explain.reference import PLAIN, VARIANTS, make_images, make_network
from vitrail.nn import ViT, ViTConfig

TARGETS = [2, 0]
PATCH = PLAIN.patch  # 4 x 2 pixels on a grid of 3 x 5
FINE = PLAIN.from_dict({**vars(PLAIN), "image_size": (3, 5), "patch_size": (1, 1)})  # one pixel a patch


def explain(package: ModuleType, name: str, network: nn.Module, images: Tensor, **options: Any) -> Tensor:
    """The values of a method for the targets 2 and 0."""
    function = getattr(import_module(f"{package.__name__}.methods.{name}"), name)
    return function(network, images, TARGETS, **options).values.detach()


def by_patch(pixels: Tensor) -> np.ndarray:
    """(b, 3, 5): loops over patches of 4 x 2 pixels."""
    values = np.zeros((len(pixels), 3, 5))
    for image, row, column in itertools.product(range(len(pixels)), range(3), range(5)):
        cut = pixels[image, :, 4 * row : 4 * row + 4, 2 * column : 2 * column + 2]
        values[image, row, column] = sum(cut.flatten().tolist())
    return values


def same(ours: Tensor, wanted: np.ndarray | Tensor, tolerance: float) -> None:
    wanted = torch.as_tensor(wanted)
    assert ours.shape == wanted.shape
    assert wanted.abs().max() > 1e-3
    assert (ours - wanted).abs().max() <= tolerance * max(1.0, float(wanted.abs().max()))


def pairs(double: bool) -> list[tuple[ViT, Tensor]]:
    made = [(make_network(config), make_images(config)) for config in VARIANTS.values()]
    return [(network.double(), images.double()) for network, images in made] if double else made


def linear(network: ViT) -> ViT:
    """The same embedding, mean of patches and head, and nothing between: the logits are linear in the pixels."""
    network.blocks = nn.ModuleList()
    network.norm = nn.Identity()
    return network.eval()


MEAN = VARIANTS["mean-0"]

# ---- captum


def gradients_are_captums(package: ModuleType) -> None:
    for double in (False, True):
        tolerance = 1e-12 if double else 1e-5
        for network, images in pairs(double):
            theirs = Saliency(network).attribute(images.clone().requires_grad_(), TARGETS, abs=True)
            same(explain(package, "saliency", network, images), by_patch(theirs), tolerance)
            theirs = InputXGradient(network).attribute(images.clone().requires_grad_(), TARGETS)
            same(explain(package, "input_x_gradient", network, images), by_patch(theirs), tolerance)


def integrated_is_captums(package: ModuleType) -> None:
    for network, images in pairs(False)[::3] + pairs(True)[::3]:
        tolerance = 1e-7 if images.dtype == torch.float64 else 1e-5  # its nodes are float32
        colour = torch.tensor([0.3, -0.7]).to(images)[:, None, None]
        for baseline in (0.0, colour, images.flip(0)):
            full = torch.as_tensor(baseline).to(images).expand_as(images)
            whole: dict[str, Any] = {"tolerance": None, "batch_size": 7}  # one sum over the whole way, as theirs
            theirs = IntegratedGradients(network, multiply_by_inputs=True).attribute(
                images, full, TARGETS, n_steps=50, method="gausslegendre"
            )
            ours = explain(package, "integrated_gradients", network, images, steps=50, baseline=baseline, **whole)
            same(ours, by_patch(theirs.detach()), tolerance)
        named = explain(package, "integrated_gradients", network, images, baseline=[0.3, -0.7])
        same(named, explain(package, "integrated_gradients", network, images, baseline=colour), 1e-6)


def occlusion_is_captums(package: ModuleType) -> None:
    cases = [((1, 1), (1, 1)), ((2, 2), (1, 1)), ((2, 3), (1, 2)), ((2, 2), (2, 2)), ((3, 4), (2, 3)), ((1, 5), (1, 5))]
    for network, images in pairs(False)[::3] + pairs(True)[::3]:
        for window, stride in cases:
            in_pixels = [
                tuple(side * patch for side, patch in zip(each, PATCH, strict=True)) for each in (window, stride)
            ]
            theirs = Occlusion(network).attribute(
                images, (2, *in_pixels[0]), (2, *in_pixels[1]), baselines=0.25, target=TARGETS
            )
            wanted = theirs[:, 0, :: PATCH[0], :: PATCH[1]]  # the same number in every pixel of a patch
            ours = explain(package, "occlusion", network, images, window=window, stride=stride, fill=0.25, batch_size=5)
            same(ours, wanted, 1e-6 if images.dtype == torch.float64 else 1e-5)  # its result is float32


# ---- pytorch-grad-cam


def min_max(values: Tensor) -> Tensor:
    """What the package does to each map, twice."""
    for _ in range(2):
        values = values.clamp(min=0)
        values = values - values.amin(dim=(1, 2), keepdim=True)
        values = values / (1e-7 + values.amax(dim=(1, 2), keepdim=True))
    return values


def cams_are_those_of_grad_cam(package: ModuleType) -> None:
    """With patches of one pixel its maps come out as they are, but for its two rescalings to 0..1."""
    images = make_images(FINE)
    for extra in ({}, {"registers": 4}, {"pooling": "mean", "class_token": False}, {"pooling": "mean", "registers": 1}):
        network = make_network(FINE.from_dict({**vars(FINE), **extra}))
        prefix = network.config.prefix

        def on_grid(tokens: Tensor, prefix: int = prefix) -> Tensor:
            return tokens[:, prefix:].unflatten(1, (3, 5)).movedim(3, 1)

        for index, part in ((2, "norm1"), (0, "output"), (0, "norm1")):
            block = network.blocks[index]
            module = block.norm1 if part == "norm1" else block
            for theirs, name in ((GradCAM, "grad_cam"), (HiResCAM, "hires_cam")):
                targets = [ClassifierOutputTarget(target) for target in TARGETS]
                with theirs(network, [module], reshape_transform=on_grid) as cam:
                    wanted = torch.tensor(cam(images.clone(), targets))
                ours = explain(package, name, network, images, layer=f"blocks.{index}.{part}")
                assert wanted.max() > 0.99
                assert (min_max(ours) - wanted).abs().max() <= 1e-5


def cams_are_exact(package: ModuleType) -> None:
    """In raw units, against loops over explicit tokens and gradients."""
    for config in VARIANTS.values():
        network, images = make_network(config).double(), make_images(config).double()
        tokens = network.embed(images).detach().requires_grad_()
        through = tokens
        for block in network.blocks:
            through = block(through, rotation=network.rotation(network.grid(images)))
        logits = network.readout(through)
        (gradient,) = torch.autograd.grad(sum(logits[i, target] for i, target in enumerate(TARGETS)), tokens)
        t, g = tokens.detach().numpy()[:, config.prefix :], gradient.numpy()[:, config.prefix :]
        hires, cam = np.zeros((2, 3, 5)), np.zeros((2, 3, 5))
        for image, row, column in itertools.product(range(2), range(3), range(5)):
            place = 5 * row + column
            hires[image, row, column] = t[image, place] @ g[image, place]
            cam[image, row, column] = max(0.0, t[image, place] @ g[image].mean(axis=0))
        same(explain(package, "hires_cam", network, images, layer="tokens"), hires, 1e-10)
        same(explain(package, "grad_cam", network, images, layer="tokens"), cam, 1e-10)


# ---- closed forms and loops


def linear_networks_are_exact(package: ModuleType) -> None:
    """What a patch adds to the logit is known; one node, or as few sets as tell patches apart, find it."""
    network, images = linear(make_network(MEAN)).double(), make_images(MEAN).double()
    weight = network.head.weight @ network.patch_embed.proj.weight.flatten(1) / 15
    patches = images.unfold(2, 4, 4).unfold(3, 2, 2).permute(0, 2, 3, 1, 4, 5).flatten(3)
    one_colour = images.mean(dim=(2, 3))[..., None].expand(-1, -1, 8).flatten(1)
    for fill, absent in ((0.0, torch.zeros_like(one_colour)), ("mean", one_colour)):
        adds = torch.stack([(patches[i] - absent[i]) @ weight[target] for i, target in enumerate(TARGETS)]).detach()
        for name, options in (("occlusion", {}), ("kernel_shap", {"samples": 400})):
            same(explain(package, name, network, images, fill=fill, **options), adds, 1e-10)
        if fill == 0.0:
            same(explain(package, "integrated_gradients", network, images, steps=1), adds, 1e-12)
            same(explain(package, "input_x_gradient", network, images), adds, 1e-12)
    slopes = weight[TARGETS].abs().sum(dim=1)[:, None, None].expand(2, 3, 5).detach()
    same(explain(package, "saliency", network, images), slopes, 1e-12)
    same(explain(package, "smooth_grad", network, images), slopes, 1e-10)
    expected = weight[TARGETS].square().sum(dim=1)[:, None, None].expand(2, 3, 5).detach()
    same(explain(package, "smooth_grad", network, images, squared=True), expected, 1e-10)


def smooth_grad_is_the_mean_over_noise(package: ModuleType) -> None:
    """Against a loop that draws the documented noise; without noise it is saliency."""
    network, images = make_network(PLAIN).double(), make_images(PLAIN).double()
    images[1] *= 5
    same(
        explain(package, "smooth_grad", network, images, noise=0.0, samples=3),
        explain(package, "saliency", network, images),
        1e-12,
    )
    drawn = torch.randn(6, 15, 16, generator=torch.Generator().manual_seed(4)).double().view(6, 3, 5, 2, 4, 2)
    plain, squared = torch.zeros_like(images), torch.zeros_like(images)
    for sample, image in itertools.product(range(6), range(2)):
        noise = torch.zeros_like(images[0])
        for row, column in itertools.product(range(3), range(5)):
            noise[:, 4 * row : 4 * row + 4, 2 * column : 2 * column + 2] = drawn[sample, row, column]
        spread = 0.2 * (images[image].max() - images[image].min())
        pixels = (images[image] + spread * noise)[None].requires_grad_()
        (gradient,) = torch.autograd.grad(network(pixels)[0, TARGETS[image]], pixels)
        plain[image] += gradient[0] / 6
        squared[image] += gradient[0] ** 2 / 6
    options = {"samples": 6, "noise": 0.2, "seed": 4, "batch_size": 5}
    same(explain(package, "smooth_grad", network, images, **options), by_patch(plain.abs()), 1e-10)
    same(explain(package, "smooth_grad", network, images, squared=True, **options), by_patch(squared), 1e-10)


def answer(network: ViT, image: Tensor, seen: np.ndarray, filling: Tensor, target: int) -> float:
    """The logit of one image whose patches are seen by the fractions `seen` (3, 5)."""
    masked = image.clone()
    for row, column in itertools.product(range(3), range(5)):
        place = np.s_[:, 4 * row : 4 * row + 4, 2 * column : 2 * column + 2]
        masked[place] = seen[row, column] * image[place] + (1 - seen[row, column]) * filling[place]
    with torch.no_grad():
        return float(network(masked[None])[0, target])


def rise_is_the_mean_while_seen(package: ModuleType) -> None:
    network, images = make_network(PLAIN).double(), make_images(PLAIN).double()
    masks = import_module(f"{package.__name__}.methods.rise").random_masks((3, 5), 40, 3, 0.4, 7).double().numpy()
    wanted = np.zeros((2, 3, 5))
    for image, target in enumerate(TARGETS):
        filling = images[image].mean(dim=(1, 2), keepdim=True).expand_as(images[image])
        found = [answer(network, images[image], mask, filling, target) for mask in masks]
        for row, column in itertools.product(range(3), range(5)):
            fractions = [mask[row, column] for mask in masks]
            seen = sum(y * fraction for y, fraction in zip(found, fractions, strict=True)) / sum(fractions)
            wanted[image, row, column] = seen - sum(found) / len(found)
    ours = explain(package, "rise", network, images, masks=40, cells=3, visible=0.4, seed=7, batch_size=9)
    same(ours, wanted, 1e-10)


def masks_are_as_in_the_paper(package: ModuleType) -> None:
    """Small grids stretched bilinearly and shifted: against loops, and in their statistics."""
    random_masks = import_module(f"{package.__name__}.methods.rise").random_masks
    masks = random_masks((6, 10), 4000, 3, 0.3, 1)
    assert masks.shape == (4000, 6, 10)
    assert masks.min() >= 0
    assert masks.max() <= 1
    assert (masks.mean(dim=0) - 0.3).abs().max() < 0.04  # 5 standard errors; no place is seen more often
    assert (masks.std(dim=0) / masks.std() - 1).abs().max() < 0.05  # nor more sharply, not even a corner
    generator = torch.Generator().manual_seed(1)
    small = (torch.rand(4000, 6, 6, generator=generator) < 0.3).double().numpy()
    down, right = (torch.randint(side, (4000,), generator=generator) for side in (2, 4))
    for index in range(5):
        for row, column in itertools.product(range(6), range(10)):
            y, x = (row + int(down[index]) + 2.5) / 2 - 0.5, (column + int(right[index]) + 4.5) / 4 - 0.5
            top, left = int(y), int(x)
            v, u = y - top, x - left
            corners = small[index, top : top + 2, left : left + 2]
            wanted = (1 - v) * ((1 - u) * corners[0, 0] + u * corners[0, 1])
            wanted += v * ((1 - u) * corners[1, 0] + u * corners[1, 1])
            assert abs(float(masks[index, row, column]) - wanted) < 1e-6


def brute_force(value: Callable[[tuple[int, ...]], float], players: int) -> list[float]:
    """Shapley values by the definition, a sum over all sets without the player."""
    known = {
        chosen: value(chosen) for size in range(players + 1) for chosen in itertools.combinations(range(players), size)
    }
    shapley = []
    for player in range(players):
        others = [each for each in range(players) if each != player]
        total = 0.0
        for size in range(players):
            fraction = math.factorial(size) * math.factorial(players - size - 1) / math.factorial(players)
            for chosen in itertools.combinations(others, size):
                total += fraction * (known[tuple(sorted((*chosen, player)))] - known[chosen])
        shapley.append(total)
    return shapley


SMALL = ViTConfig(
    image_size=(8, 8), patch_size=(4, 2), channels=2, classes=4, width=12, depth=2, heads=2, head_dim=5, mlp_dim=20
)


def shapley_values_are_exact(package: ModuleType) -> None:
    """All sets of 2 x 4 patches fit: the fit gives Shapley's values, and keeps their sum."""
    network, images = make_network(SMALL).double(), make_images(SMALL).double()
    filling = torch.full_like(images[0], 0.5)

    def value(image: int) -> Callable[[tuple[int, ...]], float]:
        def of(chosen: tuple[int, ...]) -> float:
            shown = filling.clone()
            for player in chosen:
                row, column = player // 4, player % 4
                place = np.s_[:, 4 * row : 4 * row + 4, 2 * column : 2 * column + 2]
                shown[place] = images[image][place]
            with torch.no_grad():
                return float(network(shown[None])[0, TARGETS[image]])

        return of

    wanted = torch.tensor([brute_force(value(image), 8) for image in range(2)], dtype=torch.float64)
    ours = explain(package, "kernel_shap", network, images, fill=0.5, samples=254, batch_size=50)
    assert (ours.flatten(1) - wanted).abs().max() <= 1e-8
    ends = torch.tensor([value(image)(tuple(range(8))) - value(image)(()) for image in range(2)])
    assert (ours.sum(dim=(1, 2)) - ends).abs().max() <= 1e-6
    drawn = explain(package, "kernel_shap", network, images, fill=0.5, samples=253, batch_size=50).flatten(1)
    assert 1e-4 < (drawn - wanted).abs().max() < 0.3 * wanted.abs().max()
    assert (drawn.sum(dim=1) - ends).abs().max() <= 1e-6  # the constraints are exact when sets are drawn, too


CHECKS = (
    gradients_are_captums,
    integrated_is_captums,
    occlusion_is_captums,
    cams_are_those_of_grad_cam,
    cams_are_exact,
    linear_networks_are_exact,
    smooth_grad_is_the_mean_over_noise,
    rise_is_the_mean_while_seen,
    masks_are_as_in_the_paper,
    shapley_values_are_exact,
)
