"""The same ViT by every library that is here, each in a process of its own, in turn: `vitrail bench`.

contestants   how each library builds it, and the proof that it is the same network
turn          what one process does: build, prove, and run when it is its turn
sides         the processes, their turns, and the figures
machine       what is installed here, and whether a network runs on each device: `vitrail doctor`
"""

__all__ = ()
