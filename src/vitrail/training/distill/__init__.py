"""Distillation: the teacher, and the objective of a student with its loss."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
