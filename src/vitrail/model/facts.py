"""Facts of a model that state whether pretrained weights are verified, and what was changed; without torch."""

from collections.abc import Mapping
from typing import Any

# Verified are the very numbers that were read, at the size and with the channels that they were read for: of a network
# that was adapted since, the same fact states that.

UNVERIFIED = "these weights are not verified"
UNVERIFIED_HEAD = "the head is not verified"
NAMES = ("name", "verified", "verified_weights", "changed_weights")  # facts that hold for certain numbers only
CHANGES = ("configuration", "weights", "head", "resized", "grey")  # facts that say what is not as it was
WORDS = (  # facts that are texts
    *("origin", "licence", "assumed_by_user", "trained_with", "class_names", "assumed", "left_out", "unpickled"),
    *(*NAMES, *CHANGES),
)


def changes_of(facts: Mapping[str, Any]) -> list[str]:
    """What is not as it was in the files, in words, one for each change."""
    return [f"{name}: {facts[name]}" for name in CHANGES if name in facts]


def origin_words(facts: Mapping[str, Any]) -> list[str]:
    """Sentences on pretrained weights: whether they are verified, what was changed or assumed; else nothing."""
    found = [f"{facts['verified']}; licence {facts.get('licence', 'not stated')}"] if facts.get("verified") else []
    found += [facts["unpickled"]] if "unpickled" in facts else []
    found += [f"changed, {change}" for change in changes_of(facts)]
    found += [f"assumed: {facts['assumed']}"] if "assumed" in facts else []
    found += [f"assumed: class names are {facts['class_names']}"] if "class_names" in facts else []
    return found + ([f"these weights were trained with {facts['trained_with']}"] if "trained_with" in facts else [])
