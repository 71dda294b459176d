from .colour import overlay as overlay, overlay_pixels as overlay_pixels
from .image_views import (
    AttributionView as AttributionView,
    ImageView as ImageView,
    TrustView as TrustView,
)
from .render import (
    evaluation_page as evaluation_page,
    explanation_page as explanation_page,
    in_frame as in_frame,
    run_page as run_page,
)
from .run_views import (
    ClassTable as ClassTable,
    Confusion as Confusion,
    RunView as RunView,
    Table as Table,
)
