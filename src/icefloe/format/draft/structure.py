"""Codec of structure files, which are snapshots: one row per node (docs/format/draft.md)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from icefloe.errors import FormatError, InvalidInputError
from icefloe.format.attributes_files import AttributesLoader
from icefloe.format.draft import schemas
from icefloe.format.draft.attributes import decode_attributes, load_attributes
from icefloe.format.draft.parquet import (
    OBJECT_LIMITS,
    SUFFIX,
    ParquetReader,
    ParquetWriter,
    is_readable,
    require_encodable,
    require_id,
    translate_errors,
)
from icefloe.format.generation import DRAFT
from icefloe.format.json_text import format_ascii_json, parse_extended_json
from icefloe.format.metadata import require_ascending
from icefloe.format.snapshot_checks import require_distinct
from icefloe.format.timestamps import from_microseconds, to_microseconds
from icefloe.format.zarr_document import (
    NO_FILL_VALUE,
    ArrayParts,
    NodeParts,
    join_document,
    refuse_feature,
    split_document,
    split_node,
)
from icefloe.model.chunk_payload import MAX_U32, MAX_U64
from icefloe.model.ids import AttributesId, ManifestId, NodeId, ObjectId, SnapshotId
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
from icefloe.model.snapshot import ManifestFileInfo, Snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeVar

    from icefloe.format.metadata_codec import FetchAttributes

    Id = TypeVar("Id", bound=ObjectId)

ROWS_PER_GROUP: Final = 1 << 14
"""Rows per row group: engines that look for a path skip the others."""

_ALL: Final = [0, MAX_U32]
"""The extent of a dimension whose bounds are not known: it contains every chunk index."""

_STATISTICS: Final = ("id", "type", "path")
_SEPARATOR: Final = "/"
_CHUNK_KEY_ENCODING: Final = {"name": "default", "configuration": {"separator": _SEPARATOR}}


def normalize_document(data: bytes, key: str) -> bytes:
    """Return a ``zarr.json`` as `decode_structure` makes it; raise if it cannot be stored."""
    parts = split_document(data, key, DRAFT)
    if parts.array is not None:
        _require_storable(parts.array, key)
        parts = replace(parts, array=replace(parts.array, separator=_SEPARATOR))
    return format_ascii_json(join_document(parts))


def _require_storable(array: ArrayParts, key: str) -> None:
    """Raise if the schema has no word for an array."""
    if array.storage_transformers:
        refuse_feature("storage transformers", key, DRAFT)
    if not isinstance(array.data_type, str):
        refuse_feature(f"the data type {array.data_type!r:.80} with a configuration", key, DRAFT)
    if array.separator not in (None, _SEPARATOR):
        refuse_feature(f"the chunk key encoding with separator {array.separator!r}", key, DRAFT)


def encode_structure(snapshot: Snapshot) -> bytes:
    """Encode a structure file; nodes are sorted by path."""
    require_distinct(snapshot)
    nodes = sorted(snapshot.nodes, key=lambda node: node.path.value)
    require_encodable(
        sum(len(node.user_data) + len(node.path.value) for node in nodes),
        f"snapshot {snapshot.id}",
    )
    rows = [_build_row(node) for node in nodes]
    data = _write_rows(rows, _build_info(snapshot), is_compressed=True)
    if not is_readable(data, OBJECT_LIMITS):
        data = _write_rows(rows, _build_info(snapshot), is_compressed=False)
    return data


def _write_rows(
    rows: Sequence[dict[str, Any]], info: dict[str, Any], *, is_compressed: bool
) -> bytes:
    writer = ParquetWriter(
        schemas.STRUCTURE,
        info=info,
        sorted_by=["path"],
        statistics=_STATISTICS,
        is_compressed=is_compressed,
    )
    for begin in range(0, len(rows), ROWS_PER_GROUP):
        group = rows[begin : begin + ROWS_PER_GROUP]
        writer.write_row_group(
            [
                pa.array([row[field.name] for row in group], field.type)
                for field in schemas.STRUCTURE
            ]
        )
    return writer.finish()


def decode_structure(
    data: bytes | memoryview,
    file: str,
    snapshot_id: SnapshotId,
    fetch_attributes: FetchAttributes,
) -> Snapshot:
    """Decode a structure file and the attributes files that it refers to."""
    with translate_errors(file):
        reader = ParquetReader(data, schemas.STRUCTURE, file)
        require_id(reader.info, "snapshot-id", snapshot_id, file)
        rows = reader.read().to_pylist()
        require_ascending([row["path"] for row in rows], "rows (by path)", file)
        inline = [_load_inline(row, file) for row in rows]
        refs = [_parse_attributes_ref(row["attrs_reference"], file) for row in rows]
    # Errors of storage and of other files keep their meaning.
    loader = AttributesLoader(file, fetch_attributes, decode_attributes)
    attributes = [
        loader.load(ref) if ref is not None else node_attributes or {}
        for node_attributes, ref in zip(inline, refs, strict=True)
    ]
    with translate_errors(file):
        nodes = []
        for row, node_attributes, ref in zip(rows, attributes, refs, strict=True):
            nodes.append(_read_node(row, node_attributes, ref, file))
            if ref is not None:
                loader.count(nodes[-1].user_data)
        if len({node.id for node in nodes}) < len(nodes):
            raise FormatError("has two nodes with the same id", file=file)
        return _read_info(reader.info, tuple(nodes), snapshot_id, file)


def _build_info(snapshot: Snapshot) -> dict[str, Any]:
    files = sorted(snapshot.manifest_files, key=lambda info: info.id)
    return {
        "snapshot-id": str(snapshot.id),
        "parent-snapshot-id": None if snapshot.parent_id is None else str(snapshot.parent_id),
        "flushed-at-us": to_microseconds(snapshot.flushed_at),
        "message": snapshot.message,
        "metadata": dict(snapshot.metadata),
        "next-node-number": snapshot.next_node_number,
        "manifests": [
            [f"{info.id}{SUFFIX}", info.size_bytes, info.num_chunk_refs] for info in files
        ],
    }


def _build_row(node: NodeSnapshot) -> dict[str, Any]:
    parts = split_node(node, DRAFT)
    ref, inline, metadata = node.attributes_ref, None, None
    if ref is None and parts.attributes:
        inline = format_ascii_json(parts.attributes)
    if parts.array is not None:
        _require_storable(parts.array, node.path.value)
        metadata = _build_metadata(parts.array)
    return {
        "id": node.id.number,
        "type": "array" if node.is_array else "group",
        "path": node.path.value,
        "array_metadata": metadata,
        "inline_attrs": inline,
        "attrs_reference": None
        if ref is None
        else {"attrs_file": f"{ref.id}{SUFFIX}", "row": ref.row, "flags": None},
        "inventories": [_build_inventory(manifest, node) for manifest in node.node_data.manifests]
        if isinstance(node.node_data, ArrayNodeData)
        else None,
    }


def _build_metadata(array: ArrayParts) -> dict[str, Any]:
    has_fill_value = array.fill_value is not NO_FILL_VALUE
    return {
        "shape": array.shape,
        "data_type": array.data_type,
        "fill_value": format_ascii_json(array.fill_value) if has_fill_value else None,
        "dimension_names": array.dimension_names,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": array.chunk_shape}},
        "chunk_key_encoding": _CHUNK_KEY_ENCODING,
        "codecs": [_build_codec(codec) for codec in array.codecs],
    }


def _build_codec(codec: dict[str, Any]) -> dict[str, Any]:
    configuration = codec.get("configuration")
    return {
        "name": codec["name"],
        "configuration": None if configuration is None else format_ascii_json(configuration),
    }


def _build_inventory(manifest: ManifestRef, node: NodeSnapshot) -> dict[str, Any]:
    ranges = manifest.extents.ranges
    ndim = len(node.node_data.shape) if isinstance(node.node_data, ArrayNodeData) else 0
    return {
        "inventory_file": f"{manifest.id}{SUFFIX}",
        "row": 0,
        "extent": [list(pair) for pair in ranges] if ranges else [_ALL] * ndim,
        "flags": None,
    }


def _parse_file_name(name: str, kind: type[Id], file: str) -> Id:
    text = name.removesuffix(SUFFIX)
    try:
        parsed = kind.parse(text)
    except InvalidInputError:
        parsed = None
    if parsed is None or f"{parsed}{SUFFIX}" != name or len(parsed.raw) != kind.SIZE:
        raise FormatError(f"has the file name {name!r:.80}: expected an id and {SUFFIX}", file=file)
    return parsed


def _load_inline(row: dict[str, Any], file: str) -> dict[str, Any] | None:
    text = row["inline_attrs"]
    if text is None:
        return None
    if row["attrs_reference"] is not None:
        raise FormatError("has a node with both inline_attrs and attrs_reference", file=file)
    return load_attributes(text, file)


def _parse_attributes_ref(reference: dict[str, Any] | None, file: str) -> AttributesRef | None:
    if reference is None:
        return None
    _require_no_flags(reference, file)
    attributes_id = _parse_file_name(reference["attrs_file"], AttributesId, file)
    return AttributesRef(attributes_id, reference["row"])


def _require_no_flags(struct: dict[str, Any], file: str) -> None:
    if struct["flags"]:
        raise FormatError(f"has the unknown flags {struct['flags']}", file=file)


def _read_node(
    row: dict[str, Any], attributes: dict[str, Any], ref: AttributesRef | None, file: str
) -> NodeSnapshot:
    node_id, path, metadata = (
        NodeId.from_number(row["id"]),
        Path(row["path"]),
        row["array_metadata"],
    )
    match row["type"]:
        case "group":
            if metadata is not None or row["inventories"]:
                raise FormatError(f"the group {path} has array metadata or inventories", file=file)
            user_data = format_ascii_json(join_document(NodeParts(attributes, None)))
            return NodeSnapshot(node_id, path, user_data, GroupNodeData(), ref)
        case "array" if metadata is not None:
            array = _read_array(metadata, path, file)
            manifests = tuple(
                _read_inventory(inventory, len(array.shape), file)
                for inventory in row["inventories"] or ()
            )
            shape = tuple(map(DimensionShape.regular, array.shape, array.chunk_shape))
            if any(dimension.num_chunks > MAX_U32 for dimension in shape):
                raise FormatError(f"the array {path} has too many chunks", file=file)
            node_data = ArrayNodeData(shape, array.dimension_names, manifests)
            user_data = format_ascii_json(join_document(NodeParts(attributes, array)))
            return NodeSnapshot(node_id, path, user_data, node_data, ref)
        case other:
            raise FormatError(f"the node {path} of type {other!r:.20} is damaged", file=file)


def _read_array(metadata: dict[str, Any], path: Path, file: str) -> ArrayParts:
    grid, encoding, codecs = (
        metadata[name] for name in ("chunk_grid", "chunk_key_encoding", "codecs")
    )
    if grid is None or grid["name"] != "regular":
        raise FormatError(f"the array {path} has no regular chunk grid", file=file)
    if encoding != _CHUNK_KEY_ENCODING:
        raise FormatError(f"the array {path} has the chunk keys {encoding!r:.100}", file=file)
    if not codecs or any(codec is None for codec in codecs):
        raise FormatError(f"the array {path} has no codecs", file=file)
    shape, chunk_shape = metadata["shape"], grid["configuration"]["chunk_shape"]
    names = metadata["dimension_names"]
    if (
        None in shape
        or None in chunk_shape
        or len(shape) != len(chunk_shape)
        or (names is not None and len(names) != len(shape))
        or any(length and not chunk for length, chunk in zip(shape, chunk_shape, strict=True))
    ):
        raise FormatError(f"the array {path} has a shape that does not fit its chunks", file=file)
    fill_value = metadata["fill_value"]
    return ArrayParts(
        tuple(shape),
        metadata["data_type"],
        tuple(chunk_shape),
        _SEPARATOR,
        NO_FILL_VALUE
        if fill_value is None
        else parse_extended_json(fill_value, "fill_value", file),
        tuple(_read_codec(codec, file) for codec in codecs),
        None if names is None else tuple(names),
    )


def _read_codec(codec: dict[str, Any], file: str) -> dict[str, Any]:
    if codec["configuration"] is None:
        return {"name": codec["name"]}
    configuration = parse_extended_json(codec["configuration"], "codec configuration", file)
    if not isinstance(configuration, dict):
        raise FormatError("the configuration of a codec is not a JSON object", file=file)
    return {"name": codec["name"], "configuration": configuration}


def _read_inventory(inventory: dict[str, Any] | None, ndim: int, file: str) -> ManifestRef:
    if inventory is None:
        raise FormatError("has an inventory that is null", file=file)
    _require_no_flags(inventory, file)
    manifest_id = _parse_file_name(inventory["inventory_file"], ManifestId, file)
    extent = inventory["extent"]
    if len(extent) != ndim:
        raise FormatError("has an inventory whose extent and array differ in rank", file=file)
    if any(pair is None or None in pair or pair[0] > pair[1] for pair in extent):
        raise FormatError("has an inventory whose extent is not valid", file=file)
    if all(pair == _ALL for pair in extent):
        return ManifestRef(manifest_id, ManifestExtents(()))
    ranges = tuple(ChunkIndexRange(*pair) for pair in extent)
    return ManifestRef(manifest_id, ManifestExtents(ranges))


def _read_info(
    info: dict[str, Any], nodes: tuple[NodeSnapshot, ...], snapshot_id: SnapshotId, file: str
) -> Snapshot:
    """Make the snapshot; what a file of another writer does not have, gets a default."""
    parent, message, metadata = (
        info.get(name) for name in ("parent-snapshot-id", "message", "metadata")
    )
    if not isinstance(message, str | None) or not isinstance(metadata, dict | None):
        raise FormatError("its message or metadata have the wrong type", file=file)
    highest = max((node.id.number for node in nodes), default=-1)
    next_number = _get_number(info, "next-node-number", highest + 1, MAX_U32 + 1, file)
    if next_number <= highest:
        raise FormatError(f"next-node-number is {next_number}, but {highest} is used", file=file)
    if not isinstance(parent, str | None):
        raise FormatError("parent-snapshot-id is not an id", file=file)
    return Snapshot(
        id=snapshot_id,
        parent_id=None if parent is None else SnapshotId.parse(parent),
        flushed_at=from_microseconds(_get_number(info, "flushed-at-us", 0, MAX_U64, file), file),
        message=message or "",
        metadata=metadata or {},
        nodes=nodes,
        manifest_files=_read_manifests(info.get("manifests"), nodes, file),
        next_node_number=next_number,
    )


def _get_number(info: dict[str, Any], name: str, default: int, limit: int, file: str) -> int:
    value = info.get(name, default)
    if type(value) is not int or not 0 <= value <= limit:
        raise FormatError(f"{name} is {value!r:.40}, not a number up to {limit}", file=file)
    return value


def _read_manifests(
    entries: object, nodes: tuple[NodeSnapshot, ...], file: str
) -> tuple[ManifestFileInfo, ...]:
    if entries is None:
        refs = (
            ref
            for node in nodes
            if isinstance(node.node_data, ArrayNodeData)
            for ref in node.node_data.manifests
        )
        return tuple(ManifestFileInfo(id_, 0, 0) for id_ in sorted({ref.id for ref in refs}))
    result = []
    for entry in entries if isinstance(entries, list) else [None]:
        match entry:
            case [str(name), int(size), int(count)] if (
                0 <= size <= MAX_U64 and 0 <= count <= MAX_U32
            ):
                manifest_id = _parse_file_name(name, ManifestId, file)
                result.append(ManifestFileInfo(manifest_id, int(size), int(count)))
            case _:
                raise FormatError(f"has the manifest entry {entry!r:.80}", file=file)
    if any(before.id >= after.id for before, after in pairwise(result)):
        raise FormatError("its manifests are not sorted, or have duplicates", file=file)
    return tuple(result)
