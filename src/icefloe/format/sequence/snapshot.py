"""Codec of snapshot files (``docs/format/sequence.md``)."""

from __future__ import annotations

import math
import struct
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.format.attributes_files import AttributesLoader
from icefloe.format.generation import SEQUENCE
from icefloe.format.json_metadata import copy_metadata, metadata_error
from icefloe.format.json_text import format_extended_json, format_json, parse_json
from icefloe.format.sequence.attributes import decode_attributes
from icefloe.format.sequence.json_document import Reader, format_id, format_time
from icefloe.format.snapshot_checks import require_distinct
from icefloe.format.zarr_data_type import (
    COMPLEX_PARTS,
    CORE_DATA_TYPES,
    FLOAT_FORMATS,
    INTEGER_SIZES,
    format_data_type,
    format_fill_value,
    get_element_size,
    pack_float,
    parse_data_type,
    parse_fill_value,
)
from icefloe.format.zarr_document import (
    MAX_DEPTH,
    NO_FILL_VALUE,
    ArrayParts,
    NodeParts,
    is_too_deep,
    join_document,
    refuse_feature,
    reject_document,
    split_document,
    split_node,
)
from icefloe.model.chunk_payload import MAX_U32, MAX_U64
from icefloe.model.ids import AttributesId, ManifestId, NodeId, SnapshotId
from icefloe.model.node import (
    ArrayNodeData,
    AttributesRef,
    ChunkIndexRange,
    DimensionShape,
    GroupNodeData,
    ManifestExtents,
    ManifestRef,
    NodeSnapshot,
)
from icefloe.model.path import Path
from icefloe.model.snapshot import (
    MAX_RECENT_ANCESTORS,
    ManifestFileInfo,
    Snapshot,
    SnapshotInfo,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from icefloe.format.metadata_codec import FetchAttributes

RESERVED: Final = "__icefloe"
"""The member of ``properties`` with what the schema of snapshots has no place for."""

MAX_HISTORY_BYTES: Final = 64 << 10
"""The maximum size of the short-term history, except that it always has the parent."""

_MAX_U16: Final = 2**16 - 1
_FILL_VALUE_TAGS: Final = {
    name: name.replace("uint", "UInt") if name.startswith("uint") else name.capitalize()
    for name in CORE_DATA_TYPES
}
_SEPARATOR_WORDS: Final = {"/": "Slash", ".": "Dot", None: "Default"}
# Chunks are addressed by their indices, so that arrays with other keys can be read with this one:
# the store has no keys with dots.
_SEPARATORS: Final = {"Slash": "/", "Dot": "/", "Default": None}


def normalize_document(data: bytes, key: str) -> bytes:
    """Return a ``zarr.json`` as `decode_snapshot` makes it; raise if it cannot be stored."""
    parts = split_document(data, key, SEQUENCE)
    array = parts.array
    if array is not None:
        data_type, element = _parse_fill_value(array, key)
        try:
            format_json([array.codecs, array.storage_transformers])
        except ValueError as error:
            reject_document(f"the configuration of a codec cannot be stored: {error}", key)
        array = replace(
            array,
            data_type=format_data_type(data_type),
            fill_value=format_fill_value(element, data_type),
        )
    return format_extended_json(join_document(replace(parts, array=array)))


def _parse_fill_value(array: ArrayParts, key: str) -> tuple[str | int, bytes]:
    """Return the data type and the fill value; raise if the schema has no word for the array."""
    if 0 in array.chunk_shape:
        refuse_feature(
            f"the chunk shape {list(array.chunk_shape)}, with chunks of length 0", key, SEQUENCE
        )
    data_type = parse_data_type(array.data_type)
    if data_type is None:
        refuse_feature(f"the data type {array.data_type!r:.80}", key, SEQUENCE)
    if array.fill_value is NO_FILL_VALUE:
        reject_document("there is no fill_value", key)
    try:
        return data_type, parse_fill_value(array.fill_value, data_type)
    except InvalidInputError as error:
        reject_document(error.message, key)


def encode_properties(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Copy user metadata as JSON; raise `InvalidInputError` if it cannot be stored."""
    properties = copy_metadata(metadata)
    if RESERVED in properties:
        raise metadata_error(f"the metadata entry {RESERVED!r} is reserved")
    return properties


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Encode a snapshot file; nodes and manifest files are sorted."""
    require_distinct(snapshot)
    history = _format_history(snapshot)
    time = format_time(snapshot.flushed_at)
    manifests = sorted(snapshot.manifest_files, key=lambda info: info.id)
    content = {
        "metadata": _format_info(snapshot.id, snapshot.message, snapshot.flushed_at),
        "started_at": time,
        "properties": {
            **encode_properties(snapshot.metadata),
            RESERVED: {
                "next_node_number": snapshot.next_node_number,
                "manifests": [
                    [str(info.id), info.size_bytes, info.num_chunk_refs] for info in manifests
                ],
            },
        },
        "short_term_parents": len(history),
        "short_term_history": history,
        "total_parents": snapshot.num_ancestors,
        "nodes": {
            node.path.value: _format_node(node)
            for node in sorted(snapshot.nodes, key=lambda node: node.path)
        },
    }
    try:
        return format_json(content)
    except ValueError as error:
        raise FormatError(
            f"snapshot {snapshot.id} has a value that JSON does not have ({error})",
            kind=ErrorKind.SERIALIZATION,
        ) from error


def _format_info(snapshot_id: SnapshotId, message: str, time: datetime) -> dict[str, Any]:
    try:
        message.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(
            f"{message!r:.80} has a lone surrogate and cannot be stored as UTF-8"
        ) from error
    return {"id": format_id(snapshot_id), "message": message, "written_at": format_time(time)}


def _format_history(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Format ancestors, newest first, as long as each is the parent of the one before it."""
    ancestors = snapshot.recent_ancestors
    expected = snapshot.parent_id
    if expected is not None and (not ancestors or ancestors[0].id != expected):
        raise FormatError(
            f"snapshot {snapshot.id} does not list its parent {expected} as the newest ancestor",
            kind=ErrorKind.SERIALIZATION,
        )
    entries: list[dict[str, Any]] = []
    num_bytes = 0
    for info in ancestors[:MAX_RECENT_ANCESTORS]:
        if info.id != expected:
            break
        entry = _format_info(info.id, info.message, info.flushed_at)
        if info.metadata:
            entry["properties"] = encode_properties(info.metadata)
        num_bytes += len(format_json(entry)) + 1
        if entries and num_bytes > MAX_HISTORY_BYTES:
            break
        entries.append(entry)
        expected = info.parent_id
    if entries and (parent := ancestors[len(entries) - 1].parent_id) is not None:
        # A reader that goes on needs to know the parent of the last entry.
        entries[-1]["parent_id"] = format_id(parent)
    return entries


def _format_node(node: NodeSnapshot) -> dict[str, Any]:
    parts = split_node(node, SEQUENCE)
    result: dict[str, Any] = {"id": node.id.number, "path": node.path.value}
    if node.attributes_ref is not None:
        place = {
            "flags": [],
            "location": node.attributes_ref.row,
            "object_id": format_id(node.attributes_ref.id),
        }
        result["user_attributes"] = {"Ref": place}
    elif parts.attributes:
        result["user_attributes"] = {"Inline": parts.attributes}
    if parts.array is None or not isinstance(node.node_data, ArrayNodeData):
        result["node_data"] = "Group"
    else:
        refs = [
            _format_manifest_ref(ref, len(parts.array.shape)) for ref in node.node_data.manifests
        ]
        result["node_data"] = {"Array": [_format_array(parts.array, node.path.value), refs]}
    return result


def _format_manifest_ref(ref: ManifestRef, ndim: int) -> dict[str, Any]:
    ranges = ref.extents.ranges
    extents: list[list[int]] = []
    if any(extent.start >= extent.stop for extent in ranges):
        extents = [[1] * ndim, [0] * ndim]  # no chunks
    elif ranges or not ndim:
        extents = [[extent.start for extent in ranges], [extent.stop - 1 for extent in ranges]]
    return {"object_id": format_id(ref.id), "flags": [], "extents": extents}


def _format_array(array: ArrayParts, key: str) -> dict[str, Any]:
    data_type, element = _parse_fill_value(array, key)
    result: dict[str, Any] = {
        "shape": list(array.shape),
        "data_type": data_type if isinstance(data_type, str) else {"rawbits": data_type},
        "chunk_shape": list(array.chunk_shape),
        "chunk_key_encoding": _SEPARATOR_WORDS[array.separator],
        "fill_value": _format_fill_value(element, data_type),
        "codecs": list(array.codecs),
    }
    if array.storage_transformers:
        result["storage_transformers"] = list(array.storage_transformers)
    if array.dimension_names is not None:
        result["dimension_names"] = list(array.dimension_names)
    return result


def _format_fill_value(element: bytes, data_type: str | int) -> dict[str, Any]:
    raw = {"RawBits": list(element)}
    if isinstance(data_type, int):
        return raw
    tag = _FILL_VALUE_TAGS[data_type]
    if data_type == "bool":
        return {tag: element != b"\0"}
    if data_type in INTEGER_SIZES:
        return {tag: int.from_bytes(element, "little", signed=INTEGER_SIZES[data_type][1])}
    code = FLOAT_FORMATS[COMPLEX_PARTS.get(data_type, data_type)]
    values = [value for (value,) in struct.iter_unpack(code, element)]
    if not all(math.isfinite(value) for value in values):
        return raw
    return {tag: values[0] if data_type in FLOAT_FORMATS else values}


def decode_snapshot(
    data: bytes | memoryview, file: str, snapshot_id: SnapshotId, fetch_attributes: FetchAttributes
) -> Snapshot:
    """Decode a snapshot file and the attributes files that it refers to."""
    attributes = AttributesLoader(file, fetch_attributes, decode_attributes)
    return _SnapshotReader(Reader(file), attributes).read(parse_json(data, file), snapshot_id)


class _SnapshotReader:
    def __init__(self, reader: Reader, attributes: AttributesLoader) -> None:
        self._reader = reader
        self._attributes = attributes

    def read(self, value: Any, snapshot_id: SnapshotId) -> Snapshot:
        reader = self._reader
        content = reader.read_object(value, "the content")
        info = self._read_info(self._get(content, "metadata"), "metadata")
        if info.id != snapshot_id:
            reader.fail(f"the file has the id {info.id}: it was renamed or swapped")
        reader.read_time(self._get(content, "started_at"), "started_at")
        properties = dict(reader.read_object(self._get(content, "properties"), "properties"))
        own = reader.read_object(properties.pop(RESERVED, {}), RESERVED)
        parent_id, ancestors, num_ancestors = self._read_history(content)
        nodes = self._read_nodes(self._get(content, "nodes"))
        next_number = reader.read_integer(
            own.get("next_node_number", 0), "next_node_number", MAX_U32 + 1
        )
        return Snapshot(
            id=snapshot_id,
            parent_id=parent_id,
            flushed_at=info.flushed_at,
            message=info.message,
            metadata=self._read_metadata(properties),
            nodes=nodes,
            manifest_files=self._read_manifest_files(own.get("manifests", []), nodes),
            next_node_number=max([next_number, *(node.id.number + 1 for node in nodes)]),
            recent_ancestors=ancestors,
            num_ancestors=num_ancestors,
        )

    def _get(self, owner: dict[str, Any], name: str, label: str = "the snapshot") -> Any:
        return self._reader.get_member(owner, name, label)

    def _read_metadata(self, properties: dict[str, Any]) -> dict[str, Any]:
        try:
            return encode_properties(properties)
        except InvalidInputError as error:
            self._reader.fail(error.message)

    def _read_info(self, value: Any, label: str) -> SnapshotInfo:
        reader = self._reader
        entry = reader.read_object(value, label)
        properties = reader.read_object(entry.get("properties", {}), "properties")
        return SnapshotInfo(
            reader.read_id(self._get(entry, "id", label), SnapshotId, f"the id of {label}"),
            None,
            reader.read_time(self._get(entry, "written_at", label), "written_at"),
            reader.read_text(self._get(entry, "message", label), "message"),
            self._read_metadata(properties),
        )

    def _read_history(
        self, content: dict[str, Any]
    ) -> tuple[SnapshotId | None, tuple[SnapshotInfo, ...], int]:
        """Return the parent, the ancestors whose parent is known, and the number of ancestors."""
        reader = self._reader
        entries = reader.read_list(self._get(content, "short_term_history"), "short_term_history")
        count = reader.read_integer(
            self._get(content, "short_term_parents"), "short_term_parents", _MAX_U16
        )
        total = reader.read_integer(self._get(content, "total_parents"), "total_parents", MAX_U32)
        if count != len(entries) or total < count:
            reader.fail(
                f"short_term_parents is {count} and total_parents is {total}, but "
                f"short_term_history has {len(entries)} entries"
            )
        if not entries:
            if total:
                reader.fail(f"has {total} ancestors, but does not name its parent")
            return None, (), 0
        infos = [self._read_info(entry, "short_term_history") for entry in entries]
        if len({info.id for info in infos}) < len(infos):
            reader.fail("short_term_history has a snapshot twice")
        parents: list[SnapshotId | None] = [info.id for info in infos[1:]]
        if "parent_id" in entries[-1]:
            parents.append(reader.read_id(entries[-1]["parent_id"], SnapshotId, "parent_id"))
        elif total == count:
            parents.append(None)
        ancestors = tuple(
            SnapshotInfo(info.id, parent, info.flushed_at, info.message, info.metadata)
            for info, parent in zip(infos, parents, strict=False)
        )
        return infos[0].id, ancestors, total

    def _read_manifest_files(
        self, value: Any, nodes: Sequence[NodeSnapshot]
    ) -> tuple[ManifestFileInfo, ...]:
        reader = self._reader
        files: dict[ManifestId, ManifestFileInfo] = {}
        for item in reader.read_list(value, "manifests"):
            row = reader.read_list(item, "an entry of manifests")
            if len(row) != 3:
                reader.fail(f"an entry of manifests has {len(row)} items, expected 3")
            manifest_id = reader.parse_id(row[0], ManifestId, "an entry of manifests")
            if manifest_id in files:
                reader.fail(f"manifests has {manifest_id} twice")
            size_bytes = reader.read_integer(row[1], "the size of a manifest", MAX_U64)
            num_refs = reader.read_integer(row[2], "the number of references", MAX_U32)
            files[manifest_id] = ManifestFileInfo(manifest_id, size_bytes, num_refs)
        for node in nodes:
            if isinstance(node.node_data, ArrayNodeData):
                for ref in node.node_data.manifests:
                    # Other writers do not list manifests.
                    files.setdefault(ref.id, ManifestFileInfo(ref.id, 0, 0))
        return tuple(sorted(files.values(), key=lambda info: info.id))

    def _read_nodes(self, value: Any) -> tuple[NodeSnapshot, ...]:
        members = self._reader.read_object(value, "nodes")
        nodes = sorted(
            (self._read_node(path, node) for path, node in members.items()),
            key=lambda node: node.path,
        )
        ids = sorted(node.id for node in nodes)
        if duplicate := next((a for a, b in pairwise(ids) if a == b), None):
            self._reader.fail(f"has two nodes with the id {duplicate.number}")
        return tuple(nodes)

    def _read_node(self, key: str, value: Any) -> NodeSnapshot:
        reader, label = self._reader, f"the node {key!r:.80}"
        node = reader.read_object(value, label)
        text = reader.read_text(self._get(node, "path", label), f"the path of {label}")
        if text != key:
            reader.fail(f"{label} has the path {text!r:.80}")
        try:
            path = Path(text)
        except InvalidInputError as error:
            reader.fail(error.message)
        number = reader.read_integer(self._get(node, "id", label), f"the id of {label}", MAX_U32)
        array, refs = self._read_node_data(self._get(node, "node_data", label), label)
        attributes, ref = self._read_attributes(node.get("user_attributes"), label)
        document = join_document(NodeParts(attributes, array))
        user_data = format_extended_json(document)
        if is_too_deep(document, user_data):
            reader.fail(f"the metadata of {label} is nested more than {MAX_DEPTH} levels deep")
        if ref is not None:
            self._attributes.count(user_data)
        data: ArrayNodeData | GroupNodeData = GroupNodeData()
        if array is not None:
            shape = tuple(map(DimensionShape.regular, array.shape, array.chunk_shape))
            if any(dimension.num_chunks > MAX_U32 for dimension in shape):
                reader.fail(f"{label} has more than {MAX_U32} chunks along a dimension")
            data = ArrayNodeData(shape, array.dimension_names, refs)
        return NodeSnapshot(NodeId.from_number(number), path, user_data, data, ref)

    def _read_attributes(
        self, value: Any, label: str
    ) -> tuple[dict[str, Any], AttributesRef | None]:
        reader = self._reader
        if value is None:
            return {}, None
        label = f"the attributes of {label}"
        kind, content = self._read_tagged(value, label)
        if kind == "Inline":
            return reader.read_object(content, label), None
        if kind != "Ref":
            reader.fail(f"{label} are neither Inline nor Ref, but {kind!r:.80}")
        place = reader.read_object(content, label)
        self._read_flags(place, label)
        ref = AttributesRef(
            reader.read_id(self._get(place, "object_id", label), AttributesId, label),
            reader.read_integer(self._get(place, "location", label), label, MAX_U32),
        )
        return self._attributes.load(ref), ref

    def _read_tagged(self, value: Any, label: str) -> tuple[str, Any]:
        """Return the only member of an object."""
        members = list(self._reader.read_object(value, label).items())
        if len(members) != 1:
            self._reader.fail(f"{label} must have one member, got {len(members)}")
        return members[0]

    def _read_flags(self, owner: dict[str, Any], label: str) -> None:
        if self._get(owner, "flags", label) != []:
            self._reader.fail(f"{label} has unknown flags")

    def _read_node_data(
        self, value: Any, label: str
    ) -> tuple[ArrayParts | None, tuple[ManifestRef, ...]]:
        reader = self._reader
        if value == "Group":
            return None, ()
        kind, content = self._read_tagged(value, f"node_data of {label}")
        pair = reader.read_list(content, f"node_data of {label}")
        if kind != "Array" or len(pair) != 2:
            reader.fail(f"node_data of {label} is neither Group nor Array with two items")
        array = self._read_array(reader.read_object(pair[0], f"metadata of {label}"), label)
        refs = reader.read_list(pair[1], f"manifests of {label}")
        return array, tuple(self._read_manifest_ref(ref, array, label) for ref in refs)

    def _read_manifest_ref(self, value: Any, array: ArrayParts, label: str) -> ManifestRef:
        reader, label = self._reader, f"a manifest of {label}"
        ref = reader.read_object(value, label)
        self._read_flags(ref, label)
        manifest_id = reader.read_id(self._get(ref, "object_id", label), ManifestId, label)
        corners = [
            reader.read_integers(corner, f"extents of {label}", MAX_U32)
            for corner in reader.read_list(self._get(ref, "extents", label), f"extents of {label}")
        ]
        if not corners:
            return ManifestRef(manifest_id, ManifestExtents(()))
        ndim = len(array.shape)
        if len(corners) != 2 or any(len(corner) != ndim for corner in corners):
            reader.fail(f"extents of {label} must be two corners with {ndim} coordinates each")
        ranges = tuple(
            ChunkIndexRange(first, last + 1) for first, last in zip(*corners, strict=True)
        )
        if any(extent.start > extent.stop for extent in ranges):
            reader.fail(f"extents of {label} end before they start")
        return ManifestRef(manifest_id, ManifestExtents(ranges))

    def _read_array(self, value: dict[str, Any], label: str) -> ArrayParts:
        reader = self._reader
        shape = reader.read_integers(self._get(value, "shape", label), f"shape of {label}", MAX_U64)
        chunk_shape = reader.read_integers(
            self._get(value, "chunk_shape", label), f"chunk_shape of {label}", MAX_U64
        )
        if len(shape) != len(chunk_shape) or 0 in chunk_shape:
            reader.fail(f"chunk_shape {chunk_shape} of {label} does not fit the shape {shape}")
        data_type = self._read_data_type(self._get(value, "data_type", label), label)
        word = self._get(value, "chunk_key_encoding", label)
        if not isinstance(word, str) or word not in _SEPARATORS:
            reader.fail(f"chunk_key_encoding of {label} is {word!r:.80}")
        names = value.get("dimension_names")
        if names is not None:
            label_names = f"dimension_names of {label}"
            names = tuple(
                None if name is None else reader.read_text(name, label_names)
                for name in reader.read_list(names, label_names)
            )
            if len(names) != len(shape):
                reader.fail(f"{label_names} does not fit the shape {shape}")
        codecs = self._read_extensions(self._get(value, "codecs", label), f"codecs of {label}")
        transformers = value.get("storage_transformers")
        element = self._read_fill_value(self._get(value, "fill_value", label), data_type, label)
        return ArrayParts(
            tuple(shape),
            format_data_type(data_type),
            tuple(chunk_shape),
            _SEPARATORS[word],
            format_fill_value(element, data_type),
            codecs,
            names,
            ()
            if transformers is None
            else self._read_extensions(transformers, f"storage_transformers of {label}"),
        )

    def _read_data_type(self, value: Any, label: str) -> str | int:
        if isinstance(value, str) and value in CORE_DATA_TYPES:
            return value
        bits = 0
        if isinstance(value, dict) and value.keys() == {"rawbits"}:
            bits = self._reader.read_integer(value["rawbits"], f"rawbits of {label}", MAX_U32)
        if not bits or bits % 8:
            self._reader.fail(f"the data type of {label} is {value!r:.80}")
        return bits

    def _read_extensions(self, value: Any, label: str) -> tuple[dict[str, Any], ...]:
        reader = self._reader
        result: list[dict[str, Any]] = []
        for item in reader.read_list(value, label):
            extension = reader.read_object(item, label)
            name = reader.read_text(self._get(extension, "name", label), label)
            configuration = extension.get("configuration")
            if configuration is None:
                result.append({"name": name})
            else:
                configuration = reader.read_object(configuration, label)
                result.append({"name": name, "configuration": configuration})
        return tuple(result)

    def _read_fill_value(self, value: Any, data_type: str | int, label: str) -> bytes:
        reader, label = self._reader, f"the fill value of {label}"
        tag, content = self._read_tagged(value, label)
        if tag == "RawBits":
            element = reader.read_bytes(content, label)
            if len(element) != get_element_size(data_type):
                reader.fail(f"{label} has {len(element)} bytes, not those of an element")
            if data_type == "bool" and element not in (b"\0", b"\1"):
                reader.fail(f"{label} is neither false nor true")
            return element
        if isinstance(data_type, int) or tag != _FILL_VALUE_TAGS[data_type]:
            reader.fail(f"{label} has the tag {tag!r:.40}, which its data type does not have")
        unpacked = content if data_type in COMPLEX_PARTS else [content]
        element = b""
        for part in reader.read_list(unpacked, label):
            element += self._read_scalar(part, COMPLEX_PARTS.get(data_type, data_type), label)
        if len(element) != get_element_size(data_type):
            reader.fail(f"{label} must have two parts")
        return element

    def _read_scalar(self, value: Any, data_type: str, label: str) -> bytes:
        reader = self._reader
        if data_type == "bool":
            if not isinstance(value, bool):
                reader.fail(f"{label} must be a boolean, got {value!r:.40}")
            return bytes([value])
        is_number = type(value) is int or (type(value) is float and data_type in FLOAT_FORMATS)
        if not is_number:
            reader.fail(f"{label} must be a number of type {data_type}, got {value!r:.40}")
        try:
            if data_type in INTEGER_SIZES:
                size, is_signed = INTEGER_SIZES[data_type]
                return int(value).to_bytes(size, "little", signed=is_signed)
            packed = pack_float(float(value), data_type)
        except OverflowError:
            packed = None
        if packed is None:
            reader.fail(f"{label} does not fit {data_type}: {value!r:.40}")
        return packed
