"""Plans and fetches encoded chunks, without decoding them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from icefloe.errors import ErrorKind, NodeNotFoundError
from icefloe.model.zarr_keys import format_chunk_prefix
from icefloe.pipeline.argument_errors import argument_error
from icefloe.pipeline.arrays.nodes import parse_path
from icefloe.pipeline.report import format_bytes
from icefloe.pipeline.run import WorkUnit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from icefloe.model.manifest import ArrayManifest
    from icefloe.session import Session

_UNIT_BYTES: Final = 16_000_000
"""Encoded bytes per work unit."""

_UNIT_CHUNKS: Final = 4096
"""Chunks per work unit."""

MAX_CHUNKS: Final = 10_000_000
"""Default maximum number of references that the driver holds."""

_REF_BYTES: Final = 300
"""Driver memory per reference, from the plan to the commit."""


def require_chunk_limit(count: int, max_chunks: int, remedy: str) -> None:
    """Raise if there are too many chunks: the driver holds all references until the commit."""
    if count > max_chunks:
        raise argument_error(
            f"there are more than {max_chunks:,} chunks (max_chunks), so this process would need "
            f"over {format_bytes(max_chunks * _REF_BYTES)} of memory: {remedy}raise max_chunks if "
            "enough memory is available"
        )


def fetch_chunks(
    session: Session, path: str, coords: NDArray[np.uint32]
) -> Iterator[tuple[tuple[int, ...], memoryview]]:
    """Yield the bytes of native, inline and virtual chunks; adjacent chunks share requests."""
    for indices, data in try_fetch_chunks(session, path, coords):
        if isinstance(data, Exception):
            raise data
        yield indices, data


def try_fetch_chunks(
    session: Session, path: str, coords: NDArray[np.uint32]
) -> Iterator[tuple[tuple[int, ...], memoryview | Exception]]:
    """Like `fetch_chunks`, but yield the error if fetching a chunk fails.

    A chunk that does not exist still raises.
    """
    keys = [format_chunk_key(path, row) for row in coords.tolist()]
    # Use Zarr's event loop: a notebook already runs another one in this thread.
    fetched = sync(_fetch(session, keys))
    for row, key, data in zip(coords.tolist(), keys, fetched, strict=True):
        if data is None:
            raise NodeNotFoundError(
                f"chunk {key} is not in snapshot {session.snapshot_id}",
                kind=ErrorKind.CHUNK_NOT_FOUND,
            )
        yield tuple(row), data


def format_chunk_key(path: str, indices: Sequence[int]) -> str:
    """Format the Zarr key of a chunk."""
    return "/".join([format_chunk_prefix(parse_path(path)), *map(str, indices)])


def plan_units(path: str, refs: ArrayManifest, order: NDArray[np.int64]) -> list[WorkUnit]:
    """Split rows of an array's references, in the given order, into units of (path, coords)."""
    if not len(order):
        return []
    sizes = refs.payloads.length[order].astype(np.int64)
    # A new unit starts at each chunk whose cumulative size crosses a multiple of `_UNIT_BYTES`, so
    # a larger chunk always starts a unit.
    ends = np.cumsum(sizes)
    by_bytes = np.flatnonzero(np.diff(ends // _UNIT_BYTES)) + 1
    by_count = np.arange(_UNIT_CHUNKS, len(order), _UNIT_CHUNKS)
    boundaries = np.unique(np.concatenate([by_bytes, by_count]))
    units = []
    for rows in np.split(np.arange(len(order)), boundaries):
        coords = refs.coords[order[rows]]
        label = f"{path} chunks {_format_indices(coords[0])} to {_format_indices(coords[-1])}"
        units.append(WorkUnit(label, int(sizes[rows].sum()), (path, coords)))
    return units


async def _fetch(session: Session, keys: Sequence[str]) -> list[memoryview | Exception | None]:
    store, prototype = session.store, default_buffer_prototype()

    async def fetch(key: str) -> memoryview | Exception | None:
        try:
            buffer = await store.get(key, prototype)
        except Exception as error:  # noqa: BLE001 - returned to the caller
            return error
        return None if buffer is None else memoryview(buffer.to_bytes())

    return list(await asyncio.gather(*map(fetch, keys)))


def _format_indices(row: NDArray[Any]) -> str:
    return "/".join(map(str, row.tolist())) or "0"
