from .adapt import adapted as adapted, resize_words as resize_words
from .published import wordnet_ids as wordnet_ids
from .saved import (
    misfit as misfit,
    of_timm as of_timm,
    timm_keys as timm_keys,
    to_timm as to_timm,
)
