"""The command line as a fixture."""

from tests.cli.conftest import cli, same_threads

__all__ = ("cli", "same_threads")
