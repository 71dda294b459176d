"""The command line: one short file per verb, and one that parses."""

from vitrail.cli.main import main

__all__ = ["main"]
