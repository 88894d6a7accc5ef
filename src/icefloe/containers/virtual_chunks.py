"""The virtual chunks of a repository, as sessions see them: what may be referenced, and the bytes.

Sessions ask `VirtualChunks` before they store a reference and whenever they read through one. It
knows the containers and what the user authorised, and keeps a client for each container in use.
Reads are thread safe. Seed `002`, Reading virtual chunks.
"""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from icefloe.containers.authorization import (
    AsRepository,
    ContainerAccess,
    format_authorization,
    resolve_access,
    unauthorized_error,
)
from icefloe.containers.container_table import ContainerTable, VirtualFile, is_local
from icefloe.containers.default_containers import default_containers
from icefloe.containers.local_files import LocalFiles
from icefloe.containers.location_scan import find_containers, resolve_locations
from icefloe.containers.remote_files import RemoteFiles
from icefloe.containers.stores import find_repository_place, is_on_repository_platform, open_store
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.model.byte_range import Bounded
from icefloe.model.manifest import NO_CODE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from icefloe.containers.authorization import Access
    from icefloe.containers.location_scan import ResolvedLocations
    from icefloe.model.chunk_payload import VirtualChunkRef
    from icefloe.model.containers import VirtualChunkContainer
    from icefloe.model.storage_settings import StorageSettings
    from icefloe.model.strings import Strings
    from icefloe.storage.credentials import AnyCredential
    from icefloe.storage.interface import Storage
    from icefloe.storage.places import Place

_REMEMBERED_LOCATIONS: Final = 4096
"""Many chunks lie in few files: the same locations are looked up again and again."""
_MAX_FETCHERS: Final = 256
"""Clients that are kept; where a location names the bucket, a repository could name any number."""


class Reach(NamedTuple):
    """What is needed to open files where virtual chunks lie: places, and what opens each."""

    table: ContainerTable
    access: Mapping[str, Access]
    home: Place | None
    settings: StorageSettings


class VirtualChunks:
    """Reads virtual chunks from the containers that the user authorised.

    It pickles, with the credentials; the copy makes clients of its own. Its repr shows neither.

    Parameters
    ----------
    containers
        Those of the repository; which one holds a location does not depend on their order. None
        where its configuration says nothing about containers: the default ones apply.
    credentials
        What the user opened, by the URL prefix or the name of the container. None as a credential
        opens one without saying how: S3 is then read anonymously where the container says so, with
        the repository's credentials where it is on the same endpoint, else with the environment's;
        GCS and Azure with the repository's credentials in the same place, else anonymously.
        What is not named can be read only on the repository's own platform, and if this is an empty
        mapping, which says that nothing may be, not even there.
    repository
        Where the repository itself is. Its settings for requests apply here too.

    Raises
    ------
    InvalidInputError
        If a key of ``credentials`` names no container, or a credential is of another kind than the
        store of its container.
    """

    def __init__(
        self,
        containers: Sequence[VirtualChunkContainer] | None,
        credentials: Mapping[str, AnyCredential | None] | None,
        repository: Storage,
    ) -> None:
        self._home, self._settings = find_repository_place(repository)
        self._has_defaults = containers is None
        if containers is None:
            containers = default_containers(self._home)
        self._containers = tuple(containers)
        table = ContainerTable(self._containers)
        self._access: dict[str, Access] = dict(resolve_access(table, credentials or {}))
        if credentials is None or credentials:
            for known in table.known:
                if is_on_repository_platform(known.container.store, self._home):
                    self._access.setdefault(known.container.url_prefix, AsRepository())
        self._start(table)

    def _start(self, table: ContainerTable) -> None:
        """Make what does not pickle."""
        self._table = table
        self._find = lru_cache(_REMEMBERED_LOCATIONS)(table.find)
        self._fetchers: dict[tuple[str, str], LocalFiles | RemoteFiles] = {}
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        names = ("_containers", "_access", "_home", "_settings", "_has_defaults")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start(ContainerTable(self._containers))

    def __repr__(self) -> str:
        return f"<VirtualChunks: {self._table.format_known()}; {len(self._access)} authorised>"

    @property
    def authorized_prefixes(self) -> set[str]:
        """The URL prefixes of the containers that can be read."""
        return set(self._access)

    @property
    def reach(self) -> Reach:
        """The containers, and how files in them are opened; holds the credentials."""
        return Reach(self._table, self._access, self._home, self._settings)

    def containers(self) -> list[ContainerAccess]:
        """List the containers, in the order in which they are looked up, and how each is read."""
        return [
            ContainerAccess(
                container=known.container,
                is_default=self._has_defaults,
                is_authorized=known.container.url_prefix in self._access,
                uses_repository_credentials=isinstance(
                    self._access.get(known.container.url_prefix), AsRepository
                ),
                authorization=format_authorization(known.container),
            )
            for known in self._table.known
        ]

    def validate(self, location: str) -> None:
        """Check that a reference to this location may be stored.

        Raises
        ------
        InvalidInputError
            Of kind ``INVALID_VIRTUAL_REF`` if it is no URL of an object, and of kind
            ``NO_CONTAINER_FOR_VIRTUAL_CHUNK`` if no container holds it.
        """
        self._find(location)

    def validate_many(self, locations: Strings) -> NDArray[np.bool_]:
        """Tell of each location whether a reference to it may be stored: `validate`, by columns."""
        is_held: NDArray[np.bool_] = find_containers(self._table, locations) != NO_CODE
        return is_held

    def place(self, location: str) -> str | None:
        """Tell where the file of a location is, None if no container holds it."""
        try:
            return self._find(location).location.text
        except InvalidInputError:
            return None

    def resolve_many(self, locations: Strings) -> ResolvedLocations:
        """Tell of each location which of `containers` holds it, and which file it is."""
        return resolve_locations(self._table, locations)

    def find_container(self, name_or_prefix: str) -> int:
        """Find one of `containers` by its name or its URL prefix."""
        known = self._table.find_by_name(name_or_prefix)
        if known is None:
            raise InvalidInputError(
                f"{name_or_prefix!r} is the URL prefix or name of no virtual chunk container; "
                f"there are: {self._table.format_known()}",
                kind=ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK,
            )
        return next(number for number, one in enumerate(self._table.known) if one is known)

    def expand(self, location: str) -> str:
        """Turn ``vcc://name/path`` into an absolute location; others stay as they are."""
        return self._table.expand(location)

    def fetch(self, ref: VirtualChunkRef, start: int, length: int) -> bytes | memoryview:
        """Fetch ``length`` bytes of a virtual chunk from ``start``, counted inside the chunk.

        One request, or several at once for a part larger than 12 MiB.

        Raises
        ------
        InvalidInputError
            If the chunk has no such bytes, the location is unusable or in no container, or (kind
            ``UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER``) the user did not open its container.
        StorageError
            Of kind ``VIRTUAL_CHUNK_MODIFIED`` if the file is not the one that was referenced,
            ``INVALID_OBJECT_SIZE`` if it ends before the chunk does, ``VIRTUAL_CHUNK_FETCH`` if it
            is not there or cannot be read.
        """
        file, fetcher = self._open(ref, start, length)
        if not length:
            return b""
        return fetcher.fetch(file, ref.offset + start, length, ref.checksum)

    async def fetch_async(
        self, ref: VirtualChunkRef, start: int, length: int
    ) -> bytes | memoryview:
        """Do as `fetch`, without keeping the event loop from others while requests are under way.

        Files of this machine are read at once: handing them to a thread would take longer.
        """
        file, fetcher = self._open(ref, start, length)
        if not length:
            return b""
        return await fetcher.fetch_async(file, ref.offset + start, length, ref.checksum)

    async def fetch_many_async(
        self, parts: Sequence[tuple[VirtualChunkRef, int, int]]
    ) -> list[bytes | memoryview | Exception]:
        """Do as `fetch_async` for several chunks of one file that have the same checksum.

        Each part is a chunk, a start and a length. Ranges that lie near each other share a request.
        The answers come in order; what cannot be had is answered by the error that `fetch` raises.
        """
        answers: list[bytes | memoryview | Exception] = [b""] * len(parts)
        wanted: list[tuple[int, Bounded]] = []
        for number, (ref, start, length) in enumerate(parts):
            try:
                file, fetcher = self._open(ref, start, length)
            except InvalidInputError as error:
                answers[number] = error
                continue
            if length:
                begin = ref.offset + start
                wanted.append((number, Bounded(begin, begin + length)))
        if wanted:
            ranges = [one for _, one in wanted]
            found = await fetcher.fetch_many_async(file, ranges, parts[0][0].checksum)
            for (number, _), answer in zip(wanted, found, strict=True):
                answers[number] = answer
        return answers

    @property
    def has_remote_access(self) -> bool:
        """Whether any container that may be read lies behind a network."""
        return any(
            known.container.url_prefix in self._access and not is_local(known.container.store)
            for known in self._table.known
        )

    def is_low_latency(self, ref: VirtualChunkRef) -> bool:
        """Whether a chunk comes from a file of this machine, so that `fetch` hardly waits."""
        return is_local(self._find(ref.location).known.container.store)

    def _open(
        self, ref: VirtualChunkRef, start: int, length: int
    ) -> tuple[VirtualFile, LocalFiles | RemoteFiles]:
        if not 0 <= start <= start + length <= ref.length:
            raise InvalidInputError(
                f"bytes {start} to {start + length} asked of a virtual chunk of {ref.length} bytes",
                kind=ErrorKind.INVALID_BYTE_RANGE,
            )
        file = self._find(ref.location)
        prefix = file.known.container.url_prefix
        if prefix not in self._access:
            raise unauthorized_error(file)
        key = (prefix, file.location.authority)
        fetcher = self._fetchers.get(key)
        if fetcher is None:
            with self._lock:  # a thousand chunks may arrive at once, for one client
                fetcher = self._fetchers.get(key)
                if fetcher is None:
                    if len(self._fetchers) >= _MAX_FETCHERS:
                        self._fetchers.pop(next(iter(self._fetchers)))
                    fetcher = self._fetchers[key] = self._open_fetcher(file)
        return file, fetcher

    def _open_fetcher(self, file: VirtualFile) -> LocalFiles | RemoteFiles:
        container = file.known.container
        if is_local(container.store):
            return LocalFiles(file.known.root.path)
        return RemoteFiles(
            open_store(
                file.known,
                self._access[container.url_prefix],
                home=self._home,
                settings=self._settings,
                location=file.location,
            )
        )
