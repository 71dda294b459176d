"""Do the explanations of this very network keep their promises? Checks in seconds, in words, on the user's own model.

    report = selftest(model)
    print(report)            # one line for each check
    report.passed

Two kinds of checks. Of the network as it is, in its own precision (`whole.py`): sums that must close, maps that must
move with the picture, classes and weights that must matter. And of every method by a way of its own (`attention.py`,
`attention_gradients.py`, `pixels.py`, `covering.py`, `views.py`): the same numbers once more, written plainly, in
float64, on the network cut down to a few blocks and patches, and on two small random networks (`witness.py`).

They test this network with this code. What they cannot test is whether a map of a given picture is to be believed: that
is `trust`.
"""

from vitrail.explain.selftest.report import Check, SelfTest
from vitrail.explain.selftest.running import selftest

__all__ = ["Check", "SelfTest", "selftest"]
