"""vitrail: Vision Transformers that can be read, used and seen through.

    model = vitrail.load("runs/latest")
    model.predict(["photo.jpg"])
    vitrail.explain.rollout(model.network, model.tensor(["photo.jpg"]))

Names are imported when they are first used (`__init__.pyi` says where they stand), so that `import vitrail` alone
costs nothing.
"""

import lazy_loader

_public, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    """A public name, which is imported now; or the version, which the metadata of the installed package have."""
    if name == "__version__":
        from importlib.metadata import version  # which takes longer than all else here

        return version(__name__)
    return _public(name)
