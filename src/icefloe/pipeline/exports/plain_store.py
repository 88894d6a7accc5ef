"""Plain Zarr stores at a path or URL, for exports: no commits, no history.

Directories use Zarr's `LocalStore`. Remote stores use icefloe storage, with credentials from the
environment, and require no further package.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
)
from zarr.storage import LocalStore

from icefloe.errors import ObjectNotFoundError
from icefloe.model.byte_range import Bounded, ByteRange, From, Last
from icefloe.storage import Storage, storage_from_url

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from zarr.core.buffer import Buffer, BufferPrototype


def open_plain_store(target: str | Store) -> Store:
    """Open the Zarr store at a path or URL; a store is returned unchanged."""
    if isinstance(target, Store):
        return target
    if "://" not in target:
        return LocalStore(target)
    return PlainStore(storage_from_url(target))


class PlainStore(Store):
    """A Zarr store on icefloe storage; keys are object names."""

    supports_writes: bool = True
    supports_deletes: bool = True
    supports_listing: bool = True

    def __init__(self, storage: Storage, *, read_only: bool = False) -> None:
        super().__init__(read_only=read_only or storage.read_only)
        self.storage = storage

    def with_read_only(self, read_only: bool = False) -> PlainStore:  # noqa: FBT001, FBT002
        """Return the same store, read-only or writable."""
        return PlainStore(self.storage, read_only=read_only)

    def __eq__(self, value: object) -> bool:
        return isinstance(value, PlainStore) and value.storage.url == self.storage.url

    def __hash__(self) -> int:
        return hash(self.storage.url)

    def __str__(self) -> str:
        return self.storage.url

    def __reduce__(self) -> Any:
        return partial(PlainStore, read_only=self.read_only), (self.storage,)

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Return the value of a key, None if missing."""
        try:
            result = await asyncio.to_thread(self.storage.get, key, _convert_byte_range(byte_range))
        except ObjectNotFoundError:
            return None
        return prototype.buffer.from_bytes(result.data)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """Return byte ranges of several keys."""
        requests = (self.get(key, prototype, byte_range) for key, byte_range in key_ranges)
        return list(await asyncio.gather(*requests))

    async def exists(self, key: str) -> bool:
        """Whether a key has a value."""
        try:
            await asyncio.to_thread(self.storage.head, key)
        except ObjectNotFoundError:
            return False
        return True

    async def set(self, key: str, value: Buffer) -> None:
        """Set the value of a key."""
        self._check_writable()
        await asyncio.to_thread(self.storage.put, key, value.to_bytes())

    async def delete(self, key: str) -> None:
        """Delete a key; a missing one is not an error."""
        self._check_writable()
        await asyncio.to_thread(self.storage.delete_many, [key])

    async def delete_dir(self, prefix: str) -> None:
        """Delete all keys below a prefix, in batches."""
        self._check_writable()
        keys = [key async for key in self.list_prefix(prefix)]
        await asyncio.to_thread(self.storage.delete_many, keys)

    async def list(self) -> AsyncIterator[str]:
        """List all keys."""
        async for key in self.list_prefix(""):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """List the keys below a prefix."""
        below = f"{prefix.rstrip('/')}/" if prefix else ""
        for info in await asyncio.to_thread(lambda: list(self.storage.list(below))):
            yield info.key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """List the names directly below a prefix."""
        below = f"{prefix.rstrip('/')}/" if prefix else ""
        names: set[str] = set()
        async for key in self.list_prefix(prefix):
            name = key[len(below) :].split("/")[0]
            if name not in names:
                names.add(name)
                yield name


def _convert_byte_range(request: ByteRequest | None) -> ByteRange | None:
    match request:
        case RangeByteRequest(start, end):
            return Bounded(start, end)
        case OffsetByteRequest(offset):
            return From(offset)
        case SuffixByteRequest(suffix):
            return Last(suffix)
        case _:
            return None
