"""What the explainers are compared with: networks of many shapes, an explicit ViT, and the formulas in numpy loops.

Nothing here uses the record, the row trick or vitrail's attention: the weights are made by an explicit softmax, their
gradients come from autograd through those weights, and the products are of full matrices, image by image.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from vitrail.nn import STANDARD, Parts, Rotary, ViT, ViTConfig

# 3 rows of 5 columns, patches of 4 x 2 pixels: nothing is patch, and 2 heads of 5 are not the width
PLAIN = ViTConfig(
    image_size=(12, 10), patch_size=(4, 2), channels=2, classes=4, width=12, depth=3, heads=2, head_dim=5, mlp_dim=20
)

INDEX = Rotary(coordinates="index", base=9.0, offset=1.0, axes="xy", layout="interleaved")

# by pooling and number of prefix tokens; those of SOME_VARIANTS with several turn their queries and keys
VARIANTS: dict[str, ViTConfig] = {
    "class-1": PLAIN,
    "class-2-distilled": replace(PLAIN, distillation_token=True),
    "class-5-registers": replace(PLAIN, registers=4),
    "class-5-distilled": replace(PLAIN, distillation_token=True, registers=3, rotary=Rotary(base=9.0), head_dim=4),
    "mean-0": replace(PLAIN, pooling="mean", class_token=False),
    "mean-1": replace(PLAIN, pooling="mean"),
    "mean-2-register": replace(PLAIN, pooling="mean", registers=1, rotary=INDEX, head_dim=8),
    "mean-5-distilled": replace(PLAIN, pooling="mean", distillation_token=True, registers=3),
}


def make_network(config: ViTConfig, seed: int = 0, parts: Parts = STANDARD) -> ViT:
    """A network in eval mode in which every parameter is redrawn, so that attention is uneven and nothing is zero."""
    network = ViT(config, parts).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                parameter.copy_(0.2 * drawn + name.endswith("weight"))
            elif parameter.dim() > 1 and "token" not in name and "pos" not in name:
                parameter.copy_(drawn * 1.5 * parameter[0].numel() ** -0.5)
            else:
                parameter.copy_(0.5 * drawn)
    return network


def make_images(config: ViTConfig, count: int = 2, seed: int = 0) -> Tensor:
    return torch.randn(count, config.channels, *config.image, generator=torch.Generator().manual_seed(seed))


def explicit(network: ViT, images: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Logits, and the attention weights (b, k, n, n) of every block inside the graph."""
    logits, attentions, _ = explicit_run(network, images)
    return logits, attentions


def explicit_run(network: ViT, images: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Logits, and of every block, inside the graph, attention weights (b, k, n, n) and the tokens after it."""
    config, attentions, outputs = network.config, [], []
    patches = network.patch_embed(images)
    front = [getattr(network, name) for name in ("cls_token", "dist_token", "reg_token")]
    tokens = torch.cat([*(part.expand(len(images), -1, -1) for part in front if part is not None), patches], dim=1)
    tokens = tokens if network.pos_embed is None else tokens + network.pos_embed
    for block in network.blocks:
        qkv = block.attn.qkv(block.norm1(tokens))
        q, k, v = qkv.unflatten(-1, (3, config.heads, config.head_width)).permute(2, 0, 3, 1, 4)
        q, k = (turned_one_by_one(each, config, network.grid(images)) for each in (q, k))
        weights = torch.softmax(torch.einsum("bkie,bkje->bkij", q, k) / config.head_width**0.5, dim=-1)
        attentions.append(weights)
        mixed = torch.einsum("bkij,bkje->bike", weights, v).flatten(2)
        tokens = tokens + block.attn.proj(mixed)
        tokens = tokens + block.mlp.fc2(block.mlp.act(block.mlp.fc1(block.norm2(tokens))))
        outputs.append(tokens)
    return explicit_logits(network, tokens), attentions, outputs


def turned_one_by_one(vectors: Tensor, config: ViTConfig, grid: tuple[int, int]) -> Tensor:
    """Queries or keys (b, k, n, e), patch by patch and pair by pair, as complex numbers."""
    how = config.rotary
    if how is None:
        return vectors
    quarter, turned = config.head_width // 4, [*vectors[:, :, : config.prefix].unbind(2)]
    for patch in range(grid[0] * grid[1]):
        places = [*divmod(patch, grid[1])]
        if how.coordinates == "centred":
            places = [2 * np.pi * (2 * (at + 0.5 + how.offset) / of - 1) for at, of in zip(places, grid, strict=True)]
        else:
            places = [at + how.offset for at in places]
        ordered = places if how.axes == "ij" else places[::-1]
        angles = [at * how.base ** (-j / quarter) for at in ordered for j in range(quarter)]
        turns = torch.exp(1j * torch.tensor(angles, dtype=vectors.dtype))
        one = vectors[:, :, config.prefix + patch]
        first, second = one.chunk(2, -1) if how.layout == "halves" else (one[..., ::2], one[..., 1::2])
        pairs = torch.complex(first, second) * turns
        both = [pairs.real, pairs.imag]
        turned.append(torch.cat(both, -1) if how.layout == "halves" else torch.stack(both, -1).flatten(-2))
    return torch.stack(turned, dim=2)


def explicit_logits(network: ViT, tokens: Tensor) -> Tensor:
    """Norm, pooling and heads."""
    config = network.config
    tokens = network.norm(tokens)
    pooled = tokens[:, 0] if config.pooling == "class" else tokens[:, config.prefix :].mean(dim=1)
    logits = network.head(pooled)
    if network.head_dist is not None:
        logits = (logits + network.head_dist(tokens[:, 1 if config.class_token else 0])) / 2
    return logits


def explicit_gradients(network: ViT, images: Tensor, targets: list[int]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Attention and the gradient of each image's target logit by it, as numpy arrays (b, k, n, n)."""
    logits, attentions = explicit(network, images)
    score = sum(logits[image, target] for image, target in enumerate(targets))
    gradients = torch.autograd.grad(score, attentions)
    return [a.detach().numpy() for a in attentions], [g.numpy() for g in gradients]


# ---- the formulas, for the (k, n, n) arrays of one image


def rollout_matrix(attentions: list[np.ndarray], fusion: str = "mean", discard: float = 0.0) -> np.ndarray:
    tokens = attentions[0].shape[-1]
    product = np.eye(tokens)
    for attention in attentions:
        joined = {"mean": np.mean, "max": np.max, "min": np.min}[fusion](attention, axis=0).copy()
        kept = sorted(joined.ravel())[min(round(discard * joined.size), joined.size - 1)]
        mixed = np.zeros((tokens, tokens))
        for i in range(tokens):
            for j in range(tokens):
                mixed[i, j] = 0.5 * (joined[i, j] if joined[i, j] >= kept else 0.0) + 0.5 * (i == j)
            mixed[i] /= sum(mixed[i])
        product = mixed @ product
    return product


def relevance_matrix(attentions: list[np.ndarray], gradients: list[np.ndarray], clamp: str = "head") -> np.ndarray:
    """R - I."""
    relevance = np.eye(attentions[0].shape[-1])
    for attention, gradient in zip(attentions, gradients, strict=True):
        product = gradient * attention
        by_clamp = {"mean": np.maximum(product.mean(axis=0), 0.0), "head": np.maximum(product, 0.0).mean(axis=0)}
        raising = by_clamp[clamp]
        relevance = relevance + raising @ relevance
    return relevance - np.eye(len(relevance))


def map_of(matrix: np.ndarray, config: ViTConfig) -> np.ndarray:
    """(rows, columns): the mean over what is read out of the columns of the patches, in reading order."""
    tokens = len(matrix)
    pooled = matrix[0] if config.pooling == "class" else sum(matrix[i] for i in range(config.prefix, tokens))
    row = pooled if config.pooling == "class" else pooled / (tokens - config.prefix)
    if config.distillation_token:
        row = (row + matrix[1 if config.class_token else 0]) / 2
    rows, columns = config.grid
    return np.array([[row[config.prefix + i * columns + j] for j in range(columns)] for i in range(rows)])


def oracle(method: str, network: ViT, images: Tensor, targets: list[int], **options: str | float) -> np.ndarray:
    """(b, rows, columns) by the formulas above."""
    attentions, gradients = explicit_gradients(network, images, targets)
    maps = []
    for image in range(len(images)):
        a, g = [layer[image] for layer in attentions], [layer[image] for layer in gradients]
        match method:
            case "raw_attention":
                matrix = a[-1].mean(axis=0)
            case "rollout":
                matrix = rollout_matrix(a, **options)
            case "generic_attention":
                matrix = relevance_matrix(a, g, **options)
        maps.append(map_of(matrix, network.config))
    return np.stack(maps)
