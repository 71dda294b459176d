"""One training by many processes: torchrun starts them, DDP exchanges their gradients, and they stop together.

group.py      torch's group of processes, as `vitrail.runs.group` wants one
meeting.py    how they meet, by torchrun's environment, and how they part, with the first cause on top
watch.py      who is still there: beats, and the first cause
launch.py     torchrun on one machine, and the script that does it on several
shard.py      a network that is divided among the processes
"""

__all__ = ()
