"""Why a network said so, and how far to believe it: one method per file, all in one table.

    heat = generic_attention(network, images, target=3)     # values (b, rows, columns), one number per patch
    trust(model, images, heat).verdict                      # "supported", "weak", "cannot tell", ... for each
    compare(model, images, ["generic_attention", "conservative"])
    selftest(model)                                         # does explaining work on this model?

Read first `heat.py` (what comes out), `target.py` (what may be asked), `readout.py` (what all methods share), then any
method. `trusting.py` scores a map, `verdict.py` is the rule, `scores` are the metrics, `inside` looks into a network.

Every method takes a ViT in eval mode, any number of pictures, any grid and any prefix, and leaves the network as it is.
"""

from vitrail.explain import inside, scores
from vitrail.explain.attcat import attcat
from vitrail.explain.attention_generic import generic_attention, generic_relevance_of
from vitrail.explain.attention_grad_cam import attention_grad_cam
from vitrail.explain.attention_raw import raw_attention
from vitrail.explain.attention_rollout import rollout, rollout_of
from vitrail.explain.compare import Comparison, compare
from vitrail.explain.conservative import Balance, balance_sheet, conservative
from vitrail.explain.cross_attention import cross_attention
from vitrail.explain.gradient_rollout import gradient_rollout, gradient_rollout_of
from vitrail.explain.head_view import head_view, head_views
from vitrail.explain.heat import Heat
from vitrail.explain.legrad import legrad
from vitrail.explain.methods import METHODS, Method
from vitrail.explain.selftest import SelfTest, selftest
from vitrail.explain.tam import tam
from vitrail.explain.target import Contrast, Target
from vitrail.explain.trusting import Trust, trust

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
    "gradient_rollout",
    "gradient_rollout_of",
    "head_view",
    "head_views",
    "inside",
    "legrad",
    "raw_attention",
    "rollout",
    "rollout_of",
    "scores",
    "selftest",
    "tam",
    "trust",
]
