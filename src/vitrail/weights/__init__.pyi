from .timm_keys import timm_keys as timm_keys
