"""Editing of a manifest file: replaces a few chunk references without reading the others.

Flatbuffers point forward: new references are appended to the file, and the pointers to the old ones
are redirected. The old ones remain as unused bytes; when these add up, the file is rewritten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from icefloe.errors import FormatError
from icefloe.format import schema
from icefloe.format.envelope import FileType, pack
from icefloe.format.flatbuffer_reader import FlatBuffer, Spans, Tables
from icefloe.format.flatbuffer_writer import Layout
from icefloe.format.manifest import DEFAULT_LEVEL, write_refs
from icefloe.model.chunk_index_columns import is_ascending
from icefloe.model.ids import ManifestId

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from icefloe.model.manifest import Manifest

# An edited file ends with a mark and the number of bytes that all edits added. Nothing points
# there, so readers ignore it.
_MARK = int.from_bytes(b"edit", "little")
_MIN_SIZE_RATIO = 16  # of the file to the bytes that edits added


def edit_manifest(root: Tables, changes: Manifest, *, spec_version: int) -> bytes | None:
    """Return the file of ``root`` with the id and the references of ``changes``, of one array.

    Returns None if the file must be rewritten: it lacks a changed reference, holds other arrays,
    would consist too much of edits, or is damaged, which a full read reports.
    """
    buffer = root.buffer
    layout = Layout(f"manifest {changes.id} with {len(changes)} edits", behind=buffer.size)
    mark = np.array([_MARK, 0], "<u4")
    try:
        pointers = _find_pointers(root, changes)
        if pointers is None:
            return None
        id_place = _find_id(root, pointers)
        _, targets = write_refs(layout, changes)
        layout.put(layout.reserve(mark.nbytes), mark)
    except FormatError:
        return None
    added = layout.size - buffer.size + _read_added_bytes(buffer)
    if added * _MIN_SIZE_RATIO > layout.size:
        return None
    mark[1] = added
    edits = {id_place: changes.id.raw}
    for place, distance in zip(pointers.tolist(), (targets - pointers).tolist(), strict=True):
        edits[place] = distance.to_bytes(4, "little")
    return pack(
        _iter_edited(buffer, edits, layout),
        layout.size,
        file_type=FileType.MANIFEST,
        spec_version=spec_version,
        level=DEFAULT_LEVEL,
    )


def _read_added_bytes(buffer: FlatBuffer) -> int:
    mark, added = buffer.items(buffer.size - 8, 2, np.dtype("<u4")).tolist()
    return int(added) if mark == _MARK else 0


def _find_id(root: Tables, pointers: NDArray[np.int64]) -> int:
    """Return the position of the id, which must not overlap a pointer."""
    place = root.place(schema.Manifest.ID)
    others = [schema.Manifest.ARRAYS, schema.Manifest.LOCATION_DICTIONARY]
    taken = [root.place(field) for field in others if root.has(field).any()]
    taken += pointers.tolist()
    if any(place - 4 < other < place + ManifestId.SIZE for other in taken):
        root.buffer.fail("its id overlaps a pointer")
    return place


def _find_pointers(root: Tables, changes: Manifest) -> NDArray[np.int64] | None:
    """Find the pointers to the changed references, by one bisection for all of them."""
    if len(changes.payloads.locations) and root.has(schema.Manifest.LOCATION_DICTIONARY).any():
        return None  # all locations are compressed
    _, arrays = root.children(schema.Manifest.ARRAYS, "ArrayManifest")
    node_ids = arrays.structs(schema.ArrayManifest.NODE_ID)
    if not np.array_equal(node_ids, changes.indices.node_ids):
        return None
    vector = arrays.vectors(schema.ArrayManifest.REFS, 4)
    wanted, last = changes.indices.get_coords(0), int(vector.count[0]) - 1

    def coords(rows: NDArray[np.int64]) -> NDArray[np.uint32]:
        return _read_coords(root.buffer, vector, np.minimum(rows, last), wanted.shape[1])

    low = np.zeros(len(wanted), np.int64)
    high = low + last + 1
    while (low < high).any():
        middle = (low + high) // 2
        goes_up = (low < high) & is_ascending(coords(middle), wanted)
        low, high = np.where(goes_up, middle + 1, low), np.where(goes_up, high, middle)
    if (low > last).any() or not np.array_equal(coords(low), wanted):
        return None
    # Icechunk 1 may write a reference twice; both would have to change.
    if ((low < last) & (coords(low + 1) == wanted).all(axis=1)).any():
        return None
    return vector.start + 4 * low


def _read_coords(
    buffer: FlatBuffer, vector: Spans, rows: NDArray[np.int64], ndim: int
) -> NDArray[np.uint32]:
    places = vector.start + 4 * rows
    refs = Tables(buffer, places + buffer.gather(places, np.dtype("<u4")), "ChunkRef")
    indices = refs.vectors(schema.ChunkRef.INDEX, 4)
    if not (indices.count == ndim).all():
        buffer.fail("its chunk references differ from the array in number of dimensions")
    _, coords = refs.numbers(indices, "<u4")
    return coords.reshape(len(rows), ndim)


def _iter_edited(
    buffer: FlatBuffer, edits: Mapping[int, bytes], layout: Layout
) -> Iterator[memoryview]:
    """Yield the bytes of a file with edits, followed by the layout."""
    cursor = 0
    for place, new in sorted(edits.items()):
        yield buffer.bytes[cursor:place].data
        yield memoryview(new)
        cursor = place + len(new)
    yield buffer.bytes[cursor:].data
    yield from layout.pieces()
