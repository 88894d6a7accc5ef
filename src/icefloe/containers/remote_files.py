"""Reads virtual chunks from object stores and web servers, and verifies their checksums."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from icefloe.containers.checksums import make_read_condition, matches_checksum, modified_error
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
"""Maximum object size of all stores and clients."""


class RemoteFiles:
    """The files of one bucket or web server; the storage settings limit concurrent requests."""

    def __init__(self, storage: ObjectStorage) -> None:
        self.storage: Final = storage
        concurrency = storage.settings.effective_concurrency
        self._ideal_bytes: Final = concurrency.effective_ideal_concurrent_request_size
        self._max_requests: Final = concurrency.effective_max_concurrent_requests_for_object

    def fetch(
        self, file: VirtualFile, start: int, length: int, checksum: Checksum | None
    ) -> bytes | memoryview:
        """Fetch a range of a file; sends several concurrent requests for a large range."""
        parts = self._plan_requests(file, start, length)
        try:
            if len(parts) == 1:
                return self._fetch_part(file, parts[0], checksum)
            # Joined at the end, not preallocated: the length is untrusted.
            with ThreadPoolExecutor(len(parts)) as pool:
                fetched = pool.map(lambda part: self._fetch_part(file, part, checksum), parts)
                return b"".join(fetched)
        except (StorageError, InvalidInputError) as error:
            failure = error
            info = self._head_or_none(file) if isinstance(error, PreconditionFailedError) else None
        raise _convert_error(file, checksum, failure, info) from failure

    async def fetch_async(
        self, file: VirtualFile, start: int, length: int, checksum: Checksum | None
    ) -> bytes | memoryview:
        """`fetch` without blocking the event loop."""
        parts = self._plan_requests(file, start, length)
        try:
            if len(parts) == 1:
                return await self._fetch_part_async(file, parts[0], checksum)
            coroutines = [self._fetch_part_async(file, part, checksum) for part in parts]
            requests = list(map(asyncio.ensure_future, coroutines))
            try:
                return b"".join(await asyncio.gather(*requests))
            finally:
                for request in requests:  # if one failed, cancels the others
                    request.cancel()
        except (StorageError, InvalidInputError) as error:
            failure, info = error, None
            if isinstance(error, PreconditionFailedError):
                info = await asyncio.to_thread(self._head_or_none, file)
        raise _convert_error(file, checksum, failure, info) from failure

    async def fetch_many_async(
        self, file: VirtualFile, ranges: Sequence[Bounded], checksum: Checksum | None
    ) -> list[bytes | memoryview | Exception]:
        """Fetch several ranges of one file; nearby ranges share a request.

        A shared request does not exceed the ideal request size. The result of a failed range is its
        error. No range may be empty.
        """
        plan = coalesce(ranges, max_request_bytes=self._ideal_bytes)
        fetched = await asyncio.gather(
            *(self._fetch_or_error(file, request, checksum) for request in plan.requests)
        )
        # A range past the end of the file fails the whole request: its ranges are requested again
        # separately. Other errors would recur.
        retries = [
            number
            for number, part in enumerate(plan.slices)
            if _is_too_short(fetched[part.request])
            and plan.requests[part.request] != ranges[number]
        ]
        retried = await asyncio.gather(
            *(self._fetch_or_error(file, ranges[number], checksum) for number in retries)
        )
        results = [_slice_result(fetched[part.request], part) for part in plan.slices]
        for number, result in zip(retries, retried, strict=True):
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

    def _plan_requests(self, file: VirtualFile, start: int, length: int) -> list[Bounded]:
        if start + length > _MAX_END:
            problem = f"not enough data for a virtual chunk: no file has {start + length} bytes"
            raise file.make_error(problem, ErrorKind.INVALID_OBJECT_SIZE)
        ideal_bytes, max_requests = self._ideal_bytes, self._max_requests
        return plan_requests(start, length, ideal_bytes=ideal_bytes, max_requests=max_requests)

    def _fetch_part(
        self, file: VirtualFile, part: Bounded, checksum: Checksum | None
    ) -> bytes | memoryview:
        key = file.location.key
        if checksum is None:
            return self.storage.get_bytes(key, part.start, part.end - part.start)
        fetched = self.storage.get_if(key, part, make_read_condition(checksum))
        return _verify_checksum(file, fetched, checksum)

    async def _fetch_part_async(
        self, file: VirtualFile, part: Bounded, checksum: Checksum | None
    ) -> bytes | memoryview:
        key = file.location.key
        if checksum is None:
            return await self.storage.get_bytes_async(key, part.start, part.end - part.start)
        fetched = await self.storage.get_if_async(key, part, make_read_condition(checksum))
        return _verify_checksum(file, fetched, checksum)

    def _head_or_none(self, file: VirtualFile) -> ObjectInfo | None:
        try:
            return self.storage.head(file.location.key)
        except StorageError:
            return None  # the version is only part of a message


def _is_too_short(result: bytes | memoryview | Exception) -> bool:
    return isinstance(result, StorageError) and result.kind is ErrorKind.INVALID_OBJECT_SIZE


def _slice_result(
    result: bytes | memoryview | Exception, part: Slice
) -> bytes | memoryview | Exception:
    if isinstance(result, Exception) or (part.start == 0 and part.end == len(result)):
        return result
    return memoryview(result)[part.start : part.end]


def _verify_checksum(file: VirtualFile, fetched: Fetched, checksum: Checksum) -> bytes | memoryview:
    etag, modified_at = fetched.info.version.etag, fetched.info.last_modified
    if not matches_checksum(checksum, etag, modified_at):
        raise modified_error(file.label, checksum, etag, modified_at)
    return fetched.data


def _convert_error(
    file: VirtualFile, checksum: Checksum | None, error: Exception, info: ObjectInfo | None
) -> Exception:
    """Convert a storage error to one about a virtual chunk; ``info`` is the current version."""
    match error:
        case PreconditionFailedError() if checksum is not None:
            if info is None:
                return modified_error(file.label, checksum, None, None)
            return modified_error(file.label, checksum, info.version.etag, info.last_modified)
        case StorageError(kind=ErrorKind.VIRTUAL_CHUNK_MODIFIED):
            return error
        case InvalidInputError(kind=ErrorKind.INVALID_BYTE_RANGE):
            problem = f"not enough data for a virtual chunk: {error}"
            return file.make_error(problem, ErrorKind.INVALID_OBJECT_SIZE)
        case InvalidInputError(kind=ErrorKind.INVALID_KEY):
            return file.make_error(f"the object store client cannot request this key: {error}")
        case StorageError():
            return file.make_error(f"could not fetch a virtual chunk: {error}")
        case _:
            return error
