"""One training by many processes: torchrun starts them, DDP exchanges their gradients, and they stop together.

group.py    what the loop and an evaluation ask of the others
"""

__all__ = ()
