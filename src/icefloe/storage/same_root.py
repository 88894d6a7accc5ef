"""Whether two storages have the same root, or one contains the other."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from icefloe.storage.forwarding import ForwardingStorage
from icefloe.storage.local import LocalStorage
from icefloe.storage.object_store import ObjectStorage
from icefloe.storage.places import is_below, is_same_place

if TYPE_CHECKING:
    from icefloe.storage.interface import Storage


def is_same_root(first: Storage, second: Storage) -> bool:
    """Whether two storages contain the same objects; credentials and settings may differ."""
    first, second = _unwrap(first), _unwrap(second)
    if isinstance(first, LocalStorage) and isinstance(second, LocalStorage):
        return first.real_path == second.real_path
    if isinstance(first, ObjectStorage) and isinstance(second, ObjectStorage):
        return is_same_place(first.place, second.place)
    return first is second


def is_nested(first: Storage, second: Storage) -> bool:
    """Whether the root of one storage is below that of the other, as far as is known."""
    first, second = _unwrap(first), _unwrap(second)
    if isinstance(first, LocalStorage) and isinstance(second, LocalStorage):
        paths = first.real_path, second.real_path
        return paths[0] != paths[1] and os.path.commonpath(paths) in paths
    if isinstance(first, ObjectStorage) and isinstance(second, ObjectStorage):
        return is_below(first.place, second.place) or is_below(second.place, first.place)
    return False


def _unwrap(storage: Storage) -> Storage:
    while isinstance(storage, ForwardingStorage):
        storage = storage.inner
    return storage
