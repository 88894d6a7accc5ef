"""One kind of damage at a time: each is refused with the name of the file and the reason.

Most cases start from a small valid flatbuffer and change one precise place in it, found by its
path: the field of a table, what it points at, or the vtable that says where the field is.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from icefloe.errors import ErrorKind, FormatError
from icefloe.format import flexbuffers
from icefloe.format.envelope import HEADER_SIZE, read_header
from icefloe.format.ref_json import decode_ref
from icefloe.model.ids import NodeId
from support.flatbuffers_library import SCHEMAS, Reading, build, read
from support.format_kinds import (
    KINDS,
    MANIFEST,
    REPO_INFO,
    SNAPSHOT,
    TRANSACTION_LOG,
    Kind,
    golden_files,
    wrap,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.flatbuffers_library import Tree

FILE = "some/key/of/a/FILE"


def native(row: int) -> Tree:
    return {"index": [row, row], "chunk_id": bytes((row,)) * 12, "offset": 0, "length": 9}


def virtual(row: int) -> Tree:
    return {
        "index": [row, row],
        "location": f"s3://bucket/{row}",
        "offset": 3,
        "length": 9,
        "checksum_etag": "etag",
    }


def node(number: int, path: str, data: tuple[int, Tree] = (2, {})) -> Tree:
    return {
        "id": bytes((number,)) * 8,
        "path": path,
        "user_data": b"{}",
        "node_data_type": data[0],
        "node_data": data,
    }


def array(**changes: Any) -> tuple[int, Tree]:
    return 1, {
        "shape": [],
        "shape_v2": [{"array_length": 10, "num_chunks": 5}],
        "dimension_names": [{"name": "x"}],
        "manifests": [{"object_id": b"m" * 12, "extents": [struct.pack("<II", 0, 5)]}],
        **changes,
    }


def update(code: int, content: Tree) -> Tree:
    return {"update_type_type": code, "update_type": (code, content), "updated_at": 5}


ID1, ID2, ID3 = b"a" * 12, b"b" * 12, b"c" * 12
TREES: dict[str, Tree] = {
    "Manifest": {
        "id": ID1,
        "arrays": [
            {"node_id": b"a" * 8, "refs": [native(0), virtual(1), native(2)]},
            {"node_id": b"b" * 8, "refs": [{"index": [], "inline": b"bytes"}]},
        ],
        "compression_algorithm": 0,
    },
    "Snapshot": {
        "id": ID1,
        "nodes": [node(1, "/"), node(2, "/a", array()), node(3, "/b", array())],
        "flushed_at": 1,
        "message": "a message",
        "metadata": [
            {"name": "one", "value": flexbuffers.dumps([1, "x"])},
            {"name": "two", "value": flexbuffers.dumps(2)},
        ],
        "manifest_files": [],
        "manifest_files_v2": [
            {"id": b"m" * 12, "size_bytes": 1, "num_chunk_refs": 1},
            {"id": b"n" * 12, "size_bytes": 1, "num_chunk_refs": 1},
        ],
    },
    "TransactionLog": {
        "id": ID1,
        "new_groups": [b"a" * 8, b"b" * 8],
        "new_arrays": [],
        "deleted_groups": [],
        "deleted_arrays": [],
        "updated_arrays": [],
        "updated_groups": [],
        "updated_chunks": [
            {"node_id": b"a" * 8, "chunks": [{"coords": [0, 1]}, {"coords": [0, 2]}]},
            {"node_id": b"b" * 8, "chunks": [{"coords": [7]}]},
        ],
        "moved_nodes": [
            {"from": "/a", "to": "/b", "node_id": b"a" * 8, "node_type": 1},
            {"from": "/b", "to": "/c", "node_id": b"b" * 8, "node_type": 0},
        ],
    },
    "Repo": {
        "spec_version": 2,
        "tags": [
            {"name": "t1", "snapshot_index": 0},
            {"name": "t2", "snapshot_index": 1},
        ],
        "branches": [{"name": "main", "snapshot_index": 2}],
        "deleted_tags": ["gone", "lost"],
        "snapshots": [
            {"id": ID1, "parent_offset": -1, "flushed_at": 1, "message": "one", "metadata": []},
            {"id": ID2, "parent_offset": 0, "flushed_at": 2, "message": "two", "metadata": []},
            {"id": ID3, "parent_offset": 1, "flushed_at": 3, "message": "three", "metadata": []},
        ],
        "status": {"availability": 1, "set_at": 4, "limited_availability_reason": "why"},
        "metadata": [],
        "latest_updates": [update(1, {}), update(10, {"branch": "main", "new_snap_id": ID3})],
        "enabled_feature_flags": [3, 4],
        "config": flexbuffers.dumps({}),
    },
}


@dataclass
class Draft:
    """A flatbuffer that is valid but for what a case does to it."""

    kind: Kind
    tree: Tree
    body: bytearray = field(default_factory=bytearray)
    found: Reading = field(default_factory=lambda: Reading({}))

    def build(self) -> None:
        self.body = bytearray(build(self.tree, self.kind.root))
        self.found = read(bytes(self.body), self.kind.root)

    def u32(self, at: int, value: int) -> None:
        struct.pack_into("<I", self.body, at, value & 0xFFFFFFFF)

    def table_of(self, path: str) -> tuple[int, int]:
        """Return where the table that has the field is, and where its vtable is."""
        owner = path.rpartition(".")[0]
        (table,) = (
            struct.unpack_from("<I", self.body, 0) if not owner else (self.found.targets[owner],)
        )
        (distance,) = struct.unpack_from("<i", self.body, table)
        return table, table - distance

    def point_at(self, path: str, target: int) -> None:
        """Let the field point elsewhere."""
        at = self.found.fields[path]
        self.u32(at, target - at)

    def set_count(self, path: str, count: int) -> None:
        """Let the vector or string have another length."""
        self.u32(self.found.targets[path], count)

    def remove(self, path: str, kind: str) -> None:
        """Remove a field from the vtable, behind the builder's back."""
        self.set_vtable_entry(path, kind, 0)

    def set_vtable_entry(self, path: str, kind: str, offset: int) -> None:
        _, vtable = self.table_of(path)
        names = [name for name, _ in SCHEMAS[kind]]
        slot = names.index(path.rpartition(".")[2])
        struct.pack_into("<H", self.body, vtable + 4 + 2 * slot, offset)

    def decode(self) -> Any:
        return self.kind.decode(wrap(bytes(self.body), self.kind.file_type), FILE)


def draft(kind: Kind, **changes: Any) -> Draft:
    result = Draft(kind, {**TREES[kind.root], **changes})
    result.build()
    return result


def refuse(made: Draft, reason: str) -> None:
    """Check that a draft is refused for the reason, by name."""
    with pytest.raises(FormatError, match=reason) as caught:
        made.decode()
    assert str(caught.value).startswith(f"{FILE}: ")
    assert caught.value.file == FILE


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.root)
def test_the_drafts_are_valid(kind: Kind) -> None:
    """Without damage, each is read: what follows is refused for its damage alone."""
    draft(kind).decode()


# --- the envelope


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.root)
@pytest.mark.parametrize(
    "damage, reason, error_kind",
    [
        (lambda data: b"", "does not start with ICE", ErrorKind.INVALID_FILE_FORMAT),
        (lambda data: data[:11], "does not start with ICE", ErrorKind.INVALID_FILE_FORMAT),
        (lambda data: b"X" + data[1:], "does not start with ICE", ErrorKind.INVALID_FILE_FORMAT),
        (lambda data: data[:12], "truncated: 12 bytes", ErrorKind.INVALID_FILE_FORMAT),
        (lambda data: data[:38], "truncated: 38 bytes", ErrorKind.INVALID_FILE_FORMAT),
        (lambda data: data[:39], "zstd frame is damaged, truncated", ErrorKind.DESERIALIZATION),
        (lambda data: data[:45], "zstd frame is damaged, truncated", ErrorKind.DESERIALIZATION),
        (lambda data: data[:-1], "zstd frame is damaged, truncated", ErrorKind.DESERIALIZATION),
        (lambda data: data + b"\0", "zstd frame is damaged", ErrorKind.DESERIALIZATION),
        (lambda data: data + data[39:], "zstd frame is damaged", ErrorKind.DESERIALIZATION),
        (
            lambda data: data[:36] + b"\3" + data[37:],
            "has spec version 3, but icefloe supports .*upgrade icefloe",
            ErrorKind.UNSUPPORTED_SPEC_VERSION,
        ),
        (
            lambda data: data[:36] + b"\0" + data[37:],
            "has spec version 0",
            ErrorKind.UNSUPPORTED_SPEC_VERSION,
        ),
        (
            lambda data: data[:37] + b"\x09" + data[38:],
            "unknown file type 9",
            ErrorKind.INVALID_FILE_FORMAT,
        ),
        (
            lambda data: data[:37] + b"\3" + data[38:],
            "has file type attributes",
            ErrorKind.INVALID_FILE_FORMAT,
        ),
        (
            lambda data: data[:38] + b"\0" + data[39:],
            "unknown compression 0",
            ErrorKind.INVALID_FILE_FORMAT,
        ),
        (
            lambda data: wrap(b"", data[37]),
            "got 0 bytes",
            ErrorKind.DESERIALIZATION,
        ),
    ],
)
def test_envelopes(
    kind: Kind, damage: Callable[[bytes], bytes], reason: str, error_kind: ErrorKind
) -> None:
    """Magic bytes, version, type, compression, and a frame that is neither short nor long."""
    data = damage(wrap(bytes(draft(kind).body), kind.file_type))
    with pytest.raises(FormatError, match=reason) as caught:
        kind.decode(data, FILE)
    assert str(caught.value).startswith(f"{FILE}: ")
    assert caught.value.kind is error_kind


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.root)
def test_a_file_of_another_kind(kind: Kind) -> None:
    """Each decoder refuses the files of the others by what their headers say."""
    for other in KINDS.values():
        if other is not kind:
            data = wrap(bytes(draft(other).body), other.file_type)
            with pytest.raises(FormatError, match=r"has file type .*, expected "):
                kind.decode(data, FILE)


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.root)
def test_every_truncation(kind: Kind) -> None:
    """A file that ends early is refused, wherever it ends."""
    data = wrap(bytes(draft(kind).body), kind.file_type)
    for length in range(len(data)):
        with pytest.raises(FormatError, match=FILE):
            kind.decode(data[:length], FILE)


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.root)
def test_every_truncation_inside_the_compression(kind: Kind) -> None:
    """So is a flatbuffer that ends early: the official builder leaves nothing to spare."""
    made = draft(kind)
    whole = bytes(made.body)
    # The last vector's bytes are padded at the end of the file.
    for length in range(len(whole) - 8):
        made.body = bytearray(whole[:length])
        refuse(made, ".")


# --- offsets


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.root)
@pytest.mark.parametrize("root", [0, 1, 2, 6, 2**31, 2**32 - 4, "size", "size - 4"])
def test_the_root_offset(kind: Kind, root: int | str) -> None:
    """Out of bounds, unaligned, or at itself."""
    made = draft(kind)
    size = len(made.body)
    where = {"size": size, "size - 4": size - 4}.get(str(root), root)
    assert isinstance(where, int)
    made.u32(0, where)
    refuse(made, f"{made.kind.root} 0 ")


POINTERS = [
    (MANIFEST, "arrays"),
    (MANIFEST, "arrays[0].refs"),
    (MANIFEST, "arrays[0].refs[1].index"),
    (MANIFEST, "arrays[0].refs[1].location"),
    (MANIFEST, "arrays[0].refs[1].checksum_etag"),
    (MANIFEST, "arrays[1].refs[0].inline"),
    (SNAPSHOT, "nodes"),
    (SNAPSHOT, "nodes[1].path"),
    (SNAPSHOT, "nodes[1].user_data"),
    (SNAPSHOT, "nodes[1].node_data"),
    (SNAPSHOT, "nodes[1].node_data.shape_v2"),
    (SNAPSHOT, "nodes[1].node_data.dimension_names"),
    (SNAPSHOT, "nodes[1].node_data.manifests"),
    (SNAPSHOT, "message"),
    (SNAPSHOT, "metadata"),
    (SNAPSHOT, "metadata[0].name"),
    (SNAPSHOT, "metadata[0].value"),
    (SNAPSHOT, "manifest_files_v2"),
    (TRANSACTION_LOG, "new_groups"),
    (TRANSACTION_LOG, "updated_chunks"),
    (TRANSACTION_LOG, "updated_chunks[0].chunks"),
    (TRANSACTION_LOG, "updated_chunks[0].chunks[1].coords"),
    (TRANSACTION_LOG, "moved_nodes"),
    (TRANSACTION_LOG, "moved_nodes[0].from"),
    (TRANSACTION_LOG, "moved_nodes[0].to"),
    (REPO_INFO, "tags"),
    (REPO_INFO, "tags[0].name"),
    (REPO_INFO, "deleted_tags"),
    (REPO_INFO, "snapshots"),
    (REPO_INFO, "snapshots[0].message"),
    (REPO_INFO, "status"),
    (REPO_INFO, "status.limited_availability_reason"),
    (REPO_INFO, "latest_updates"),
    (REPO_INFO, "latest_updates[1].update_type"),
    (REPO_INFO, "latest_updates[1].update_type.branch"),
    (REPO_INFO, "enabled_feature_flags"),
    (REPO_INFO, "config"),
]
every_pointer = pytest.mark.parametrize(
    "kind, path", POINTERS, ids=[f"{kind.root}.{path}" for kind, path in POINTERS]
)


@every_pointer
@pytest.mark.parametrize("target", ["past the end", "the last bytes", "unaligned", "far away"])
def test_pointers_to_impossible_places(kind: Kind, path: str, target: str) -> None:
    """Wherever a field points, the place is checked before it is followed."""
    made = draft(kind)
    at, end = made.found.fields[path], len(made.body)
    places = {
        "past the end": end,
        "the last bytes": end - 2,
        "unaligned": made.found.targets[path] + 1,
        "far away": at + 2**32 - 4,
    }
    made.point_at(path, places[target])
    name = path.rpartition(".")[2]
    refuse(made, f"has a pointer {name} to an invalid position|is outside the file")


@every_pointer
def test_pointers_in_a_circle(kind: Kind, path: str) -> None:
    """A field that points at itself is its own vector, string or table: some check stops it."""
    made = draft(kind)
    made.u32(made.found.fields[path], 0)
    with pytest.raises(FormatError, match=FILE):
        made.decode()


TABLES = ("status", "nodes[1].node_data", "latest_updates[1].update_type")
VECTORS = [(kind, path) for kind, path in POINTERS if path not in TABLES]


@pytest.mark.parametrize(
    "kind, path", VECTORS, ids=[f"{kind.root}.{path}" for kind, path in VECTORS]
)
@pytest.mark.parametrize("count", [2**32 - 1, 2**31, "size"])
def test_absurd_counts(kind: Kind, path: str, count: int | str) -> None:
    """A vector or string that claims more than the rest of the file is not gone through."""
    made = draft(kind)
    made.set_count(path, len(made.body) if count == "size" else int(count))
    name = path.rpartition(".")[2]
    refuse(made, f"{name} .*(extends past the end|is not null-terminated)|has a {name} that")


ITEMS = [
    (MANIFEST, "arrays[0]"),
    (MANIFEST, "arrays[0].refs[1]"),
    (SNAPSHOT, "nodes[1]"),
    (SNAPSHOT, "nodes[1].node_data.manifests[0]"),
    (TRANSACTION_LOG, "updated_chunks[0].chunks[0]"),
    (TRANSACTION_LOG, "moved_nodes[0]"),
    (REPO_INFO, "tags[0]"),
    (REPO_INFO, "snapshots[1]"),
    (REPO_INFO, "latest_updates[0]"),
    (REPO_INFO, "deleted_tags[0]"),
]


@pytest.mark.parametrize("kind, path", ITEMS, ids=[f"{kind.root}.{path}" for kind, path in ITEMS])
@pytest.mark.parametrize("offset", [2**32 - 4, 2**31, 1, "size"])
def test_items_at_impossible_places(kind: Kind, path: str, offset: int | str) -> None:
    """The pointers inside vectors are checked like those in tables."""
    made = draft(kind)
    vector, index = path[:-1].rsplit("[", 1)
    at = made.found.targets[vector] + 4 + 4 * int(index)
    made.u32(at, len(made.body) if offset == "size" else int(offset))
    refuse(made, r"is outside the file|points outside the file")


@pytest.mark.parametrize("kind, path", ITEMS[:-1], ids=lambda value: str(value)[:20])
@pytest.mark.parametrize(
    "damage, reason",
    [
        ("vtable far before", "has its vtable outside the file"),
        ("vtable far behind", "has its vtable outside the file"),
        ("vtable unaligned", "has its vtable outside the file"),
        ("vtable too small", "has a malformed vtable"),
        ("vtable of odd size", "has a malformed vtable"),
        ("vtable too large", "has a malformed vtable"),
        ("table too small", "extends past the end|at an invalid position"),
        ("table too large", "extends past the end of the file"),
    ],
)
def test_vtables(kind: Kind, path: str, damage: str, reason: str) -> None:
    """A table's vtable is inside the file and describes a table that is."""
    made = draft(kind)
    table = made.found.targets[path]
    (distance,) = struct.unpack_from("<i", made.body, table)
    vtable = table - distance
    match damage:
        case "vtable far before":
            struct.pack_into("<i", made.body, table, table + 8)
        case "vtable far behind":
            struct.pack_into("<i", made.body, table, -len(made.body))
        case "vtable unaligned":
            struct.pack_into("<i", made.body, table, distance + 1)
        case "vtable too small":
            struct.pack_into("<H", made.body, vtable, 2)
        case "vtable of odd size":
            struct.pack_into("<H", made.body, vtable, 7)
        case "vtable too large":
            struct.pack_into("<H", made.body, vtable, 0xFFFE)
        case "table too small":
            struct.pack_into("<H", made.body, vtable + 2, 0)
        case "table too large":
            struct.pack_into("<H", made.body, vtable + 2, 0xFFFC)
    refuse(made, reason)


@pytest.mark.parametrize(
    "kind, path, table, offset",
    [
        (MANIFEST, "id", "Manifest", 0xFFF0),
        (MANIFEST, "arrays[0].refs[0].chunk_id", "ChunkRef", 2),
        (MANIFEST, "arrays[0].refs[1].offset", "ChunkRef", 5),
        (MANIFEST, "arrays[0].refs[1].length", "ChunkRef", 10),
        (SNAPSHOT, "flushed_at", "Snapshot", 6),
        (REPO_INFO, "tags[1].snapshot_index", "Ref", 3),
    ],
)
def test_fields_outside_their_table(kind: Kind, path: str, table: str, offset: int) -> None:
    """A vtable may not put a field over its edge or across its alignment."""
    made = draft(kind)
    made.set_vtable_entry(path, table, offset)
    refuse(made, f"has the field {path.rpartition('.')[2]} at an invalid position")


REQUIRED = [
    (MANIFEST, "id", "Manifest"),
    (MANIFEST, "arrays", "Manifest"),
    (MANIFEST, "arrays[0].node_id", "ArrayManifest"),
    (MANIFEST, "arrays[0].refs", "ArrayManifest"),
    (MANIFEST, "arrays[1].refs[0].index", "ChunkRef"),
    (SNAPSHOT, "id", "Snapshot"),
    (SNAPSHOT, "nodes", "Snapshot"),
    (SNAPSHOT, "message", "Snapshot"),
    (SNAPSHOT, "metadata", "Snapshot"),
    (SNAPSHOT, "nodes[0].id", "NodeSnapshot"),
    (SNAPSHOT, "nodes[0].path", "NodeSnapshot"),
    (SNAPSHOT, "nodes[0].user_data", "NodeSnapshot"),
    (SNAPSHOT, "nodes[1].node_data", "NodeSnapshot"),
    (SNAPSHOT, "nodes[1].node_data.manifests", "ArrayNodeData"),
    (SNAPSHOT, "nodes[1].node_data.manifests[0].extents", "ManifestRef"),
    (SNAPSHOT, "metadata[0].name", "MetadataItem"),
    (SNAPSHOT, "metadata[0].value", "MetadataItem"),
    (TRANSACTION_LOG, "id", "TransactionLog"),
    (TRANSACTION_LOG, "new_groups", "TransactionLog"),
    (TRANSACTION_LOG, "updated_chunks", "TransactionLog"),
    (TRANSACTION_LOG, "updated_chunks[0].chunks", "ArrayUpdatedChunks"),
    (TRANSACTION_LOG, "updated_chunks[0].chunks[0].coords", "ChunkIndices"),
    (REPO_INFO, "tags", "Repo"),
    (REPO_INFO, "branches", "Repo"),
    (REPO_INFO, "deleted_tags", "Repo"),
    (REPO_INFO, "snapshots", "Repo"),
    (REPO_INFO, "status", "Repo"),
    (REPO_INFO, "latest_updates", "Repo"),
    (REPO_INFO, "snapshots[0].id", "SnapshotInfo"),
    (REPO_INFO, "snapshots[0].message", "SnapshotInfo"),
    (REPO_INFO, "latest_updates[0].update_type", "Update"),
    (REPO_INFO, "latest_updates[1].update_type.branch", "NewCommit"),
]


@pytest.mark.parametrize(
    "kind, path, table", REQUIRED, ids=[f"{kind.root}.{path}" for kind, path, _ in REQUIRED]
)
def test_required_fields(kind: Kind, path: str, table: str) -> None:
    """A table without a field that the format requires is refused by the field's name."""
    made = draft(kind)
    made.remove(path, table)
    refuse(made, f"lacks the required field {path.rpartition('.')[2]}")


# --- strings


STRINGS = [
    (MANIFEST, "arrays[0].refs[1].location"),
    (MANIFEST, "arrays[0].refs[1].checksum_etag"),
    (SNAPSHOT, "message"),
    (SNAPSHOT, "nodes[1].path"),
    (SNAPSHOT, "nodes[1].node_data.dimension_names[0].name"),
    (SNAPSHOT, "metadata[0].name"),
    (TRANSACTION_LOG, "moved_nodes[0].from"),
    (TRANSACTION_LOG, "moved_nodes[1].to"),
    (REPO_INFO, "tags[0].name"),
    (REPO_INFO, "deleted_tags[0]"),
    (REPO_INFO, "snapshots[0].message"),
    (REPO_INFO, "status.limited_availability_reason"),
    (REPO_INFO, "latest_updates[1].update_type.branch"),
]
every_string = pytest.mark.parametrize(
    "kind, path", STRINGS, ids=[f"{kind.root}.{path}" for kind, path in STRINGS]
)


@every_string
@pytest.mark.parametrize("byte", [0xFF, 0x80, 0xC3], ids=hex)
def test_invalid_utf8(kind: Kind, path: str, byte: int) -> None:
    """Bytes that are no UTF-8, a character that starts nowhere, and one that does not end."""
    made = draft(kind)
    at = made.found.targets[path]
    (count,) = struct.unpack_from("<I", made.body, at)
    made.body[at + 4 + (0 if byte == 0x80 else count - 1)] = byte
    refuse(made, "is not valid UTF-8")


@every_string
def test_strings_without_their_end(kind: Kind, path: str) -> None:
    """A string whose length is wrong does not end in a zero, as flatbuffers demand."""
    made = draft(kind)
    at = made.found.targets[path]
    (count,) = struct.unpack_from("<I", made.body, at)
    made.u32(at, count - 1)
    refuse(made, "is not null-terminated")


def test_characters_cut_between_strings() -> None:
    """Two halves of one character in two strings are not valid because they are neighbours."""
    made = draft(REPO_INFO, deleted_tags=["a", "b"])
    for name, byte in (("deleted_tags[0]", 0xC3), ("deleted_tags[1]", 0xA9)):
        made.body[made.found.targets[name] + 4] = byte
    refuse(made, "is not valid UTF-8")


# --- order, and values that contradict each other


def swap_bytes(items: list[Any]) -> list[Any]:
    return [items[1], items[0], *items[2:]]


def twice(items: list[Any]) -> list[Any]:
    return [items[0], items[0], *items[1:]]


@pytest.mark.parametrize("change", [swap_bytes, twice])
@pytest.mark.parametrize(
    "kind, name, reason",
    [
        (MANIFEST, "arrays", "its arrays must be sorted by id, without duplicates"),
        (SNAPSHOT, "nodes", "its list of nodes must be sorted by name, without duplicates"),
        (SNAPSHOT, "metadata", "its metadata must be sorted by name, without duplicates"),
        (SNAPSHOT, "manifest_files_v2", "its manifest files must be sorted by id"),
        (TRANSACTION_LOG, "new_groups", "its new_groups must be sorted by id"),
        (TRANSACTION_LOG, "updated_chunks", "its arrays with updated chunks must be sorted by id"),
        (TRANSACTION_LOG, "moved_nodes", "its moves must be sorted by destination"),
        (REPO_INFO, "tags", "its tags must be sorted by name"),
        (REPO_INFO, "deleted_tags", "its deleted_tags must be sorted by name"),
        (REPO_INFO, "snapshots", "its snapshots must be sorted by id"),
        (REPO_INFO, "enabled_feature_flags", "its enabled_feature_flags must be sorted"),
    ],
)
def test_unsorted_vectors(
    kind: Kind, name: str, reason: str, change: Callable[[list[Any]], list[Any]]
) -> None:
    """What readers search by bisection must be in order, and have each thing once."""
    made = draft(kind, **{name: change(TREES[kind.root][name])})
    refuse(made, reason)


@pytest.mark.parametrize(
    "refs", [swap_bytes([native(0), virtual(1), native(2)]), [native(0), virtual(1), native(1)]]
)
def test_unsorted_references(refs: list[Any]) -> None:
    """The references of an array ascend by index."""
    made = draft(MANIFEST, arrays=[{"node_id": b"a" * 8, "refs": refs}])
    refuse(made, "its chunk references must be sorted by chunk index, without duplicates")


def test_a_reference_written_twice() -> None:
    """Icechunk 1 writes a reference twice now and then; it is one reference."""
    refs = [native(0), virtual(1), virtual(1), {"index": [2, 2], "inline": b"a"}]
    arrays = [
        {"node_id": b"a" * 8, "refs": refs},
        {"node_id": b"b" * 8, "refs": [native(0), *refs]},
    ]
    decoded = draft(MANIFEST, arrays=arrays).decode()
    assert decoded.indices.row_offsets.tolist() == [0, 3, 6]
    assert decoded.indices.coords.tolist() == [0, 0, 1, 1, 2, 2] * 2
    once = draft(MANIFEST, arrays=[{"node_id": b"a" * 8, "refs": [*refs[:2], refs[3]]}]).decode()
    assert decoded.get_array(NodeId(b"a" * 8)).payloads == once.payloads


def test_a_scalar_array_has_one_chunk() -> None:
    """Two references without coordinates are the same chunk twice."""
    refs = [{"index": [], "inline": b"a"}, {"index": [], "inline": b"b"}]
    made = draft(MANIFEST, arrays=[{"node_id": b"a" * 8, "refs": refs}])
    refuse(made, "its chunk references must be sorted")


def test_a_chunk_updated_twice() -> None:
    """Updated chunks may come in any order, but each once."""
    chunks = [{"coords": [1]}, {"coords": [0]}, {"coords": [1]}]
    made = draft(TRANSACTION_LOG, updated_chunks=[{"node_id": b"a" * 8, "chunks": chunks}])
    refuse(made, "its updated chunks have duplicates")


@pytest.mark.parametrize(
    "ref, reason",
    [
        ({"index": [0]}, "ChunkRef 0 has 0 payloads, expected 1"),
        (
            {"index": [0], "chunk_id": bytes(12), "inline": b""},
            "ChunkRef 0 has 2 payloads, expected 1",
        ),
        (
            {"index": [0], "location": "a", "compressed_location": b"b"},
            "ChunkRef 0 has 2 payloads",
        ),
        (
            {"index": [0], "compressed_location": b"not a frame"},
            "a compressed location is not a zstd frame that declares its content size",
        ),
        (
            {"index": [0], "compressed_location": b""},
            "a compressed location is not a zstd frame that declares its content size",
        ),
    ],
)
def test_places_of_chunks(ref: Tree, reason: str) -> None:
    """A chunk's bytes are in exactly one place, and a compressed one can be decompressed."""
    made = draft(
        MANIFEST,
        arrays=[{"node_id": b"a" * 8, "refs": [ref]}],
        compression_algorithm=1,
        location_dictionary=b"a dictionary",
    )
    refuse(made, reason)


FRAME = b"\x28\xb5\x2f\xfd"
"""How a zstd frame starts."""


@pytest.mark.parametrize(
    "frame, reason",
    [
        (FRAME + b"\x60\x00\x01\x01\x00\x00", "a compressed location is damaged"),
        (FRAME + b"\x20\x05\x19\x00\x00abc", "a compressed location is damaged"),
        (FRAME + b"\x20\x05\x29\x00\x00abc", "a compressed location is damaged"),
        (FRAME + b"\x20\x02\x11\x00\x00\xff\xfe", "a compressed location is not valid UTF-8"),
        (FRAME + b"\x20\x00\x19\x00\x00abc", "is not a zstd frame that declares its content size"),
        (FRAME + b"\x00\x58\x01\x00\x00", "is not a zstd frame that declares its content size"),
        (FRAME + b"\xa0" + struct.pack("<I", 2000) + b"\x01\x00\x00", "declares 2000 bytes"),
        (FRAME + b"\xe0" + struct.pack("<Q", 2**60) + b"\x01\x00\x00", "not a zstd frame"),
        (FRAME + b"\x60", "is not a zstd frame that declares its content size"),
    ],
)
def test_damaged_compressed_locations(frame: bytes, reason: str) -> None:
    """Each frame declares its size, keeps it, stays below the limit, and is UTF-8."""
    made = draft(
        MANIFEST,
        arrays=[{"node_id": b"a" * 8, "refs": [{"index": [0], "compressed_location": frame}]}],
        compression_algorithm=1,
    )
    refuse(made, reason)


def test_a_damaged_dictionary() -> None:
    """Bytes that claim to be a trained dictionary and are not."""
    frame = FRAME + b"\x20\x01\x09\x00\x00a"
    made = draft(
        MANIFEST,
        arrays=[{"node_id": b"a" * 8, "refs": [{"index": [0], "compressed_location": frame}]}],
        compression_algorithm=1,
        location_dictionary=b"\x37\xa4\x30\xec" + b"\xff" * 60,
    )
    refuse(made, "a compressed location is damaged")


def test_rows_of_another_rank() -> None:
    """All references of an array have the same number of coordinates."""
    refs = [{"index": [0], "inline": b""}, {"index": [0, 1], "inline": b""}]
    made = draft(MANIFEST, arrays=[{"node_id": b"a" * 8, "refs": refs}])
    refuse(made, "ChunkRef 1 has another number of dimensions than the first row of its array")


def extents(*pairs: tuple[int, int]) -> list[Tree]:
    return [{"object_id": ID1, "extents": [struct.pack("<II", *pair) for pair in pairs]}]


@pytest.mark.parametrize(
    "kind, changes, reason",
    [
        (
            SNAPSHOT,
            {"nodes": [node(1, "/a", array(manifests=extents((5, 4))))]},
            "extents end before they start",
        ),
        (
            SNAPSHOT,
            {"nodes": [node(1, "/a", array(manifests=extents((0, 1), (0, 1))))]},
            "extents and array differ in rank",
        ),
        (SNAPSHOT, {"nodes": [node(1, "/a"), node(1, "/b")]}, "has two nodes with the same id"),
        (SNAPSHOT, {"nodes": [node(1, "a")]}, "'a' is not a valid path"),
        (SNAPSHOT, {"nodes": [node(1, "/a/")]}, "is not a valid path"),
        (SNAPSHOT, {"nodes": [node(1, "/a/../b")]}, "is not a valid path"),
        (SNAPSHOT, {"nodes": [{**node(1, "/a"), "node_data_type": 0}]}, "the unknown type 0"),
        (SNAPSHOT, {"nodes": [{**node(1, "/a"), "node_data_type": 3}]}, "the unknown type 3"),
        (SNAPSHOT, {"flushed_at": 2**63}, "after the year 9999"),
        (
            TRANSACTION_LOG,
            {"moved_nodes": [{"from": "/a", "to": "b", "node_id": bytes(8)}]},
            "invalid move",
        ),
        (
            TRANSACTION_LOG,
            {"moved_nodes": [{"from": "/a", "to": "/b", "node_id": bytes(8), "node_type": 2}]},
            "invalid move",
        ),
        (REPO_INFO, {"spec_version": 3}, "in its content; expected 2"),
        (REPO_INFO, {"spec_version": 0}, "in its content; expected 2"),
        (REPO_INFO, {"branches": []}, "has no branch main"),
        (
            REPO_INFO,
            {"branches": [{"name": "main", "snapshot_index": 3}]},
            "a ref in branches to a missing snapshot",
        ),
        (REPO_INFO, {"status": {"availability": 3}}, "has an unknown status"),
        (REPO_INFO, {"status": {"set_at": 2**64 - 1}}, "after the year 9999"),
        (
            REPO_INFO,
            {"latest_updates": [{**update(1, {}), "update_type_type": 17}]},
            "an update of the unknown kind 17: upgrade icefloe",
        ),
        (
            REPO_INFO,
            {"latest_updates": [{**update(1, {}), "update_type_type": 0}]},
            "an update of the unknown kind 0",
        ),
        (REPO_INFO, {"config": b"\xff\xff\xff\xff"}, "invalid FlexBuffer"),
        (REPO_INFO, {"config": flexbuffers.dumps([1])}, "expected a map, got a list"),
    ],
)
def test_values_that_cannot_be(kind: Kind, changes: Tree, reason: str) -> None:
    """Numbers without a meaning and values that contradict others are found out."""
    refuse(draft(kind, **changes), reason)


@pytest.mark.parametrize(
    "parents, reason",
    [
        ([0, -1, -1], "a snapshot that is its own ancestor"),
        ([1, 0, -1], "a snapshot that is its own ancestor"),
        ([1, 2, 0], "a snapshot that is its own ancestor"),
        ([-1, 0, 3], "a snapshot whose parent is not in the list"),
        ([-1, -2, 0], "a snapshot whose parent is not in the list"),
    ],
)
def test_ancestry(parents: list[int], reason: str) -> None:
    """History has no circles and does not leave the list."""
    snapshots = [
        {**snapshot, "parent_offset": parent}
        for snapshot, parent in zip(TREES["Repo"]["snapshots"], parents, strict=True)
    ]
    refuse(draft(REPO_INFO, snapshots=snapshots), reason)


@pytest.mark.parametrize(
    "kind, reason",
    [
        (SNAPSHOT, "has spec version 1 but array shapes of spec version 2"),
        (REPO_INFO, "has spec version 1 in its header"),
    ],
    ids=lambda value: value.root if isinstance(value, Kind) else "",
)
def test_a_version_that_the_content_belies(kind: Kind, reason: str) -> None:
    """A flipped version byte does not make a reader look for the content elsewhere."""
    data = wrap(bytes(draft(kind).body), kind.file_type, 1)
    with pytest.raises(FormatError, match=reason):
        kind.decode(data, FILE)


def test_manifest_files_of_version_2_in_a_file_of_version_1() -> None:
    """The list of manifests would look empty to a reader that trusts the header."""
    made = draft(SNAPSHOT, nodes=[])
    with pytest.raises(FormatError, match="has spec version 1 but a list of manifests"):
        SNAPSHOT.decode(wrap(bytes(made.body), SNAPSHOT.file_type, 1), FILE)


# --- metadata, which is decoded when it is looked at


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xc1",
        b"\x93\x01",
        b"\xdd\xff\xff\xff\xff",
        b"\xdb\x00\x00\x00\x05abc",
        b"\xa2\xff\xfe",
        msgpack.packb(1) + b"\x00",
        msgpack.packb(b"bytes"),
        msgpack.packb({1: 2}),
        msgpack.packb({b"a": 2}),
        msgpack.packb(msgpack.ExtType(5, b"x")),
        msgpack.packb(msgpack.Timestamp(1, 2)),
        b"\xd6\xff" + b"\xff" * 4,
        b"\xd7\xff" + b"\xff" * 8,
        b"\x82\xa1a\x01\xa1a\x02",
        b"\x81\x90\x01",
        b"\x91" * 2000 + b"\x01",
    ],
)
def test_damaged_metadata_of_version_1(value: bytes) -> None:
    """Each value is MessagePack of a JSON value; the file opens, and the entry is refused."""
    tree = {**TREES["Snapshot"], "nodes": [], "metadata": [{"name": "key", "value": value}]}
    del tree["manifest_files_v2"]
    snapshot = SNAPSHOT.decode(wrap(build(tree, "Snapshot"), SNAPSHOT.file_type, 1), FILE)
    assert list(snapshot.metadata) == ["key"]
    with pytest.raises(FormatError, match=f"{FILE}: key: a metadata value is not valid Mess"):
        _ = snapshot.metadata["key"]
    with pytest.raises(KeyError):
        _ = snapshot.metadata["another key"]


@pytest.mark.parametrize("value", [b"", b"\x00", b"\xff" * 8, b"\x05\x28\x01", b"\x00\x04\x03"])
def test_damaged_metadata_of_version_2(value: bytes) -> None:
    """Each value is a FlexBuffer of a JSON value; the file opens, and the entry is refused."""
    snapshot = draft(SNAPSHOT, metadata=[{"name": "key", "value": value}]).decode()
    with pytest.raises(FormatError, match=f"{FILE}: key: invalid FlexBuffer"):
        _ = snapshot.metadata["key"]


# --- reference files


@pytest.mark.parametrize(
    "data, reason",
    [
        (b"", "not valid JSON"),
        (b"\xff\xfe\xff", "not valid JSON"),
        (b'{"snapshot": ', "not valid JSON"),
        (b"[" * 60_000, "not valid JSON"),
        (b"9" * 60_000, "not valid JSON"),
        (b" " * 70_000, "70000 bytes exceed the limit"),
        (b"[]", "expected the content"),
        (b"{}", "expected the content"),
        (b'{"snapshot": 1}', "expected the content"),
        (b'{"snapshot": null}', "expected the content"),
        (b'{"snapshot": "1CECHNKREP0F1RSTCMT"}', "is not a SnapshotId"),
        (b'{"snapshot": "1CECHNKREP0F1RSTCMTU"}', "is not a SnapshotId"),
        (b'{"snapshot": "1CECHNKREP0F1RSTCMT1"}', "is not a SnapshotId"),
        ('{"snapshot": "1CECHNKREP0F1RSTCMTé"}'.encode(), "is not a SnapshotId"),
        (b'{"snapshot": "\\ud800CECHNKREP0F1RSTCMT0"}', "is not a SnapshotId"),
    ],
)
def test_reference_files(data: bytes, reason: str) -> None:
    """Anything but the JSON of one snapshot id."""
    with pytest.raises(FormatError, match=reason) as caught:
        decode_ref(data, FILE)
    assert str(caught.value).startswith(f"{FILE}: ")


def test_golden_headers() -> None:
    """Files of Icechunk record their writer and version."""
    for path, data in golden_files().items():
        header = read_header(data, path)
        assert len(data) > HEADER_SIZE
        assert header.writer.startswith("ic-")
        assert header.spec_version == int(path[1])
