"""Why a network said so: one method per file, all in one table.

    heat = rollout(network, images)             # values (b, rows, columns), one number per patch
    METHODS["generic_attention"].function(network, images, target=3)

Every method takes a ViT in eval mode, any number of pictures, any grid and any prefix, and leaves the network as it is.
"""

from collections.abc import Callable
from dataclasses import dataclass

from vitrail.explain.attention_generic import generic_attention, generic_relevance_of
from vitrail.explain.attention_raw import raw_attention
from vitrail.explain.attention_rollout import rollout, rollout_of
from vitrail.explain.conservative import Balance, balance_sheet, conservative
from vitrail.explain.cross_attention import cross_attention
from vitrail.explain.heat import Heat

__all__ = [
    "METHODS",
    "Balance",
    "Heat",
    "Method",
    "balance_sheet",
    "conservative",
    "cross_attention",
    "generic_attention",
    "generic_relevance_of",
    "raw_attention",
    "rollout",
    "rollout_of",
]


@dataclass(frozen=True)
class Method:
    """A method and what to know before using it.

    Attributes:
        function: `function(network, images, target=None, **options) -> Heat`.
        name: Its key in `METHODS`, and `Heat.method`.
        title: The name for people.
        signed: Whether its values speak for and against the class by their sign.
        class_specific: Whether it can tell classes apart.
        says: What a map shows, in one line.
        paper: Where it comes from.
        cost: In forward passes of the network; a pass forward and back counts as 3.
        costly: Whether it takes hundreds of passes, so that a comparison leaves it out unless it is asked for.
    """

    function: Callable[..., Heat]
    name: str
    title: str
    signed: bool
    class_specific: bool
    says: str
    paper: str
    cost: str = "1"
    costly: bool = False


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(
            function=raw_attention,
            name="raw_attention",
            title="Raw attention",
            signed=False,
            class_specific=False,
            says="how strongly the token that is read out attends to each patch, in one layer",
            paper="as in Emerging properties in self-supervised vision transformers (Caron et al., 2021), figure 1",
        ),
        Method(
            function=rollout,
            name="rollout",
            title="Attention rollout",
            signed=False,
            class_specific=False,
            says="where information could have come from, through the attention of all layers",
            paper="Quantifying attention flow in transformers (Abnar and Zuidema, 2020), section 3",
        ),
        Method(
            function=generic_attention,
            name="generic_attention",
            title="Generic attention",
            signed=False,
            class_specific=True,
            says="which patches the attention that raises the class's logit comes from, through all layers",
            paper="Generic attention-model explainability (Chefer, Gur and Wolf, ICCV 2021), rules 5 and 6",
            cost="3",
        ),
        Method(
            function=conservative,
            name="conservative",
            title="Conservative propagation",
            signed=True,
            class_specific=True,
            says="what the pixels of each patch give to the class's logit, for it or against it; the parts sum to it",
            paper="XAI for transformers: better explanations through conservative propagation (Ali et al., ICML 2022)",
            cost="3",
        ),
    )
}
