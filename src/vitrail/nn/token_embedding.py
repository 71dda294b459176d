"""From ids to tokens: "Attention is all you need" (2017), sections 3.4 and 3.5.

token = embedding[id] * sqrt(d) + sinusoids[position], with dropout on the sum
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vitrail.errors import UsageError
from vitrail.nn.embedding import sinusoids


class TokenEmbedding(nn.Module):
    """One row of d numbers for every id, times sqrt(d), plus the position.

    The rows start as normal numbers of deviation 1 / sqrt(d), so that they enter with deviation 1.

    Args:
        vocabulary: Number of ids.
        width: Numbers per token, d.
        max_length: Positions that are computed in advance; longer sequences work and are slower.
        dropout: Probability of dropping a number of the sum.
    """

    positions: Tensor

    def __init__(self, vocabulary: int, width: int, max_length: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocabulary, width))
        nn.init.normal_(self.weight, std=width**-0.5)
        self.register_buffer("positions", sinusoids(max_length, width), persistent=False)
        self.drop = nn.Dropout(dropout)

    def forward(self, ids: Int[Tensor, "b n"], positions: Int[Tensor, "b n"], length: int) -> Float[Tensor, "b n d"]:
        """Tokens of ids.

        Args:
            ids: What stands there.
            positions: Where it stands, from 0.
            length: More than the greatest position.
        """
        width, table = self.weight.shape[1], self.positions
        if length > len(table):
            table = sinusoids(length, width).to(table)
        return self.drop(F.embedding(ids, self.weight) * width**0.5 + table[positions])


def positions_of(visible: Bool[Tensor, "b n"]) -> Int[Tensor, "b n"]:
    """The position of each id, from 0: how many ids that are no padding stand before it."""
    return (visible.cumsum(dim=1) - 1).clamp(min=0)


def check_ids(ids: Tensor, vocabulary: int, what: str) -> None:
    """Refuse what is no batch of sequences of known ids.

    The values are looked at only outside torch.compile and torch.export, whose graphs cannot branch on them.

    Args:
        ids: What should be (b, n) whole numbers.
        vocabulary: Number of ids.
        what: What the sequence is called, such as "source".

    Raises:
        UsageError: If it is not (b, n), is empty, or holds an id outside the vocabulary.
    """
    if ids.dim() != 2 or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise UsageError(
            f"the {what} must be ids (b, n) of whole numbers, got {ids.dtype} {tuple(ids.shape)}",
            "torch.tensor([[...]]) of ids, one row for each sequence",
        )
    if ids.shape[1] == 0:
        raise UsageError(f"the {what} is empty: {tuple(ids.shape)}", f"at least one id in each row of the {what}")
    if torch.compiler.is_compiling() or ids.numel() == 0:
        return
    least, greatest = (int(bound) for bound in ids.aminmax())
    if least < 0 or greatest >= vocabulary:
        unknown = least if least < 0 else greatest
        raise UsageError(
            f"the {what} holds id {unknown}, and the vocabulary has {vocabulary} ids", f"ids from 0 to {vocabulary - 1}"
        )
