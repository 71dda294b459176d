"""The check of errors that other tests use can fail."""

import pytest

from tests.errors import must_raise
from vitrail.errors import DataError, UsageError


def test_two_lines_pass_and_are_there_behind_the_block() -> None:
    with must_raise(DataError, "no .* folder") as caught:
        raise DataError("no such folder", "another one")
    assert caught.value.hint == "another one"


@pytest.mark.parametrize(
    "error",
    [
        DataError("no such file", "another one"),
        DataError("no such folder\nat all", "another one"),
        DataError("no such folder", "another one\nor none"),
        DataError("no such folder", ""),
    ],
    ids=["other words", "a problem of two lines", "a hint of two lines", "no hint"],
)
def test_another_error_is_noticed(error: DataError) -> None:
    with pytest.raises(AssertionError), must_raise(DataError, "no such folder"):
        raise error


def test_an_error_of_another_kind_and_none_at_all_are_noticed() -> None:
    with pytest.raises(UsageError), must_raise(DataError, "no such folder"):
        raise UsageError("no such folder", "another one")
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"), must_raise(DataError, "no such folder"):
        pass
