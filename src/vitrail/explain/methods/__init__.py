"""The methods, one file each, and the table of them.

A method is `function(network, images, target=None, **options) -> Heat`. A new one is a file here and a row in
`table.py`; the conformance suite (tests/explain/suite.py) then asks of it what it asks of all.

Shared by several: `pixels.py` (gradients that reach the pixels), `covering.py` (covering patches), `held.py` (parts
whose weights, deviations and gates are held fixed).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
