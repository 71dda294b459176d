from .colour import heat_picture as heat_picture
from .explanation_page import write_explanation_page as write_explanation_page
from .html import in_frame as in_frame
from .overlay import overlay as overlay
from .run_page import evaluation_page as evaluation_page, write_run_page as write_run_page
from .views import (
    ClassTable as ClassTable,
    Confusion as Confusion,
    EvaluationView as EvaluationView,
    Example as Example,
    ExplainedPicture as ExplainedPicture,
    ExplanationPage as ExplanationPage,
    HeatView as HeatView,
    RunView as RunView,
    Table as Table,
    TrustView as TrustView,
)
