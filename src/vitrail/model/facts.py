"""Whether other people's weights are verified, as facts of a model, also when its network is changed.

Verified are the very numbers that were read, at the size and with the channels that they were read for: of a network
that was adapted since, the same fact says so.
"""

from collections.abc import Mapping
from typing import Any

from torch import nn

from vitrail.data.tensor_files import digest_of
from vitrail.nn import ViT

UNVERIFIED = "these weights are not verified"
UNVERIFIED_HEAD = "the head is not verified"
NAMES = ("name", "verified", "verified_weights", "changed_weights")  # facts that hold for certain numbers only
CHANGES = ("configuration", "weights", "head", "resized", "grey")  # facts that say what is not as it was
WORDS = (  # facts that are texts
    *("origin", "licence", "assumed_by_user", "trained_with", "class_names", "assumed", "left_out", "unpickled"),
    *(*NAMES, *CHANGES),
)


def adapted_facts(facts: Mapping[str, Any], before: ViT, after: ViT, resized: str) -> dict[str, Any]:
    """The facts of a model whose network was made for another size, or for grey images.

    Args:
        facts: Of the model before.
        before: Its network.
        after: What was made of it.
        resized: How its positions were carried to another grid; empty where they were not.
    """
    found, how = dict(facts), []
    if before.config.image != after.config.image:
        size = "{} x {}".format(*after.config.image)
        how.append(f"its positions were resized for images of {size}" if resized else f"it was made to read {size}")
    if resized:
        found["resized"] = "; then ".join(filter(None, (facts.get("resized"), resized)))
    if before.config.channels != after.config.channels:
        found["grey"] = f"the kernels of the patch embedding, summed over {before.config.channels} channels into one"
        how.append("its patch embedding was converted to grey images")
    if how and facts.get("verified", UNVERIFIED) != UNVERIFIED:
        found["verified"] += f"{' and' if 'changed_weights' in facts else ', before'} {' and '.join(how)}"
    if how and "verified_weights" in facts:
        found["changed_weights"] = digest_of(after.state_dict())
    return found


def changes_of(facts: Mapping[str, Any]) -> list[str]:
    """What is not as it was in the files, in words, one for each change."""
    return [f"{name}: {facts[name]}" for name in CHANGES if name in facts]


def holding(facts: Mapping[str, Any], network: nn.Module) -> dict[str, Any]:
    """The facts of a network; where they are of other numbers than it has, these are not verified, and a fact says so.

    A hash of all numbers takes 20 ms for a ViT-Ti and 0.3 s for a B/16: a file that is as it was saved needs none.
    """
    if "verified" not in facts:
        return dict(facts)
    wanted = facts.get("changed_weights", facts.get("verified_weights"))
    if wanted is not None and wanted == digest_of(network.state_dict()):
        return dict(facts)
    found = {name: fact for name, fact in facts.items() if name not in NAMES} | {"verified": UNVERIFIED}
    if wanted is not None:
        since = "read" if facts["verified"] == UNVERIFIED else "verified"
        found["weights"] = "; ".join(filter(None, (facts.get("weights"), f"they have changed since they were {since}")))
    return found


def origin_words(facts: Mapping[str, Any]) -> list[str]:
    """Sentences on other people's weights: whether they are verified, what was changed or assumed; else nothing."""
    found = [f"{facts['verified']}; licence {facts.get('licence', 'not stated')}"] if facts.get("verified") else []
    found += [facts["unpickled"]] if "unpickled" in facts else []
    found += [f"changed, {change}" for change in changes_of(facts)]
    found += [f"assumed: {facts['assumed']}"] if "assumed" in facts else []
    found += [f"assumed: class names are {facts['class_names']}"] if "class_names" in facts else []
    return found + ([f"these weights were trained with {facts['trained_with']}"] if "trained_with" in facts else [])
