"""What some tests of trainings share."""

import pytest


@pytest.fixture
def few_penalties(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe judges two penalties once, and not eight of them five times: how it chooses stands in test_probe.py."""
    from vitrail.training.transfer import probe

    monkeypatch.setattr(probe, "PENALTIES", (1.0, 1e-2))
    monkeypatch.setattr(probe, "ONE_FOLD", 0)
