from .classify import Classification as Classification, ClassPrediction as ClassPrediction
from .features import FeaturePrediction as FeaturePrediction, Features as Features, Numbers as Numbers
from .sequences import Sequences as Sequences, TextPrediction as TextPrediction
from .table import TASKS as TASKS, check_column as check_column, choose_task as choose_task
from .task import (
    Example as Example,
    Metric as Metric,
    Metrics as Metrics,
    Prediction as Prediction,
    Result as Result,
    Task as Task,
)
