"""Whether two storages have the same root."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.storage.forwarding import ForwardingStorage
from icefloe.storage.local import LocalStorage
from icefloe.storage.object_store import ObjectStorage
from icefloe.storage.places import is_same_place

if TYPE_CHECKING:
    from icefloe.storage.interface import Storage


def is_same_root(first: Storage, second: Storage) -> bool:
    """Whether two storages contain the same objects; credentials and settings may differ."""
    while isinstance(first, ForwardingStorage):
        first = first.inner
    while isinstance(second, ForwardingStorage):
        second = second.inner
    if isinstance(first, LocalStorage) and isinstance(second, LocalStorage):
        return first.real_path == second.real_path
    if isinstance(first, ObjectStorage) and isinstance(second, ObjectStorage):
        return is_same_place(first.place, second.place)
    return first is second
