"""The table of methods: each with what it shows, what it costs, and what it cannot tell."""

import difflib
from collections.abc import Callable
from dataclasses import dataclass

from vitrail.explain.heat import Heat
from vitrail.explain.methods.attcat import attcat
from vitrail.explain.methods.attention_grad_cam import attention_grad_cam
from vitrail.explain.methods.conservative import conservative
from vitrail.explain.methods.generic_attention import generic_attention
from vitrail.explain.methods.grad_cam import grad_cam
from vitrail.explain.methods.gradient_rollout import gradient_rollout
from vitrail.explain.methods.head_view import head_view
from vitrail.explain.methods.hires_cam import hires_cam
from vitrail.explain.methods.input_x_gradient import input_x_gradient
from vitrail.explain.methods.integrated_gradients import integrated_gradients
from vitrail.explain.methods.kernel_shap import kernel_shap
from vitrail.explain.methods.legrad import legrad
from vitrail.explain.methods.occlusion import occlusion
from vitrail.explain.methods.raw_attention import raw_attention
from vitrail.explain.methods.rise import rise
from vitrail.explain.methods.rollout import rollout
from vitrail.explain.methods.saliency import saliency
from vitrail.explain.methods.smooth_grad import smooth_grad
from vitrail.explain.methods.tam import tam


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
        opt_in: Why a comparison leaves it out unless it is asked for; empty where it does not.
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
    opt_in: str = ""


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
            function=saliency,
            name="saliency",
            title="Saliency",
            signed=False,
            class_specific=True,
            says="how fast the class's logit would change with the pixels of each patch",
            paper="Deep inside convolutional networks (Simonyan, Vedaldi and Zisserman, 2013), section 3",
            cost="3",
        ),
        Method(
            function=input_x_gradient,
            name="input_x_gradient",
            title="Input x gradient",
            signed=True,
            class_specific=True,
            says="the pixels of each patch times the gradient that reaches them; the parts do not sum to the logit",
            paper="Not just a black box: learning important features (Shrikumar et al., 2016), section 2",
            cost="3",
        ),
        Method(
            function=smooth_grad,
            name="smooth_grad",
            title="SmoothGrad",
            signed=False,
            class_specific=True,
            says="saliency, averaged over noisy copies of the picture",
            paper="SmoothGrad: removing noise by adding noise (Smilkov et al., 2017), section 2",
            cost="1 + 3 x samples (76)",
        ),
        Method(
            function=integrated_gradients,
            name="integrated_gradients",
            title="Integrated Gradients",
            signed=True,
            class_specific=True,
            says="what each patch adds to the class's logit on the way from a picture of one colour to this one",
            paper="Axiomatic attribution for deep networks (Sundararajan, Taly and Yan, 2017), section 3",
            cost="6 + 3 x steps (156), up to eight times as many",
        ),
        Method(
            function=grad_cam,
            name="grad_cam",
            title="Grad-CAM",
            signed=False,
            class_specific=True,
            says="patch tokens of one layer, each channel weighed by how the class's logit reacts to it",
            paper="Grad-CAM: visual explanations from deep networks (Selvaraju et al., ICCV 2017), equations 1 and 2",
            cost="3",
        ),
        Method(
            function=hires_cam,
            name="hires_cam",
            title="HiResCAM",
            signed=True,
            class_specific=True,
            says="patch tokens of one layer times the gradient that reaches each",
            paper="Use HiResCAM instead of Grad-CAM (Draelos and Carin, 2020), section 3",
            cost="3",
        ),
        Method(
            function=occlusion,
            name="occlusion",
            title="Occlusion",
            signed=True,
            class_specific=True,
            says="how far the class's logit falls when a patch is covered by the picture's mean colour",
            paper="Visualizing and understanding convolutional networks (Zeiler and Fergus, 2014), section 4.2",
            cost="1 + the number of patches",
        ),
        Method(
            function=rise,
            name="rise",
            title="RISE",
            signed=True,
            class_specific=True,
            says="how much higher the class's logit is with a patch seen, not covered by the picture's mean colour",
            paper="RISE: randomized input sampling for explanation (Petsiuk, Das and Saenko, 2018), section 3",
            cost="1 + masks (2001)",
            costly=True,
        ),
        Method(
            function=kernel_shap,
            name="kernel_shap",
            title="KernelSHAP",
            signed=True,
            class_specific=True,
            says="what a patch adds to the class's logit, on average; mean colour covers what is not seen",
            paper="A unified approach to interpreting model predictions (Lundberg and Lee, 2017), section 4.1",
            cost="3 + samples (2051)",
            costly=True,
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
            opt_in="others report a patent on rules of its kind",
        ),
    )
}

DEFAULT = "generic_attention"
_NEAR = 0.52  # likeness from which on an unknown name is taken for a method's; at one half it is chance


def nearest_method(name: str) -> str:
    """The method whose name looks most like this one; the default where none does."""
    return next(iter(difflib.get_close_matches(name, METHODS, 1, _NEAR)), DEFAULT)
