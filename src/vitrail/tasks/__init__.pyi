from .classify import Classification as Classification, ClassPrediction as ClassPrediction
from .features import FeaturePrediction as FeaturePrediction, Features as Features, Numbers as Numbers
from .sequences import Sequences as Sequences, TextPrediction as TextPrediction
from .task import (
    TASKS as TASKS,
    Example as Example,
    Metric as Metric,
    Metrics as Metrics,
    Prediction as Prediction,
    Result as Result,
    Task as Task,
    check_column as check_column,
    choose_task as choose_task,
)
