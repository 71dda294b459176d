from .colour import overlay as overlay, overlay_pixels as overlay_pixels
from .explanation_page import write_explanation_page as write_explanation_page
from .render import in_frame as in_frame
from .run_page import evaluation_page as evaluation_page, write_run_page as write_run_page
from .views import (
    AttributionView as AttributionView,
    ClassTable as ClassTable,
    Confusion as Confusion,
    EvaluationView as EvaluationView,
    Example as Example,
    ExplanationPage as ExplanationPage,
    ImageView as ImageView,
    RunView as RunView,
    Table as Table,
    TrustView as TrustView,
)
