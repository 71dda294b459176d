"""The cluster of Ray on which a job computes; none is started here."""

import pytest

from tests.errors import must_raise
from vitrail.errors import UsageError
from vitrail.jobs import cluster
from vitrail.jobs.cluster import Cluster, first_sentence


def test_of_a_message_of_ray_the_first_sentence_is_shown() -> None:
    error = RuntimeError("The actor died.  The raylet at 10.0.0.1 was lost.\n\tclass_name: Worker")
    assert first_sentence(error) == "The actor died"
    assert first_sentence(RuntimeError("Cannot reach 10.0.0.1:6379\nTraceback")) == "Cannot reach 10.0.0.1:6379"
    assert first_sentence(RuntimeError()) == ""


def test_more_workers_than_this_machine_has_cores_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """On this machine alone; one worker may have more threads than there are cores, as a job was started with."""
    monkeypatch.setattr(cluster, "cores", lambda: 4)
    for workers, threads in ((4, 1), (2, 2), (1, 4), (1, 9), (None, 9)):
        assert Cluster("local", workers, threads).threads == threads
    with must_raise(UsageError, named="99") as caught:
        Cluster("local", 99)
    assert caught.value.hint.flags == {"workers": 4}
    with must_raise(UsageError, named="3") as caught:
        Cluster("local", 3, 2)
    assert caught.value.hint.flags == {"workers": 2}
    assert Cluster("auto", 99).workers == 99
