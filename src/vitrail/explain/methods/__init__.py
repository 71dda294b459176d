"""The methods, one file each, and the table of them.

A method is `function(network, images, target=None, **options) -> Heat`. A new one is a file here and a row in
`table.py`; the conformance suite (tests/explain/suite.py) then asks of it what it asks of all.

Shared by several: `pixels.py` (gradients that reach the pixels), `covering.py` (covering patches), `held.py` (parts
whose weights, deviations and gates are held fixed).
"""

from vitrail.explain.methods.table import DEFAULT, METHODS, Method, nearest_method

__all__ = ["DEFAULT", "METHODS", "Method", "nearest_method"]
