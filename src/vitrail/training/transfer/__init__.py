"""What a training takes from another model: its weights, to be tuned, or its predictions, to be distilled.

initial.py      the pretrained network with a new head (`--init`), and the choice of one (`--init auto`)
student.py      the objective of a student with its loss, and a new head for a teacher
"""

__all__ = ()
