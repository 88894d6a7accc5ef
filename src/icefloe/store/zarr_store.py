"""The Zarr store of a session: maps keys of a Zarr hierarchy to a transaction.

Only this module and `coalesced_reads` are asynchronous, because Zarr's interface is. Low-latency
storages (memory, local disks) are called in the event loop, or through Zarr's synchronous path;
remote storages are awaited.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, ParamSpec, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from zarr.abc.store import (
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
)
from zarr.core.buffer import Buffer, default_buffer_prototype

from icefloe.compat.async_twins import add_async_twins
from icefloe.containers.location_scan import find_malformed
from icefloe.containers.locations import parse_location
from icefloe.containers.reference_columns import (
    parse_box,
    parse_reference,
    parse_specs,
    parse_table,
)
from icefloe.errors import (
    ErrorKind,
    FormatError,
    InvalidInputError,
    ObjectNotFoundError,
    ReadOnlyError,
    SessionStateError,
)
from icefloe.model.byte_range import Bounded, From, Last
from icefloe.model.chunk_payload import ChunkKind, ChunkRef
from icefloe.model.zarr_keys import (
    ChunkKey,
    MetadataKey,
    V2Key,
    format_chunk_prefix,
    format_metadata_key,
    parse_chunk_prefix,
    parse_key,
    parse_node_prefix,
)
from icefloe.store.coalesced_reads import CoalescedReads
from icefloe.store.codec_pipeline import install_codec_pipeline
from icefloe.store.node_documents import require_readable
from icefloe.transaction import overlay
from icefloe.transaction.chunk_slice import ChunkSlice, clip_byte_range

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
    from datetime import datetime

    from numpy.typing import NDArray
    from zarr.abc.store import ByteRequest
    from zarr.core.buffer import BufferPrototype
    from zarr.core.common import BytesLike

    from icefloe.containers.reference_columns import (
        ChecksumColumn,
        NumberColumn,
        References,
        StringColumn,
    )
    from icefloe.model.byte_range import ByteRange
    from icefloe.model.manifest import ArrayManifest
    from icefloe.model.node import NodeSnapshot
    from icefloe.model.path import Path
    from icefloe.model.virtual_chunk_spec import VirtualChunkSpec
    from icefloe.session import Session
    from icefloe.transaction.transaction import Transaction

__all__ = ["IcechunkStore"]

P = ParamSpec("P")
T = TypeVar("T")

# Inside the class `list` is a method.
Names: TypeAlias = list[str]
Nodes: TypeAlias = "list[NodeSnapshot]"
ChunkIndices: TypeAlias = list[tuple[int, ...]]
Buffers: TypeAlias = "list[Buffer | None]"
ChunkBatch: TypeAlias = (
    "tuple[NDArray[np.uint32], NDArray[np.uint8], Names, NDArray[np.uint64], NDArray[np.uint64], "
    "dict[int, bytes]]"
)

_MIN_BYTES_IN_THREAD: Final = 4 * 1024 * 1024
"""Values of this size are written in threads: copying one to the page cache takes milliseconds."""


class _ChunkKeys(NamedTuple):
    """Chunks of the array at a path."""

    path: Path
    refs: ArrayManifest

    def keys(self) -> Iterator[str]:
        prefix = format_chunk_prefix(self.path)
        return ("/".join([prefix, *map(str, row)]) for row in self.refs.coords.tolist())


@add_async_twins(
    "set_virtual_ref", "set_virtual_refs", "set_virtual_refs_arr", "set_virtual_refs_table"
)
class IcechunkStore(Store):
    """The Zarr store of a session.

    Parameters
    ----------
    session
        The session that is read and changed.
    read_only
        Whether this store refuses writes; the store of a read-only session always does.
    """

    def __init__(self, session: Session, read_only: bool | None = None) -> None:  # noqa: FBT001
        super().__init__(read_only=session.read_only if read_only is None else read_only)
        install_codec_pipeline()
        self._session = session
        self._is_low_latency = session.connection.storage.is_low_latency
        # A repository on a local disk can have virtual chunks behind a network: those are awaited.
        self._may_wait = not self._is_low_latency or session.connection.virtual.has_remote_access
        self._reads: WeakKeyDictionary[asyncio.AbstractEventLoop, CoalescedReads] = (
            WeakKeyDictionary()
        )

    @property
    def session(self) -> Session:
        """The session of this store."""
        return self._session

    @property
    def read_only(self) -> bool:
        """Whether writes are refused, which is also the case after a commit of the session."""
        return self._read_only or self._session.read_only

    def with_read_only(self, read_only: bool = False) -> IcechunkStore:  # noqa: FBT001, FBT002
        """Return a store of the same session with another ``read_only``."""
        return type(self)(self._session, read_only)

    def __eq__(self, value: object) -> bool:
        return isinstance(value, IcechunkStore) and self._session is value._session

    def __hash__(self) -> int:
        return hash(id(self._session))

    def __repr__(self) -> str:
        return f"<IcechunkStore of {self._session!r}>"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        return self._session._repr_html_()

    def __getstate__(self) -> dict[str, Any]:
        return {"session": self._session, "read_only": self._read_only}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["session"], state["read_only"])  # type: ignore[misc]

    # -- capabilities

    @property
    def supports_writes(self) -> bool:
        """Always True."""
        return True

    @property
    def supports_deletes(self) -> bool:
        """Always True."""
        return True

    @property
    def supports_listing(self) -> bool:
        """Always True."""
        return True

    @property
    def supports_partial_writes(self) -> Literal[False]:
        """Always False."""
        return False

    @property
    def supports_consolidated_metadata(self) -> bool:
        """Always False: a snapshot already has all metadata in one file."""
        return False

    @property
    def is_direct(self) -> bool:
        """Whether no call waits for a network."""
        return not self._may_wait

    @property
    def _supports_sync_io(self) -> bool:
        """Whether Zarr may use its synchronous path, which sends requests one at a time."""
        return self.is_direct

    # -- reading

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Return the value of a key, or None."""
        parsed = parse_key(key)
        bounds = _parse_byte_range(byte_range)
        try:
            if not self._may_wait:
                data = self._read(parsed, bounds)
            else:
                value = await self._locate_async(parsed, bounds)
                data = await self._fetch_async(value) if isinstance(value, ChunkSlice) else value
        except (FormatError, ObjectNotFoundError) as error:
            self._raise_with_referrer(parsed, error)
            raise
        return None if data is None else prototype.buffer.from_bytes(data)

    def get_sync(
        self,
        key: str,
        *,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """Like `get`, without an event loop."""
        parsed = parse_key(key)
        try:
            data = self._read(parsed, _parse_byte_range(byte_range))
        except (FormatError, ObjectNotFoundError) as error:
            self._raise_with_referrer(parsed, error)
            raise
        if data is None:
            return None
        return (prototype or default_buffer_prototype()).buffer.from_bytes(data)

    async def get_partial_values(
        self,
        prototype: BufferPrototype,
        key_ranges: Iterable[tuple[str, ByteRequest | None]],
    ) -> Buffers:
        """Return parts of the values of several keys, fetched concurrently."""
        semaphore = asyncio.Semaphore(
            self._session.connection.config.effective_get_partial_values_concurrency
        )

        async def get(key: str, byte_range: ByteRequest | None) -> Buffer | None:
            async with semaphore:
                return await self.get(key, prototype, byte_range)

        return await asyncio.gather(*(get(key, byte_range) for key, byte_range in key_ranges))

    async def exists(self, key: str) -> bool:
        """Whether a key has a value."""
        return await self._run(self._exists, key)

    async def getsize(self, key: str) -> int:
        """Return the size of the value of a key, without fetching it."""
        size = await self._run(self._get_size, key)
        if size is None:
            raise FileNotFoundError(key)
        return size

    async def getsize_prefix(self, prefix: str) -> int:
        """Return the size of all values below a prefix, without fetching them."""
        return await self._run(self._sum_sizes_below, prefix)

    async def is_empty(self, prefix: str) -> bool:
        """Whether there is nothing below a prefix."""
        return await self._run(lambda: next(self._iter_keys_below(prefix), None) is None)

    def list(self) -> AsyncIterator[str]:
        """List all keys."""
        return self.list_prefix("")

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """List the keys below a prefix, which matches whole path segments."""
        for key in await self._run(lambda: list(self._iter_keys(prefix))):
            yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """List the names directly below a prefix."""
        for name in await self._run(self._list_names, prefix):
            yield name

    # -- writing

    async def set(self, key: str, value: Buffer) -> None:
        """Set the value of a key."""
        self._require_buffer(value)
        self._require_writable()
        parsed = parse_key(key)
        if self._is_low_latency and len(value) < _MIN_BYTES_IN_THREAD:
            self._set(parsed, value)
        elif isinstance(parsed, ChunkKey) and not self._is_low_latency:
            await self._load_array(parsed.path)
            data = _view_bytes(value)
            await self._transaction.set_chunk_async(parsed.path, parsed.indices, data)
        else:
            await asyncio.to_thread(self._set, parsed, value)

    def set_sync(self, key: str, value: Buffer) -> None:
        """Like `set`, without an event loop."""
        self._require_buffer(value)
        self._require_writable()
        self._set(parse_key(key), value)

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        """Set the value of a key that has none, atomically within the session."""
        self._require_buffer(value)
        self._require_writable()

        def set_if_absent() -> None:
            with self._transaction.lock:
                if not self._exists(key):
                    self._set(parse_key(key), value)

        await self._run(set_if_absent)

    async def delete(self, key: str) -> None:
        """Delete a key; deleting a missing key is not an error."""
        self._require_writable()
        await self._run(self._delete, key)

    def delete_sync(self, key: str) -> None:
        """Like `delete`, without an event loop."""
        self._require_writable()
        self._delete(key)

    async def delete_dir(self, prefix: str) -> None:
        """Delete everything below a prefix."""
        self._require_writable()
        await self._run(self._delete_below, prefix)

    async def clear(self) -> None:
        """Delete everything in this session; history is not affected."""
        await self.delete_dir("")

    def sync_clear(self) -> None:
        """Like `clear`, without an event loop."""
        self._require_writable()
        self._delete_below("")

    async def set_partial_values(
        self,
        key_start_values: Iterable[tuple[str, int, BytesLike]],  # noqa: ARG002 - refused
    ) -> None:
        """Raise: chunks cannot be written partially."""
        raise SessionStateError(
            "set_partial_values is not supported: write whole chunks with set",
            kind=ErrorKind.UNIMPLEMENTED,
        )

    # -- virtual references

    def set_virtual_ref(
        self,
        key: str,
        location: str,
        *,
        offset: int,
        length: int,
        checksum: str | datetime | int | None = None,
        validate_container: bool = True,
    ) -> None:
        """Set a chunk to a byte range of a file outside the repository.

        Parameters
        ----------
        key
            Zarr key of the chunk.
        location
            URL of the file.
        offset, length
            Byte range in the file.
        checksum
            ETag of the file, or its last modification as a datetime with time zone or in seconds
            since 1970. Reading fails if the file has changed since.
        validate_container
            Whether to refuse a location that no container covers.
        """
        self._require_writable()
        parsed = parse_key(key)
        if not isinstance(parsed, ChunkKey):
            raise InvalidInputError(
                f"{key!r} is not the key of a chunk", kind=ErrorKind.INVALID_KEY
            )
        if validate_container:
            self._session.connection.virtual.validate(location)
        else:
            parse_location(location)
        ref = parse_reference(location, offset, length, checksum)
        self._transaction.set_payload(parsed.path, parsed.indices, ref)

    def set_virtual_refs(
        self,
        array_path: str,
        chunks: Sequence[VirtualChunkSpec],
        *,
        validate_containers: bool = True,
    ) -> ChunkIndices | None:
        """Set chunks of an array to byte ranges of files.

        Returns
        -------
            The chunks that were skipped because no container covers their location; None if all
            were stored.
        """
        self._require_writable()
        path = self._session.path(array_path)
        refs = parse_specs(chunks, self._transaction.get_grid(path))
        return self._set_virtual(path, refs, validate_containers=validate_containers)

    def set_virtual_refs_arr(
        self,
        array_path: str,
        chunk_grid_shape: tuple[int, ...],
        locations: StringColumn,
        offsets: NumberColumn,
        lengths: NumberColumn,
        *,
        validate_containers: bool = True,
        arr_offset: tuple[int, ...] | None = None,
        checksum: ChecksumColumn = None,
    ) -> ChunkIndices | None:
        """Set a box of chunks of an array to byte ranges of files, given as columns in C order.

        Parameters
        ----------
        array_path
            Path of the array.
        chunk_grid_shape
            Number of chunks of the box along each dimension.
        locations
            URL of the file of each chunk: a list, a numpy array or an Arrow array of strings. A
            chunk with an empty location is skipped.
        offsets, lengths
            Byte range of each chunk.
        validate_containers
            Whether to skip locations that no container covers.
        arr_offset
            First chunk of the box; default is the first chunk of the array.
        checksum
            As in `set_virtual_ref`, for all chunks or as a column.

        Returns
        -------
            The chunks that were skipped because no container covers their location; None if all
            were stored.

        Raises
        ------
        InvalidInputError
            If a column or a value is invalid; nothing is stored then.
        """
        self._require_writable()
        path = self._session.path(array_path)
        refs = parse_box(
            self._transaction.get_grid(path),
            chunk_grid_shape,
            first=arr_offset,
            locations=locations,
            offsets=offsets,
            lengths=lengths,
            checksum=checksum,
        )
        return self._set_virtual(path, refs, validate_containers=validate_containers)

    def set_virtual_refs_table(
        self, array_path: str, table: Any, *, validate_containers: bool = True
    ) -> ChunkIndices | None:
        """Set chunks of an array to byte ranges of files, given as an Arrow table.

        Returns and raises like `set_virtual_refs_arr`.

        Parameters
        ----------
        array_path
            Path of the array.
        table
            A pyarrow table or record batch, or any object with ``__arrow_c_stream__``; one row for
            each chunk, in any order. If a chunk occurs twice, its last row counts. Columns:

            ``index``
                Chunk coordinates as lists of integers; or columns ``index_0``, ``index_1``, …
            ``location``
                URL of the file: strings, plain or dictionary-encoded.
            ``offset``, ``length``
                Byte range.
            ``etag``
                ETag of the file; optional, nullable. Precedes ``last_modified``.
            ``last_modified``
                Timestamps with a time zone, or seconds since 1970; optional, nullable.

            Other columns are ignored, so that a table of `Session.virtual_refs_table` of one array
            is valid.
        validate_containers
            Whether to skip locations that no container covers.
        """
        self._require_writable()
        path = self._session.path(array_path)
        refs = parse_table(table, self._transaction.get_grid(path))
        return self._set_virtual(path, refs, validate_containers=validate_containers)

    async def array_chunk_iterator(
        self, array_path: str, batch_size: int = 100_000
    ) -> AsyncIterator[ChunkBatch]:
        """Yield the chunk references of an array in columnar batches.

        A batch has coordinates, kinds (`ChunkType`), locations (empty except for virtual chunks),
        offsets, lengths, and the bytes of inline chunks by row.
        """
        if batch_size < 1:
            raise InvalidInputError(f"batch_size={batch_size} must be at least 1")
        path = self._session.path(array_path)
        parts = await self._run(lambda: list(self._transaction.fetch_chunk_refs(path)))
        for part in parts:
            for start in range(0, len(part), batch_size):
                yield _build_batch(overlay.select(part, slice(start, start + batch_size)))

    def make_chunk_error(self, key: str, error: Exception) -> FormatError:
        """Return the error for a chunk that the codecs of its array cannot decode."""
        parsed = parse_key(key)
        if not isinstance(parsed, ChunkKey):
            return FormatError(str(error), file=key)
        return self._transaction.make_decoding_error(parsed.path, parsed.indices, error)

    # -- implementation

    @property
    def _transaction(self) -> Transaction:
        return self._session.transaction

    async def _run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function that may wait for the storage, in a thread if it is remote."""
        if self._is_low_latency:
            return function(*args, **kwargs)
        return await asyncio.to_thread(function, *args, **kwargs)

    def _read(
        self, key: MetadataKey | ChunkKey | V2Key, byte_range: ByteRange | None
    ) -> bytes | memoryview | None:
        if isinstance(key, ChunkKey):
            return self._session.transaction.read(key.path, key.indices, byte_range)
        value = self._locate(key, byte_range)
        return self._transaction.fetch(value) if isinstance(value, ChunkSlice) else value

    def _locate(
        self, key: MetadataKey | ChunkKey | V2Key, byte_range: ByteRange | None
    ) -> bytes | memoryview | ChunkSlice | None:
        match key:
            case ChunkKey(path, indices):
                return self._transaction.locate(path, indices, byte_range)
            case MetadataKey(path):
                node = self._transaction.get_node(path)
                if node is None:
                    return None
                if not self._transaction.is_edited(path):
                    self._require_readable(node)
                start, stop = clip_byte_range(byte_range, len(node.user_data))
                return node.user_data[start:stop]
            case _:
                return None

    def _require_readable(self, node: NodeSnapshot) -> None:
        try:
            require_readable(node.user_data)
        except Warning:  # raised if the caller turned warnings into errors
            raise
        except Exception as error:
            raise FormatError(
                f"Zarr cannot open the metadata of {node.path}: {error}; it is damaged, or needs a "
                "codec, data type or option that is missing here",
                file=self._transaction.format_snapshot_key(),
                kind=ErrorKind.INVALID_ARRAY_METADATA if node.is_array else ErrorKind.BAD_METADATA,
            ) from error

    async def _locate_async(
        self, key: MetadataKey | ChunkKey | V2Key, byte_range: ByteRange | None
    ) -> bytes | memoryview | ChunkSlice | None:
        if self._is_low_latency or (
            isinstance(key, ChunkKey)
            and self._transaction.is_location_cached(key.path, key.indices)
        ):
            return self._locate(key, byte_range)
        return await asyncio.to_thread(self._locate, key, byte_range)

    async def _fetch_async(self, part: ChunkSlice) -> bytes | memoryview:
        if self._is_low_latency and isinstance(part.payload, ChunkRef):
            return self._transaction.fetch(part)
        loop = asyncio.get_running_loop()
        reads = self._reads.get(loop)
        if reads is None:
            reads = self._reads[loop] = CoalescedReads(
                self._transaction.assets.chunks, self._session.connection.virtual
            )
        return await reads.fetch(part)

    def _raise_with_referrer(
        self, key: MetadataKey | ChunkKey | V2Key, error: FormatError | ObjectNotFoundError
    ) -> None:
        """Raise an error that also names the manifest that refers to the file of a chunk.

        Returns if the error is not about the file of a chunk.
        """
        if isinstance(key, ChunkKey):
            explained = self._transaction.explain_chunk_error(key.path, key.indices, error)
            if explained is not None:
                raise explained from error

    async def _load_array(self, path: Path) -> None:
        """Load the array that a chunk is written to."""
        if not self._transaction.is_array_loaded(path):
            await asyncio.to_thread(self._transaction.get_node, path)

    def _exists(self, key: str) -> bool:
        match parse_key(key):
            case MetadataKey(path):
                return self._transaction.get_node(path) is not None
            case ChunkKey(path, indices):
                return self._transaction.get_payload(path, indices) is not None
            case _:
                return False

    def _get_size(self, key: str) -> int | None:
        match parse_key(key):
            case MetadataKey(path):
                node = self._transaction.get_node(path)
                return None if node is None else len(node.user_data)
            case ChunkKey(path, indices):
                return self._transaction.get_chunk_size(path, indices)
            case _:
                return None

    def _sum_sizes_below(self, prefix: str) -> int:
        path = parse_node_prefix(prefix)
        if path is None:
            return 0
        nodes = self._list_nodes_from(path)
        total = sum(len(node.user_data) for node in nodes)
        for part in self._iter_chunks_of(nodes) if nodes else self._iter_chunks_below(path):
            total += int(part.refs.payloads.length.sum())
        return total

    def _iter_keys_below(self, prefix: str) -> Iterator[str]:
        """Yield the keys below a prefix: metadata first, then chunks."""
        path = parse_node_prefix(prefix)
        if path is None:
            return
        nodes = self._list_nodes_from(path)
        yield from (format_metadata_key(node.path) for node in nodes)
        for part in self._iter_chunks_of(nodes) if nodes else self._iter_chunks_below(path):
            yield from part.keys()

    def _iter_keys(self, prefix: str) -> Iterator[str]:
        """Yield the keys below a prefix, and the prefix itself if it is a key."""
        yield from self._iter_keys_below(prefix)
        try:
            if self._exists(prefix):
                yield prefix
        except InvalidInputError:
            pass

    def _list_nodes_from(self, path: Path) -> Nodes:
        """Return the node at a path and its descendants, sorted by path."""
        nodes = list(self._transaction.iter_nodes_below(path))
        node = self._transaction.get_node(path)
        if node is not None:
            nodes.append(node)
        return sorted(nodes, key=lambda node: node.path)

    def _iter_chunks_of(self, nodes: Iterable[NodeSnapshot]) -> Iterator[_ChunkKeys]:
        for node in nodes:
            if node.is_array:
                for refs in self._transaction.fetch_chunk_refs(node.path):
                    yield _ChunkKeys(node.path, refs)

    def _iter_chunks_below(self, path: Path) -> Iterator[_ChunkKeys]:
        """Yield the chunks of an array whose keys are below a path such as ``/array/c/1``."""
        for above in path.ancestors():
            node = self._transaction.get_node(above)
            if node is None:
                continue
            if not node.is_array:  # then no array is above it
                return
            leading = parse_chunk_prefix(path.segments[len(above.segments) :])
            if leading is None:
                return
            for refs in self._transaction.fetch_chunk_refs(above):
                if len(leading) < refs.coords.shape[1]:
                    rows = (refs.coords[:, : len(leading)] == np.array(leading, np.int64)).all(1)
                    yield _ChunkKeys(above, overlay.select(refs, np.flatnonzero(rows)))
            return

    def _list_names(self, prefix: str) -> Names:
        path = parse_node_prefix(prefix)
        if path is None:
            return []
        node = self._transaction.get_node(path)
        if node is not None and node.is_array:
            return ["zarr.json", "c"]
        names = self._transaction.list_children(path)
        if node is not None:
            names = {*names, "zarr.json"}
        if names:
            return sorted(names)
        indices: set[int] = set()
        for part in self._iter_chunks_below(path):
            depth = len(path.segments) - len(part.path.segments) - 1
            indices |= set(np.unique(part.refs.coords[:, depth]).tolist())
        return [str(index) for index in sorted(indices)]

    def _set(self, key: MetadataKey | ChunkKey | V2Key, value: Buffer) -> None:
        match key:
            case ChunkKey(path, indices):
                self._transaction.set_chunk(path, indices, _view_bytes(value))
            case MetadataKey(path):
                self._transaction.set_metadata(path, value.to_bytes())
            case V2Key(name):
                raise SessionStateError(
                    f"{name} is metadata of Zarr format 2, which is not supported: create arrays "
                    "with zarr_format=3",
                    kind=ErrorKind.UNIMPLEMENTED,
                )

    def _delete(self, key: str) -> None:
        match parse_key(key):
            case ChunkKey(path, indices):
                self._transaction.delete_chunk(path, indices)
            case MetadataKey(path):
                self._transaction.delete_node(path)

    def _delete_below(self, prefix: str) -> None:
        path = parse_node_prefix(prefix)
        if path is None:
            return
        if self._transaction.get_node(path) is not None or self._transaction.list_children(path):
            self._transaction.delete_node(path)
        else:
            for part in list(self._iter_chunks_below(path)):
                self._transaction.delete_chunks(part.path, part.refs.coords)

    def _set_virtual(
        self, path: Path, refs: References, *, validate_containers: bool
    ) -> ChunkIndices | None:
        coords, payloads = refs
        virtual = self._session.connection.virtual
        is_used = np.zeros(len(payloads.locations), bool)
        is_used[payloads.location_codes] = True
        malformed = find_malformed(payloads.locations)
        malformed = malformed[is_used[malformed]]
        if len(malformed):
            row = int(np.argmax(np.isin(payloads.location_codes, malformed)))
            where = f"chunk {coords[row].tolist()} of {path}: "
            try:
                parse_location(payloads.locations[payloads.location_codes.item(row)])
            except InvalidInputError as error:
                raise InvalidInputError(where + error.message, kind=error.kind) from None
        skipped: ChunkIndices = []
        if validate_containers:
            is_valid = virtual.validate_many(payloads.locations)[payloads.location_codes]
            if not is_valid.all():
                skipped = [tuple(row) for row in coords[~is_valid].tolist()]
                rows = np.flatnonzero(is_valid)
                coords, payloads = coords[rows], payloads.select_rows(rows)
        self._transaction.set_payloads(path, coords, payloads)
        return skipped or None

    def _require_writable(self) -> None:
        self._session.require_writable("this is a read-only store: its session is read-only")
        self._session.require_editable()
        if self._read_only:
            raise ReadOnlyError(
                "this is a read-only store: write to session.store, or use with_read_only(False)",
                kind=ErrorKind.READ_ONLY_STORE,
            )

    @staticmethod
    def _require_buffer(value: object) -> None:
        if not isinstance(value, Buffer):
            raise TypeError(
                "IcechunkStore.set(): `value` must be a Buffer instance. Got an instance of "
                f"{type(value)} instead."
            )


def _parse_byte_range(request: ByteRequest | None) -> ByteRange | None:
    match request:
        case None:
            return None
        case RangeByteRequest(start, end):
            return Bounded(start, end)
        case OffsetByteRequest(offset):
            return From(offset)
        case SuffixByteRequest(suffix):
            return Last(suffix)
        case _:
            raise InvalidInputError(
                f"Unexpected byte_range, got {request!r}", kind=ErrorKind.INVALID_BYTE_RANGE
            )


def _view_bytes(value: Buffer) -> memoryview:
    """Return the bytes of a buffer, without a copy if it is in main memory."""
    return memoryview(value.as_buffer_like()).cast("B")


def _build_batch(refs: ArrayManifest) -> ChunkBatch:
    payloads = refs.payloads
    table = [*payloads.locations, ""]  # NO_CODE is -1: the last entry
    inline = {}
    for row in np.flatnonzero(payloads.kind == ChunkKind.INLINE).tolist():
        start, size = int(payloads.offset[row]), int(payloads.length[row])
        inline[row] = payloads.inline[start : start + size].tobytes()
    return (
        refs.coords,
        payloads.kind,
        [table[code] for code in payloads.location_codes.tolist()],
        payloads.offset,
        payloads.length,
        inline,
    )
