from .attributes import (
    AttributeClassification as AttributeClassification,
    Attributes as Attributes,
    AttributesPrediction as AttributesPrediction,
)
from .choice import TASKS as TASKS, check_column as check_column, choose_task as choose_task
from .classify import Classes as Classes, Classification as Classification, ClassPrediction as ClassPrediction
from .codec import Agreement as Agreement, Codec as Codec, Hub as Hub, Prediction as Prediction
from .features import FeaturePrediction as FeaturePrediction, Features as Features, Numbers as Numbers
from .multilabel import (
    MultiLabel as MultiLabel,
    MultiLabelPrediction as MultiLabelPrediction,
    MultiLabels as MultiLabels,
)
from .regression import NumberPrediction as NumberPrediction, Regression as Regression, Standardized as Standardized
from .sequences import Sequences as Sequences, TextCodec as TextCodec, TextPrediction as TextPrediction
from .target import ChosenTarget as ChosenTarget, OutputTarget as OutputTarget
from .task import (
    Example as Example,
    Metric as Metric,
    Metrics as Metrics,
    Result as Result,
    Task as Task,
)
