"""The error tree: every class pickles, has a kind, and says its message plainly."""

from __future__ import annotations

import pickle
from typing import Any

import icechunk
import pytest

from icefloe import errors
from icefloe.errors import (
    ConflictError,
    ErrorKind,
    FormatError,
    IcechunkError,
    IcefloeError,
    NodeNotFoundError,
    NotFoundError,
    RebaseFailedError,
    RefNotFoundError,
    RepositoryNotFoundError,
    SnapshotNotFoundError,
)

CLASSES = dict.fromkeys(
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, IcefloeError)
)

NEEDED: dict[type, dict[str, Any]] = {RebaseFailedError: {"snapshot": "S", "conflicts": [1]}}
"""The arguments without which an error has nothing to say."""


@pytest.mark.parametrize("error", CLASSES)
def test_errors_pickle(error: Any) -> None:
    """An error crosses process borders with its class, message, kind, notes and all attributes."""
    one: IcefloeError = error("what was wrong", kind=ErrorKind.IO, **NEEDED.get(error, {}))
    one.add_note("a note")
    other = pickle.loads(pickle.dumps(one))  # noqa: S301
    assert type(other) is error
    assert (str(other), other.kind, other.__notes__) == ("what was wrong", "io", ["a note"])
    assert (other.__dict__, other.args) == (one.__dict__, one.args)


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


@pytest.mark.parametrize(
    "error, kind",
    [
        (NodeNotFoundError, ErrorKind.NODE_NOT_FOUND),
        (SnapshotNotFoundError, ErrorKind.SNAPSHOT_NOT_FOUND),
        (RefNotFoundError, ErrorKind.REF_NOT_FOUND),
        (RepositoryNotFoundError, ErrorKind.REPOSITORY_NOT_FOUND),
        (ConflictError, ErrorKind.COMMIT_CONFLICT),
    ],
)
def test_a_class_has_a_kind_of_its_own(error: type[IcefloeError], kind: ErrorKind) -> None:
    """An error is raised with a kind only if its class has more than one."""
    assert error("x").kind is kind


def test_a_conflict_without_a_message_tells_the_parents() -> None:
    """A handler reads the four attributes of Icechunk's error, whether or not one was said."""
    error = ConflictError(expected_parent="A", actual_parent="B")
    assert (error.expected_parent, error.actual_parent) == ("A", "B")
    assert error.message == str(error)
    assert "points at B, not at A" in error.message
    assert ConflictError("said").message == "said"
    assert ConflictError("said").expected_parent is None


def test_a_failed_rebase_tells_the_snapshot_and_the_conflicts() -> None:
    """It is a conflict to a handler of conflicts, and it carries what conflicts."""
    conflicts = iter([("a", 1), ("b", 2)])
    with pytest.raises(ConflictError) as caught:
        raise RebaseFailedError(snapshot="S", conflicts=conflicts)
    error = caught.value
    assert isinstance(error, RebaseFailedError)
    assert (error.snapshot, error.conflicts) == ("S", [("a", 1), ("b", 2)])
    assert (error.expected_parent, error.actual_parent) == (None, None)
    assert error.kind is ErrorKind.REBASE_FAILED
    assert "snapshot S: 2 conflicts" in str(error)


def test_handlers_written_for_icechunk_catch_our_errors() -> None:
    """Each class of Icechunk's tree is here under its name, below the same classes."""
    assert IcechunkError is IcefloeError
    theirs = [
        value
        for value in vars(icechunk).values()
        if isinstance(value, type) and issubclass(value, icechunk.IcechunkError)
    ]
    assert theirs
    for their in theirs:
        our = getattr(errors, their.__name__)
        bases = {base.__name__ for base in their.__mro__} - {"IcechunkError"}
        assert bases <= {base.__name__ for base in our.__mro__}


def test_kinds_are_distinct() -> None:
    """Each kind has its own code, in the spelling of the reference implementation."""
    assert len({kind.value for kind in ErrorKind}) == len(ErrorKind)
    assert all(kind.value == kind.name.lower().replace("_", "-") for kind in ErrorKind)


@pytest.mark.skipif(not hasattr(icechunk, "ErrorKind"), reason="Icechunk 1 has no kinds")
def test_every_kind_of_icechunk_is_here() -> None:
    """Code that matches on the kinds of the installed Icechunk finds them all."""
    theirs: Any = icechunk
    assert {kind.value for kind in theirs.ErrorKind} <= {kind.value for kind in ErrorKind}
