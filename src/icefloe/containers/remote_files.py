"""Virtual chunks in object stores and on web servers: ranges in parallel, checked on arrival."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from icefloe.containers.checksums import matches_checksum, modified_error, read_condition_for
from icefloe.containers.request_plan import plan_requests
from icefloe.errors import (
    ErrorKind,
    InvalidInputError,
    PreconditionFailedError,
    StorageError,
)
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
"""No store has larger objects, and no client takes larger numbers."""


class RemoteFiles:
    """The files of one bucket or web server.

    Parameters
    ----------
    storage
        Its settings say into how many requests a large chunk is split.
    """

    is_low_latency = False

    def __init__(self, storage: ObjectStorage) -> None:
        self.storage: Final = storage
        concurrency = storage.settings.effective_concurrency
        self._ideal_bytes: Final = concurrency.effective_ideal_concurrent_request_size
        self._max_requests: Final = concurrency.effective_max_concurrent_requests_for_object

    def fetch(
        self, file: VirtualFile, start: int, length: int, checksum: Checksum | None
    ) -> bytes | memoryview:
        """Read a range of a file; one request, or several at once for a large range."""
        parts = self._plan(file, start, length)
        try:
            if len(parts) == 1:
                return self._fetch_part(file, parts[0], checksum)
            # Joined only when all are here: a range that the file does not have must not make
            # room for itself first.
            with ThreadPoolExecutor(len(parts)) as pool:
                return b"".join(
                    pool.map(lambda part: self._fetch_part(file, part, checksum), parts)
                )
        except (StorageError, InvalidInputError) as error:
            failure = error
            found = self._look(file) if isinstance(error, PreconditionFailedError) else None
        raise _explain_error(file, checksum, failure, found) from failure

    async def fetch_async(
        self, file: VirtualFile, start: int, length: int, checksum: Checksum | None
    ) -> bytes | memoryview:
        """Do as `fetch`, while the running event loop goes on."""
        parts = self._plan(file, start, length)
        try:
            if len(parts) == 1:
                return await self._fetch_part_async(file, parts[0], checksum)
            requests = [
                asyncio.ensure_future(self._fetch_part_async(file, part, checksum))
                for part in parts
            ]
            try:
                return b"".join(await asyncio.gather(*requests))
            finally:
                for request in requests:  # where one failed, nobody waits for the others
                    request.cancel()
        except (StorageError, InvalidInputError) as error:
            failure = error
            found = (
                await asyncio.to_thread(self._look, file)
                if isinstance(error, PreconditionFailedError)
                else None
            )
        raise _explain_error(file, checksum, failure, found) from failure

    async def fetch_many_async(
        self, file: VirtualFile, ranges: Sequence[Bounded], checksum: Checksum | None
    ) -> list[bytes | memoryview | Exception]:
        """Read several ranges of one file, as `fetch_async` reads one; neighbours share a request.

        What is joined is at most as large as a request should be, so that nothing waits for much
        more than itself. Where a range cannot be had its error is the answer for it. None of the
        ranges may be empty.
        """
        plan = coalesce(ranges, max_request_bytes=self._ideal_bytes)
        found = await asyncio.gather(
            *(self._fetch_or_error(file, one, checksum) for one in plan.requests)
        )
        # A range that reaches past the end of the file fails for its neighbours as well: those are
        # asked for again, by themselves. Other errors would only come again.
        alone = [
            number
            for number, part in enumerate(plan.slices)
            if _is_too_short(found[part.request]) and plan.requests[part.request] != ranges[number]
        ]
        again = await asyncio.gather(
            *(self._fetch_or_error(file, ranges[number], checksum) for number in alone)
        )
        answers = [_part(found[part.request], part) for part in plan.slices]
        for number, answer in zip(alone, again, strict=True):
            answers[number] = answer
        return answers

    async def _fetch_or_error(
        self, file: VirtualFile, wanted: Bounded, checksum: Checksum | None
    ) -> bytes | memoryview | Exception:
        try:
            return await self.fetch_async(file, wanted.start, wanted.end - wanted.start, checksum)
        except (StorageError, InvalidInputError) as error:
            return error

    def _plan(self, file: VirtualFile, start: int, length: int) -> list[Bounded]:
        if start + length > _MAX_END:
            raise StorageError(
                f"{file.shown}: not enough data for a virtual chunk: no file has {start + length} "
                "bytes",
                kind=ErrorKind.INVALID_OBJECT_SIZE,
            )
        return plan_requests(
            start, length, ideal_bytes=self._ideal_bytes, max_requests=self._max_requests
        )

    def _fetch_part(
        self, file: VirtualFile, part: Bounded, checksum: Checksum | None
    ) -> bytes | memoryview:
        key = file.location.key
        if checksum is None:
            return self.storage.get_bytes(key, part.start, part.end - part.start)
        return _verify_checksum(
            file, self.storage.get_if(key, part, read_condition_for(checksum)), checksum
        )

    async def _fetch_part_async(
        self, file: VirtualFile, part: Bounded, checksum: Checksum | None
    ) -> bytes | memoryview:
        key = file.location.key
        if checksum is None:
            return await self.storage.get_bytes_async(key, part.start, part.end - part.start)
        fetched = await self.storage.get_if_async(key, part, read_condition_for(checksum))
        return _verify_checksum(file, fetched, checksum)

    def _look(self, file: VirtualFile) -> ObjectInfo | None:
        try:
            return self.storage.head(file.location.key)
        except StorageError:
            return None  # only for a message, which then says less


def _is_too_short(answer: bytes | memoryview | Exception) -> bool:
    return isinstance(answer, StorageError) and answer.kind is ErrorKind.INVALID_OBJECT_SIZE


def _part(answer: bytes | memoryview | Exception, part: Slice) -> bytes | memoryview | Exception:
    if isinstance(answer, Exception):
        return answer
    if part.start == 0 and part.end == len(answer):
        return answer
    return memoryview(answer)[part.start : part.end]


def _verify_checksum(file: VirtualFile, fetched: Fetched, checksum: Checksum) -> bytes | memoryview:
    etag, changed = fetched.info.version.etag, fetched.info.last_modified
    if not matches_checksum(checksum, etag, changed):
        raise modified_error(file.shown, checksum, etag, changed)
    return fetched.data


def _explain_error(
    file: VirtualFile, checksum: Checksum | None, error: Exception, found: ObjectInfo | None
) -> Exception:
    """Say what an error of a storage means for a virtual chunk."""
    match error:
        case PreconditionFailedError() if checksum is not None:
            if found is None:
                return modified_error(file.shown, checksum, None, None)
            return modified_error(file.shown, checksum, found.version.etag, found.last_modified)
        case StorageError(kind=ErrorKind.VIRTUAL_CHUNK_MODIFIED):
            return error
        case InvalidInputError(kind=ErrorKind.INVALID_BYTE_RANGE):
            return StorageError(
                f"{file.shown}: not enough data for a virtual chunk: {error}",
                kind=ErrorKind.INVALID_OBJECT_SIZE,
            )
        case StorageError():
            return StorageError(
                f"{file.shown}: could not fetch a virtual chunk: {error}",
                kind=ErrorKind.VIRTUAL_CHUNK_FETCH,
            )
        case _:
            return error
