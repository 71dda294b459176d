"""One training by many processes: torchrun starts them, DDP exchanges their gradients, and they stop together.

group.py      what the loop and an evaluation need of the others; a null object stands for one process
follow.py     the first process leads, the others do what it orders
meeting.py    how they meet, by torchrun's environment, and how they part, with the first cause on top
watch.py      who is still there: beats, and the first cause
"""

__all__ = ()
