"""The start weights of a ViT: "An image is worth 16x16 words" (2020), as its authors released them."""

import torch
from torch import nn

from vitrail.nn.attention import Attention
from vitrail.nn.blocks import MLP
from vitrail.nn.embedding import LinearPatchEmbedding, PatchEmbedding, PatchifiedEmbedding


@torch.no_grad()
def initialise(network: nn.Module) -> None:
    """Draw the start weights of a ViT, in place.

    Linear maps: Xavier uniform (queries, keys and values each as a map of its own); biases of the MLP: normal with
    deviation 1e-6; patch map: normal, cut at two deviations, of variance 1 / (inputs of a patch); positions and
    registers: normal with deviation 0.02; class and distillation tokens, all other biases and linear heads: zero, so
    that a fresh network gives every class the same probability. Foreign parts keep their own initialisation.
    """
    for module in network.modules():
        match module:
            case Attention():
                for part in module.qkv.weight.chunk(3):
                    nn.init.xavier_uniform_(part)
                nn.init.xavier_uniform_(module.proj.weight)
                for bias in (module.qkv.bias, module.proj.bias):
                    if bias is not None:
                        nn.init.zeros_(bias)
            case MLP():
                for linear in (module.fc1, module.fc2):
                    nn.init.xavier_uniform_(linear.weight)
                    if linear.bias is not None:
                        nn.init.normal_(linear.bias, std=1e-6)
            case PatchEmbedding() | LinearPatchEmbedding() | PatchifiedEmbedding():
                uncut = module.proj.weight[0].numel() ** -0.5 / 0.87962566  # cut at 2, a unit normal has this deviation
                nn.init.trunc_normal_(module.proj.weight, std=uncut, a=-2 * uncut, b=2 * uncut)
                if module.proj.bias is not None:
                    nn.init.zeros_(module.proj.bias)
    for name, parameter in network.named_parameters(recurse=False):
        if name in ("cls_token", "dist_token"):
            nn.init.zeros_(parameter)
        if name in ("reg_token", "pos_embed"):
            nn.init.normal_(parameter, std=0.02)
    for name, module in network.named_children():
        if name in ("head", "head_dist") and isinstance(module, nn.Linear):
            nn.init.zeros_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
