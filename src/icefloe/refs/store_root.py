"""Repositories of the generation draft whose state is outside of the root of their other files.

``config.yaml`` is with the state, so that the other root, ``store_root``, has immutable files only
and needs no conditional updates (docs/format/draft.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.format.generation import DRAFT
from icefloe.format.keys import STATE
from icefloe.storage.interface import Storage
from icefloe.storage.split_root import SplitRootStorage

if TYPE_CHECKING:
    from icefloe.format.generation import Generation


def add_store_root(storage: Storage, store_root: Storage | None) -> Storage:
    """Return a storage with the state in ``storage`` and all other files in ``store_root``."""
    if store_root is None:
        return storage
    if not isinstance(store_root, Storage):
        raise InvalidInputError(
            f"store_root must be a Storage, not {store_root!r:.80}", kind=ErrorKind.STORAGE_CONFIG
        )
    return SplitRootStorage(storage, store_root)


def get_state_storage(storage: Storage) -> Storage:
    """Return the storage of the state of a repository, without its ``store_root``."""
    return storage.state if isinstance(storage, SplitRootStorage) else storage


def require_no_store_root(storage: Storage, generation: Generation) -> None:
    """Raise if a generation without ``store_root`` shall have one."""
    if generation is not DRAFT and storage.store_root_url is not None:
        raise InvalidInputError(
            f"only the generation {DRAFT.name} can have a store_root, not {generation.name}",
            kind=ErrorKind.STORAGE_CONFIG,
        )


def require_store_root(recorded: str | None, storage: Storage) -> None:
    """Raise unless the caller passed the storage of the root that a state names.

    The URL in a file must not decide where to read, and with which credentials.
    """
    passed = storage.store_root_url
    if recorded == passed:
        return
    if passed is None:
        raise FormatError(
            f"it has a store_root that the caller did not pass, {recorded!r}: if you trust this "
            "location, pass its storage as the argument store_root, or append "
            "?store_root=URL to the URL of the repository",
            file=STATE,
        )
    actual = "names none: leave it out" if recorded is None else f"names {recorded!r}"
    raise FormatError(
        f"the storage passed as store_root is {passed!r}, but the state {actual}", file=STATE
    )
