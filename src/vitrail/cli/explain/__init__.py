"""`vitrail explain`: where on a picture a prediction comes from, and how far to trust each map.

Read `run.py` first, which goes through all of it: what was asked (`asked.py`), which pictures (`pictures.py`), their
maps (`maps.py`) as values of a page (`views.py`), and what is written (`writing.py`) and told (`telling.py`).
A model that writes has a road of its own (`written.py`).
"""

from vitrail.cli.explain.run import run

__all__ = ["run"]
