from .heads import (
    AttentionDistance as AttentionDistance,
    HeadAblation as HeadAblation,
    HeadSources as HeadSources,
    attention_distance as attention_distance,
    head_ablation as head_ablation,
    head_sources as head_sources,
    uniform_distance as uniform_distance,
)
from .tokens import (
    DirectAttribution as DirectAttribution,
    PatchFilters as PatchFilters,
    Sinks as Sinks,
    direct_attribution as direct_attribution,
    find_sinks as find_sinks,
    logit_lens as logit_lens,
    patch_filters as patch_filters,
    patch_lens as patch_lens,
    position_similarity as position_similarity,
    with_sink_notes as with_sink_notes,
)
