"""The methods, one file each, and the table of them.

A method is `function(network, images, target=None, **options) -> Attribution`. A new one is a file here that has the
method's name, and a row in `methods.yaml` (its fields: `method.py`). Flags, help, pages and docs are made of the row,
and the conformance suite (tests/explain/suite.py) tests of it what it tests of all.

Shared by several: `../forward.py` (one forward pass, attention in pieces), `pixels.py` (gradients that reach the
pixels, numbers under masks).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
