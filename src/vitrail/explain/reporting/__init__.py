"""A whole explanation as one call: images in, attributions with their verdicts out, as values, JSON and a page.

    vitrail.explain.report(model, ["a.jpg", "b.jpg"])[0].overlay()

What is explained, and how, is checked in `plan.py`, and what fills masked patches where a model carries no
background is found there; `explained.py` does the work; `report.py` is the call, what it returns, and the files that
this leaves; many images without a page are the work of `job.py`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
