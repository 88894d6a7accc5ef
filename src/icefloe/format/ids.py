"""Conversion between ids and rows of bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np

from icefloe.model.ids import ObjectId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

Id = TypeVar("Id", bound=ObjectId)


def to_ids(rows: NDArray[np.uint8], kind: type[Id]) -> list[Id]:
    """Convert rows of bytes to ids."""
    raw, size = np.ascontiguousarray(rows).tobytes(), rows.shape[1]
    return [kind(raw[start : start + size]) for start in range(0, len(raw), size)]


def to_id_rows(ids: Sequence[ObjectId], kind: type[ObjectId]) -> NDArray[np.uint8]:
    """Convert ids of one size to rows of bytes."""
    size = len(ids[0].raw) if ids else kind.SIZE
    return np.frombuffer(b"".join([item.raw for item in ids]), np.uint8).reshape(-1, size)
