"""The obstore client of a storage, for libraries that use obstore."""

from __future__ import annotations

from typing import TYPE_CHECKING

from obstore.store import LocalStore

from icefloe.storage.object_store.clients import Clients
from icefloe.storage.object_store.storage import ObjectStorage

if TYPE_CHECKING:
    from obstore.store import ObjectStore

    from icefloe.storage.interface import Storage


def open_reader(storage: Storage) -> ObjectStore:
    """Return a client that reads the bucket of a storage, or local files by absolute path."""
    if isinstance(storage, ObjectStorage):
        return Clients(storage.place, storage.settings).reader
    return LocalStore()
