"""Fine-tuning of pretrained weights: a probe first, then training, and a comparison of both on clean images.

initial.py      the pretrained network with a new head (`--init`), and the choice of one (`--init auto`)
probe.py        features once, then neighbours and a linear head, before any training
lora.py         adapters of low rank, which the saved model has merged (`--lora R`)
comparison.py   the choice of tuned network or probe (`--keep`), and the gain on images that chose nothing
"""

__all__ = ()
