"""Hostile files cost no more than honest ones: memory and time are bounded by the bytes at hand.

The files here are valid flatbuffers except that they refer to the same bytes many times,
or claim more than they have. `peak` measures what Python and numpy allocate on the way.
"""

from __future__ import annotations

import contextlib
import random
import struct
import subprocess
import sys
import time
import tracemalloc
from typing import TYPE_CHECKING, Any

import msgpack
import numpy as np
import pytest
import zstandard

from icefloe.errors import FormatError
from icefloe.format.envelope import HEADER_SIZE, FileType, pack, unpack
from icefloe.format.location_compression import decompress
from icefloe.model.chunk_index_columns import ChunkIndexColumns
from icefloe.model.ids import SnapshotId
from icefloe.model.strings import Strings
from icefloe.model.transaction_log import TransactionLog
from support.flatbuffers_library import Style, build, read
from support.format_kinds import (
    MANIFEST,
    REPO_INFO,
    SNAPSHOT,
    TRANSACTION_LOG,
    Kind,
    force_metadata,
    wrap,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.flatbuffers_library import Tree

MIB = 1 << 20
FILE = "manifests/HOSTILE"

MANIFEST_TREE: Tree = {
    "id": bytes(12),
    "arrays": [
        {
            "node_id": bytes(8),
            "refs": [{"index": [0], "location": "s3://bucket/file", "offset": 1, "length": 2}],
        }
    ],
    "compression_algorithm": 0,
}
LOG_TREE: Tree = {
    "id": bytes(12),
    **{
        f"{what}_{nodes}": []
        for what in ("new", "deleted", "updated")
        for nodes in ("groups", "arrays")
    },
    "updated_chunks": [{"node_id": bytes(8), "chunks": [{"coords": [0]}]}],
}
REPO_TREE: Tree = {
    "spec_version": 2,
    "tags": [],
    "branches": [{"name": "main", "snapshot_index": 0}],
    "deleted_tags": ["gone"],
    "snapshots": [
        {
            "id": bytes(12),
            "parent_offset": -1,
            "message": "",
            "metadata": [{"name": "a", "value": b"\x00\x04\x01"}],
        }
    ],
    "status": {},
    "metadata": [],
    "latest_updates": [{"update_type_type": 1, "update_type": (1, {})}],
}
SNAPSHOT_TREE: Tree = {
    "id": bytes(12),
    "nodes": [
        {
            "id": bytes(8),
            "path": "/a",
            "user_data": b"{}",
            "node_data_type": 1,
            "node_data": (
                1,
                {
                    "shape": [],
                    "shape_v2": [{"array_length": 1, "num_chunks": 1}],
                    "dimension_names": [{"name": "x"}],
                    "manifests": [{"object_id": bytes(12), "extents": [bytes(8)]}],
                },
            ),
        }
    ],
    "message": "",
    "metadata": [],
    "manifest_files": [],
    "manifest_files_v2": [],
}
TREES = {
    MANIFEST.root: MANIFEST_TREE,
    TRANSACTION_LOG.root: LOG_TREE,
    REPO_INFO.root: REPO_TREE,
    SNAPSHOT.root: SNAPSHOT_TREE,
}


def peak(action: Callable[[], Any]) -> tuple[int, float]:
    """Run something, let it fail with a `FormatError`, and say what it took at most."""
    tracemalloc.start()
    start = time.perf_counter()
    try:
        with contextlib.suppress(FormatError):
            action()
        took = time.perf_counter() - start
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return most, took


def assert_bounded(kind: Kind, body: bytes, times: float, seconds: float = 10) -> None:
    """Decode a flatbuffer, which may be refused, in memory of a few times its size."""
    data = wrap(body, kind.file_type)

    def decode() -> None:
        force_metadata(kind.decode(data, FILE))

    memory, took = peak(decode)
    assert memory < times * len(body) + 4 * MIB, f"{memory / len(body):.1f} times its size"
    assert took < seconds


def many_times(kind: Kind, path: str, count: int) -> bytes:
    """Let the vector at ``path`` name its first item ``count`` times."""
    body = build(TREES[kind.root], kind.root)
    body += bytes(-len(body) % 8)
    found = read(body, kind.root)
    field, item = found.fields[path], found.targets[f"{path}[0]"]
    # The new vector goes behind the file, and behind it a copy of everything to point at.
    vector = len(body)
    copy = vector + 8 + 4 * count + (-4 * count % 8)
    pointers = copy + item - (vector + 4 + 4 * np.arange(count, dtype=np.int64))
    changed = bytearray(body)
    struct.pack_into("<I", changed, field, vector - field)
    out = bytes(changed) + struct.pack("<I", count) + pointers.astype("<u4").tobytes()
    return out + bytes(copy - len(out)) + body


@pytest.mark.parametrize(
    "kind, path",
    [
        (MANIFEST, "arrays"),
        (MANIFEST, "arrays[0].refs"),
        (TRANSACTION_LOG, "updated_chunks"),
        (TRANSACTION_LOG, "updated_chunks[0].chunks"),
        (REPO_INFO, "latest_updates"),
        (REPO_INFO, "snapshots"),
        (REPO_INFO, "branches"),
        (REPO_INFO, "deleted_tags"),
        (REPO_INFO, "snapshots[0].metadata"),
        (SNAPSHOT, "nodes"),
        (SNAPSHOT, "nodes[0].node_data.shape_v2"),
        (SNAPSHOT, "nodes[0].node_data.dimension_names"),
        (SNAPSHOT, "nodes[0].node_data.manifests"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.root,
)
def test_one_thing_named_a_million_times(kind: Kind, path: str) -> None:
    """A vector of pointers to one table or string is refused before it is made into objects."""
    body = many_times(kind, path, MIB)
    with pytest.raises(FormatError, match="overlap"):
        kind.decode(wrap(body, kind.file_type), FILE)
    assert_bounded(kind, body, times=6)


def test_one_update_named_a_million_times_in_a_file_with_room() -> None:
    """Bytes that nothing refers to do not buy a million objects made of one table."""
    body = many_times(REPO_INFO, "latest_updates", MIB) + bytes(8 * MIB)
    with pytest.raises(FormatError, match="tables in latest_updates overlap each other"):
        REPO_INFO.decode(wrap(body, REPO_INFO.file_type), FILE)
    assert_bounded(REPO_INFO, body, times=8)


def honest_refs(count: int, location: Callable[[int], str]) -> bytes:
    refs = [{"index": [row], "location": location(row)} for row in range(count)]
    tree = {**MANIFEST_TREE, "arrays": [{"node_id": bytes(8), "refs": refs}]}
    return build(tree, "Manifest", Style(shared_strings=True))


def test_references_that_share_one_huge_location() -> None:
    """Which is allowed: it is held once, however many references name it."""
    location = "s3://bucket/" + "x" * MIB
    body = honest_refs(5000, lambda row: location)
    assert_bounded(MANIFEST, body, times=8, seconds=2)
    manifest = MANIFEST.decode(wrap(body, MANIFEST.file_type), FILE)
    assert len(manifest.payloads.locations) == 1
    assert manifest.nbytes < 2 * MIB


def test_locations_that_overlap() -> None:
    """Each string reaches from its own start to one common end: a square of the bytes in all."""
    body = bytearray(honest_refs(5000, lambda row: f"s3://bucket/{row:08}"))
    found = read(bytes(body), "Manifest")
    targets = [place for path, place in found.targets.items() if path.endswith("location")]
    end = max(targets) + 4 + 20
    for place in targets:
        struct.pack_into("<I", body, place, end - place - 4)
    with pytest.raises(FormatError, match=r"a chunk's location overlaps another"):
        MANIFEST.decode(wrap(bytes(body), MANIFEST.file_type), FILE)
    assert_bounded(MANIFEST, bytes(body), times=16)


def test_arrays_that_share_one_vector_of_references() -> None:
    """Many arrays, each with the same thousand references: refused, as they are not there."""
    arrays: list[Tree] = [{"node_id": struct.pack(">Q", row), "refs": []} for row in range(2000)]
    arrays[0]["refs"] = [{"index": [row], "inline": b""} for row in range(2000)]
    body = bytearray(build({**MANIFEST_TREE, "arrays": arrays}, "Manifest"))
    found = read(bytes(body), "Manifest")
    shared = found.targets["arrays[0].refs"]
    for row in range(1, 2000):
        field = found.fields[f"arrays[{row}].refs"]
        struct.pack_into("<I", body, field, shared - field)
    with pytest.raises(FormatError, match="vectors overlap or have excessive counts"):
        MANIFEST.decode(wrap(bytes(body), MANIFEST.file_type), FILE)
    assert_bounded(MANIFEST, bytes(body), times=4)


@pytest.mark.parametrize("kind", [MANIFEST, TRANSACTION_LOG], ids=lambda kind: kind.root)
def test_an_absurd_number_of_dimensions(kind: Kind) -> None:
    """An index as long as the file is refused, not gone through dimension by dimension."""
    tree = (
        {**MANIFEST_TREE, "arrays": [{"node_id": bytes(8), "refs": [_wide_ref()]}]}
        if kind is MANIFEST
        else {
            **LOG_TREE,
            "updated_chunks": [{"node_id": bytes(8), "chunks": [{"coords": [0] * 100_000}]}],
        }
    )
    body = build(tree, kind.root)
    with pytest.raises(FormatError, match="100000 dimensions exceed the limit of 255"):
        kind.decode(wrap(body, kind.file_type), FILE)
    assert_bounded(kind, body, times=4, seconds=1)


def _wide_ref() -> Tree:
    return {"index": [0] * 100_000, "inline": b""}


def test_vtables_as_long_as_they_can_be() -> None:
    """Two of them that differ at the very end do not make every reference cost 64 kB."""
    body = build(MANIFEST_TREE, "Manifest")
    body += bytes(-len(body) % 8)
    found = read(body, "Manifest")
    table = found.targets["arrays[0].refs[0]"]
    (distance,) = struct.unpack_from("<i", body, table)
    (size,) = struct.unpack_from("<H", body, table - distance)
    vtable = body[table - distance : table - distance + size]
    long = struct.pack("<H", 0xFFFE) + vtable[2:] + bytes(0xFFFE - size)
    vtables = [long, long[:-2] + b"\x01\x00"]
    count, vector = 200_000, len(body)
    copies = [vector + 8 + 4 * count + len(body) * number for number in range(2)]
    starts = [copies[1] + len(body), copies[1] + len(body) + 0x10000]
    changed = bytearray(body)
    field = found.fields["arrays[0].refs"]
    struct.pack_into("<I", changed, field, vector - field)
    rows = np.arange(count, dtype=np.int64)
    pointers = np.where(rows % 2, copies[1], copies[0]) + table - (vector + 4 + 4 * rows)
    out = bytes(changed) + struct.pack("<I", count) + pointers.astype("<u4").tobytes() + bytes(4)
    for copy, start in zip(copies, starts, strict=True):
        moved = bytearray(body)
        struct.pack_into("<i", moved, table, copy + table - start)
        out += bytes(moved)
    out += vtables[0] + bytes(2) + vtables[1] + bytes(2)
    out += bytes(16 * count)  # room that many references would have taken
    assert len(MANIFEST.decode(wrap(out, MANIFEST.file_type), FILE)) == 1  # one, many times
    assert_bounded(MANIFEST, out, times=8, seconds=3)


@pytest.mark.parametrize("size", [MIB, 16 * MIB])
def test_a_huge_string_costs_its_bytes(size: int) -> None:
    """A message, a node's metadata or an inline chunk may be long; time goes with the length."""
    tree = {**SNAPSHOT_TREE, "message": "é" * (size // 2)}
    tree["nodes"] = [{**SNAPSHOT_TREE["nodes"][0], "user_data": b"x" * size}]
    body = build(tree, "Snapshot")
    assert_bounded(SNAPSHOT, body, times=8, seconds=2)


def test_many_small_arrays_out_of_order() -> None:
    """A transaction log is put in order in one go, not array by array."""
    arrays = 50_000
    ids = np.arange(arrays, dtype=">u8").view(np.uint8).reshape(-1, 8)
    coords = np.tile(np.array([1, 0], np.uint32), arrays)
    row_offsets = np.arange(0, 2 * arrays + 1, 2, dtype=np.int64)
    chunks = ChunkIndexColumns(ids, row_offsets, np.ones(arrays, np.int64), coords)
    none: frozenset[Any] = frozenset()
    log = TransactionLog(SnapshotId(bytes(12)), none, none, none, none, none, none, chunks)
    data = TRANSACTION_LOG.encode(log, spec_version=2)
    start = time.perf_counter()
    decoded = TRANSACTION_LOG.decode(data, FILE)
    assert time.perf_counter() - start < 3
    assert decoded.updated_chunks.coords.tolist() == [0, 1] * arrays


@pytest.mark.parametrize("content_size", [True, False])
def test_decompression_bombs(*, content_size: bool) -> None:
    """A small file that would become half a gigabyte is refused after 64 MiB at the most."""
    data = wrap(bytes(512 * MIB), MANIFEST.file_type, content_size=content_size)
    assert len(data) < MIB // 8
    memory, took = peak(lambda: MANIFEST.decode(data, FILE))
    assert memory < 80 * MIB
    assert took < 5
    with pytest.raises(FormatError, match=r"limit is \d+|larger than \d+ bytes"):
        MANIFEST.decode(data, FILE)


def test_a_frame_that_lies_about_its_size() -> None:
    """A frame that claims exabytes is refused without room being made for them."""
    honest = wrap(build(MANIFEST_TREE, "Manifest"), MANIFEST.file_type)
    header = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 2**60)
    data = honest[:HEADER_SIZE] + header + honest[HEADER_SIZE + 6 :]
    assert zstandard.frame_content_size(data[HEADER_SIZE:]) == 2**60
    memory, _ = peak(lambda: MANIFEST.decode(data, FILE))
    assert memory < MIB
    with pytest.raises(FormatError, match="declares a decompressed size"):
        MANIFEST.decode(data, FILE)


def test_compressed_locations_that_unfold() -> None:
    """Frames of a dozen bytes that each claim a kilobyte are refused where the file is small."""
    compressor = zstandard.ZstdCompressor()
    frames = [
        compressor.compress(bytes((row % 256,)) * 1024) + struct.pack("<H", row // 256)
        for row in range(70_000)
    ]
    table = Strings.of(frames)

    def unfold() -> None:
        decompress(table, b"", FILE, file_size=len(table.data))

    memory, _ = peak(unfold)
    assert memory < 10 * len(table.data) + 4 * MIB
    with pytest.raises(FormatError, match=r"declare 71680000 bytes; the limit is 67108864"):
        unfold()


@pytest.mark.parametrize("header", [b"\xdd", b"\xdf"], ids=["arrays", "maps"])
def test_metadata_that_claims_more_than_it_has(header: bytes) -> None:
    """Containers inside each other that each claim as many items as the value has bytes."""
    claim = header + struct.pack(">I", MIB // 4)
    value = claim * 60 + bytes(MIB // 4)
    tree = {**SNAPSHOT_TREE, "metadata": [{"name": "a", "value": value}], "nodes": []}
    del tree["manifest_files_v2"]
    data = wrap(build(tree, "Snapshot"), SNAPSHOT.file_type, 1)
    snapshot = SNAPSHOT.decode(data, FILE)
    memory, took = peak(lambda: snapshot.metadata["a"])
    assert memory < 24 * len(value)
    assert took < 10
    with pytest.raises(FormatError, match=f"{FILE}: a: a metadata value is not valid MessagePack"):
        _ = snapshot.metadata["a"]


def test_deeply_nested_metadata() -> None:
    """Nesting beyond any use is refused, not followed until the stack ends."""
    value: Any = 1
    for _ in range(300):
        value = [value]
    tree = {**SNAPSHOT_TREE, "nodes": []}
    tree["metadata"] = [{"name": "a", "value": msgpack.packb(value)}]
    del tree["manifest_files_v2"]
    snapshot = SNAPSHOT.decode(wrap(build(tree, "Snapshot"), SNAPSHOT.file_type, 1), FILE)
    with pytest.raises(FormatError, match="nested more than 64 levels deep"):
        _ = snapshot.metadata["a"]


TOO_LARGE = """
import resource, sys
import numpy as np
from icefloe.errors import FormatError
from icefloe.format.manifest import encode_manifest
from icefloe.format.transaction_log import encode_transaction_log
from icefloe.model.chunk_index_columns import ChunkIndexColumns
from icefloe.model.ids import ManifestId, SnapshotId
from icefloe.model.manifest import ChunkPayloads, Manifest, make_constant
from icefloe.model.strings import Strings
from icefloe.model.transaction_log import TransactionLog

kind, rows = sys.argv[1], int(sys.argv[2])
coords = make_constant(0, 3 * rows, np.uint32)
row_offsets = np.array([0, rows])
indices = ChunkIndexColumns(np.zeros((1, 8), np.uint8), row_offsets, np.array([3]), coords)
zeros = make_constant(0, rows, np.uint64)
location = make_constant(0, rows, np.int32)
payloads = ChunkPayloads.make_virtual(location, Strings.of(["s3://bucket/file"]), zeros, zeros)
none = frozenset()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    if kind == "manifest":
        encode_manifest(Manifest(ManifestId(bytes(12)), indices, payloads), spec_version=2)
    else:
        log = TransactionLog(SnapshotId(bytes(12)), none, none, none, none, none, none, indices)
        encode_transaction_log(log, spec_version=2)
except FormatError as error:
    print(error.kind, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    print(error)
"""


@pytest.mark.parametrize(
    "kind, advice",
    [
        ("manifest", "split manifests (ManifestSplittingConfig)"),
        ("transaction log", "commit in parts of at most 59,652,310 chunks"),
    ],
)
@pytest.mark.parametrize("rows", [62_000_000, 10**9])
def test_two_gibibytes_are_refused_before_memory_is_spent(
    kind: str, advice: str, rows: int
) -> None:
    """More than a flatbuffer holds gives a clear error, not a machine without memory.

    The columns repeat one number and take no memory, so that what is spent is the writer's. A file
    of 62 million references would be a little or a lot larger than allowed.
    """
    command = [sys.executable, "-c", TOO_LARGE, kind, str(rows)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    error_kind, kilobytes = done.stdout.split()[:2]
    assert error_kind == "serialization"
    assert "would exceed 2 GiB" in done.stdout
    assert advice in done.stdout
    assert int(kilobytes) < 600 * 1024


def test_large_frames_are_as_long_as_they_claim() -> None:
    """What is cut off is found, and so is what stands behind a frame."""
    content = random.Random(0).randbytes(1 << 10) * (9 << 10)
    given: Any = {"file_type": FileType.MANIFEST, "spec_version": 1, "level": 1}
    file = pack([content], len(content), **given)
    assert unpack(file, FileType.MANIFEST, "whole")[1] == content
    frame = file[HEADER_SIZE:]
    for damaged in (file[:-3], file[: len(file) // 2], file + b"x", file + frame):
        with pytest.raises(FormatError, match="zstd frame is damaged"):
            unpack(damaged, FileType.MANIFEST, "damaged")
