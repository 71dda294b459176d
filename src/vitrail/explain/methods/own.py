"""A method of a person's own, named as MODULE:NAME (`mymethods:METHOD`), and held against its contract as it runs."""

import functools
from dataclasses import replace
from typing import Any

from vitrail.errors import UsageError
from vitrail.explain.attribution import Attribution
from vitrail.explain.methods.method import Method
from vitrail.explain.methods.options import options_of
from vitrail.explain.methods.table import METHODS, METHODS_OF_TEXTS
from vitrail.own import contract, demand, imported

CONTRACT = "METHOD = vitrail.explain.Method(...) of a function (network, images, target=None, **options) -> Attribution"


def own_method(what: str) -> Method:
    """The method that a person named.

    Args:
        what: MODULE:NAME, of a module that can be imported from here.

    Raises:
        UsageError: There is no such module or name, it holds no method, or one with the name of another.
    """
    found = imported(what)
    with contract(f"the method {what}", CONTRACT):
        demand(isinstance(found, Method), f"it is a {type(found).__name__}")
        assert isinstance(found, Method)
        demand(found.name.isidentifier(), f"its name is {found.name!r}, which no file can have")
        options_of(found)
    if found.name in METHODS | METHODS_OF_TEXTS:
        raise UsageError(f"the method {what} has the name of vitrail's own {found.name}", "another name in its row")

    @functools.wraps(found.function)
    def held(network: Any, images: Any, target: Any = None, **options: Any) -> Attribution:
        with contract(f"the method {what}", CONTRACT):
            attribution = found.function(network, images, target, **options)
            demand(isinstance(attribution, Attribution), f"it gave a {type(attribution).__name__}")
            shape = (len(images), *network.grid(images))
            demand(
                tuple(attribution.values.shape) == shape,
                f"its values have shape {tuple(attribution.values.shape)}, not {shape}",
            )
            same = (attribution.method, attribution.signed, attribution.class_specific) == (
                found.name,
                found.signed,
                found.class_specific,
            )
            demand(same, "its attributions say another name, sign or class_specific than its row")
            return attribution

    return replace(found, function=held)
