"""Creation of an object that an interrupted attempt may have created already."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.errors import PreconditionFailedError
from icefloe.storage.interface import Create

if TYPE_CHECKING:
    from icefloe.storage.interface import Storage


def create_or_compare(storage: Storage, key: str, data: bytes) -> None:
    """Create an object; raise `PreconditionFailedError` if it exists with other content."""
    try:
        storage.put(key, data, Create())
    except PreconditionFailedError:
        if storage.head(key).size_bytes != len(data) or bytes(storage.get(key).data) != data:
            raise
