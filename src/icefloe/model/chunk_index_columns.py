"""Columnar chunk indices of arrays, as in manifests and transaction logs.

As the format requires, rows are grouped by array, arrays are sorted by the bytes of their node ids,
and the rows of an array are sorted lexicographically by coordinates.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.model.columns import freeze_columns, to_offsets
from icefloe.model.ids import NodeId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class ChunkIndexColumns:
    """Chunk indices of several arrays.

    Array ``i`` has the rows ``row_offsets[i]:row_offsets[i + 1]``. ``coords`` concatenates the
    coordinates of all arrays: array ``i`` has ``(row_offsets[i + 1] - row_offsets[i]) * ndims[i]``
    entries, starting at ``coord_starts[i]``.
    """

    node_ids: NDArray[np.uint8]
    row_offsets: NDArray[np.int64]
    ndims: NDArray[np.int64]
    coords: NDArray[np.uint32]

    def __post_init__(self) -> None:
        freeze_columns(self)

    @classmethod
    def of(cls, arrays: Mapping[NodeId, NDArray[np.uint32]]) -> ChunkIndexColumns:
        """Build columns from one ``u4[n, ndim]`` matrix per array, in any order."""
        return cls.of_sorted([(node_id, sort_rows(arrays[node_id])) for node_id in sorted(arrays)])

    @classmethod
    def of_sorted(cls, arrays: Sequence[tuple[NodeId, NDArray[np.uint32]]]) -> ChunkIndexColumns:
        """Build columns from sorted matrices, ordered by node id; a single matrix is not copied."""
        raw = b"".join(node_id.raw for node_id, _ in arrays)
        flat = [matrix.reshape(-1) for _, matrix in arrays] or [np.zeros(0, np.uint32)]
        return cls(
            np.frombuffer(raw, np.uint8).reshape(-1, NodeId.SIZE),
            to_offsets([len(matrix) for _, matrix in arrays]),
            np.array([matrix.shape[1] for _, matrix in arrays], np.int64),
            flat[0] if len(flat) == 1 else np.concatenate(flat),
        )

    def __len__(self) -> int:
        return int(self.row_offsets[-1])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ChunkIndexColumns):
            return NotImplemented
        columns = ("node_ids", "row_offsets", "ndims", "coords")
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in columns)

    def __hash__(self) -> int:
        return hash((self.node_ids.tobytes(), self.coords.tobytes()))

    def __repr__(self) -> str:
        return f"<{len(self)} chunk indices of {len(self.node_ids)} arrays>"

    @property
    def num_arrays(self) -> int:
        """The number of arrays."""
        return len(self.node_ids)

    @property
    def nbytes(self) -> int:
        """The size of the coordinates in memory."""
        return int(self.coords.nbytes)

    @property
    def coord_starts(self) -> NDArray[np.int64]:
        """The start of each array in ``coords``, and the length of ``coords`` as the last entry."""
        return to_offsets(np.diff(self.row_offsets) * self.ndims)

    def iter_node_ids(self) -> Iterator[NodeId]:
        """Yield the node ids, in order."""
        return (NodeId(row.tobytes()) for row in self.node_ids)

    def find_array(self, node_id: NodeId) -> int | None:
        """Return the position of an array in ``node_ids``, or None."""
        raw_id = _require_node_id(node_id)
        position = bisect_left(
            range(len(self.node_ids)), raw_id, key=lambda row: self.node_ids[row].tobytes()
        )
        if position < len(self.node_ids) and self.node_ids[position].tobytes() == raw_id:
            return position
        return None

    def get_coords(self, position: int) -> NDArray[np.uint32]:
        """Return the coordinates of the array at a position as a ``u4[n, ndim]`` view."""
        starts = self.coord_starts
        flat = self.coords[starts[position] : starts[position + 1]]
        rows = int(self.row_offsets[position + 1] - self.row_offsets[position])
        return flat.reshape(rows, int(self.ndims[position]))


class LazyChunkIndices(ChunkIndexColumns):
    """Chunk indices of a small file: ``raw_ids`` are known, and the columns are read on access.

    ``nbytes`` is the size of the file. Only reading the columns checks the indices.
    """

    __slots__ = ("_nbytes", "_raw_ids", "_read")
    _nbytes: int
    _raw_ids: Sequence[bytes]
    _read: Callable[[], ChunkIndexColumns]

    def __init__(
        self, raw_ids: Sequence[bytes], nbytes: int, read: Callable[[], ChunkIndexColumns]
    ) -> None:
        object.__setattr__(self, "_raw_ids", raw_ids)
        object.__setattr__(self, "_nbytes", nbytes)
        object.__setattr__(self, "_read", read)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # Python calls this for attributes that are not set.
            if name in ChunkIndexColumns.__slots__:
                columns = self._read()
                for column in ChunkIndexColumns.__slots__:
                    object.__setattr__(self, column, getattr(columns, column))
            return object.__getattribute__(self, name)

    def __reduce__(self) -> Any:
        values = [getattr(self, column) for column in ChunkIndexColumns.__slots__]
        return ChunkIndexColumns, tuple(values)

    @property
    def num_arrays(self) -> int:
        """The number of arrays."""
        return len(self._raw_ids)

    @property
    def nbytes(self) -> int:
        """The size in memory, with that of the file, which is kept."""
        return 2 * self._nbytes

    def find_array(self, node_id: NodeId) -> int | None:
        """Return the position of an array in ``node_ids``, or None."""
        raw_id = _require_node_id(node_id)
        return self._raw_ids.index(raw_id) if raw_id in self._raw_ids else None


def _require_node_id(node_id: NodeId) -> bytes:
    if not isinstance(node_id, NodeId):
        raise InvalidInputError(
            f"expected a NodeId, got {node_id!r:.80}", kind=ErrorKind.INVALID_SNAPSHOT_ID
        )
    return node_id.raw


def find_row(matrix: NDArray[np.uint32], indices: tuple[int, ...]) -> int | None:
    """Return the number of the row that equals ``indices`` in a sorted matrix, or None."""
    low, high = 0, len(matrix)
    if matrix.shape[1] != len(indices):
        return None
    for axis, coord in enumerate(indices):
        column = matrix[:, axis]
        low = bisect_left(column, coord, low, high)
        high = bisect_left(column, coord + 1, low, high)
    return low if low < high else None


def is_strictly_sorted(matrix: NDArray[np.uint32]) -> bool:
    """Whether the rows are sorted and distinct."""
    return bool(is_row_less(matrix[:-1], matrix[1:]).all())


def is_row_less(
    before: NDArray[np.unsignedinteger], after: NDArray[np.unsignedinteger]
) -> NDArray[np.bool_]:
    """Return a mask of the rows where ``before`` is less than ``after``, lexicographically."""
    result = np.zeros(len(before), bool)
    for axis in range(before.shape[1] - 1, -1, -1):
        left, right = before[:, axis], after[:, axis]
        result = (left < right) | ((left == right) & result)
    return result


def find_sort_order(matrix: NDArray[np.uint32]) -> NDArray[np.int64] | None:
    """Return the row numbers in lexicographic order, or None if rows are sorted and distinct."""
    if is_strictly_sorted(matrix):
        return None
    # `lexsort` needs at least one key; scalar arrays have none.
    if not matrix.shape[1]:
        return np.arange(len(matrix))
    return np.lexsort(tuple(matrix[:, axis] for axis in range(matrix.shape[1] - 1, -1, -1)))


def sort_rows(matrix: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Sort the rows of a matrix lexicographically."""
    order = find_sort_order(matrix)
    return matrix if order is None else matrix[order]
