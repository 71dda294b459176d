"""Learning from a teacher: the options of a distillation, the teacher, and the objective that it makes of a run.

The loss itself stands in `vitrail.tasks.distill`; the loop knows nothing of teachers.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
