"""What some tests of trainings share."""

import pytest


@pytest.fixture
def few_penalties(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe judges two penalties once, and not eight of them five times: that is test_linear_probe.py."""
    from vitrail.tasks import linear

    monkeypatch.setattr(linear, "PENALTIES", (1.0, 1e-2))
    monkeypatch.setattr(linear, "ONE_FOLD", 0)
