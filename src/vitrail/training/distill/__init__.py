"""Learning from a teacher: what is asked of a distillation, the teacher, and the objective that it makes of a run.

The loss itself stands in `vitrail.tasks.distill`; the loop knows nothing of teachers.
"""

from vitrail.training.distill.objective import with_teacher
from vitrail.training.distill.request import HANDED, Request, hired
from vitrail.training.distill.teacher import Teacher, of_model, open_teacher

__all__ = ["HANDED", "Request", "Teacher", "hired", "of_model", "open_teacher", "with_teacher"]
