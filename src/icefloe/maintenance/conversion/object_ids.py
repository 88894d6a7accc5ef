"""Maps ids of snapshots, manifests and chunks to the id size of another generation.

Shorter ids are padded with zero bytes, longer ones are truncated, equal sizes are kept. So the map
needs no state, and an interrupted conversion finds its files again. The id of the first snapshot
of a generation is mapped to that of the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np

from icefloe.errors import FormatError
from icefloe.model.id_columns import find_unique_rows, format_names
from icefloe.model.ids import ObjectId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from icefloe.model.ids import ManifestId

MapManifestId: TypeAlias = "Callable[[ManifestId], ManifestId]"
"""Maps the id of a manifest in the source to its id in the target."""

Id = TypeVar("Id", bound=ObjectId)


def map_id(object_id: Id, id_size: int) -> Id:
    """Return an id with another size."""
    raw = object_id.raw
    if len(raw) == id_size:
        return object_id
    return type(object_id)(raw[:id_size].ljust(id_size, b"\0"))


def map_id_rows(rows: NDArray[np.uint8], id_size: int) -> NDArray[np.uint8]:
    """Like `map_id`, for a row of bytes per id."""
    width = rows.shape[1]
    if width == id_size:
        return rows
    mapped = np.zeros((len(rows), id_size), np.uint8)
    common = min(width, id_size)
    mapped[:, :common] = rows[:, :common]
    return mapped


def to_rows(ids: Iterable[ObjectId], id_size: int) -> NDArray[np.uint8]:
    """Return a row of bytes per id."""
    raw = b"".join([object_id.raw for object_id in ids])
    return np.frombuffer(raw, np.uint8).reshape(-1, id_size)


def require_distinct(rows: NDArray[np.uint8], id_size: int, kind: str) -> None:
    """Raise if two distinct ids are mapped to the same id; random ids never are."""
    if rows.shape[1] <= id_size:
        return
    ordered = map_id_rows(find_unique_rows(rows), id_size)
    is_repeated = (ordered[1:] == ordered[:-1]).all(axis=1)
    if is_repeated.any():
        name = format_names(ordered[1:][is_repeated][:1])[0]
        raise FormatError(
            f"two {kind} have ids that agree in their first {id_size} bytes ({name}), and the "
            "other generation has no longer ids"
        )
