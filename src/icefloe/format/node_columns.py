"""Columnar reader of the nodes of snapshots; see `icefloe.format.snapshot`."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from icefloe.errors import FormatError, InvalidInputError
from icefloe.format import schema
from icefloe.format.direct_snapshot import ARRAY, GROUP
from icefloe.format.ids import to_ids
from icefloe.format.metadata import require_ascending
from icefloe.model.ids import ManifestId, NodeId
from icefloe.model.node import (
    ArrayNodeData,
    ChunkIndexRange,
    DimensionShape,
    GroupNodeData,
    ManifestExtents,
    ManifestRef,
    NodeData,
    NodeSnapshot,
)
from icefloe.model.path import Path
from icefloe.model.strings import factorize

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from icefloe.format.flatbuffer_reader import Tables

_DIMENSION_SHAPE = "<u8,<u8"
_INDEX_RANGE = "<u4,<u4"


def read_all_nodes(root: Tables, *, is_v1: bool) -> tuple[NodeSnapshot, ...]:
    """Read all nodes of a snapshot."""
    _, nodes = root.get_children(schema.Snapshot.NODES, "NodeSnapshot")
    return read_nodes(nodes, is_v1=is_v1)


def read_nodes(nodes: Tables, *, is_v1: bool) -> tuple[NodeSnapshot, ...]:
    """Read consecutive nodes."""
    table = schema.NodeSnapshot
    file = nodes.buffer.file
    paths = [path or "" for path in nodes.read_texts(table.PATH)]
    require_ascending(paths, "list of nodes", file)
    is_array = find_arrays(nodes)
    node_data: list[NodeData] = [GroupNodeData()] * len(nodes)
    rows = np.flatnonzero(is_array)
    arrays = _read_arrays(nodes.get_tables(table.NODE_DATA, "ArrayNodeData", rows), is_v1=is_v1)
    for row, array in zip(rows, arrays, strict=True):
        node_data[row] = array
    ids = to_ids(nodes.read_structs(table.ID), NodeId)
    if len(set(ids)) < len(ids):
        nodes.buffer.fail("has two nodes with the same id")
    user_data = nodes.read_blobs(table.USER_DATA)
    try:
        return tuple(map(NodeSnapshot, ids, map(Path, paths), user_data, node_data))
    except InvalidInputError as error:
        raise FormatError(error.message, file=file) from error


def find_arrays(nodes: Tables) -> NDArray[np.bool_]:
    """Tell which nodes are arrays, and refuse nodes that are neither arrays nor groups."""
    kinds = nodes.read_scalars(schema.NodeSnapshot.NODE_DATA_TYPE)
    is_array: NDArray[np.bool_] = kinds == ARRAY
    is_known = is_array | (kinds == GROUP)
    if not is_known.all():
        nodes.buffer.fail(f"has a node of the unknown type {kinds[~is_known][0]}")
    return is_array


def _read_arrays(arrays: Tables, *, is_v1: bool) -> list[ArrayNodeData]:
    shapes = _read_shapes(arrays, is_v1=is_v1)
    splits, refs = _read_manifest_refs(arrays, [len(shape) for shape in shapes])
    ends = splits.tolist()
    return [
        ArrayNodeData(shape, names, tuple(refs[start:end]))
        for shape, names, (start, end) in zip(
            shapes, _read_dimension_names(arrays), pairwise(ends), strict=True
        )
    ]


def _read_dimension_names(arrays: Tables) -> list[tuple[str | None, ...] | None]:
    field, name_field = schema.ArrayNodeData.DIMENSION_NAMES, schema.DimensionName.NAME
    splits, tables = arrays.get_children(field, "DimensionName", required=False)
    spans = tables.find_strings(name_field, required=False)
    codes, texts = tables.buffer.factorize(spans, "a dimension name")
    # A dimension without a name is an absent string (code -1) or an empty one.
    distinct = [text or None for text in texts] + [None]
    names = _make_shared(splits, codes.reshape(-1, 1), lambda code: distinct[code])
    has_names = arrays.has(field).tolist()
    return [row if present else None for row, present in zip(names, has_names, strict=True)]


def _read_shapes(arrays: Tables, *, is_v1: bool) -> list[tuple[DimensionShape, ...]]:
    table, shape = schema.ArrayNodeData, schema.DimensionShapeV2
    is_v2 = arrays.has(table.SHAPE_V2)
    # The shape of a scalar array is empty in either version, so the fields themselves are checked.
    if not (is_v2 | arrays.has(table.SHAPE)).all():
        arrays.buffer.fail("has an array without a shape")
    if is_v1 and is_v2.any():
        arrays.buffer.fail("has spec version 1 but array shapes of spec version 2")
    if is_v2.all():
        splits, dimensions = arrays.get_children(table.SHAPE_V2, "DimensionShapeV2")
        lengths = dimensions.read_scalars(shape.ARRAY_LENGTH)
        counts = dimensions.read_scalars(shape.NUM_CHUNKS)
        return _make_shared(splits, np.stack([lengths, counts], 1), DimensionShape)
    if is_v2.any():
        arrays.buffer.fail("has array shapes of both spec versions")
    make = DimensionShape.regular if is_v1 else _make_irregular
    spans = arrays.find_vectors(table.SHAPE, 16, align=8)
    splits, items = arrays.read_numbers(spans, _DIMENSION_SHAPE)
    pairs = np.stack([items["f0"], items["f1"]], 1)
    return _make_shared(splits, pairs, make)


def _make_irregular(array_length: int, chunk_length: int) -> DimensionShape:
    """Make a dimension as in spec version 2, without the chunk length."""
    return replace(DimensionShape.regular(array_length, chunk_length), chunk_length=None)


Item = TypeVar("Item")


def _make_shared(
    splits: NDArray[np.int64], rows: NDArray[Any], make: Callable[..., Item]
) -> list[tuple[Item, ...]]:
    """Make a tuple of items for each array, one item per row; equal tuples are one object."""
    size = rows.itemsize * rows.shape[1]
    data = np.ascontiguousarray(rows).view(np.uint8).reshape(-1)
    codes, table = factorize(data, splits[:-1] * size, np.diff(splits) * size)
    distinct = [
        tuple(make(*row) for row in part.view(rows.dtype).reshape(-1, rows.shape[1]).tolist())
        for part in np.split(table.data, table.offsets[1:-1])
    ]
    return [distinct[code] for code in codes.tolist()]


def _read_manifest_refs(
    arrays: Tables, ndims: Sequence[int]
) -> tuple[NDArray[np.int64], list[ManifestRef]]:
    table = schema.ManifestRef
    splits, refs = arrays.get_children(schema.ArrayNodeData.MANIFESTS, "ManifestRef")
    range_splits, ranges = refs.read_numbers(refs.find_vectors(table.EXTENTS, 8), _INDEX_RANGE)
    if not (ranges["f0"] <= ranges["f1"]).all():
        refs.buffer.fail("has a manifest whose extents end before they start")
    # Extents without ranges cover the whole array.
    counts, expected = np.diff(range_splits), np.repeat(np.array(ndims, int), np.diff(splits))
    if not ((counts == 0) | (counts == expected)).all():
        refs.buffer.fail("has a manifest whose extents and array differ in rank")
    pairs = np.stack([ranges["f0"], ranges["f1"]], 1)
    boxes = _make_shared(range_splits, pairs, ChunkIndexRange)
    extents = {box: ManifestExtents(box) for box in set(boxes)}
    ids = to_ids(refs.read_structs(table.OBJECT_ID), ManifestId)
    return splits, [
        ManifestRef(manifest_id, extents[box]) for manifest_id, box in zip(ids, boxes, strict=True)
    ]
