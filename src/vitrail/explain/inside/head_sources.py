"""Head x source: which head brought what from where to one token.

    attention(x)_i = sum_h sum_j A[h, i, j] V[h, j] W_O[h] + b

The sum is exact, so that what attention adds at token i can be told apart by head h and source j: "head 7 brought
patch (5, 3)". The weight A alone does not tell that: a head may look hard at a token whose value is nothing.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.explain.inside.reading import Place, names_of, output_map, read, token_of, written
from vitrail.explain.layers import block_of
from vitrail.explain.readout import wide, without_autocast
from vitrail.nn import ViT
from vitrail.nn.vit import Images


@dataclass(frozen=True, eq=False)
class HeadSources:
    """What came to one token in one layer: vectors summed over heads and sources, plus `bias`, are `output`.

    Attributes:
        vectors: (b, k, n, d), from each source token by each head.
        bias: (d,), of the output map.
        output: (b, d), what the attention adds to the token.
        share: (b, k, n), part of each vector along the output, over the output's length: sums to 1 with the bias's.
        names: What each token is, in words.
        to: The same of the token that was asked for.
        layer: The block.
    """

    vectors: Float[Tensor, "b k n d"]
    bias: Float[Tensor, "d"]
    output: Float[Tensor, "b d"]
    share: Float[Tensor, "b k n"]
    names: tuple[str, ...]
    to: str
    layer: int

    def says(self, picture: int = 0, count: int = 3) -> tuple[str, ...]:
        """The strongest in words, such as "head 7 brought patch (5, 3): 41 % of what block 2 adds to the class token".

        Args:
            picture: Which picture of the batch.
            count: How many heads and sources.
        """
        shares = self.share[picture].flatten()
        strongest = shares.abs().topk(min(count, len(shares))).indices.tolist()
        said = []
        for index in strongest:
            head, source = divmod(index, self.share.shape[2])
            part = f"{100 * float(shares[index]):.0f} % of what block {self.layer} adds to the {self.to}"
            said.append(f"head {head} brought {self.names[source]}: {part}")
        return tuple(said)


@torch.inference_mode(False)
def head_sources(network: ViT, images: Images, layer: int = -1, to: Place = 0) -> HeadSources:
    """Take apart what attention brings to one token.

    Args:
        network: In eval mode; left as it is.
        images: (b, c, h, w), any size that the patches divide.
        layer: Which block; -1 is the last.
        to: Which token asks: its number (0 is the class token, where there is one), or (row, column) of a patch.

    Raises:
        UsageError: If the network is in training mode or its attention does not say what its heads add, if layer or
            token do not exist, or if the images do not fit.
    """
    block = block_of(network, layer)
    grid = network.grid(images)
    token, place = token_of(network, grid, to), f"blocks.{block}"
    record = read(network, images, f"{place}.attention", f"{place}.values", f"{place}.attended")
    attended = record[f"{place}.attended"]
    weight, bias = output_map(network, block, attended)
    with torch.no_grad():
        output = wide(written(network, block, attended[:, :, [token]])[:, 0])
        weights, values = wide(record.attention(place, None, [token])[:, :, 0]), wide(record[f"{place}.values"])
        with without_autocast(values):
            vectors = torch.einsum("bkn,bkne,dke->bknd", weights, values, wide(weight))
            lengths = output.square().sum(dim=1).clamp(min=torch.finfo(output.dtype).tiny)
            share = torch.einsum("bknd,bd->bkn", vectors, output) / lengths[:, None, None]
    names = names_of(network, grid)
    return HeadSources(vectors, wide(bias), output, share, names, names[token], block)
