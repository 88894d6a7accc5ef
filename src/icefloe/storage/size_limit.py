"""The limit on the bytes that a get may load into memory. Pure, no I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.errors import ErrorKind, StorageError

if TYPE_CHECKING:
    from icefloe.model.byte_range import Bounded


def require_at_most(max_bytes: int | None, byte_range: Bounded, where: str) -> None:
    """Raise `StorageError` if a range is larger than ``max_bytes``; None means no limit.

    ``where`` is the object, for messages.
    """
    size_bytes = byte_range.end - byte_range.start
    if max_bytes is not None and size_bytes > max_bytes:
        raise StorageError(
            f"{where}: {size_bytes} bytes exceed the maximum of {max_bytes} for this kind of "
            "object; the object is damaged, or of another kind",
            kind=ErrorKind.INVALID_OBJECT_SIZE,
        )
