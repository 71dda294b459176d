"""What a model is called on a server, how its version is written, and the token that a server asks for."""

import os
import re
import shlex
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from vitrail.errors import Hint, UsageError

EVERY = "model", "export"  # what files and folders of every run are called
DIGITS = 12  # of the hash of all weights
TOKEN, NEW = "VITRAIL_TOKEN", "openssl rand -hex 32"  # of the environment; what prints a new one
OTHERS = 0o077  # of a file's mode: what others may do with it


def named_models(words: Sequence[str]) -> dict[str, str]:
    """Paths of models by the names that they have here: NAME=PATH as it says, PATH by its last part but for EVERY.

    Raises:
        UsageError: Two have one name.
    """
    found = dict[str, str]()
    for place, word in enumerate(words):
        name, equals, path = word.partition("=")
        if not equals or Path(word).exists():
            last = Path(word).expanduser()
            while last.exists() and (last := last.resolve() if last.is_dir() else last.absolute()).stem in EVERY:
                last = last.parent
            name, path = last.name if last.is_dir() else re.split(r"[/:]", word)[-1].removesuffix(last.suffix), word
        if name in found:
            problem = f"two models are called {name}: {found[name]} and {path}"
            taken = {*found, *(each.partition("=")[0] for each in words)}
            free = next(each for number in count(2) if (each := f"{name}-{number}") not in taken)
            raise UsageError(problem, Hint({"models": (*words[:place], f"{free}={path}", *words[place + 1 :])}))
        found[name] = path
    return found


def read_token(file: Path | None = None) -> str | None:
    """The token in a file that nobody else can read, or else of the environment, stripped; None for none.

    Raises:
        UsageError: Others can, or it is no word that fits into the header of a request.
    """
    text, where = os.environ.get(TOKEN), f"${TOKEN}"
    hint = f'export {TOKEN}="$({NEW})"  # or for none: unset {TOKEN}'
    if file is None and text is None:
        return None
    if file is not None:
        if file.is_dir():
            inside = Hint({"token_file": file / "token.txt"})
            raise UsageError(f"{file} is a folder, and a file with a token is wanted", inside)
        typed = shlex.quote(str(file))
        if file.stat().st_mode & OTHERS:
            raise UsageError(f"{file} can be read by others, and its token is a secret", f"chmod 600 {typed}")
        text, where, hint = file.read_text("ascii", "replace"), str(file), f"{NEW} > {typed}"
    token = (text or "").strip()
    if not re.fullmatch("[!-~]+", token):
        problem = f"{where} must hold a token, one word of letters, digits and signs of ASCII"
        found, hint = ("holds other text", f"what {NEW} prints") if token else ("is empty", hint)
        raise UsageError(f"{problem}, and {found}", hint)
    return token
