"""What a self-test says: one line for each check."""

from dataclasses import dataclass

OF_THE_NETWORK = "this network as it is, in its own precision"
OF_THE_METHODS = "every method once more by hand, in float64, on a few blocks and squares and on random networks"


@dataclass(frozen=True)
class Check:
    """One check: what it asks, whether it holds, what was seen, and what it is about."""

    name: str
    passed: bool
    saw: str
    about: str = OF_THE_NETWORK


@dataclass(frozen=True)
class SelfTest:
    """All checks of one model, and how long they took."""

    checks: tuple[Check, ...]
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether every check holds."""
        return all(check.passed for check in self.checks)

    def __str__(self) -> str:
        """One line for each check."""
        width = max(len(check.name) for check in self.checks)
        lines = [f"{'pass' if one.passed else 'FAIL'}  {one.name:<{width}}  {one.saw}" for one in self.checks]
        return "\n".join(lines)
