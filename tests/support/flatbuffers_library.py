"""The format's tables through the official ``flatbuffers`` package: a second, independent opinion.

The schemas below were typed from the specification, not from `icefloe.format.schema`. A file's
content is a tree: a table is a dict of the fields that it has, a struct is bytes, a vector of bytes
is bytes, other vectors are lists, a union is a pair of its number and its table.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from flatbuffers import builder as official
from flatbuffers import encode
from flatbuffers import number_types as numbers
from flatbuffers.table import Table

Tree = dict[str, Any]


@dataclass(frozen=True)
class Struct:
    size: int
    align: int


@dataclass(frozen=True)
class Vector:
    item: Any


@dataclass(frozen=True)
class Union:
    """The table of a union; its number stands in the field before it."""

    members: tuple[str, ...]


@dataclass(frozen=True)
class Number:
    flags: Any
    default: int = 0


U1, U2, U4, U8 = (
    Number(numbers.Uint8Flags),
    Number(numbers.Uint16Flags),
    Number(numbers.Uint32Flags),
    Number(numbers.Uint64Flags),
)
I4, BOOL = Number(numbers.Int32Flags), Number(numbers.BoolFlags)
ID12, ID8 = Struct(12, 1), Struct(8, 1)
STRING = "string"
BYTES = Vector(U1)

UPDATE_KINDS: dict[str, list[tuple[str, Any]]] = {
    "RepoInitialized": [],
    "RepoMigrated": [("from_version", U1), ("to_version", U1)],
    "ConfigChanged": [],
    "MetadataChanged": [],
    "TagCreated": [("name", STRING)],
    "TagDeleted": [("name", STRING), ("previous_snap_id", ID12)],
    "BranchCreated": [("name", STRING)],
    "BranchDeleted": [("name", STRING), ("previous_snap_id", ID12)],
    "BranchReset": [("name", STRING), ("previous_snap_id", ID12)],
    "NewCommit": [("branch", STRING), ("new_snap_id", ID12)],
    "CommitAmended": [("branch", STRING), ("previous_snap_id", ID12), ("new_snap_id", ID12)],
    "NewDetachedSnapshot": [("new_snap_id", ID12)],
    "GCRan": [],
    "ExpirationRan": [],
    "FeatureFlagChanged": [("id", U2), ("new_value", BOOL), ("is_set", BOOL)],
    "RepoStatusChanged": [("status", "RepoStatus")],
}

SCHEMAS: dict[str, list[tuple[str, Any]]] = {
    **UPDATE_KINDS,
    "MetadataItem": [("name", STRING), ("value", BYTES)],
    "Manifest": [
        ("id", ID12),
        ("arrays", Vector("ArrayManifest")),
        ("location_dictionary", BYTES),
        ("compression_algorithm", Number(numbers.Uint8Flags, default=1)),
        ("extra", BYTES),
    ],
    "ArrayManifest": [("node_id", ID8), ("refs", Vector("ChunkRef")), ("extra", BYTES)],
    "ChunkRef": [
        ("index", Vector(U4)),
        ("inline", BYTES),
        ("offset", U8),
        ("length", U8),
        ("chunk_id", ID12),
        ("location", STRING),
        ("checksum_etag", STRING),
        ("checksum_last_modified", U4),
        ("compressed_location", BYTES),
        ("extra", BYTES),
    ],
    "Snapshot": [
        ("id", ID12),
        ("parent_id", ID12),
        ("nodes", Vector("NodeSnapshot")),
        ("flushed_at", U8),
        ("message", STRING),
        ("metadata", Vector("MetadataItem")),
        ("manifest_files", Vector(Struct(32, 8))),
        ("manifest_files_v2", Vector("ManifestFileInfoV2")),
        ("extra", BYTES),
    ],
    "ManifestFileInfoV2": [
        ("id", ID12),
        ("size_bytes", U8),
        ("num_chunk_refs", U4),
        ("extra", BYTES),
    ],
    "NodeSnapshot": [
        ("id", ID8),
        ("path", STRING),
        ("user_data", BYTES),
        ("node_data_type", U1),
        ("node_data", Union(("ArrayNodeData", "GroupNodeData"))),
        ("extra", BYTES),
    ],
    "ArrayNodeData": [
        ("shape", Vector(Struct(16, 8))),
        ("dimension_names", Vector("DimensionName")),
        ("manifests", Vector("ManifestRef")),
        ("shape_v2", Vector("DimensionShapeV2")),
    ],
    "GroupNodeData": [],
    "DimensionShapeV2": [("array_length", U8), ("num_chunks", U4)],
    "DimensionName": [("name", STRING)],
    "ManifestRef": [("object_id", ID12), ("extents", Vector(Struct(8, 4)))],
    "TransactionLog": [
        ("id", ID12),
        ("new_groups", Vector(ID8)),
        ("new_arrays", Vector(ID8)),
        ("deleted_groups", Vector(ID8)),
        ("deleted_arrays", Vector(ID8)),
        ("updated_arrays", Vector(ID8)),
        ("updated_groups", Vector(ID8)),
        ("updated_chunks", Vector("ArrayUpdatedChunks")),
        ("moved_nodes", Vector("MoveOperation")),
        ("extra", BYTES),
    ],
    "ArrayUpdatedChunks": [("node_id", ID8), ("chunks", Vector("ChunkIndices"))],
    "ChunkIndices": [("coords", Vector(U4))],
    "MoveOperation": [("from", STRING), ("to", STRING), ("node_id", ID8), ("node_type", U1)],
    "Repo": [
        ("spec_version", U1),
        ("tags", Vector("Ref")),
        ("branches", Vector("Ref")),
        ("deleted_tags", Vector(STRING)),
        ("snapshots", Vector("SnapshotInfo")),
        ("status", "RepoStatus"),
        ("metadata", Vector("MetadataItem")),
        ("latest_updates", Vector("Update")),
        ("repo_before_updates", STRING),
        ("config", BYTES),
        ("enabled_feature_flags", Vector(U2)),
        ("disabled_feature_flags", Vector(U2)),
        ("extra", BYTES),
    ],
    "Ref": [("name", STRING), ("snapshot_index", U4)],
    "SnapshotInfo": [
        ("id", ID12),
        ("parent_offset", I4),
        ("flushed_at", U8),
        ("message", STRING),
        ("metadata", Vector("MetadataItem")),
        ("pruned_ancestor_tx_logs", Vector(ID12)),
    ],
    "RepoStatus": [
        ("availability", U1),
        ("set_at", U8),
        ("limited_availability_reason", STRING),
    ],
    "Update": [
        ("update_type_type", U1),
        ("update_type", Union(tuple(UPDATE_KINDS))),
        ("updated_at", U8),
        ("backup_path", STRING),
    ],
}


@dataclass(frozen=True)
class Style:
    """The liberties that a writer has."""

    shared_strings: bool = False
    reversed_order: bool = False
    explicit_defaults: bool = False
    later_fields: bool = False
    """Fill ``extra`` and add fields that no schema of today has."""


def build(tree: Tree, kind: str, style: Style | None = None) -> bytes:
    """Write a tree with the official builder."""
    writer = _TreeWriter(style or Style())
    root = writer.table(tree, kind)
    writer.builder.Finish(root, b"Ichk")
    return bytes(writer.builder.Output())


class _TreeWriter:
    def __init__(self, style: Style) -> None:
        self.style = style
        self.builder = official.Builder(1024)
        self.builder.ForceDefaults(style.explicit_defaults)

    def table(self, tree: Tree, kind: str) -> int:
        fields = SCHEMAS[kind]
        unknown = set(tree) - {name for name, _ in fields}
        assert not unknown, unknown
        content = dict(tree)
        if self.style.later_fields and ("extra", BYTES) in fields:
            content["extra"] = b"\xff later \x00 bytes"
        ordered = list(fields)
        if self.style.reversed_order:
            ordered.reverse()
        places = {name: self._place(content[name], how) for name, how in ordered if name in content}
        later = self.builder.CreateString("later") if self.style.later_fields else 0
        self.builder.StartObject(len(fields) + (3 if self.style.later_fields else 0))
        slots = {name: slot for slot, (name, _) in enumerate(fields)}
        for name, how in ordered:
            if name in content:
                self._slot(slots[name], how, places[name])
        if self.style.later_fields:
            self.builder.PrependUint64Slot(len(fields) + 1, 2**64 - 1, 0)
            self.builder.PrependUOffsetTRelativeSlot(len(fields) + 2, later, 0)
        return int(self.builder.EndObject())

    def _place(self, value: Any, how: Any) -> Any:
        """Write what stands outside its table; returns where, or the value itself."""
        match how:
            case Number() | Struct():
                return value
            case Vector():
                return self._vector(value, how.item)
            case Union():
                code, tree = value
                return self.table(tree, how.members[code - 1])
            case _ if how == STRING:
                return self._string(value)
            case _:
                return self.table(value, how)

    def _string(self, value: str) -> int:
        create = (
            self.builder.CreateSharedString
            if self.style.shared_strings
            else self.builder.CreateString
        )
        return int(create(value))

    def _vector(self, items: Any, how: Any) -> int:
        builder = self.builder
        if how == U1:
            return int(builder.CreateByteVector(bytes(items)))
        if isinstance(how, Struct):
            builder.StartVector(how.size, len(items), how.align)
            for item in reversed(items):
                self._raw(item)
            return int(builder.EndVector())
        if isinstance(how, Number):
            size = how.flags.bytewidth
            builder.StartVector(size, len(items), size)
            for item in reversed(items):
                builder.Prepend(how.flags, item)
            return int(builder.EndVector())
        order = range(len(items))
        places = {
            index: self._place(items[index], how)
            for index in (reversed(order) if self.style.reversed_order else order)
        }
        builder.StartVector(4, len(items), 4)
        for index in reversed(order):
            builder.PrependUOffsetTRelative(places[index])
        return int(builder.EndVector())

    def _raw(self, raw: bytes) -> None:
        self.builder.head -= len(raw)
        self.builder.Bytes[self.builder.head : self.builder.head + len(raw)] = raw

    def _slot(self, slot: int, how: Any, place: Any) -> None:
        match how:
            case Number():
                self.builder.PrependSlot(how.flags, slot, place, how.default)
            case Struct():
                self.builder.Prep(how.align, how.size)
                self._raw(place)
                self.builder.PrependStructSlot(slot, self.builder.Offset(), 0)
            case _:
                self.builder.PrependUOffsetTRelativeSlot(slot, place, 0)


@dataclass
class Reading:
    """A tree, and where in the buffer each of its fields and vectors is."""

    tree: Tree
    fields: dict[str, int] = field(default_factory=dict)
    """The position of each field inside its table, by path: ``arrays[0].refs[2].offset``."""
    targets: dict[str, int] = field(default_factory=dict)
    """The position of what a field or an item of a vector points at."""


def read(data: bytes, kind: str) -> Reading:
    """Read a buffer with the official package, checking what a verifier checks on the way.

    Every position is inside the buffer and aligned as flatbuffers demand, offsets point forward,
    strings end in a zero, and no table has a field that the schema lacks.
    """
    reader = _TreeReader(data)
    root = encode.Get(official.packer.uoffset, data, 0)
    tree = reader.table(root, kind, "")
    reader.reading.tree = tree
    return reader.reading


class _TreeReader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.reading = Reading({})

    def _check(self, position: int, size: int, align: int, path: str) -> None:
        assert 4 <= position <= len(self.data) - size, f"{path}: {position} is out of bounds"
        assert position % align == 0, f"{path}: {position} is not aligned to {align}"

    def table(self, position: int, kind: str, path: str) -> Tree:
        self._check(position, 4, 4, path)
        table = Table(self.data, position)
        vtable = position - table.Get(numbers.SOffsetTFlags, position)
        self._check(vtable, 4, 2, path)
        vtable_size = table.Get(numbers.VOffsetTFlags, vtable)
        table_size = table.Get(numbers.VOffsetTFlags, vtable + 2)
        self._check(vtable, vtable_size, 2, path)
        self._check(position, table_size, 4, path)
        fields = SCHEMAS[kind]
        for slot in range(len(fields), (vtable_size - 4) // 2):
            assert not table.Offset(4 + 2 * slot), f"{path}: a field in the unknown slot {slot}"
        tree: Tree = {}
        for slot, (name, how) in enumerate(fields):
            where = f"{path}.{name}" if path else name
            offset = table.Offset(4 + 2 * slot)
            if offset:
                at = position + offset
                size = how.flags.bytewidth if isinstance(how, Number) else 4
                size = how.size if isinstance(how, Struct) else size
                assert offset + size <= table_size, f"{where} is outside its table"
                self.reading.fields[where] = at
                tree[name] = self._field(table, at, how, where, tree)
            elif isinstance(how, Number):
                tree[name] = how.default
        return tree

    def _field(self, table: Table, at: int, how: Any, path: str, tree: Tree) -> Any:
        match how:
            case Number():
                self._check(at, how.flags.bytewidth, how.flags.bytewidth, path)
                value = table.Get(how.flags, at)
                return bool(value) if how is BOOL else int(value)
            case Struct():
                self._check(at, how.size, how.align, path)
                return self.data[at : at + how.size]
        target = self._follow(at, path)
        match how:
            case Vector():
                return self._vector(target, how.item, path)
            case Union():
                code = next(reversed(tree.values()))
                if not 0 < code <= len(how.members):
                    return code, {}
                return code, self.table(target, how.members[code - 1], path)
            case _ if how == STRING:
                return self._string(target, path)
            case _:
                return self.table(target, how, path)

    def _follow(self, at: int, path: str) -> int:
        self._check(at, 4, 4, path)
        offset = encode.Get(official.packer.uoffset, self.data, at)
        assert 0 < offset < 2**31, f"{path} does not point forward"
        self.reading.targets[path] = at + offset
        return int(at + offset)

    def _string(self, target: int, path: str) -> str:
        self._check(target, 4, 4, path)
        count = encode.Get(official.packer.uoffset, self.data, target)
        self._check(target + 4, count + 1, 1, path)
        assert self.data[target + 4 + count] == 0, f"{path} does not end in a zero"
        return self.data[target + 4 : target + 4 + count].decode()

    def _vector(self, target: int, how: Any, path: str) -> Any:
        self._check(target, 4, 4, path)
        count = encode.Get(official.packer.uoffset, self.data, target)
        start = target + 4
        match how:
            case Struct():
                self._check(start, count * how.size, how.align if count else 1, path)
                ends = range(start, start + count * how.size, how.size)
                return [self.data[at : at + how.size] for at in ends]
            case Number():
                size = how.flags.bytewidth
                self._check(start, count * size, size if count else 1, path)
                if how == U1:
                    return self.data[start : start + count]
                places = range(start, start + count * size, size)
                return [int(encode.Get(how.flags.packer_type, self.data, at)) for at in places]
        self._check(start, count * 4, 4, path)
        result = []
        for index in range(count):
            where = f"{path}[{index}]"
            at = self._follow(start + 4 * index, where)
            result.append(self._string(at, where) if how == STRING else self.table(at, how, where))
        return result
