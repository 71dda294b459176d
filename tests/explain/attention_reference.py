"""The formulas of attention x gradient in numpy, image by image, with full matrices and plain loops.

As in `reference.py`, nothing here uses the record, the row trick, pieces of layers or vitrail's attention.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.explain.reference import explicit_logits, explicit_run
from vitrail.nn import ViT, ViTConfig


def pos(values: np.ndarray) -> np.ndarray:
    return np.where(values > 0, values, 0.0)


def readout_of(config: ViTConfig) -> np.ndarray:
    """What each token contributes to what the heads read."""
    tokens = config.prefix + config.grid[0] * config.grid[1]
    fractions = np.zeros(tokens)
    if config.pooling == "class":
        fractions[0] = 1.0
    else:
        for token in range(config.prefix, tokens):
            fractions[token] = 1.0 / (tokens - config.prefix)
    if config.distillation_token:
        fractions = fractions / 2
        fractions[1 if config.class_token else 0] += 0.5
    return fractions


def on_grid(row: np.ndarray, config: ViTConfig) -> np.ndarray:
    rows, columns = config.grid
    return np.array([[row[config.prefix + i * columns + j] for j in range(columns)] for i in range(rows)])


def gradient_rollout_matrix(
    attentions: list[np.ndarray], gradients: list[np.ndarray], discard: float = 0.0
) -> np.ndarray:
    """B_L ... B_1, less the product of what each leaves in place for being half the identity."""
    tokens = attentions[0].shape[-1]
    product, in_place = np.eye(tokens), np.eye(tokens)
    for attention, gradient in zip(attentions, gradients, strict=True):
        raising = pos((attention * gradient).sum(axis=0) / len(attention))
        kept = sorted(raising.ravel())[min(round(discard * raising.size), raising.size - 1)]
        mixed = np.zeros((tokens, tokens))
        for i in range(tokens):
            for j in range(tokens):
                mixed[i, j] = 0.5 * (raising[i, j] if raising[i, j] >= kept else 0.0) + 0.5 * (i == j)
            in_place[i, i] *= 0.5 / sum(mixed[i])
            mixed[i] /= sum(mixed[i])
        product = mixed @ product
    return product - in_place


def attention_grad_cam_row(attention: np.ndarray, gradient: np.ndarray, config: ViTConfig) -> np.ndarray:
    readout, total = readout_of(config), 0.0
    for head in range(len(attention)):
        weight = np.mean((readout @ gradient[head])[config.prefix :])
        total = total + weight * (readout @ attention[head])
    return pos(total / len(attention))


def head_view_row(attention: np.ndarray, config: ViTConfig, head: int | None = None, mass: float = 0.6) -> np.ndarray:
    """Take the largest patch that is left until enough is held."""
    weights = attention.mean(axis=0) if head is None else attention[head]
    row = readout_of(config) @ weights
    patches = row[config.prefix :].copy()
    kept, held = np.zeros_like(patches), 0.0
    while held < mass * patches.sum():
        largest = int(np.argmax(np.where(kept > 0, -1.0, patches)))
        kept[largest] = patches[largest]
        held += patches[largest]
    return np.concatenate([row[: config.prefix], kept])


def attcat_row(attentions: list[np.ndarray], outputs: list[np.ndarray], gradients: list[np.ndarray]) -> np.ndarray:
    tokens, row = len(outputs[0]), np.zeros(len(outputs[0]))
    for attention, output, gradient in zip(attentions, outputs, gradients, strict=True):
        for i in range(tokens):
            row[i] += np.mean(attention[:, :, i]) * sum(output[i] * gradient[i])
    return row


def tam_row(attentions: list[np.ndarray], last_gradient: np.ndarray, config: ViTConfig, first: int) -> np.ndarray:
    """`last_gradient` is the mean over the steps."""
    readout, heads = readout_of(config), len(last_gradient)
    states = readout @ attentions[-1].mean(axis=0)
    for layer in range(len(attentions) - 2, first - 1, -1):
        states = states + states @ attentions[layer].mean(axis=0)
    weights = readout @ (sum(pos(last_gradient[head]) for head in range(heads)) / heads)
    return states * weights


def legrad_row(gradients: list[np.ndarray]) -> np.ndarray:
    """`gradients` (k, n, n) of each layer's own score."""
    tokens = gradients[0].shape[-1]
    row = np.zeros(tokens)
    for gradient in gradients:
        for j in range(tokens):
            row[j] += np.mean(pos(gradient[:, :, j])) / len(gradients)
    return row


# ---- what the formulas eat


def chosen(logits: Tensor, targets: list[int]) -> Tensor:
    return sum(logits[image, target] for image, target in enumerate(targets))


def score_after(network: ViT, tokens: Tensor, targets: list[int]) -> Tensor:
    """LeGrad's s_l: with a class token, of the mean of all tokens; else as the network reads."""
    if network.config.pooling == "mean":
        return chosen(explicit_logits(network, tokens), targets)
    mean = network.norm(tokens.mean(dim=1))
    logits = network.head(mean)
    if network.head_dist is not None:
        logits = (logits + network.head_dist(mean)) / 2
    return chosen(logits, targets)


def scaled_gradient(network: ViT, images: Tensor, targets: list[int], scale: float) -> np.ndarray:
    logits, attentions, _ = explicit_run(network, images * scale)
    return torch.autograd.grad(chosen(logits, targets), attentions[-1])[0].numpy()


def oracle(method: str, network: ViT, images: Tensor, targets: list[int], **options: Any) -> np.ndarray:
    """(b, rows, columns) by the formulas above."""
    config, depth = network.config, network.config.depth
    logits, inside, after = explicit_run(network, images)
    score = chosen(logits, targets)
    by_attention = [each.numpy() for each in torch.autograd.grad(score, inside, retain_graph=True)]
    by_output = [each.numpy() for each in torch.autograd.grad(score, after, retain_graph=True)]
    attentions, outputs = [each.detach().numpy() for each in inside], [each.detach().numpy() for each in after]
    layer, first = options.get("layer", -1) % depth, options.get("first_layer")
    rows = []
    for image in range(len(images)):
        a, g = [each[image] for each in attentions], [each[image] for each in by_attention]
        match method:
            case "gradient_rollout":
                row = readout_of(config) @ gradient_rollout_matrix(a, g, **options)
            case "attention_grad_cam":
                row = attention_grad_cam_row(a[layer], g[layer], config)
            case "head_view":
                row = head_view_row(a[layer], config, options.get("head"), options.get("mass", 0.6))
            case "attcat":
                row = attcat_row(a, [each[image] for each in outputs], [each[image] for each in by_output])
            case "tam":
                steps = options.get("steps", 20)
                runs = [scaled_gradient(network, images, targets, step / steps) for step in range(1, steps + 1)]
                row = tam_row(a, sum(runs)[image] / steps, config, depth // 3 if first is None else first % depth)
            case "legrad":
                own = [
                    torch.autograd.grad(score_after(network, after[one], targets), inside[one], retain_graph=True)[0]
                    for one in range((first or 0) % depth, depth)
                ]
                row = legrad_row([each[image].numpy() for each in own])
        rows.append(on_grid(row, config))
    return np.stack(rows)
