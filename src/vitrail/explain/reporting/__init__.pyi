from .explained import ExplainedImage as ExplainedImage
from .files import Saved as Saved
from .report import Report as Report
