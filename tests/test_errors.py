"""The error tree: every class pickles, has a kind, and says its message plainly."""

from __future__ import annotations

import pickle

import pytest

from icefloe import errors
from icefloe.errors import ErrorKind, FormatError, IcefloeError, NotFoundError

CLASSES = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, IcefloeError)
]


@pytest.mark.parametrize("error", CLASSES)
def test_errors_pickle(error: type[IcefloeError]) -> None:
    """An error crosses process borders with its class, message, kind and notes."""
    one = error("what was wrong", kind=ErrorKind.IO)
    one.add_note("a note")
    other = pickle.loads(pickle.dumps(one))  # noqa: S301
    assert type(other) is error
    assert (str(other), other.kind, other.__notes__) == ("what was wrong", "io", ["a note"])


def test_format_errors_name_the_file() -> None:
    """The file leads the message, and stays apart from the reason."""
    one = pickle.loads(pickle.dumps(FormatError("is cut off", file="snapshots/X")))  # noqa: S301
    assert str(one) == "snapshots/X: is cut off"
    assert (one.file, one.reason) == ("snapshots/X", "is cut off")


def test_not_found_is_a_key_error_that_reads_well() -> None:
    """`NotFoundError` is a `KeyError`, without the quotes that those print around a message."""
    with pytest.raises(KeyError) as caught:
        raise NotFoundError("no such branch: dev")
    assert str(caught.value) == "no such branch: dev"


def test_kinds_are_distinct() -> None:
    """Each kind has its own code, in the spelling of the reference implementation."""
    assert len({kind.value for kind in ErrorKind}) == len(ErrorKind)
    assert all(kind.value == kind.name.lower().replace("_", "-") for kind in ErrorKind)
