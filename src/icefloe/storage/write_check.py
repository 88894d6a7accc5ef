"""Checks what commits need from a storage: conditional writes, and a clock close to ours."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from icefloe.errors import PreconditionFailedError, StorageError
from icefloe.storage.interface import Create, Overwrite, UpdateIfMatch

if TYPE_CHECKING:
    from icefloe.storage.interface import PutMode, Storage

_PREFIX: Final = "icefloe-write-check-"


@dataclass(frozen=True, slots=True)
class WriteCheck:
    """Result of `check_writes`: problems of conditional writes, None where they work.

    ``clock_ahead_s`` is by how many seconds the clock of the storage is ahead of ours.
    """

    create_problem: str | None
    update_problem: str | None
    clock_ahead_s: float


def check_writes(storage: Storage) -> WriteCheck:
    """Write a small object with conditions that hold and that do not, and delete it.

    Raises
    ------
    StorageError
        If the storage cannot be written at all.
    """
    key = f"{_PREFIX}{uuid.uuid4().hex}"
    try:
        now = datetime.now(UTC)
        storage.put(key, b"0", Overwrite())
        clock_ahead_s = (storage.head(key).last_modified - now).total_seconds()
        create_problem = _find_wrong_acceptance(storage, key, Create())
        storage.delete_many([key])
        create_problem = create_problem or _find_wrong_rejection(storage, key, Create())
        version = storage.put(key, b"1", Overwrite())
        update_problem = _find_wrong_rejection(storage, key, UpdateIfMatch(version))
        update_problem = update_problem or _find_wrong_acceptance(
            storage, key, UpdateIfMatch(version)
        )
    finally:
        storage.delete_many([key])
    return WriteCheck(create_problem, update_problem, clock_ahead_s)


def _find_wrong_acceptance(storage: Storage, key: str, mode: PutMode) -> str | None:
    """Return a problem if the storage accepts a write whose condition does not hold."""
    try:
        storage.put(key, b"refused", mode)
    except PreconditionFailedError:
        return None
    except StorageError as error:
        return error.message
    return "it wrote although the condition did not hold"


def _find_wrong_rejection(storage: Storage, key: str, mode: PutMode) -> str | None:
    """Return a problem if the storage rejects a write whose condition holds."""
    try:
        storage.put(key, b"accepted", mode)
    except StorageError as error:
        return error.message
    return None
