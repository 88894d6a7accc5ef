"""Writes dask arrays through forks of a session, with any scheduler.

Each task writes a block and returns its fork: threads share one fork, tasks in other processes
return a copy that has the chunks of the block. A tree reduction merges the forks, and the caller
merges the result into the session. Requires dask 2025.2 or later.
"""

from __future__ import annotations

from functools import wraps
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

import dask.array as da
import numpy as np
from dask.base import compute
from packaging.version import Version  # a dependency of dask

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

# Earlier versions of `dask.array.store` do not return the targets.
if Version(version("dask")) < Version("2025.2"):
    raise ImportError(f"icefloe.dask needs dask 2025.2 or later, got {version('dask')}")

P = ParamSpec("P")
R = TypeVar("R")

# Arguments of `dask.array.store` that this module sets.
_RESERVED_ARGUMENTS = frozenset({"compute", "return_stored", "load_stored", "lock"})


def computing_meta(func: Callable[P, R]) -> Callable[P, Any]:
    """Wrap a function so that it returns an object array when dask computes its ``meta``."""

    @wraps(func)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Any:
        if kwargs.pop("computing_meta", False):
            return np.empty(1, object)
        return func(*args, **kwargs)

    return wrapper


def merge_sessions_array_kwargs(
    *sessions: Any,
    axis: Any = None,  # noqa: ARG001 - dask reductions pass it
    keepdims: Any = None,  # noqa: ARG001
) -> ForkSession:
    """Merge forks as `merge_sessions` does, in a dask reduction."""
    return merge_sessions(*sessions)


def store_dask(
    *,
    sources: Sequence[da.Array],
    targets: Sequence[zarr.Array[Any]],
    regions: Sequence[Region | None] | None = None,
    split_every: int | None = None,
    **store_kwargs: Any,
) -> ForkSession:
    """Compute and write dask arrays, and return a fork with all changes.

    Merge the fork with ``session.merge(fork)``, and commit the session.

    Parameters
    ----------
    sources
        Dask arrays.
    targets
        Zarr array for each source, opened from ``session.fork().store``.
    regions
        Region of each target to write; None is the whole target.
    split_every
        Maximum number of forks that one task merges; chosen by dask if None.
    store_kwargs
        Arguments of ``dask.compute``: ``scheduler``, ``retries`` and others.

    Raises
    ------
    InvalidInputError
        If a target does not belong to a fork, an argument is reserved, or there are no sources.
    SessionStateError
        If two tasks wrote the same chunk with different bytes: a chunk of the target must not
        span blocks of the source.
    """
    if reserved := _RESERVED_ARGUMENTS & store_kwargs.keys():
        raise InvalidInputError(
            f"store_dask computes immediately, without locks: omit {', '.join(sorted(reserved))}",
            kind=ErrorKind.NOT_ALLOWED,
        )
    for target in targets:
        if not isinstance(session := extract_session(target), ForkSession):
            raise InvalidInputError(
                f"{target.path!r} was opened from {session!r}, which cannot return changes from "
                "other processes: open targets from session.fork().store, and merge the fork that "
                "store_dask returns with session.merge",
                kind=ErrorKind.NOT_ALLOWED,
            )
    if not sources:
        raise InvalidInputError("sources is empty: pass dask arrays", kind=ErrorKind.NOT_ALLOWED)
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
    """Compute dask arrays whose blocks are the Zarr arrays written to, and merge their forks.

    Raises `TypeError` if an argument is not a dask array.
    """
    sources = arrays if isinstance(arrays, list | tuple) else [arrays]
    for source in sources:
        if not isinstance(source, da.Array):
            raise TypeError(f"Expected a dask array, got a {type(source).__name__}")
    reductions = [
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
        for array in sources
    ]
    return merge_sessions(*compute(*reductions, **store_kwargs))  # type: ignore[no-untyped-call]
