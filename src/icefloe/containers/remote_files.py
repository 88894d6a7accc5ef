"""Virtual chunks in object stores and on web servers: concurrent ranges, verified on arrival."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from icefloe.containers.checksums import matches_checksum, modified_error, read_condition_for
from icefloe.containers.request_plan import plan_requests
from icefloe.errors import ErrorKind, InvalidInputError, PreconditionFailedError, StorageError
from icefloe.storage.coalescing import coalesce

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icefloe.containers.container_table import VirtualFile
    from icefloe.model.byte_range import Bounded
    from icefloe.model.chunk_payload import Checksum
    from icefloe.storage.coalescing import Slice
    from icefloe.storage.interface import Fetched, ObjectInfo
    from icefloe.storage.object_store import ObjectStorage

_MAX_END: Final = 2**63 - 1
"""Limit of object sizes in all stores and clients."""


class RemoteFiles:
    """The files of one bucket or web server; its settings limit the requests for a large chunk."""

    def __init__(self, storage: ObjectStorage) -> None:
        self.storage: Final = storage
        concurrency = storage.settings.effective_concurrency
        self._ideal_bytes: Final = concurrency.effective_ideal_concurrent_request_size
        self._max_requests: Final = concurrency.effective_max_concurrent_requests_for_object

    def fetch(
        self, file: VirtualFile, start: int, length: int, checksum: Checksum | None
    ) -> bytes | memoryview:
        """Read a range of a file; one request, or several concurrent ones for a large range."""
        parts = self._plan(file, start, length)
        try:
            if len(parts) == 1:
                return self._fetch_part(file, parts[0], checksum)
            # Joined when all have arrived: memory for a range past the end is never allocated.
            with ThreadPoolExecutor(len(parts)) as pool:
                found = pool.map(lambda part: self._fetch_part(file, part, checksum), parts)
                return b"".join(found)
        except (StorageError, InvalidInputError) as error:
            failure = error
            info = self._head_or_none(file) if isinstance(error, PreconditionFailedError) else None
        raise _explain_error(file, checksum, failure, info) from failure

    async def fetch_async(
        self, file: VirtualFile, start: int, length: int, checksum: Checksum | None
    ) -> bytes | memoryview:
        """`fetch` without blocking the event loop."""
        parts = self._plan(file, start, length)
        try:
            if len(parts) == 1:
                return await self._fetch_part_async(file, parts[0], checksum)
            coroutines = [self._fetch_part_async(file, part, checksum) for part in parts]
            requests = list(map(asyncio.ensure_future, coroutines))
            try:
                return b"".join(await asyncio.gather(*requests))
            finally:
                for request in requests:  # the others, if one failed
                    request.cancel()
        except (StorageError, InvalidInputError) as error:
            failure, info = error, None
            if isinstance(error, PreconditionFailedError):
                info = await asyncio.to_thread(self._head_or_none, file)
        raise _explain_error(file, checksum, failure, info) from failure

    async def fetch_many_async(
        self, file: VirtualFile, ranges: Sequence[Bounded], checksum: Checksum | None
    ) -> list[bytes | memoryview | Exception]:
        """Read several ranges of one file; nearby ranges share a request.

        Joined ranges do not exceed the ideal request size, so that no range waits for much more
        than itself. A failed range yields its error. No range may be empty.
        """
        plan = coalesce(ranges, max_request_bytes=self._ideal_bytes)
        found = await asyncio.gather(
            *(self._fetch_or_error(file, request, checksum) for request in plan.requests)
        )
        # A range past the end of the file fails the ranges joined with it: those are requested
        # again separately. Other errors would recur.
        alone = [
            number
            for number, part in enumerate(plan.slices)
            if _is_too_short(found[part.request]) and plan.requests[part.request] != ranges[number]
        ]
        retried = await asyncio.gather(
            *(self._fetch_or_error(file, ranges[number], checksum) for number in alone)
        )
        results = [_slice_result(found[part.request], part) for part in plan.slices]
        for number, result in zip(alone, retried, strict=True):
            results[number] = result
        return results

    async def _fetch_or_error(
        self, file: VirtualFile, byte_range: Bounded, checksum: Checksum | None
    ) -> bytes | memoryview | Exception:
        start, length = byte_range.start, byte_range.end - byte_range.start
        try:
            return await self.fetch_async(file, start, length, checksum)
        except (StorageError, InvalidInputError) as error:
            return error

    def _plan(self, file: VirtualFile, start: int, length: int) -> list[Bounded]:
        if start + length > _MAX_END:
            problem = f"not enough data for a virtual chunk: no file has {start + length} bytes"
            raise file.error(problem, ErrorKind.INVALID_OBJECT_SIZE)
        ideal_bytes, max_requests = self._ideal_bytes, self._max_requests
        return plan_requests(start, length, ideal_bytes=ideal_bytes, max_requests=max_requests)

    def _fetch_part(
        self, file: VirtualFile, part: Bounded, checksum: Checksum | None
    ) -> bytes | memoryview:
        key = file.location.key
        if checksum is None:
            return self.storage.get_bytes(key, part.start, part.end - part.start)
        fetched = self.storage.get_if(key, part, read_condition_for(checksum))
        return _verify_checksum(file, fetched, checksum)

    async def _fetch_part_async(
        self, file: VirtualFile, part: Bounded, checksum: Checksum | None
    ) -> bytes | memoryview:
        key = file.location.key
        if checksum is None:
            return await self.storage.get_bytes_async(key, part.start, part.end - part.start)
        fetched = await self.storage.get_if_async(key, part, read_condition_for(checksum))
        return _verify_checksum(file, fetched, checksum)

    def _head_or_none(self, file: VirtualFile) -> ObjectInfo | None:
        try:
            return self.storage.head(file.location.key)
        except StorageError:
            return None  # only used in a message


def _is_too_short(result: bytes | memoryview | Exception) -> bool:
    return isinstance(result, StorageError) and result.kind is ErrorKind.INVALID_OBJECT_SIZE


def _slice_result(
    result: bytes | memoryview | Exception, part: Slice
) -> bytes | memoryview | Exception:
    if isinstance(result, Exception) or (part.start == 0 and part.end == len(result)):
        return result
    return memoryview(result)[part.start : part.end]


def _verify_checksum(file: VirtualFile, fetched: Fetched, checksum: Checksum) -> bytes | memoryview:
    etag, changed = fetched.info.version.etag, fetched.info.last_modified
    if not matches_checksum(checksum, etag, changed):
        raise modified_error(file.label, checksum, etag, changed)
    return fetched.data


def _explain_error(
    file: VirtualFile, checksum: Checksum | None, error: Exception, found: ObjectInfo | None
) -> Exception:
    """Turn an error of a storage into one about a virtual chunk."""
    match error:
        case PreconditionFailedError() if checksum is not None:
            if found is None:
                return modified_error(file.label, checksum, None, None)
            return modified_error(file.label, checksum, found.version.etag, found.last_modified)
        case StorageError(kind=ErrorKind.VIRTUAL_CHUNK_MODIFIED):
            return error
        case InvalidInputError(kind=ErrorKind.INVALID_BYTE_RANGE):
            problem = f"not enough data for a virtual chunk: {error}"
            return file.error(problem, ErrorKind.INVALID_OBJECT_SIZE)
        case StorageError():
            return file.error(f"could not fetch a virtual chunk: {error}")
        case _:
            return error
