"""vitrail: Vision Transformers that can be read, used and seen through.

    model = vitrail.load("runs/latest")
    model.predict(["photo.jpg"])
    vitrail.explain.rollout(model.network, model.tensor(["photo.jpg"]))

Names are imported when they are first used (`__init__.pyi` says where they stand), so that `import vitrail` alone
costs nothing.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
