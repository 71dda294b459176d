"""What a model is called on a server, and how its version is written."""

import re
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from vitrail.errors import Hint, UsageError

DIGITS = 12  # of the hash of all weights


def named_models(words: Sequence[str]) -> dict[str, str]:
    """Paths of models by the names that they have here: PATH is called by its last part, NAME=PATH as it says.

    Raises:
        UsageError: Two have one name.
    """
    found = dict[str, str]()
    for place, word in enumerate(words):
        name, equals, path = word.partition("=")
        if not equals or Path(word).exists():
            file = Path(word).expanduser().resolve() if Path(word).expanduser().exists() else Path(word)
            file = file.parent if file.is_dir() and file.name == "model" else file
            name, path = file.name if file.is_dir() else re.split(r"[/:]", word)[-1].removesuffix(file.suffix), word
        if name in found:
            problem = f"two models are called {name}: {found[name]} and {path}"
            taken = {*found, *(each.partition("=")[0] for each in words)}
            free = next(each for number in count(2) if (each := f"{name}-{number}") not in taken)
            raise UsageError(problem, Hint({"models": (*words[:place], f"{free}={path}", *words[place + 1 :])}))
        found[name] = path
    return found
