"""The founding documents as they behave, loops and faults included: the rivals of the benchmarks.

`d0_loop` and `d2_lab` are written from a description of the documents, not from their code. They are not slowed down
on purpose: where the description leaves a choice open, they take the faster natural one, so that a ratio against them
is a lower bound.
"""
