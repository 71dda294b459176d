from .adapt import adapted as adapted, resize_words as resize_words
from .format1 import model_config as model_config
from .published import wordnet_ids as wordnet_ids
from .timm import misfit as misfit, of_timm as of_timm, timm_keys as timm_keys, to_timm as to_timm
