"""The border between bytes and columns has no Python loop over chunk references.

Python calls a function, or one of numpy's, for each block of thousands of rows. Ten times the rows
may cost the calls of a few blocks more, and must stay far from one call per row.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from icefloe.format.location_compression import LocationCompression
from icefloe.format.sequence import manifest as sequence
from icefloe.model.chunk_index_columns import ChunkIndexColumns
from icefloe.model.chunk_payload import ChunkKind
from icefloe.model.ids import ManifestId, NodeId, SnapshotId
from icefloe.model.manifest import ArrayManifest, ChunkPayloads, Manifest
from icefloe.model.strings import Strings
from icefloe.model.transaction_log import TransactionLog
from support.flatbuffers_library import Style, build
from support.format_kinds import MANIFEST, TRANSACTION_LOG, wrap
from support.format_trees import manifest_tree, transaction_log_tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

SMALL, LARGE = 20_000, 200_000
# The official builder takes 50 µs for each reference.
SMALL_FOREIGN, LARGE_FOREIGN = 1_000, 20_000
MOST_CALLS_PER_ROW = 0.1
NODES = [NodeId(bytes((number,)) * 8) for number in range(3)]


def count_calls(action: Callable[[], Any]) -> int:
    """Count calls of Python functions and of functions in C, and lines run in loops."""
    count = 0

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        # A comprehension or a loop without calls shows in its lines, or in its bytecodes.
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(None)
    calls, count = count, 0
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(None)
    return calls + count // 10


def assert_by_blocks(small: Callable[[], Any], large: Callable[[], Any], more_rows: int) -> None:
    small()  # what is done once, such as imports and caches
    growth = count_calls(large) - count_calls(small)
    assert growth < MOST_CALLS_PER_ROW * more_rows, f"{growth / more_rows:.3f} calls for each row"


def matrix(rows: int, ndim: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
    shape = (rows, *[1] * (ndim - 1))
    return np.stack(np.unravel_index(np.arange(rows), shape), 1).astype(np.uint32)


def virtual(rows: int, *, distinct: int) -> ChunkPayloads:
    locations = Strings.of([f"s3://bucket/some/prefix/file-{n:09}.nc" for n in range(distinct)])
    codes = (np.arange(rows) * distinct // rows).astype(np.int32)
    numbers = np.arange(rows, dtype=np.uint64)
    return ChunkPayloads.make_virtual(codes, locations, numbers * 100, numbers + 1)


def make_mixed(rows: int, id_size: int = 12) -> ChunkPayloads:
    """Rows that are native, virtual and inline by turns, with locations that go back and forth."""
    kinds = np.array([ChunkKind.NATIVE, ChunkKind.VIRTUAL, ChunkKind.INLINE], np.uint8)
    kind = np.resize(kinds, rows)
    row = np.arange(rows)
    is_virtual = kind == ChunkKind.VIRTUAL
    tags = Strings.of([f'"etag {number}"' for number in range(50)])
    locations = Strings.of([f"s3://bucket/{'x' * (number % 7)}{number}" for number in range(70)])
    ids = np.zeros((rows, id_size), np.uint8)
    native = kind == ChunkKind.NATIVE
    ids[native, :8] = row[native].astype(">u8").view(np.uint8).reshape(-1, 8)
    return ChunkPayloads(
        kind=kind,
        offset=np.where(kind == ChunkKind.INLINE, 8 * (row % 5000), row).astype(np.uint64),
        length=np.full(rows, 8, np.uint64),
        chunk_id=ids,
        location_codes=np.where(is_virtual, row % 70, -1).astype(np.int32),
        locations=locations,
        etag_codes=np.where(is_virtual & (row % 2 == 0), row % 50, -1).astype(np.int32),
        etags=tags,
        last_modified=np.where(is_virtual & (row % 2 == 1), row, 0).astype(np.uint32),
        inline=np.arange(5000, dtype="<u8").view(np.uint8),
    )


PAYLOADS: dict[str, Callable[[int], ChunkPayloads]] = {
    "one location for a hundred rows": lambda rows: virtual(rows, distinct=rows // 100),
    "one location for each row": lambda rows: virtual(rows, distinct=rows),
    "mixed": make_mixed,
}
COMPRESSION = LocationCompression()
MANIFEST_ID_OF_SEQUENCE = ManifestId(bytes(16))


def manifest_of(payloads: ChunkPayloads, ndims: tuple[int, ...]) -> Manifest:
    """Spread payloads over arrays of the given ranks."""
    rows = len(payloads) // len(ndims)
    arrays = {
        node_id: ArrayManifest(
            matrix(rows, ndim), payloads.select_rows(slice(number * rows, (number + 1) * rows))
        )
        for number, (node_id, ndim) in enumerate(zip(NODES, ndims, strict=False))
    }
    return Manifest.of(ManifestId(bytes(12)), arrays)


@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "compressed"])
@pytest.mark.parametrize("ndims", [(3,), (1, 2, 4)], ids=["one rank", "three ranks"])
@pytest.mark.parametrize("payloads", PAYLOADS.values(), ids=PAYLOADS.keys())
def test_manifests(
    payloads: Callable[[int], ChunkPayloads], ndims: tuple[int, ...], *, compressed: bool
) -> None:
    """Encoding and decoding what icefloe writes."""
    compression = COMPRESSION if compressed else None

    def encode(manifest: Manifest) -> bytes:
        return MANIFEST.encode(manifest, spec_version=2, location_compression=compression)

    small, large = (manifest_of(payloads(rows), ndims) for rows in (SMALL, LARGE))
    assert_by_blocks(lambda: encode(small), lambda: encode(large), LARGE - SMALL)
    files = encode(small), encode(large)
    assert_by_blocks(
        lambda: MANIFEST.decode(files[0], "small"),
        lambda: MANIFEST.decode(files[1], "large"),
        LARGE - SMALL,
    )
    decoded = MANIFEST.decode(files[1], "large")
    assert np.array_equal(decoded.indices.coords, large.indices.coords)
    assert all(decoded.payloads[row] == large.payloads[row] for row in range(0, LARGE // 4, 997))


SEQUENCE_PAYLOADS = PAYLOADS | {"mixed": lambda rows: make_mixed(rows, 16)}


@pytest.mark.parametrize("ndims", [(3,), (1, 2, 4)], ids=["one rank", "three ranks"])
@pytest.mark.parametrize("payloads", SEQUENCE_PAYLOADS.values(), ids=SEQUENCE_PAYLOADS.keys())
def test_manifests_in_json(
    payloads: Callable[[int], ChunkPayloads], ndims: tuple[int, ...]
) -> None:
    """Encoding and decoding the JSON of generation sequence."""

    def make_manifest(rows: int) -> Manifest:
        manifest = manifest_of(payloads(rows), ndims)
        numbers = {
            NodeId.from_number(number): array
            for number, node_id in enumerate(manifest.indices.iter_node_ids())
            if (array := manifest.get_array(node_id)) is not None
        }
        return Manifest.of(MANIFEST_ID_OF_SEQUENCE, numbers)

    small, large = make_manifest(SMALL), make_manifest(LARGE)
    assert_by_blocks(
        lambda: sequence.encode_manifest(small),
        lambda: sequence.encode_manifest(large),
        LARGE - SMALL,
    )
    files = sequence.encode_manifest(small), sequence.encode_manifest(large)
    assert_by_blocks(
        lambda: sequence.decode_manifest(files[0], "small", small.id),
        lambda: sequence.decode_manifest(files[1], "large", large.id),
        LARGE - SMALL,
    )
    decoded = sequence.decode_manifest(files[1], "large", large.id)
    assert decoded.indices == large.indices
    assert all(decoded.payloads[row] == large.payloads[row] for row in range(0, LARGE // 4, 997))


@pytest.mark.parametrize(
    "shared, dictionary",
    [(True, None), (False, None), (False, b"s3://bucket/some/prefix/")],
    ids=["shared strings", "repeated strings", "compressed"],
)
@pytest.mark.parametrize("payloads", PAYLOADS.values(), ids=PAYLOADS.keys())
def test_manifests_of_another_writer(
    payloads: Callable[[int], ChunkPayloads], dictionary: bytes | None, *, shared: bool
) -> None:
    """Decoding what the official builder laid out, with shared vtables and back to front."""
    files, style = [], Style(shared_strings=shared)
    for rows in (SMALL_FOREIGN, LARGE_FOREIGN):
        manifest = manifest_of(payloads(rows), (2,))
        body = build(manifest_tree(manifest, dictionary), "Manifest", style)
        files.append(wrap(body, MANIFEST.file_type))
    assert_by_blocks(
        lambda: MANIFEST.decode(files[0], "small"),
        lambda: MANIFEST.decode(files[1], "large"),
        LARGE_FOREIGN - SMALL_FOREIGN,
    )


def log_of(rows: int) -> TransactionLog:
    arrays = {node_id: matrix(rows // 3, ndim) for node_id, ndim in zip(NODES, (1, 2, 4))}  # noqa: B905
    none: frozenset[NodeId] = frozenset()
    chunks = ChunkIndexColumns.of(arrays)
    return TransactionLog(SnapshotId(bytes(12)), none, none, none, none, none, none, chunks)


def test_transaction_logs() -> None:
    """Both directions, and what another writer laid out."""
    small, large = log_of(SMALL), log_of(LARGE)

    def encode(log: TransactionLog) -> bytes:
        return TRANSACTION_LOG.encode(log, spec_version=2)

    assert_by_blocks(lambda: encode(small), lambda: encode(large), LARGE - SMALL)
    files = encode(small), encode(large)
    assert_by_blocks(
        lambda: TRANSACTION_LOG.decode(files[0], "small"),
        lambda: TRANSACTION_LOG.decode(files[1], "large"),
        LARGE - SMALL,
    )
    foreign = [
        wrap(build(transaction_log_tree(log_of(rows)), "TransactionLog"), TRANSACTION_LOG.file_type)
        for rows in (SMALL_FOREIGN, LARGE_FOREIGN)
    ]
    assert_by_blocks(
        lambda: TRANSACTION_LOG.decode(foreign[0], "small"),
        lambda: TRANSACTION_LOG.decode(foreign[1], "large"),
        LARGE_FOREIGN - SMALL_FOREIGN,
    )


def test_the_counter_sees_loops() -> None:
    """A loop or a comprehension over rows would be seen, and a call of numpy is one call."""
    numbers = list(range(1000))
    assert count_calls(lambda: [number + 1 for number in numbers]) > 100
    assert count_calls(lambda: sum(map(str.__len__, map(str, numbers)))) < 100
    assert count_calls(lambda: np.arange(1000).sum()) < 20
