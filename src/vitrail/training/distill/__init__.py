"""Learning from a teacher: what is asked of a distillation, the teacher, a new head for it, and what it takes.

The objective itself stands in `vitrail.tasks.distill`; the loop knows nothing of teachers.
"""

from vitrail.training.distill.request import HANDED, Request, hired, teacher_facts, with_teacher
from vitrail.training.distill.teacher import Teacher, of_model, open_teacher

__all__ = ["HANDED", "Request", "Teacher", "hired", "of_model", "open_teacher", "teacher_facts", "with_teacher"]
