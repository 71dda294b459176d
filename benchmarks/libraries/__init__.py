"""The same ViT by every library that is here, each in a process of its own, in turn: `python -m benchmarks.libraries`.

turn          what one process does: build a library's network, prove it the same, and run when it is its turn
sides         the processes, their turns, and the figures
__main__      options in, a table out
"""
