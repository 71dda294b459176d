"""Every number of a peer's network drawn anew: no bias is zero, no norm or LayerScale one, and no token idle."""

import torch
from torch import nn


def redrawn(module: nn.Module, seed: int = 0) -> nn.Module:
    """The module in eval mode with every parameter drawn: norms about 1, maps by their inputs, all else of 0.3."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.numel():
                alone = parameter.ndim < 2 or len(parameter) == 1  # a bias, a norm, a token, a table of positions
                scale = 0.3 if alone else 1.2 * parameter[0].numel() ** -0.5
                parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
                if parameter.ndim == 1 and name.endswith("weight"):
                    parameter.add_(1)
    return module.eval()
