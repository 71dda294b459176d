"""What some tests of trainings share."""

import pytest


@pytest.fixture
def few_penalties(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe judges two penalties once, and not eight of them five times: that is test_linear_probe.py."""
    from vitrail.features import linear_probe

    monkeypatch.setattr(linear_probe, "PENALTIES", (1.0, 1e-2))
    monkeypatch.setattr(linear_probe, "ONE_FOLD", 0)
