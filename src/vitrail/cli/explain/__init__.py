"""`vitrail explain`: where on a picture a prediction comes from, and how far to trust each map.

Read `run.py` first, which goes through all of it: what was asked (`asked.py`), which pictures (`pictures.py`), their
maps as values of a page (`maps.py`), and where the page and the pictures beside it go (`page.py`).
"""

from vitrail.cli.explain.run import run

__all__ = ["run"]
