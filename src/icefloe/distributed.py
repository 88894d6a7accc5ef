"""Extracts the sessions of Zarr arrays, and merges forks, for distributed engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from icefloe.session import ForkSession, Session
from icefloe.store import IcechunkStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from zarr import Array

    Forks: TypeAlias = ForkSession | Sequence["Forks"]

__all__ = ["extract_session", "merge_sessions"]


def extract_session(
    zarray: Array[Any],
    axis: Any = None,  # noqa: ARG001 - dask reductions pass it
    keepdims: Any = None,  # noqa: ARG001
) -> Session:
    """Return the session that a Zarr array writes to."""
    store = zarray.store
    if not isinstance(store, IcechunkStore):
        raise TypeError(
            f"the array is in a {type(store).__name__}: open it from the store of a session, as in "
            "zarr.open_array(session.fork().store, path=...)"
        )
    return store.session


def merge_sessions(*sessions: Forks) -> ForkSession:
    """Merge forks, which may be in nested lists; the arguments do not change.

    All must be copies of one fork, or forks of a session without changes. Merging is pairwise, so
    that each chunk is processed O(log n) times. A fork that occurs more than once, because threads
    share it, is merged once; a single fork is returned itself.

    Raises
    ------
    TypeError
        If there are no forks, or an argument is not a fork.
    SessionStateError
        If two forks wrote the same chunk with different bytes, have other conflicts, or started
        with different changes; in the last case, use ``session.merge(*forks)``.
    ConflictError
        If forks are based on different snapshots.
    """
    forks: list[ForkSession] = list({id(fork): fork for fork in _flatten(sessions)}.values())
    if not forks:
        raise TypeError("merge_sessions needs at least one fork")
    while len(forks) > 1:
        pairs = [forks[start : start + 2] for start in range(0, len(forks), 2)]
        forks = [_merge_pair(*pair) for pair in pairs]
    return forks[0]


def _flatten(sessions: Sequence[Forks]) -> Iterator[ForkSession]:
    for session in sessions:
        if isinstance(session, list | tuple):
            yield from _flatten(session)
        elif isinstance(session, ForkSession):
            yield session
        else:
            raise TypeError(
                f"merge_sessions expected forks. Received {type(session).__name__!r}: merge forks "
                "into a session with session.merge(*forks)"
            )


def _merge_pair(fork: ForkSession, *others: ForkSession) -> ForkSession:
    if not others:
        return fork
    # Merge into a copy: tasks on other threads may still write to the fork.
    merged = ForkSession(
        fork.connection,
        fork.transaction.base_id,
        origin=fork.origin,
        changes=fork.transaction.copy_changes(),
        start=fork.start,
    )
    merged.merge(*others)
    return merged
