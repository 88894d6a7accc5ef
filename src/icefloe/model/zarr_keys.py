"""Keys of a Zarr store: the metadata of a node, or a chunk of an array."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.model.chunk_payload import MAX_U32
from icefloe.model.path import ROOT, Path

if TYPE_CHECKING:
    from collections.abc import Sequence

METADATA_NAME = "zarr.json"
"""The name of metadata keys; nodes cannot have this name."""

_INDICES = re.compile(r"(?:0|[1-9][0-9]{0,9})(?:/(?:0|[1-9][0-9]{0,9}))*")
_V2_NAMES = frozenset({".zgroup", ".zarray", ".zattrs", ".zmetadata"})


class MetadataKey(NamedTuple):
    """``zarr.json`` of the node at a path."""

    path: Path


class ChunkKey(NamedTuple):
    """One chunk of the array at a path."""

    path: Path
    indices: tuple[int, ...]


class V2Key(NamedTuple):
    """Metadata of Zarr version 2, which repositories do not contain."""

    key: str


Key: TypeAlias = MetadataKey | ChunkKey | V2Key


def parse_key(key: str) -> Key:
    """Parse a key; raise `InvalidInputError` if it is not a key of Zarr version 3."""
    head, separator, tail = key.rpartition("/c/")
    if separator and tail[-1:].isdigit():
        return ChunkKey(_parse_node_path(head), _parse_indices(tail, key))
    if key.startswith("c/") and tail[-1:].isdigit():
        return ChunkKey(ROOT, _parse_indices(key[2:], key))
    if key == "zarr.json":
        return MetadataKey(ROOT)
    if key.endswith("/zarr.json"):
        return MetadataKey(_parse_node_path(key[: -len("/zarr.json")]))
    if key == "c":
        return ChunkKey(ROOT, ())
    if key.endswith("/c"):
        return ChunkKey(_parse_node_path(key[:-2]), ())
    if key.rpartition("/")[2] in _V2_NAMES:
        return V2Key(key)
    raise _invalid_key_error(key)


def parse_node_prefix(prefix: str) -> Path | None:
    """Return the path of the node whose keys have this prefix, or None."""
    text = prefix.strip("/")
    try:
        return _parse_node_path(text) if text else ROOT
    except InvalidInputError:
        return None


def format_metadata_key(path: Path) -> str:
    """Return the key of a node's metadata."""
    return "zarr.json" if path.is_root else f"{path.value[1:]}/zarr.json"


def format_chunk_prefix(path: Path) -> str:
    """Return the prefix of the chunk keys of an array: ``c``, or ``path/to/array/c``."""
    return "c" if path.is_root else f"{path.value[1:]}/c"


def parse_chunk_prefix(segments: Sequence[str]) -> tuple[int, ...] | None:
    """Parse the part of a key prefix after an array, such as ``c/1``; None if not of chunks."""
    if segments[0] != "c":
        return None
    try:
        return _parse_indices("/".join(segments[1:]), "") if len(segments) > 1 else ()
    except InvalidInputError:
        return None


def _parse_indices(text: str, key: str) -> tuple[int, ...]:
    # Strict, so that a chunk has one key: int() would accept "01", "1_0" and " 1".
    if _INDICES.fullmatch(text):
        indices = tuple(map(int, text.split("/")))
        if max(indices) <= MAX_U32:
            return indices
    raise _invalid_key_error(key)


@lru_cache(maxsize=4096)
def _parse_node_path(text: str) -> Path:
    if not text:  # "/zarr.json" is not a valid key of the root
        raise _invalid_key_error("/")
    return Path(f"/{text}")


def _invalid_key_error(key: str) -> InvalidInputError:
    return InvalidInputError(
        f"{key!r} is not a key of a Zarr version 3 hierarchy: keys are 'zarr.json', "
        "'path/zarr.json' and 'path/c/0/0', the default chunk key encoding with '/'",
        kind=ErrorKind.INVALID_KEY,
    )
