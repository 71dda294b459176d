from .colour import overlay as overlay, overlay_pixels as overlay_pixels
from .kinds import evaluation_page as evaluation_page, explanation_page as explanation_page, run_page as run_page
from .render import in_frame as in_frame
from .views import (
    AttributionView as AttributionView,
    ClassTable as ClassTable,
    Confusion as Confusion,
    ImageView as ImageView,
    RunView as RunView,
    Table as Table,
    TrustView as TrustView,
)
