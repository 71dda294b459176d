from .edits import EDITS as EDITS, Edit as Edit, box as box
from .job import audit as audit
from .result import Audit as Audit
