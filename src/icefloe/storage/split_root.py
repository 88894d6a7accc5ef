"""A storage whose mutable files are in another root than its immutable files."""

from __future__ import annotations

import copy
from contextlib import suppress
from heapq import merge
from typing import TYPE_CHECKING, Final, Self

from icefloe.errors import (
    AbsentOrDeniedError,
    ErrorKind,
    InvalidInputError,
    ObjectNotFoundError,
    ReadOnlyError,
)
from icefloe.storage.forwarding import ForwardingStorage
from icefloe.storage.interface import AbandonedUploads, Fresh, ObjectInfo, Overwrite, PutMode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime

    from icefloe.model.byte_range import Bounded, ByteRange
    from icefloe.storage.interface import Fetched, Storage, Version


# The files of generation draft that change (docs/format/draft.md).
STATE_KEYS: Final = frozenset(("config.yaml", "state.json"))


class SplitRootStorage(ForwardingStorage):
    """Sends requests for ``state_keys`` to ``state``, and all others to ``data``.

    Its URL is that of ``state``. Settings apply to ``data``; ``state`` keeps its own, so that
    unsafe settings for the data do not make commits unsafe. Other keys in the root of ``state``,
    and ``state_keys`` in the root of ``data``, are neither read nor listed.
    """

    def __init__(
        self, state: Storage, data: Storage, state_keys: frozenset[str] = STATE_KEYS
    ) -> None:
        if data.url == state.url and data.url != "memory://":
            problem = f"store_root is the location of the state itself, {state.url}: leave it out"
        elif state.store_root_url is not None or data.store_root_url is not None:
            problem = f"{state.url}: store_root is given twice"
        else:
            problem = None
        if problem is not None:
            raise InvalidInputError(problem, kind=ErrorKind.STORAGE_CONFIG)
        super().__init__(data)
        self._state = state
        self._state_keys = state_keys

    @property
    def state(self) -> Storage:
        """The storage of ``state_keys``."""
        return self._state

    @property
    def url(self) -> str:
        return self._state.url

    @property
    def store_root_url(self) -> str:
        return self._inner.url

    @property
    def read_only(self) -> bool:
        return self._state.read_only or self._inner.read_only

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._state!r}, {self._inner!r})"

    def with_user_agent(self, user_agent: str) -> Self:
        clone = copy.copy(self)
        clone._state = self._state.with_user_agent(user_agent)  # noqa: SLF001 - a private attribute of the same class
        clone._inner = self._inner.with_user_agent(user_agent)  # noqa: SLF001
        return clone

    def get(
        self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int | None = None
    ) -> Fetched:
        return self._choose(key).get(key, byte_range, max_bytes=max_bytes)

    def get_if_changed(
        self, key: str, version: Version, *, max_bytes: int | None = None
    ) -> Fetched | None:
        return self._choose(key).get_if_changed(key, version, max_bytes=max_bytes)

    def get_ranges(self, key: str, ranges: Sequence[Bounded]) -> list[bytes | memoryview]:
        return self._choose(key).get_ranges(key, ranges)

    def get_bytes(self, key: str, start: int, length: int) -> bytes | memoryview:
        return self._choose(key).get_bytes(key, start, length)

    async def get_bytes_async(self, key: str, start: int, length: int) -> bytes | memoryview:
        return await self._choose(key).get_bytes_async(key, start, length)

    def put(self, key: str, data: bytes | memoryview, mode: PutMode = Overwrite()) -> Version:  # noqa: B008
        self._require_writable()
        if key in self._state_keys and not isinstance(mode, Fresh):
            # The new state may refer to objects in the other root, which must survive a failure.
            self._inner.flush_fresh()
        return self._choose(key).put(key, data, mode)

    async def put_async(self, key: str, data: bytes | memoryview) -> Version:
        self._require_writable()
        return await self._choose(key).put_async(key, data)

    def delete_many(self, keys: Iterable[str]) -> None:
        self._require_writable()
        all_keys = list(keys)
        if state_keys := [key for key in all_keys if key in self._state_keys]:
            self._state.delete_many(state_keys)
        self._inner.delete_many([key for key in all_keys if key not in self._state_keys])

    def head(self, key: str) -> ObjectInfo:
        return self._choose(key).head(key)

    def copy(self, source: str, target: str) -> None:
        self._require_writable()
        if self._choose(source) is self._choose(target):
            self._choose(source).copy(source, target)
        else:
            self.put(target, self.get(source).data)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List the objects below ``prefix``; one more request for each key of ``state`` there."""
        others = (info for info in self._inner.list(prefix) if info.key not in self._state_keys)
        return merge(self._find_state_objects(prefix), others, key=lambda info: info.key)

    def flush_fresh(self) -> None:
        self._state.flush_fresh()
        self._inner.flush_fresh()

    def delete_abandoned_uploads(
        self, *, before: datetime, dry_run: bool = False
    ) -> AbandonedUploads:
        found = [
            storage.delete_abandoned_uploads(before=before, dry_run=dry_run)
            for storage in (self._state, self._inner)
        ]
        return AbandonedUploads(
            sum(uploads.num_files for uploads in found), sum(uploads.num_bytes for uploads in found)
        )

    def _choose(self, key: str) -> Storage:
        return self._state if key in self._state_keys else self._inner

    def _find_state_objects(self, prefix: str) -> Iterator[ObjectInfo]:
        for key in sorted(key for key in self._state_keys if key.startswith(prefix)):
            with suppress(ObjectNotFoundError, AbsentOrDeniedError):
                yield self._state.head(key)

    def _require_writable(self) -> None:
        if self.read_only:
            url = self.url if self._state.read_only else self.store_root_url
            raise ReadOnlyError(f"{url} is read-only: open it with write access")
