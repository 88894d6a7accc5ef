"""Replacement of chunk references in a manifest file, without decoding the other references.

New references are appended to the flatbuffer, and pointers to old references are redirected. Old
references remain as unused bytes; a file with too many edits must be rewritten.
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
from icefloe.model.chunk_index_columns import is_row_less
from icefloe.model.ids import ManifestId

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from icefloe.model.manifest import Manifest

# An edited file ends with a mark and the number of bytes that all edits added. No pointer refers to
# them, so readers ignore them.
_MARK = int.from_bytes(b"edit", "little")
_MIN_SIZE_RATIO = 16  # size of the file, relative to the bytes that edits added


def edit_manifest(root: Tables, changes: Manifest, *, spec_version: int) -> bytes | None:
    """Return the file of ``root`` with the id and references of ``changes``, which has one array.

    Returns None if the file must be rewritten: it lacks a changed reference, has other arrays,
    would have too many edits, or is damaged, which a full read reports.
    """
    buffer = root.buffer
    layout = Layout(f"manifest {changes.id} with {len(changes)} edits", existing_size=buffer.size)
    mark = np.array([_MARK, 0], "<u4")
    try:
        pointers = _find_pointers(root, changes)
        if pointers is None:
            return None
        id_position = _find_id(root, pointers)
        _, targets = write_refs(layout, changes)
        layout.put(layout.reserve(mark.nbytes), mark)
    except FormatError:
        return None
    added = layout.size - buffer.size + _read_added_bytes(buffer)
    if added * _MIN_SIZE_RATIO > layout.size:
        return None
    mark[1] = added
    edits = {id_position: changes.id.raw}
    for position, distance in zip(pointers.tolist(), (targets - pointers).tolist(), strict=True):
        edits[position] = distance.to_bytes(4, "little")
    return pack(
        _iter_edited_bytes(buffer, edits, layout),
        layout.size,
        file_type=FileType.MANIFEST,
        spec_version=spec_version,
        level=DEFAULT_LEVEL,
    )


def _read_added_bytes(buffer: FlatBuffer) -> int:
    mark, added = buffer.view_items(buffer.size - 8, 2, np.dtype("<u4")).tolist()
    return int(added) if mark == _MARK else 0


def _find_id(root: Tables, pointers: NDArray[np.int64]) -> int:
    """Return the position of the id, which must not overlap a pointer."""
    position = root.find_field(schema.Manifest.ID)
    fields = [schema.Manifest.ARRAYS, schema.Manifest.LOCATION_DICTIONARY]
    others = [root.find_field(field) for field in fields if root.has(field).any()]
    others += pointers.tolist()
    if any(position - 4 < other < position + ManifestId.SIZE for other in others):
        root.buffer.fail("its id overlaps a pointer")
    return position


def _find_pointers(root: Tables, changes: Manifest) -> NDArray[np.int64] | None:
    """Find the pointers to all changed references with one vectorized binary search."""
    if len(changes.payloads.locations) and root.has(schema.Manifest.LOCATION_DICTIONARY).any():
        return None  # all locations are compressed
    _, arrays = root.get_children(schema.Manifest.ARRAYS, "ArrayManifest")
    node_ids = arrays.read_structs(schema.ArrayManifest.NODE_ID)
    if not np.array_equal(node_ids, changes.indices.node_ids):
        return None
    vector = arrays.find_vectors(schema.ArrayManifest.REFS, 4)
    changed, last = changes.indices.get_coords(0), int(vector.count[0]) - 1

    def read_coords(rows: NDArray[np.int64]) -> NDArray[np.uint32]:
        return _read_coords(root.buffer, vector, np.minimum(rows, last), changed.shape[1])

    low = np.zeros(len(changed), np.int64)
    high = low + last + 1
    while (low < high).any():
        middle = (low + high) // 2
        is_less = (low < high) & is_row_less(read_coords(middle), changed)
        low, high = np.where(is_less, middle + 1, low), np.where(is_less, high, middle)
    if (low > last).any() or not np.array_equal(read_coords(low), changed):
        return None
    # Icechunk 1 may duplicate a reference; both copies would have to change.
    if ((low < last) & (read_coords(low + 1) == changed).all(axis=1)).any():
        return None
    return vector.start + 4 * low


def _read_coords(
    buffer: FlatBuffer, vector: Spans, rows: NDArray[np.int64], ndim: int
) -> NDArray[np.uint32]:
    pointers = vector.start + 4 * rows
    refs = Tables(buffer, pointers + buffer.gather(pointers, np.dtype("<u4")), "ChunkRef")
    indices = refs.find_vectors(schema.ChunkRef.INDEX, 4)
    if not (indices.count == ndim).all():
        buffer.fail("its chunk references and the array differ in rank")
    _, coords = refs.read_numbers(indices, "<u4")
    return coords.reshape(len(rows), ndim)


def _iter_edited_bytes(
    buffer: FlatBuffer, edits: Mapping[int, bytes], layout: Layout
) -> Iterator[memoryview]:
    """Yield the bytes of a file with edits, followed by the layout."""
    cursor = 0
    for position, new in sorted(edits.items()):
        yield buffer.bytes[cursor:position].data
        yield memoryview(new)
        cursor = position + len(new)
    yield buffer.bytes[cursor:].data
    yield from layout.iter_pieces()
