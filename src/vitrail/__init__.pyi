from . import audit as audit, data as data, explain as explain, nn as nn, tasks as tasks, training as training
from .check.check import check_data as check_data
from .data.columns import Vocabulary as Vocabulary
from .data.preprocessing import Preprocessing as Preprocessing
from .deploy.export import export as export
from .features.embed import embed as embed
from .features.similar import similar as similar
from .model import Model as Model, convert as convert, load as load, save as save
from .nn import (
    ImageToSequence as ImageToSequence,
    ImageToSequenceConfig as ImageToSequenceConfig,
    Record as Record,
    Transformer as Transformer,
    TransformerConfig as TransformerConfig,
    ViT as ViT,
    ViTConfig as ViTConfig,
    run_with_record as run_with_record,
)
from .options import DistillOptions as DistillOptions, TrainOptions as TrainOptions
from .runs.evaluate import evaluate as evaluate
from .tasks.classify import Classes as Classes
from .training.configuration.teacher import Teacher as Teacher
from .training.loop import train_loop as train_loop
from .training.show import show_data as show_data
from .training.train import distill as distill, train as train

__version__: str
