"""`vitrail serve MODEL`: a server on this machine; it loads no torch, which the processes do that it starts."""

import os
import signal
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vitrail.cli.args import Serve, WeightsOptions
from vitrail.cli.output import print_json, print_line, warn
from vitrail.deploy.server.names import named_models, read_token
from vitrail.errors import RunError, UsageError, check_option, counted
from vitrail.io import check_new, cores, write_file
from vitrail.options import Engine

INSTALL = 'pip install "vitrail[serve]"'
LATEST = "runs/latest"


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
    signal.signal(signal.SIGTERM, lambda *given: os._exit(0))  # nothing is taken yet; see `deploy.server.listening`
    from vitrail.deploy.server.launch import serve

    most, token = cores(), read_token(options.token_file)
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
    stated, token = load_options(options), read_token(options.token_file)
    models = {name: load(path, device=options.device, **stated) for name, path in named.items()}
    found = [check_server(url, name, model, token) for name, model in models.items()]
    if options.json:
        print_json({"url": url, "models": list(map(vars, found))})
    for one in found:
        if one.differs:
            problem = f"{url} answers {one.differs} by {one.model} otherwise than the model here: {one.why}"
            raise RunError(
                problem,
                "vitrail doctor  # here and there: versions; and --mean, --image-size and the like must be the same",
            )
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
