"""`vitrail explain`: reads what was typed, calls `vitrail.explain.report`'s parts, and prints what they return.

`run.py` is the command, `asked.py` holds the flags against each other, `inputs.py` finds images, sets and masks, and
`job.py` explains many images with a line for each.
"""

from vitrail.cli.explain.run import run

__all__ = ["run"]
