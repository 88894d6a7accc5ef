"""The four kinds of metadata files under one roof: decode, encode, take apart, wrap up again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import zstandard

from icefloe.format.envelope import HEADER_SIZE, MAGIC, FileType, read_header, unpack
from icefloe.format.manifest import decode_manifest, encode_manifest
from icefloe.format.repo_info import decode_repo_info, encode_repo_info
from icefloe.format.snapshot import decode_snapshot, encode_snapshot
from icefloe.format.transaction_log import decode_transaction_log, encode_transaction_log
from icefloe.model.chunk_index_columns import ChunkIndexColumns
from icefloe.model.repo_info import RepoInfo
from icefloe.model.snapshot import Snapshot
from support.golden_repositories import NAMES, Golden

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from icefloe.model.transaction_log import TransactionLog


@dataclass(frozen=True)
class Kind:
    """One kind of metadata file."""

    file_type: FileType
    root: str
    decode: Callable[[bytes | memoryview, str], Any]
    encode: Callable[..., bytes]

    def write(self, value: Any, spec_version: int) -> bytes:
        """Encode a value; the file ``repo`` knows its version itself."""
        if self.file_type is FileType.REPO_INFO:
            return self.encode(value)
        return self.encode(value, spec_version=spec_version)


MANIFEST = Kind(FileType.MANIFEST, "Manifest", decode_manifest, encode_manifest)
SNAPSHOT = Kind(FileType.SNAPSHOT, "Snapshot", decode_snapshot, encode_snapshot)


def decode_all_of_transaction_log(data: bytes | memoryview, file: str) -> TransactionLog:
    """Decode a transaction log with its chunk indices, which are decoded on access."""
    log = decode_transaction_log(data, file)
    chunks = log.updated_chunks
    columns = ChunkIndexColumns(chunks.node_ids, chunks.row_offsets, chunks.ndims, chunks.coords)
    return replace(log, updated_chunks=columns)


def decode_all_of_repo_info(data: bytes | memoryview, file: str) -> RepoInfo:
    """Decode the file ``repo`` with all snapshots and updates, which are decoded on access."""
    info = decode_repo_info(data, file)
    return replace(info, snapshots=tuple(info.snapshots), latest_updates=tuple(info.latest_updates))


TRANSACTION_LOG = Kind(
    FileType.TRANSACTION_LOG,
    "TransactionLog",
    decode_all_of_transaction_log,
    encode_transaction_log,
)
REPO_INFO = Kind(FileType.REPO_INFO, "Repo", decode_all_of_repo_info, encode_repo_info)
KINDS = {kind.file_type: kind for kind in (MANIFEST, SNAPSHOT, TRANSACTION_LOG, REPO_INFO)}


def body_of(data: bytes) -> bytes:
    """Return the flatbuffer inside a metadata file."""
    return unpack(data, read_header(data, "a file").file_type, "a file")[1]


def wrap(body: bytes, file_type: int, spec_version: int = 2, *, content_size: bool = True) -> bytes:
    """Put a flatbuffer into an envelope, written without icefloe's own writer."""
    head = MAGIC + b"by-hand-1".ljust(24) + bytes((spec_version, file_type, 1))
    if content_size:
        return head + zstandard.ZstdCompressor(level=1).compress(body)
    compressor = zstandard.ZstdCompressor(level=1, write_content_size=False).compressobj()
    return head + compressor.compress(body) + compressor.flush()


def rewrap(data: bytes, body: bytes) -> bytes:
    """Put another flatbuffer under the header of a file."""
    return data[:HEADER_SIZE] + zstandard.ZstdCompressor(level=1).compress(body)


def force_metadata(value: Any) -> None:
    """Look at all metadata, which is decoded only then."""
    metadata: list[Mapping[str, Any]] = []
    if isinstance(value, Snapshot | RepoInfo):
        metadata.append(value.metadata)
    if isinstance(value, RepoInfo):
        metadata += [snapshot.metadata for snapshot in value.snapshots]
    for entries in metadata:
        for name in entries:
            entries[name]


@cache
def golden_files() -> dict[str, bytes]:
    """Every metadata file of the golden repositories, by its path."""
    found = {
        f"{name}/{path.relative_to(Golden(name).repository).as_posix()}": path.read_bytes()
        for name in NAMES
        for path in Golden(name).files()
    }
    return {path: data for path, data in found.items() if data.startswith(MAGIC)}
