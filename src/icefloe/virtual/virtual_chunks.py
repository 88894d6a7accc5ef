"""The virtual chunks of a repository, as sessions see them: what may be referenced, and the bytes.

Sessions ask `VirtualChunks` before they store a reference and whenever they read through one. It
knows the containers and what the user authorised, and keeps a client for each container in use.
Reads are thread safe. Seed `002`, Reading virtual chunks.
"""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.virtual.authorization import authorized_containers, unauthorized
from icefloe.virtual.container_table import ContainerTable, VirtualFile, is_local
from icefloe.virtual.local_files import LocalFiles
from icefloe.virtual.location_columns import find_held
from icefloe.virtual.remote_files import RemoteFiles
from icefloe.virtual.stores import home_of, open_store

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from icefloe.model.chunk_payload import VirtualChunkRef
    from icefloe.model.containers import VirtualChunkContainer
    from icefloe.model.strings import Strings
    from icefloe.storage.credentials import AnyCredential
    from icefloe.storage.interface import Storage
    from icefloe.virtual.container_table import KnownContainer

_REMEMBERED_LOCATIONS: Final = 4096
"""Many chunks lie in few files: the same locations are looked up again and again."""


class VirtualChunks:
    """Reads virtual chunks from the containers that the user authorised.

    It pickles, with the credentials; the copy makes clients of its own. Its repr shows neither.

    Parameters
    ----------
    containers
        Those of the repository; which one holds a location does not depend on their order.
    credentials
        What the user opened, by the URL prefix or the name of the container. None opens one
        without saying how: S3 is then read anonymously where the container says so, with the
        repository's credentials where it is on the same endpoint, else with the environment's;
        GCS and Azure with the repository's credentials in the same place, else anonymously.
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
        containers: Sequence[VirtualChunkContainer],
        credentials: Mapping[str, AnyCredential | None],
        repository: Storage,
    ) -> None:
        self._containers = tuple(containers)
        table = ContainerTable(self._containers)
        self._authorized = authorized_containers(table, credentials)
        self._home, self._settings = home_of(repository)
        self._start(table)

    def _start(self, table: ContainerTable) -> None:
        """Make what does not pickle."""
        self._table = table
        self._find = lru_cache(_REMEMBERED_LOCATIONS)(table.find)
        self._fetchers: dict[str, LocalFiles | RemoteFiles] = {}
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        names = ("_containers", "_authorized", "_home", "_settings")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start(ContainerTable(self._containers))

    def __repr__(self) -> str:
        opened = len(self._authorized)
        return f"<VirtualChunks: {self._table.listed()}; {opened} authorised>"

    @property
    def authorized_prefixes(self) -> set[str]:
        """The URL prefixes of the containers that the user opened."""
        return set(self._authorized)

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
        return find_held(self._table, locations)

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
        file, fetcher = self._opened(ref, start, length)
        if not length:
            return b""
        return fetcher.fetch(file, ref.offset + start, length, ref.checksum)

    async def fetch_async(
        self, ref: VirtualChunkRef, start: int, length: int
    ) -> bytes | memoryview:
        """Do as `fetch`, without keeping the event loop from others while requests are under way.

        Files of this machine are read at once: handing them to a thread would take longer.
        """
        file, fetcher = self._opened(ref, start, length)
        if not length:
            return b""
        return await fetcher.fetch_async(file, ref.offset + start, length, ref.checksum)

    def answers_at_once(self, ref: VirtualChunkRef) -> bool:
        """Whether a chunk comes from a file of this machine, so that `fetch` hardly waits."""
        return is_local(self._find(ref.location).known.container.store)

    def _opened(
        self, ref: VirtualChunkRef, start: int, length: int
    ) -> tuple[VirtualFile, LocalFiles | RemoteFiles]:
        if not 0 <= start <= start + length <= ref.length:
            raise InvalidInputError(
                f"bytes {start} to {start + length} asked of a virtual chunk of {ref.length} bytes",
                kind=ErrorKind.INVALID_BYTE_RANGE,
            )
        file = self._find(ref.location)
        prefix = file.known.container.url_prefix
        if prefix not in self._authorized:
            raise unauthorized(file)
        fetcher = self._fetchers.get(prefix)
        if fetcher is None:
            with self._lock:  # a thousand chunks may arrive at once, for one client
                fetcher = self._fetchers.get(prefix)
                if fetcher is None:
                    fetcher = self._fetchers[prefix] = self._made(file.known)
        return file, fetcher

    def _made(self, known: KnownContainer) -> LocalFiles | RemoteFiles:
        if is_local(known.container.store):
            return LocalFiles(known.prefix.path)
        credential = self._authorized[known.container.url_prefix]
        return RemoteFiles(open_store(known, credential, home=self._home, settings=self._settings))
