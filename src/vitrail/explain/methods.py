"""The table of methods: each with what it shows, what it costs, and what it cannot tell."""

from collections.abc import Callable
from dataclasses import dataclass

from vitrail.explain.attcat import attcat
from vitrail.explain.attention_generic import generic_attention
from vitrail.explain.attention_grad_cam import attention_grad_cam
from vitrail.explain.attention_raw import raw_attention
from vitrail.explain.attention_rollout import rollout
from vitrail.explain.conservative import conservative
from vitrail.explain.gradient_rollout import gradient_rollout
from vitrail.explain.head_view import head_view
from vitrail.explain.heat import Heat
from vitrail.explain.legrad import legrad
from vitrail.explain.tam import tam


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
            function=head_view,
            name="head_view",
            title="Head view",
            signed=False,
            class_specific=False,
            says="the fewest patches that hold most of the attention of one layer, or of one of its heads",
            paper="Emerging properties in self-supervised vision transformers (Caron et al., 2021), figures 1 and 3",
        ),
        Method(
            function=gradient_rollout,
            name="gradient_rollout",
            title="Gradient rollout",
            signed=False,
            class_specific=True,
            says="rollout through the attention that raises the class's logit",
            paper="as in vit-explain (Gildenblat, 2020), after Quantifying attention flow (Abnar and Zuidema, 2020)",
            cost="3",
        ),
        Method(
            function=attention_grad_cam,
            name="attention_grad_cam",
            title="Attention Grad-CAM",
            signed=False,
            class_specific=True,
            says="attention of one layer, each head weighed by how the class's logit reacts to it",
            paper="Grad-CAM (Selvaraju et al., 2017), as a baseline of Chefer, Gur and Wolf (CVPR 2021)",
            cost="3",
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
            function=legrad,
            name="legrad",
            title="LeGrad",
            signed=False,
            class_specific=True,
            says="where more attention would raise the class's score, each layer scored for itself",
            paper="LeGrad: explainability via feature formation sensitivity (Bousselham et al., 2024), section 3",
            cost="1, and a short pass back for each layer",
        ),
        Method(
            function=attcat,
            name="attcat",
            title="AttCAT",
            signed=True,
            class_specific=True,
            says="how each token pushes the class's logit, weighed by the attention it gets, through all layers",
            paper="AttCAT: explaining Transformers via attentive class activation tokens (Qiang et al., 2022)",
            cost="3",
        ),
        Method(
            function=tam,
            name="tam",
            title="Transition attention maps",
            signed=False,
            class_specific=True,
            says="attention walked back through the layers, weighed by the last layer's gradient on the way from black",
            paper="Explaining information flow inside vision transformers using Markov chain (Yuan et al., 2021)",
            cost="1 + steps (21)",
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
