"""A network of detached parts whose biases are counted: what shares a logit out without a rest.

In the twin that `vitrail.nn.detached` makes, input times gradient at the pixels, the positions, the prefix tokens and
the biases adds up to the logit. What each bias gives is the gradient by a share of it, which is 1.
"""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

from vitrail.nn import ViT, detached
from vitrail.nn.twin import bias_of

Count = Callable[[nn.Module, Tensor, str], nn.Module]


def uncounted(part: nn.Module, bias: Tensor, name: str) -> nn.Module:
    """The part as it is: biases are not counted."""
    return part


def held(network: ViT, count: Count = uncounted) -> ViT:
    """A twin whose factors are constants to the gradient; its answers are the same.

    Args:
        network: Any whose parts say how they are held fixed.
        count: Wraps every part that has a bias, given the part, its bias in the shape in which it is added, and its
            name in the network.

    Raises:
        UsageError: If a part does not say it; names it, and what is missing.
    """
    return detached(network, wrap=counting(count))


def counting(count: Count) -> Callable[[nn.Module, str], nn.Module]:
    """For `detached`: wraps the parts that have a bias."""

    def wrap(form: nn.Module, place: str) -> nn.Module:
        bias = bias_of(form)
        return form if bias is None else count(form, bias, place)

    return wrap


class Counted(nn.Module):
    """A part whose bias every image takes by a share, which is 1.

    The gradient of a number by the share is what the bias gave to it: the sum of bias times gradient over all places,
    for every image of a batch by itself.

    Args:
        part: Linear map, convolution or norm; shares its parameters.
        bias: Of the part, in the shape in which it is added.
        share: (b,), ones.
    """

    def __init__(self, part: nn.Module, bias: Tensor, share: Float[Tensor, "b"]) -> None:
        super().__init__()
        self.part, self.share = part, share
        self.bias = bias.detach()

    def forward(self, tokens: Tensor) -> Tensor:
        """The same bits: what is added is zero, with a gradient."""
        answer = self.part(tokens)
        more = self.share.view(-1, *[1] * (answer.dim() - 1)) - 1
        return answer + (self.bias * more).to(answer.dtype)
