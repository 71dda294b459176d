from .colour import overlay as overlay, overlay_pixels as overlay_pixels
from .render import (
    evaluation_page as evaluation_page,
    explanation_page as explanation_page,
    in_frame as in_frame,
    run_page as run_page,
)
from .views import (
    AttributionView as AttributionView,
    ClassTable as ClassTable,
    Confusion as Confusion,
    ImageView as ImageView,
    RunView as RunView,
    Table as Table,
    TrustView as TrustView,
)
