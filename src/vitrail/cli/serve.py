"""`vitrail serve MODEL`: a server on this machine; it loads no torch, which the processes do that it starts."""

import os
import re
import shlex
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vitrail.cli.args import Serve, WeightsOptions
from vitrail.cli.output import print_json, print_line, warn
from vitrail.deploy.server.names import named_models
from vitrail.errors import Hint, RunError, UsageError, check_option, counted
from vitrail.io import check_new, cores, write_file
from vitrail.options import Engine

INSTALL = 'pip install "vitrail[serve]"'
TOKEN = "VITRAIL_TOKEN"  # of the environment
NEW = "openssl rand -hex 32"  # which prints a new token
LATEST = "runs/latest"
OTHERS = 0o077  # of a file's mode: what others may do with it


def run(options: Serve, command: str) -> int:
    """Serve until a signal ends it; with --check or --print ask another server, or write for another engine.

    Raises:
        UsageError: The extra is not installed, the port is in use, or others can read the token.
        RunError: The server that is checked does not answer as the models do.
    """
    if options.check is not None:
        return _check(options, options.check)
    stated = {each.name: getattr(options, each.name) for each in fields(WeightsOptions)}
    if options.print is not None:
        return _print(options, options.print, options.out, stated)
    if missing := [name for name in ("fastapi", "uvicorn", "python_multipart") if find_spec(name) is None]:
        raise UsageError(f"serve needs {', '.join(missing)} (vitrail[serve])", INSTALL)
    from vitrail.deploy.server.launch import serve

    most, token = cores(), _token(options)
    check_option("threads", options.threads, options.threads <= most, f"at most {most}, the processor cores here", 1)
    if token is None and options.host not in ("127.0.0.1", "::1", "localhost"):
        warn(f"{options.host} is open to other machines, and no token is asked for; see --token-file")
    serve(named_models(options.models), options, stated, token, warn)
    return 0


def _check(options: Serve, url: str) -> int:
    """Hold the answers of a running server against those of the models."""
    from vitrail.cli.inputs import load_options
    from vitrail.deploy.server.check import check_server
    from vitrail.model import load

    named = named_models(options.models or (LATEST,))
    stated, token = load_options(options), _token(options)
    models = {name: load(path, device=options.device, **stated) for name, path in named.items()}
    found = [check_server(url, name, model, token) for name, model in models.items()]
    if options.json:
        print_json({"url": url, "models": list(map(vars, found))})
    for one in found:
        if one.differs:
            problem = f"{url} answers {one.differs} by {one.model} otherwise than the model here: {one.why}"
            raise RunError(problem, "vitrail doctor  # here and there: versions and devices")
        if not options.json:
            print_line(f"{one.model} ({one.version}): {counted(one.images, 'image')} ({one.of}) answered alike")
    return 0


def _print(options: Serve, engine: Engine, out: Path | None, stated: dict[str, Any]) -> int:
    """Print what another engine needs, or write it."""
    from vitrail.deploy.server.printing import deployment

    found = deployment(engine, named_models(options.models), options, stated)
    if out is None:
        print("\n".join(text for text in found.values() if isinstance(text, str)), end="")
        return 0
    check_new(out)
    for name, content in found.items():
        write_file(out / name, content if isinstance(content, str) else content.read_bytes())
        print_line(f"wrote {out / name}")
    return 0


def _token(options: Serve) -> str | None:
    """The token of the environment, or in a file that nobody else can read, without the line's end; None for none.

    Raises:
        UsageError: Others can, or it is no word that fits into the header of a request.
    """
    file, text = options.token_file, os.environ.get(TOKEN)
    if file is None and text is None:
        return None
    where, hint = f"${TOKEN}", f'export {TOKEN}="$({NEW})"  # or for none: unset {TOKEN}'
    if file is not None:
        typed = shlex.quote(str(file))
        if file.is_dir():
            inside = Hint({"token_file": file / "token.txt"})
            raise UsageError(f"{file} is a folder, and a file with a token is wanted", inside)
        if file.stat().st_mode & OTHERS:
            raise UsageError(f"{file} can be read by others, and its token is a secret", f"chmod 600 {typed}")
        where, text, hint = str(file), file.read_text("ascii", "replace"), f"{NEW} > {typed}"
    token = (text or "").strip()
    if not re.fullmatch("[!-~]+", token):
        problem = f"{where} must hold a token, one word of letters, digits and signs of ASCII"
        found, hint = ("holds other text", f"what {NEW} prints") if token else ("is empty", hint)
        raise UsageError(f"{problem}, and {found}", hint)
    return token
