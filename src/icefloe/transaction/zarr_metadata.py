"""Parses ``zarr.json``: node type, shape, chunk grid and dimension names.

Of data types, codecs and attributes only the JSON structure is checked. Documents are stored byte
for byte, so that any Zarr library reads back what it wrote, and are not checked again once stored.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeGuard

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.generation import V1
from icefloe.format.unsupported import unsupported_error
from icefloe.model.chunk_payload import MAX_U32, MAX_U64
from icefloe.model.node import ArrayNodeData, DimensionShape, GroupNodeData, NodeData

if TYPE_CHECKING:
    from icefloe.format.generation import Generation
    from icefloe.model.node import NodeSnapshot


def parse_node_metadata(data: bytes, *, key: str, generation: Generation) -> NodeData:
    """Parse a ``zarr.json``; an array is returned without manifests.

    Raises `InvalidInputError` if it is not valid Zarr version 3 metadata or uses an unsupported
    feature, also if the generation cannot store its chunk grid.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _metadata_error(key, f"it is not JSON ({error})") from error
    if not isinstance(document, dict):
        raise _metadata_error(key, "it is not a JSON object")
    if document.get("zarr_format") != 3:
        raise _metadata_error(
            key, f"zarr_format is {document.get('zarr_format')!r}; only 3 can be stored"
        )
    match document.get("node_type"):
        case "group":
            return GroupNodeData()
        case "array":
            return _parse_array(document, key, generation)
        case other:
            raise _metadata_error(key, f"node_type is {other!r}, neither 'group' nor 'array'")


def has_different_chunk_grid(before: NodeSnapshot, after: NodeSnapshot) -> bool:
    """Whether the chunk grid of an array changed, so that chunk indices have another meaning.

    A changed shape alone does not count. The documents are compared, because the other stored
    fields of a grid depend on the spec version.
    """
    if before.user_data == after.user_data:
        return False
    old, new = (json.loads(node.user_data).get("chunk_grid") for node in (before, after))
    return bool(old != new)


def _parse_array(document: dict[str, Any], key: str, generation: Generation) -> ArrayNodeData:
    shape = document.get("shape")
    if not _are_lengths(shape):
        raise _array_error(key, f"shape {shape!r} is not a list of lengths")
    grid = document.get("chunk_grid")
    name = grid.get("name") if isinstance(grid, dict) else grid
    settings = grid.get("configuration") if isinstance(grid, dict) else None
    if not isinstance(settings, dict):
        settings = {}
    if name == "regular":
        dimensions = _parse_regular(shape, settings.get("chunk_shape"), key)
    elif name == "rectilinear":
        if not generation.has_rectilinear_grids:
            error = unsupported_error(
                "a rectilinear chunk grid",
                generation,
                alternative="use a regular chunk grid",
                file=key,
            )
            message = error.message
            if generation is V1:
                reason = "Non-regular chunk grids are not supported in icechunk format version 1"
                message = f"{reason}: {message}"
            raise InvalidInputError(message, kind=ErrorKind.BAD_METADATA) from error
        dimensions = _parse_rectilinear(shape, settings.get("chunk_shapes"), key)
    else:
        raise _array_error(
            key, f"chunk grid {name!r} is unknown; 'regular' and 'rectilinear' can be stored"
        )
    _require_usable(document, key)
    return ArrayNodeData(dimensions, _parse_dimension_names(document, len(shape), key), ())


def _require_usable(document: dict[str, Any], key: str) -> None:
    """Raise if no Zarr library could open the array, or its chunk keys are not supported."""
    data_type, codecs = document.get("data_type"), document.get("codecs")
    if _get_extension_name(data_type) is None:
        raise _array_error(
            key, f"data_type {data_type!r} is neither a name nor an object with a name"
        )
    if not isinstance(codecs, list) or not codecs:
        raise _array_error(key, f"codecs {codecs!r} is not a non-empty list")
    attributes = document.get("attributes")
    if attributes is not None and not isinstance(attributes, dict):
        raise _array_error(key, f"attributes {attributes!r:.80} is not an object")
    encoding = document.get("chunk_key_encoding")
    settings = encoding.get("configuration") if isinstance(encoding, dict) else None
    separator = settings.get("separator", "/") if isinstance(settings, dict) else "/"
    if _get_extension_name(encoding) != "default" or separator != "/":
        raise _array_error(
            key,
            f"chunk_key_encoding {encoding!r} is not supported: use 'default' with the separator "
            "'/'",
        )


def _get_extension_name(value: object) -> str | None:
    """Return the name of an extension: the value itself, or a member of an object."""
    name = value.get("name") if isinstance(value, dict) else value
    return name if isinstance(name, str) and name else None


def _parse_regular(shape: list[int], chunk_shape: object, key: str) -> tuple[DimensionShape, ...]:
    if not _are_lengths(chunk_shape) or len(chunk_shape) != len(shape):
        raise _array_error(key, f"chunk_shape {chunk_shape!r} does not fit the shape {shape}")
    dimensions = []
    for length, chunk_length in zip(shape, chunk_shape, strict=True):
        if length and not chunk_length:
            raise _array_error(key, f"chunk_shape {chunk_shape} has a chunk of length 0")
        dimensions.append(DimensionShape.regular(length, chunk_length))
    _require_few_chunks(dimensions, key)
    return tuple(dimensions)


def _parse_rectilinear(
    shape: list[int], chunk_shapes: object, key: str
) -> tuple[DimensionShape, ...]:
    if not isinstance(chunk_shapes, list) or len(chunk_shapes) != len(shape):
        raise _array_error(key, f"chunk_shapes {chunk_shapes!r} does not fit the shape {shape}")
    dimensions = []
    for length, edges in zip(shape, chunk_shapes, strict=True):
        if isinstance(edges, int) and not isinstance(edges, bool) and edges > 0:
            dimensions.append(DimensionShape(length, -(-length // edges)))
            continue
        runs = [_parse_run(edge) for edge in edges] if isinstance(edges, list) else [None]
        valid_runs = [run for run in runs if run is not None]
        if len(valid_runs) < len(runs):
            raise _array_error(key, f"chunk_shapes {edges!r} are not lengths of chunks")
        if sum(edge * count for edge, count in valid_runs) < length:
            raise _array_error(key, f"chunk_shapes {edges!r} end before the length {length}")
        dimensions.append(DimensionShape(length, sum(count for _, count in valid_runs)))
    _require_few_chunks(dimensions, key)
    return tuple(dimensions)


def _parse_run(edge: object) -> tuple[int, int] | None:
    """Parse a run of chunks: a length, or a pair of length and count."""
    pair = edge if isinstance(edge, list) else [edge, 1]
    return (pair[0], pair[1]) if len(pair) == 2 and _are_lengths(pair) else None


def _require_few_chunks(dimensions: list[DimensionShape], key: str) -> None:
    for axis, dimension in enumerate(dimensions):
        if dimension.num_chunks > MAX_U32:
            raise _array_error(
                key,
                f"dimension {axis} has {dimension.num_chunks} chunks, more than the format allows: "
                "use larger chunks or shards",
            )


def _parse_dimension_names(
    document: dict[str, Any], ndim: int, key: str
) -> tuple[str | None, ...] | None:
    names = document.get("dimension_names")
    if names is None:
        return None
    if (
        not isinstance(names, list)
        or len(names) != ndim
        or not all(name is None or isinstance(name, str) for name in names)
    ):
        raise _array_error(key, f"dimension_names {names!r} are not {ndim} names")
    return tuple(names)


def _are_lengths(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(
        type(item) is int and 0 <= item <= MAX_U64 for item in value
    )


def _metadata_error(key: str, problem: str) -> InvalidInputError:
    return InvalidInputError(f"{key}: {problem}; nothing was stored", kind=ErrorKind.BAD_METADATA)


def _array_error(key: str, problem: str) -> InvalidInputError:
    return InvalidInputError(
        f"{key}: {problem}; nothing was stored", kind=ErrorKind.INVALID_ARRAY_METADATA
    )
