"""Looking inside a network: what it does with a picture on the way.

    lens = logit_lens(network, images)                    # (depth + 1, b, classes): its answer at every depth
    parts = direct_attribution(network, images, 3)        # a logit as a sum of what every head and MLP wrote
    head_sources(network, images, layer=2).says()         # "head 7 brought patch (5, 3): 41 % of what block 2 ..."

These are no maps of evidence, and no method of `vitrail.explain.METHODS`: they show how the network works. Every view
takes a ViT in eval mode, any number of pictures, any grid and any prefix, and leaves the network as it is.
"""

from vitrail.explain.inside.attention_distance import AttentionDistance, attention_distance, uniform_distance
from vitrail.explain.inside.direct_attribution import DirectAttribution, direct_attribution
from vitrail.explain.inside.embeddings import PatchFilters, patch_filters, position_similarity
from vitrail.explain.inside.heads import HeadAblation, HeadSources, head_ablation, head_sources
from vitrail.explain.inside.logit_lens import logit_lens, patch_lens
from vitrail.explain.inside.sinks import Sinks, find_sinks, with_sink_notes, without_sinks

__all__ = [
    "AttentionDistance",
    "DirectAttribution",
    "HeadAblation",
    "HeadSources",
    "PatchFilters",
    "Sinks",
    "attention_distance",
    "direct_attribution",
    "find_sinks",
    "head_ablation",
    "head_sources",
    "logit_lens",
    "patch_filters",
    "patch_lens",
    "position_similarity",
    "uniform_distance",
    "with_sink_notes",
    "without_sinks",
]
