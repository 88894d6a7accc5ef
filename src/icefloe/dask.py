"""Dask arrays written through a fork, by whatever scheduler runs the tasks.

Each task writes its block and returns the fork that it wrote through: with threads the one that
all share, elsewhere a copy that has this block's chunks. A tree of tasks merges them, and the
caller merges the last into its session. Needs dask 2025.2 or later.
"""

from __future__ import annotations

from functools import wraps
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

import dask.array as da
import numpy as np
from dask.base import compute
from packaging.version import Version  # dask needs it too

from icefloe.distributed import extract_session, merge_sessions
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.session import ForkSession

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import zarr

    Region = tuple[slice, ...]

__all__ = [
    "computing_meta",
    "merge_sessions_array_kwargs",
    "session_merge_reduction",
    "store_dask",
]

# Before, `dask.array.store` did not return the targets.
if Version(version("dask")) < Version("2025.2"):
    raise ImportError(f"icefloe.dask needs dask 2025.2 or later, not {version('dask')}: upgrade it")

P = ParamSpec("P")
R = TypeVar("R")

# What `dask.array.store` would take, and what only one value of makes sense for here.
_DECIDED_HERE = frozenset({"compute", "return_stored", "load_stored", "lock"})


def computing_meta(func: Callable[P, R]) -> Callable[P, Any]:
    """Let a function answer dask's question what its result looks like: an array of objects."""

    @wraps(func)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Any:
        if kwargs.pop("computing_meta", False):
            return np.empty(1, object)
        return func(*args, **kwargs)

    return wrapper


def merge_sessions_array_kwargs(
    *sessions: Any,
    axis: Any = None,  # noqa: ARG001 - reductions of dask pass it
    keepdims: Any = None,  # noqa: ARG001
) -> ForkSession:
    """Do as `merge_sessions`, as a step of a reduction."""
    return merge_sessions(*sessions)


def store_dask(
    *,
    sources: Sequence[da.Array],
    targets: Sequence[zarr.Array[Any]],
    regions: Sequence[Region | None] | None = None,
    split_every: int | None = None,
    **store_kwargs: Any,
) -> ForkSession:
    """Write dask arrays now, and return a fork that has all that was written.

    Nothing is part of a session before ``session.merge(fork)``, nor visible before its commit.

    Parameters
    ----------
    sources
        The dask arrays.
    targets
        For each of them the Zarr array, opened from ``session.fork().store``.
    regions
        For each of them the part of the target to write, None for all of it.
    split_every
        How many forks one task merges; dask's choice if not given.
    store_kwargs
        How to compute, as for ``dask.compute``: ``scheduler``, ``retries`` and others.

    Raises
    ------
    InvalidInputError
        If a target does not belong to a fork, or an option is one that is decided here.
    SessionStateError
        If two tasks wrote the same chunk with different bytes: a chunk of the target must not
        reach across blocks of the source.
    """
    if refused := _DECIDED_HERE & store_kwargs.keys():
        raise InvalidInputError(
            f"store_dask writes at once, without locks: leave out {', '.join(sorted(refused))}",
            kind=ErrorKind.NOT_ALLOWED,
        )
    for target in targets:
        if not isinstance(session := extract_session(target), ForkSession):
            raise InvalidInputError(
                f"{target.path!r} was opened from {session!r}, whose changes cannot come back from "
                "other processes: fork = session.fork(), open targets from fork.store, and "
                "session.merge what store_dask returns",
                kind=ErrorKind.NOT_ALLOWED,
            )
    if not sources:
        raise InvalidInputError("there is nothing to write", kind=ErrorKind.NOT_ALLOWED)
    stored = da.store(
        list(sources),
        cast("Any", list(targets)),
        regions=cast("Any", None if regions is None else list(regions)),
        compute=False,
        return_stored=True,
        load_stored=False,
        lock=False,
    )
    return session_merge_reduction(stored, split_every=split_every, **store_kwargs)


def session_merge_reduction(
    arrays: da.Array | Sequence[da.Array], *, split_every: int | None, **store_kwargs: Any
) -> ForkSession:
    """Compute arrays whose blocks are Zarr arrays that were written to, and merge their forks."""
    merged = [
        da.reduction(  # type: ignore[no-untyped-call]
            array,
            name="icefloe-merge",
            chunk=computing_meta(extract_session),
            aggregate=computing_meta(merge_sessions_array_kwargs),
            split_every=split_every,
            concatenate=False,
            keepdims=False,
            dtype=object,
            meta=np.empty(1, object),
        )
        for array in ([arrays] if isinstance(arrays, da.Array) else arrays)
    ]
    return merge_sessions(*compute(*merged, **store_kwargs))  # type: ignore[no-untyped-call]
