"""The limit that a caller sets on what one get may bring into memory. Pure, no I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.errors import ErrorKind, StorageError

if TYPE_CHECKING:
    from icefloe.model.byte_range import Bounded


def require_at_most(max_bytes: int | None, wanted: Bounded, where: str) -> None:
    """Raise `StorageError` where more bytes were asked for than the caller allows; None allows all.

    ``wanted`` is what was asked for, as bytes of the object; ``where`` is the object, for messages.
    """
    size_bytes = wanted.end - wanted.start
    if max_bytes is not None and size_bytes > max_bytes:
        raise StorageError(
            f"{where}: {size_bytes} bytes to read, more than the {max_bytes} that an object of "
            "this kind may have; it is damaged, or not what its name says",
            kind=ErrorKind.INVALID_OBJECT_SIZE,
        )
