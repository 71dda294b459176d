"""The same ViT by every library that is here, each in a process of its own, in turn: `vitrail bench`.

turn          what one process does: build a library's network, prove it the same, and run when it is its turn
sides         the processes, their turns, and the figures
machine       what is installed here, and whether a network runs on each device: `vitrail doctor`
"""

__all__ = ()
