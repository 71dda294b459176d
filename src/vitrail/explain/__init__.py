"""Why a network said so, and how far to believe it: one method per file, all in one table.

    heat = generic_attention(network, images, target=3)     # values (b, rows, columns), one number per patch
    trust(model, images, heat).verdict                      # "supported", "weak", "cannot tell", ... for each
    compare(model, images, ["generic_attention", "conservative"])
    selftest(model)                                         # does explaining work on this model?

Read first `heat.py` (what comes out), `target.py` (what may be asked), `readout.py` (what all methods share), then any
method in `methods`. `trial.py` tests a map, `verdict.py` is the rule, `scores` are the metrics, `inside` looks into
a network.

Every method takes a ViT in eval mode, any number of pictures, any grid and any prefix, and leaves the network as it is.
"""

from vitrail.explain import inside, scores
from vitrail.explain.compare import Comparison, compare
from vitrail.explain.heat import Heat
from vitrail.explain.methods import METHODS, Method
from vitrail.explain.methods.attcat import attcat
from vitrail.explain.methods.attention_grad_cam import attention_grad_cam
from vitrail.explain.methods.conservative import Balance, balance_sheet, conservative
from vitrail.explain.methods.cross_attention import cross_attention
from vitrail.explain.methods.generic_attention import generic_attention, generic_relevance_of
from vitrail.explain.methods.grad_cam import grad_cam
from vitrail.explain.methods.gradient_rollout import gradient_rollout, gradient_rollout_of
from vitrail.explain.methods.head_view import head_view, head_views
from vitrail.explain.methods.hires_cam import hires_cam
from vitrail.explain.methods.input_x_gradient import input_x_gradient
from vitrail.explain.methods.integrated_gradients import integrated_gradients, integrated_gradients_with_gap
from vitrail.explain.methods.kernel_shap import kernel_shap
from vitrail.explain.methods.legrad import legrad
from vitrail.explain.methods.occlusion import occlusion
from vitrail.explain.methods.raw_attention import raw_attention
from vitrail.explain.methods.rise import rise
from vitrail.explain.methods.rollout import rollout, rollout_of
from vitrail.explain.methods.saliency import saliency
from vitrail.explain.methods.smooth_grad import smooth_grad
from vitrail.explain.methods.tam import tam
from vitrail.explain.selftest import SelfTest, selftest
from vitrail.explain.target import Contrast, Target
from vitrail.explain.trial import trust
from vitrail.explain.verdict import Trust

__all__ = [
    "METHODS",
    "Balance",
    "Comparison",
    "Contrast",
    "Heat",
    "Method",
    "SelfTest",
    "Target",
    "Trust",
    "attcat",
    "attention_grad_cam",
    "balance_sheet",
    "compare",
    "conservative",
    "cross_attention",
    "generic_attention",
    "generic_relevance_of",
    "grad_cam",
    "gradient_rollout",
    "gradient_rollout_of",
    "head_view",
    "head_views",
    "hires_cam",
    "input_x_gradient",
    "inside",
    "integrated_gradients",
    "integrated_gradients_with_gap",
    "kernel_shap",
    "legrad",
    "occlusion",
    "raw_attention",
    "rise",
    "rollout",
    "rollout_of",
    "saliency",
    "scores",
    "selftest",
    "smooth_grad",
    "tam",
    "trust",
]
