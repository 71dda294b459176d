"""LeGrad: to be written."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.explain.heat import Heat
from vitrail.explain.layers import RecordedLayer, Layer, Indices, block_of, joined
from vitrail.explain.readout import open_run
from vitrail.explain.target import Target
from vitrail.nn import ViT
from vitrail.nn.vit import Images

Score = Literal["mean", "patches", "readout"]


@torch.inference_mode(False)
def legrad(network: ViT, images: Images, target: Target = None, *, first_layer: int = 0, score: Score = "mean") -> Heat:
    first = block_of(network, first_layer)
    opened = open_run(network, images, target, "blocks.*.attention", "blocks.*.output", gradients=True)
    total = 0
    for place in opened.record.attentions()[first:]:
        with torch.enable_grad():
            tokens = opened.record[f"{place}.output"]
            if score != "readout":
                pooled = (tokens if score == "mean" else tokens[:, opened.prefix:]).mean(dim=1)
                logits = network.head(network.norm(pooled))
            else:
                logits = network.readout(tokens)
            number = opened.aim.of(logits).sum()
        at = opened.record.attended_gradient(number, place, keep_graph=True)[place]
        layer = RecordedLayer(opened.record.kept(place), at)
        n = layer.extent.tokens
        for _, piece in joined(layer, lambda l, h, q: l.gradient(h, q).clamp(min=0)):
            total = total + piece.sum(dim=1) / n
    return opened.heat(total / (network.config.depth - first), "legrad", signed=False, class_specific=True)
