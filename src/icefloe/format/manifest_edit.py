"""A manifest file with a few of its chunk references replaced, without reading the others.

Flatbuffers point forward: the new references go behind everything that the file holds, and the
pointers that led to the old ones lead there. The old ones stay, as bytes that nothing points at;
when such bytes add up, the file is to be made anew from its references.
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
from icefloe.model.ids import ManifestId, NodeId

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from icefloe.model.manifest import Manifest

# An edited file ends with a mark and how many bytes this edit and those before it added. Nothing
# points there, so that readers do not see it.
_MARK = int.from_bytes(b"edit", "little")
_LEAST_PART = 16  # additions may make up one part in so many


def edit_manifest(root: Tables, changes: Manifest, *, spec_version: int) -> bytes | None:
    """Make a file with the id and the references of ``changes``, and otherwise those of ``root``.

    ``changes`` are of one array. Returns None where the file has to be made from its references:
    if it lacks one that changes, if it holds other arrays, or if too much of it would be additions.
    Of damage nothing is said here: whoever reads the whole file can tell what is wrong where.
    """
    buffer = root.buffer
    layout = Layout(f"manifest {changes.id} with {len(changes)} edits", behind=buffer.size)
    mark = np.array([_MARK, 0], "<u4")
    try:
        pointers = _find_pointers(root, changes)
        if pointers is None:
            return None
        id_place = _free_id_place(root, pointers)
        _, targets = write_refs(layout, changes)
        layout.put(layout.reserve(mark.nbytes), mark)
    except FormatError:
        return None
    added = layout.size - buffer.size + _added_before(buffer)
    if added * _LEAST_PART > layout.size:
        return None
    mark[1] = added
    edits = {id_place: changes.id.raw}
    for place, distance in zip(pointers.tolist(), (targets - pointers).tolist(), strict=True):
        edits[place] = distance.to_bytes(4, "little")
    return pack(
        _edited(buffer, edits, layout),
        layout.size,
        file_type=FileType.MANIFEST,
        spec_version=spec_version,
        level=DEFAULT_LEVEL,
    )


def _added_before(buffer: FlatBuffer) -> int:
    mark, added = buffer.items(buffer.size - 8, 2, np.dtype("<u4")).tolist()
    return int(added) if mark == _MARK else 0


def _free_id_place(root: Tables, pointers: NDArray[np.int64]) -> int:
    """Say where the id stands, which must be a place where nothing else does."""
    place = root.place(schema.Manifest.ID, ManifestId.SIZE)
    others = [schema.Manifest.ARRAYS, schema.Manifest.LOCATION_DICTIONARY]
    taken = [root.place(field, 4) for field in others if root.has(field).any()]
    taken += pointers.tolist()
    if any(place - 4 < other < place + ManifestId.SIZE for other in taken):
        root.buffer.fail("its id stands where a pointer does")
    return place


def _find_pointers(root: Tables, changes: Manifest) -> NDArray[np.int64] | None:
    """Find the pointers to the references that change, for all of them by one bisection."""
    if len(changes.payloads.locations) and root.has(schema.Manifest.LOCATION_DICTIONARY).any():
        return None  # then locations are compressed, all of them
    _, arrays = root.children(schema.Manifest.ARRAYS, "ArrayManifest")
    node_ids = arrays.structs(schema.ArrayManifest.NODE_ID, NodeId.SIZE)
    if not np.array_equal(node_ids, changes.indices.node_ids):
        return None
    vector = arrays.vectors(schema.ArrayManifest.REFS, 4)
    wanted, last = changes.indices.matrix(0), int(vector.count[0]) - 1

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
    # Icechunk 1 may write a reference twice; then both would have to change.
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
        buffer.fail("its chunk references have another number of dimensions than the array")
    _, coords = refs.numbers(indices, "<u4")
    return coords.reshape(len(rows), ndim)


def _edited(buffer: FlatBuffer, edits: Mapping[int, bytes], layout: Layout) -> Iterator[memoryview]:
    """Yield the bytes of a file with some of them replaced, and what was laid out behind them."""
    cursor = 0
    for place, new in sorted(edits.items()):
        yield buffer.bytes[cursor:place].data
        yield memoryview(new)
        cursor = place + len(new)
    yield buffer.bytes[cursor:].data
    yield from layout.pieces()
