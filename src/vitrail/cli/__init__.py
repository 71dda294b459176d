"""The command line: one short file per verb, or a folder where it takes several, and one that parses."""

from vitrail.cli.main import main

__all__ = ["main"]
