from .adapt import adapt_network as adapt_network, resize_words as resize_words
from .published import wordnet_ids as wordnet_ids
from .saved import (
    of_timm as of_timm,
    timm_keys as timm_keys,
    timm_misfit as timm_misfit,
    to_timm as to_timm,
)
