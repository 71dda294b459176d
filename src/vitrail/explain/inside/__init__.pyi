from .ends import (
    DirectAttribution as DirectAttribution,
    PatchFilters as PatchFilters,
    direct_attribution as direct_attribution,
    logit_lens as logit_lens,
    patch_filters as patch_filters,
    patch_lens as patch_lens,
    position_similarity as position_similarity,
)
from .heads import (
    AttentionDistance as AttentionDistance,
    HeadAblation as HeadAblation,
    HeadSources as HeadSources,
    attention_distance as attention_distance,
    head_ablation as head_ablation,
    head_sources as head_sources,
    uniform_distance as uniform_distance,
)
from .sinks import (
    Sinks as Sinks,
    find_sinks as find_sinks,
    with_sink_notes as with_sink_notes,
    without_sinks as without_sinks,
)
