"""What a model is called on a server, and how its version is written."""

import re
from collections.abc import Sequence
from pathlib import Path

from vitrail.errors import Hint, UsageError

DIGITS = 12  # of the hash of all weights


def named_models(words: Sequence[str]) -> dict[str, str]:
    """Paths of models by the names that they have here: PATH is called by its last part, NAME=PATH as it says.

    Raises:
        UsageError: Two have one name.
    """
    found = dict[str, str]()
    for word in words:
        name, equals, path = word.partition("=")
        if not equals or Path(word).exists():
            place = Path(word).expanduser().resolve() if Path(word).expanduser().exists() else Path(word)
            place = place.parent if place.is_dir() and place.name == "model" else place
            name, path = place.name if place.is_dir() else re.split(r"[/:]", word)[-1].removesuffix(place.suffix), word
        if name in found:
            problem = f"two models are called {name}: {found[name]} and {path}"
            raise UsageError(problem, Hint(instead={word: f"{name}-2={path}"}))
        found[name] = path
    return found
