from .foreign import convert as convert
from .loading import (
    CONFIG as CONFIG,
    PREPROCESSOR as PREPROCESSOR,
    WEIGHTS as WEIGHTS,
    load as load,
    open_first as open_first,
    open_model as open_model,
    own_objects_of as own_objects_of,
)
from .model import Model as Model
from .saving import CARD as CARD, answer_words as answer_words, card_of as card_of, save as save
