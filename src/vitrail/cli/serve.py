"""`vitrail serve MODEL`: a server on this machine; it loads no torch, which the processes do that it starts."""

import os
from dataclasses import fields
from pathlib import Path

from vitrail.cli.args import Serve, WeightsOptions
from vitrail.cli.output import warn
from vitrail.errors import UsageError

INSTALL = 'pip install "vitrail[serve]"'
TOKEN = "VITRAIL_TOKEN"  # of the environment
OTHERS = 0o077  # of a file's mode: what others may do with it


def run(options: Serve, command: str) -> int:
    """Serve until a signal ends it.

    Raises:
        UsageError: The extra is not installed, the port is in use, or others can read the token.
    """
    try:
        import python_multipart  # noqa: F401
        import uvicorn  # noqa: F401

        from vitrail.deploy.server.launch import named_models, serve
    except ImportError as error:
        raise UsageError(f"serve needs {error.name}, which is missing (vitrail[serve])", INSTALL) from error
    token = os.environ.get(TOKEN) if options.token_file is None else _read_token(options.token_file)
    if token is None and options.host not in ("127.0.0.1", "::1", "localhost"):
        warn(f"{options.host} is open to other machines, and no token is asked for; see --token-file")
    stated = {each.name: getattr(options, each.name) for each in fields(WeightsOptions)}
    serve(named_models(options.models), options, stated, token, warn)
    return 0


def _read_token(file: Path) -> str:
    """The token in a file that nobody else can read.

    Raises:
        UsageError: Others can, or nothing is in it.
    """
    if file.stat().st_mode & OTHERS:
        raise UsageError(f"{file} can be read by others, and its token is a secret", f"chmod 600 {file}")
    token = file.read_text("utf-8").strip()
    if not token:
        raise UsageError(f"{file} has no token in it", f"openssl rand -hex 32 > {file}")
    return token
