"""From somebody's weights to a model of one's own: the probe first, then tuning, and the truth about what it added.

initial.py      the network that training begins with, with its head made anew (`--init`), and which one (`--init auto`)
probe.py        features once, then neighbours and a linear head, before any training
lora.py         adapters of low rank, which the saved model has merged (`--lora R`)
comparison.py   tuned or probe, on images that chose nothing; a tie keeps the probe (`--keep`)
"""

__all__ = ()
