"""Ids as rows of bytes, which is how tables hold them, and as the types of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np

from icefloe.model.ids import ObjectId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

Id = TypeVar("Id", bound=ObjectId)


def ids_of(rows: NDArray[np.uint8], kind: type[Id]) -> list[Id]:
    """Turn rows of bytes into ids."""
    raw, size = np.ascontiguousarray(rows).tobytes(), kind.SIZE
    return [kind(raw[start : start + size]) for start in range(0, len(raw), size)]


def rows_of(ids: Sequence[ObjectId], kind: type[ObjectId]) -> NDArray[np.uint8]:
    """Turn ids into rows of bytes."""
    return np.frombuffer(b"".join(item.raw for item in ids), np.uint8).reshape(-1, kind.SIZE)
