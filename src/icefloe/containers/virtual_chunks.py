"""Validates virtual references and reads virtual chunks (Icechunk spec, "Virtual chunks").

Sessions call `VirtualChunks` before they store a reference and when they read one. It owns the
containers, their authorization and one client per container and bucket. Reads are thread-safe.
"""

from __future__ import annotations

import threading
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from icefloe.containers import authorization
from icefloe.containers.authorization import AsRepository, ContainerAccess
from icefloe.containers.container_table import ContainerTable, VirtualFile, is_local
from icefloe.containers.default_containers import select_default_containers
from icefloe.containers.local_files import LocalFiles
from icefloe.containers.location_scan import find_containers, resolve_locations
from icefloe.containers.remote_files import RemoteFiles
from icefloe.containers.stores import find_repository_place, is_on_repository_platform, open_store
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.model.byte_range import Bounded
from icefloe.model.containers import DEFAULT_CONTAINER_NAMES
from icefloe.model.manifest import NO_CODE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

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

_CACHED_LOCATIONS: Final = 4096
"""Size of the cache of resolved locations: one file usually contains many chunks."""
_MAX_CLIENTS: Final = 256
"""Number of cached clients: locations can name any number of buckets."""


class AccessContext(NamedTuple):
    """The containers of a repository and the credentials to open files in them."""

    table: ContainerTable
    access: Mapping[str, Access]
    home: Place | None
    settings: StorageSettings


class VirtualChunks:
    """Reads virtual chunks from the containers that the user authorized.

    Pickles with its credentials; the copy opens its own clients. The repr shows no credentials.

    Parameters
    ----------
    containers
        Containers of the configuration, in any order; None if it mentions none. Invalid ones are
        skipped.
    credentials
        Credentials by URL prefix or name of the container. The value None authorizes a container
        without credentials: S3 is read anonymously if the container is configured so, with the
        repository's credentials if it has the same endpoint, and otherwise with those of the
        environment; GCS and Azure with the repository's credentials on the same platform and
        account, and otherwise anonymously. A container without an entry is read only if it is on
        the repository's own platform, and not if ``credentials`` is an empty mapping.
    repository
        Storage of the repository, whose request settings are used for virtual chunks too.
    defaults
        Names of the default containers that apply where ``containers`` has none with their prefix;
        by default all if ``containers`` is None, and otherwise none.

    Raises
    ------
    InvalidInputError
        If a key of ``credentials`` names no container, or a credential does not match the store.
    """

    def __init__(
        self,
        containers: Sequence[VirtualChunkContainer] | None,
        credentials: Mapping[str, AnyCredential | None] | None,
        repository: Storage,
        *,
        defaults: Collection[str] | None = None,
    ) -> None:
        self._home, self._settings = find_repository_place(repository)
        if defaults is None:
            defaults = DEFAULT_CONTAINER_NAMES if containers is None else ()
        self._configured, self._defaults = tuple(containers or ()), defaults
        self._credentials = credentials
        self._init_transient()
        if credentials:
            self._access  # noqa: B018 - raises if the credentials are invalid

    # Most sessions read no virtual chunks, so this state is made on access.

    @cached_property
    def _selected(self) -> list[VirtualChunkContainer]:
        return select_default_containers(self._home, self._defaults, self._configured)

    @cached_property
    def _default_prefixes(self) -> frozenset[str]:
        return frozenset(container.url_prefix for container in self._selected)

    @cached_property
    def _containers(self) -> tuple[VirtualChunkContainer, ...]:
        return (*self._configured, *self._selected)

    @cached_property
    def _access(self) -> dict[str, Access]:
        authorized = authorization.resolve_access(self._table, self._credentials or {})
        access: dict[str, Access] = {**authorized}
        if self._credentials is None or self._credentials:
            for container in self._table.containers:
                if is_on_repository_platform(container.config.store, self._home):
                    access.setdefault(container.config.url_prefix, AsRepository())
        return access

    @cached_property
    def _table(self) -> ContainerTable:
        return ContainerTable(self._containers)

    @cached_property
    def _find(self) -> Callable[[str], VirtualFile]:
        return lru_cache(_CACHED_LOCATIONS)(self._table.find)

    def _init_transient(self) -> None:
        """Create the state that is not pickled."""
        self._clients: dict[tuple[str, str], LocalFiles | RemoteFiles] = {}
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        names = ("_containers", "_access", "_home", "_settings", "_default_prefixes")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._init_transient()

    def __repr__(self) -> str:
        return f"<VirtualChunks: {self._table.format_containers()}; {len(self._access)} authorized>"

    @property
    def authorized_prefixes(self) -> set[str]:
        """The URL prefixes of the authorized containers."""
        return set(self._access)

    @property
    def access_context(self) -> AccessContext:
        """The containers and the credentials to open files in them."""
        return AccessContext(self._table, self._access, self._home, self._settings)

    def containers(self) -> list[ContainerAccess]:
        """List the containers in lookup order, each with its authorization."""
        return [
            ContainerAccess(
                container=container.config,
                is_default=container.config.url_prefix in self._default_prefixes,
                is_authorized=container.config.url_prefix in self._access,
                uses_repository_credentials=isinstance(
                    self._access.get(container.config.url_prefix), AsRepository
                ),
                authorization=authorization.format_authorization(container.config),
            )
            for container in self._table.containers
        ]

    def validate(self, location: str) -> None:
        """Raise `InvalidInputError` if a reference to this location must not be stored.

        The kind is ``INVALID_VIRTUAL_REF`` if it is not the URL of an object, and
        ``NO_CONTAINER_FOR_VIRTUAL_CHUNK`` if no container matches it.
        """
        self._find(location)

    def validate_many(self, locations: Strings) -> NDArray[np.bool_]:
        """Return a mask of the locations that pass `validate`; vectorized."""
        is_valid: NDArray[np.bool_] = find_containers(self._table, locations) != NO_CODE
        return is_valid

    def place(self, location: str) -> str | None:
        """Return the resolved location of a file, None if `validate` would raise."""
        try:
            return self._find(location).location.text
        except InvalidInputError:
            return None

    def describe(self, location: str) -> str:
        """Return the file at a location and its container, for messages."""
        file = self._find(location)
        return f"{file.label} in container {file.container.label}"

    def resolve_many(self, locations: Strings) -> ResolvedLocations:
        """Return the container (an index into `containers`) and resolved text of each location."""
        return resolve_locations(self._table, locations)

    def find_container(self, name_or_prefix: str) -> int:
        """Return the index of a container in `containers`, by name or URL prefix."""
        container = self._table.find_by_name(name_or_prefix)
        if container is None:
            raise InvalidInputError(
                f"no virtual chunk container has the URL prefix or name {name_or_prefix!r}; "
                f"available: {self._table.format_containers()}",
                kind=ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK,
            )
        return self._table.containers.index(container)

    def expand(self, location: str) -> str:
        """Expand ``vcc://name/path`` to an absolute location; returns other locations unchanged."""
        return self._table.expand(location)

    def fetch(self, ref: VirtualChunkRef, start: int, length: int) -> bytes | memoryview:
        """Fetch ``length`` bytes of a virtual chunk from ``start``, relative to the chunk.

        Sends one request, or several concurrent ones for more than 12 MiB by default.

        Raises
        ------
        InvalidInputError
            If the range is outside the chunk, the location is malformed or in no container, or its
            container is not authorized (kind ``UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER``).
        StorageError
            Of kind ``VIRTUAL_CHUNK_MODIFIED`` if the file changed since it was referenced,
            ``INVALID_OBJECT_SIZE`` if it ends before the chunk does, ``VIRTUAL_CHUNK_FETCH`` if it
            is missing or cannot be read.
        """
        file, client = self._open(ref, start, length)
        if not length:
            return b""
        return client.fetch(file, ref.offset + start, length, ref.checksum)

    async def fetch_async(
        self, ref: VirtualChunkRef, start: int, length: int
    ) -> bytes | memoryview:
        """`fetch` without blocking the event loop; local files are read inline."""
        file, client = self._open(ref, start, length)
        if not length:
            return b""
        return await client.fetch_async(file, ref.offset + start, length, ref.checksum)

    async def fetch_many_async(
        self, parts: Sequence[tuple[VirtualChunkRef, int, int]]
    ) -> list[bytes | memoryview | Exception]:
        """`fetch_async` for several chunks of one file with the same checksum.

        Each part is a chunk, a start and a length. Nearby ranges share a request. The results are
        in the order of ``parts``; the result of a failed part is the error that `fetch` raises.
        """
        results: list[bytes | memoryview | Exception] = [b""] * len(parts)
        requested: list[tuple[int, Bounded]] = []
        for number, (ref, start, length) in enumerate(parts):
            try:
                file, client = self._open(ref, start, length)
            except InvalidInputError as error:
                results[number] = error
                continue
            if length:
                begin = ref.offset + start
                requested.append((number, Bounded(begin, begin + length)))
        if requested:
            ranges = [byte_range for _, byte_range in requested]
            fetched = await client.fetch_many_async(file, ranges, parts[0][0].checksum)
            for (number, _), result in zip(requested, fetched, strict=True):
                results[number] = result
        return results

    @property
    def has_remote_access(self) -> bool:
        """Whether any authorized container is remote."""
        return any(
            container.config.url_prefix in self._access and not is_local(container.config.store)
            for container in self._table.containers
        )

    def is_low_latency(self, ref: VirtualChunkRef) -> bool:
        """Return whether a chunk is in a local file, so that `fetch` may be called inline."""
        return is_local(self._find(ref.location).container.config.store)

    def _open(
        self, ref: VirtualChunkRef, start: int, length: int
    ) -> tuple[VirtualFile, LocalFiles | RemoteFiles]:
        if not 0 <= start <= start + length <= ref.length:
            raise InvalidInputError(
                f"bytes {start} to {start + length} are outside a virtual chunk of {ref.length} "
                "bytes",
                kind=ErrorKind.INVALID_BYTE_RANGE,
            )
        file = self._find(ref.location)
        prefix = file.container.config.url_prefix
        if prefix not in self._access:
            raise authorization.unauthorized_error(file)
        key = (prefix, file.location.authority)
        client = self._clients.get(key)
        if client is None:
            with self._lock:  # single-flight: concurrent reads share one client
                client = self._clients.get(key)
                if client is None:
                    if len(self._clients) >= _MAX_CLIENTS:
                        self._clients.pop(next(iter(self._clients)))
                    client = self._clients[key] = self._open_client(file)
        return file, client

    def _open_client(self, file: VirtualFile) -> LocalFiles | RemoteFiles:
        container = file.container
        if is_local(container.config.store):
            return LocalFiles(container.root.path)
        access = self._access[container.config.url_prefix]
        return RemoteFiles(open_store(file, access, home=self._home, settings=self._settings))
