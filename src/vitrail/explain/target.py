"""What is explained: for each image, one number made of its outputs; what it may be stands in `vitrail.tasks.target`.

None             what the model's codec takes by default: of classes each image's top class
3, "cat"         one output for all images, by its index, or by its name where a model knows it
[3, 1]           one for each image; a tensor (b,) too
(3, 5)           class 3 rather than class 5: the difference of their logits; `Contrast` is the same by name
a function       of outputs (n, v) to numbers (n,), each row by itself
`similarity(v)`  how alike the outputs are to those of another image
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.errors import UsageError
from vitrail.model import Model
from vitrail.tasks.codec import Codec
from vitrail.tasks.target import (
    FUNCTION,
    ChosenTarget,
    Contrast as Contrast,
    SimilarityTarget,
    Wanted,
    choose_class,
    of_function,
    turn_output,
)

Name = str | int
Target = Wanted | ChosenTarget | str | Sequence[Name] | tuple[Name | Sequence[Name], Name | Sequence[Name]]


def by_index(target: Any, codec: Codec | None) -> Any:
    """The same with the index of each output that is named; a pair stays one, and a list with one for each image.

    Args:
        target: See the module.
        codec: Knows the names; None of a network by itself.

    Raises:
        UsageError: There is no output of that name, or nobody knows names.
    """
    if isinstance(target, tuple | list):
        found = [by_index(each, codec) for each in target]
        return found if isinstance(target, list) else tuple(found)
    if isinstance(target, str) and codec is None:
        problem = f"'{target}' is a name, and a network by itself has no names of its outputs"
        raise UsageError(problem, "the model instead of model.network; or an index")
    is_one = isinstance(target, str | int) and codec is not None
    return (turn_output(codec, target) or codec.index(target)) if is_one else target


def codec_of(model: object) -> Codec | None:
    """What the outputs mean; None of a bare network, which are read as classes."""
    return model.output if isinstance(model, Model) else None


def similarity(reference: Float[Tensor, " v"]) -> SimilarityTarget:
    """A target for networks whose outputs describe an image: how alike they are to another image's, as a cosine.

    Args:
        reference: The other image's numbers.
    """
    direction = reference.detach().float() / reference.detach().float().norm().clamp(min=1e-30)
    return SimilarityTarget(torch.tensor(FUNCTION, device=reference.device), direction=direction)


def choose_target(outputs: Float[Tensor, "b v"], target: Target, codec: Codec | None = None) -> ChosenTarget:
    """What to explain, for each image.

    Args:
        outputs: They decide the usual target and the range of indices.
        target: See the module.
        codec: Of the outputs; those of a bare network, which has none, are read as classes.

    Raises:
        UsageError: If a target is no index, there is not one per image, or it is out of range, whose message names the
            range; or if a function gives NaN or infinity where the outputs are finite.
    """
    wanted = by_index(target, codec)
    if isinstance(wanted, ChosenTarget):
        return wanted.for_samples(outputs)
    if callable(wanted):
        return of_function(outputs, wanted)
    choose = choose_class if codec is None else codec.choose
    if choose is None:
        raise UsageError("the outputs of this model have nothing to explain", "target=lambda outputs: outputs[:, 0]")
    return choose(outputs, wanted)


def refuse_constant(numbers: Float[Tensor, "*n"]) -> None:
    """Refuse explained numbers that no gradient leaves, before they are differentiated.

    Raises:
        UsageError: If a target function gives numbers that do not depend on the logits, or a network such logits.
    """
    if not numbers.requires_grad:
        raise UsageError(
            "the target function does not depend on the logits, or the network's logits on its images: no gradient",
            "lambda logits: logits[:, 3]; occlusion, rise and kernel_shap need no gradient",
        )
