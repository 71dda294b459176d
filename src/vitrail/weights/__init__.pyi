from .format1 import model_config as model_config
from .timm_keys import timm_keys as timm_keys
