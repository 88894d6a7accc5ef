"""The claim of a creator: an object that excludes creators of other repositories at its place.

Creators of different generations write different objects, so without the claim both could succeed,
and one with another configuration could write it into the repository of the other. Creators with
the same generation and configuration share a claim: at most one of them succeeds. Other creators
wait for the holder of the claim. A claim that stays for long belongs to a creator that was killed,
and is deleted; creations take a few requests. A creator that was only suspended notices that before
its last write.
"""

from __future__ import annotations

import hashlib
import json
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from icefloe.errors import (
    AlreadyExistsError,
    ErrorKind,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
)
from icefloe.format.keys import CREATION
from icefloe.refs.config_file import encode_config
from icefloe.storage.interface import Create

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.format.generation import Generation
    from icefloe.model.config import RepositoryConfig
    from icefloe.storage.interface import Fetched, Storage

PATIENCE_S = 10.0
"""How long creators wait for another one, which may have been killed."""

_PAUSE_S: Final = 0.1
_MAX_BYTES: Final = 4096


@dataclass(slots=True)
class Claim:
    """The claim of this creator, or one that it shares (``is_own`` is False)."""

    storage: Storage
    data: bytes
    is_own: bool
    begun_s: float

    def require(self) -> None:
        """Raise if another creator may have deleted the claim, because this one was suspended.

        One request if that is possible, otherwise none.
        """
        if time.monotonic() - self.begun_s < PATIENCE_S / 2:
            return
        with suppress(ObjectNotFoundError):
            if bytes(self.storage.get(CREATION, max_bytes=_MAX_BYTES).data) == self.data:
                return
        self.is_own = False  # so that it is not released
        raise AlreadyExistsError(
            f"another process creates a repository at {self.storage.url}: open it instead",
            kind=ErrorKind.PARENT_DIRECTORY_NOT_CLEAN,
        )


@contextmanager
def hold_claim(
    storage: Storage, generation: Generation, config: RepositoryConfig | None
) -> Iterator[Claim]:
    """Hold the claim for a while.

    The caller must look for a repository then: another creator may have held the claim before.
    """
    settings = b"" if config is None else encode_config(config)
    content = {"generation": generation.name, "config_sha256": hashlib.sha256(settings).hexdigest()}
    data = json.dumps(content).encode()
    claim = Claim(storage, data, _claim(storage, data), time.monotonic())
    try:
        yield claim
    except BaseException:
        if claim.is_own:  # and not shared with a creator that may still succeed
            _release(storage)
        raise
    _release(storage)


def _claim(storage: Storage, data: bytes) -> bool:
    """Return whether the claim was written, and not found."""
    found: Fetched | None = None
    deadline = 0.0
    while True:
        with suppress(PreconditionFailedError):
            storage.put(CREATION, data, Create())
            return True
        try:
            current = storage.get(CREATION, max_bytes=_MAX_BYTES)
        except ObjectNotFoundError:  # released in between
            continue
        if bytes(current.data) == data:
            return False
        if found is None or current.info.version != found.info.version:
            found, deadline = current, time.monotonic() + PATIENCE_S
        elif time.monotonic() > deadline:
            _release(storage)
        time.sleep(_PAUSE_S)


def _release(storage: Storage) -> None:
    with suppress(StorageError):  # a claim that cannot be deleted only remains
        storage.delete_many([CREATION])
