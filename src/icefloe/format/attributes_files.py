"""Places large attributes of nodes in attributes files, and loads them.

The codec of a generation encodes and decodes the files. Snapshots share them: a node keeps its
reference as long as its attributes do not change.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from icefloe.errors import ErrorKind, FormatError
from icefloe.format.zarr_document import split_document
from icefloe.model.ids import AttributesId
from icefloe.model.node import AttributesRef

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from icefloe.format.generation import Generation
    from icefloe.format.metadata_codec import FetchAttributes
    from icefloe.model.snapshot import Snapshot

ATTRIBUTES_THRESHOLD_BYTES: Final = 4096
"""Attributes whose JSON is longer are stored in attributes files."""

MAX_ATTRIBUTES_BYTES: Final = 1 << 30
"""The maximum size of the metadata of all nodes whose attributes are in attributes files.

Nodes can share a row, so the size of the files does not limit the memory of a reader.
"""


def place_attributes(
    snapshot: Snapshot,
    generation: Generation,
    *,
    encode_row: Callable[[dict[str, Any]], bytes],
    encode_file: Callable[[AttributesId, list[bytes]], bytes],
) -> tuple[Snapshot, Mapping[AttributesId, bytes]]:
    """Put large attributes that are in no file yet into one new file; equal ones share a row.

    Attributes whose row is a JSON string, because they are no JSON object, always are in a file.
    """
    attributes_id = generation.make_id(AttributesId)
    nodes = list(snapshot.nodes)
    rows: dict[bytes, int] = {}
    for index, node in enumerate(nodes):
        if node.attributes_ref is not None or not _may_need_file(node.user_data):
            continue
        row = encode_row(split_document(node.user_data, node.path.value, generation).attributes)
        if len(row) <= ATTRIBUTES_THRESHOLD_BYTES and not row.startswith(b'"'):
            continue
        place = AttributesRef(attributes_id, rows.setdefault(row, len(rows)))
        nodes[index] = replace(node, attributes_ref=place)
    placed = replace(snapshot, nodes=tuple(nodes))
    _require_bounded_size(placed)
    return placed, {attributes_id: encode_file(attributes_id, list(rows))} if rows else {}


@dataclass(slots=True)
class AttributesLoader:
    """Loads the attributes of the nodes of a snapshot; each attributes file is fetched once.

    Parameters
    ----------
    file
        Key of the snapshot, for errors.
    fetch
        Fetches an attributes file.
    decode
        Decodes an attributes file.
    """

    file: str
    fetch: FetchAttributes
    decode: Callable[[bytes | memoryview, str, AttributesId], list[dict[str, Any]]]
    _files: dict[AttributesId, list[dict[str, Any]]] = field(default_factory=dict, init=False)
    _num_bytes: int = field(default=0, init=False)

    def load(self, ref: AttributesRef) -> dict[str, Any]:
        """Return the attributes at a place."""
        if ref.id not in self._files:
            file, data = self.fetch(ref.id)
            self._files[ref.id] = self.decode(data, file, ref.id)
        rows = self._files[ref.id]
        if ref.row >= len(rows):
            raise FormatError(
                f"refers to row {ref.row} of attributes file {ref.id}, which has {len(rows)}",
                file=self.file,
            )
        return rows[ref.row]

    def count(self, user_data: bytes) -> None:
        """Count the metadata of a node whose attributes were loaded; raise above the limit."""
        self._num_bytes += len(user_data)
        if self._num_bytes > MAX_ATTRIBUTES_BYTES:
            raise FormatError(
                f"its nodes have more than {MAX_ATTRIBUTES_BYTES} bytes of attributes",
                file=self.file,
            )


def _may_need_file(user_data: bytes) -> bool:
    return (
        len(user_data) > ATTRIBUTES_THRESHOLD_BYTES
        or b"NaN" in user_data
        or b"Infinity" in user_data
    )


def _require_bounded_size(snapshot: Snapshot) -> None:
    """Raise if a reader would refuse the snapshot."""
    total = sum(len(node.user_data) for node in snapshot.nodes if node.attributes_ref is not None)
    if total > MAX_ATTRIBUTES_BYTES:
        raise FormatError(
            f"the large attributes of all nodes have {total} bytes, more than the limit of "
            f"{MAX_ATTRIBUTES_BYTES}; store them as arrays",
            kind=ErrorKind.SERIALIZATION,
        )
