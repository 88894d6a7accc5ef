"""Insertion of chunk references into a manifest file, without decoding the other references.

A commit that adds few chunks to an array copies the tables of all older references as bytes, behind
a new vector of pointers, and appends the new tables.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.format import schema
from icefloe.format.direct_indices import iter_indices, read_index
from icefloe.format.direct_manifest import add_refs, begin_manifest
from icefloe.format.direct_reader import DirectBuffer
from icefloe.format.direct_writer import DirectWriter
from icefloe.format.flatbuffer_reader import FlatBuffer, Tables

if TYPE_CHECKING:
    from icefloe.format.direct_reader import DirectTable
    from icefloe.model.manifest import Manifest

_M, _A, _R = schema.Manifest, schema.ArrayManifest, schema.ChunkRef
_ALIGN = 8  # of the copied bytes, which contain numbers of eight bytes


def insert_refs(body: bytes, file: str, changes: Manifest) -> tuple[DirectWriter, int] | None:
    """Return a writer with the file that has the id and also the references of ``changes``.

    ``changes`` has one array. Also returns the position of the root. Returns None if the file must
    be rewritten: it has one of the references, other arrays, or compressed locations. The caller
    must check that the references of the file are sorted.
    """
    root = DirectBuffer(body, file).get_root("Manifest")
    arrays = root.get_tables(_M.ARRAYS, "ArrayManifest")
    ((node_id, indices),) = iter_indices(changes.indices)
    if root.has(_M.LOCATION_DICTIONARY) or [a.read_struct(_A.NODE_ID) for a in arrays] != [node_id]:
        return None
    old_vector, count = arrays[0].find_vector(_A.REFS, 4) or (0, 0)
    rows = [_find_row(root, old_vector, count, index) for index in indices]
    if not count or None in rows:
        return None

    pointers = old_vector + 4 * np.arange(count)
    old_refs = pointers + np.frombuffer(body, "<u4", count, old_vector)
    # Pointers lead forward, except those to vtables. So the references can be moved together with
    # everything behind their vector, if they and their vtables are there.
    old_start = old_vector + 4 * count
    old_start += -old_start % _ALIGN
    if Tables(FlatBuffer(body, file), old_refs, "ChunkRef").find_first_byte() < old_start:
        old_start = 0
    writer = DirectWriter()
    root_position, vectors = begin_manifest(writer, changes.id, [(node_id, count + len(indices))])
    start = writer.align(_ALIGN)
    writer.out += memoryview(body)[old_start:]
    writer.align(_ALIGN)
    new_refs = add_refs(writer, indices, changes.payloads)
    refs = np.insert(old_refs + (start - old_start), np.array(rows, np.int64), new_refs)
    writer.set_pointers(vectors[0], refs)
    return writer, root_position


def _find_row(root: DirectTable, vector: int, count: int, index: tuple[int, ...]) -> int | None:
    """Return the row before which a reference belongs; None if there is one already."""

    def read(row: int) -> tuple[Any, ...]:
        return read_index(root.buffer.get_table(vector + 4 * row, "ChunkRef", row), _R.INDEX)

    # Chunks are mostly appended.
    row = count if count and read(count - 1) < index else bisect_left(range(count), index, key=read)
    return None if row < count and read(row) == index else row
