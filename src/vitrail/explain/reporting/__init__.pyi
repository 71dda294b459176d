from .explained import ExplainedImage as ExplainedImage
from .report import Report as Report, Saved as Saved
