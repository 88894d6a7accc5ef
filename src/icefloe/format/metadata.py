"""Codec of the user metadata of snapshots and repositories.

Each value is encoded separately, as MessagePack (spec version 1) or FlexBuffers (spec version 2).
Values are decoded on access: a commit copies the metadata of older snapshots without decoding it.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgpack
import msgpack.fallback
import numpy as np

from icefloe.errors import FormatError
from icefloe.format import flexbuffers, schema
from icefloe.format.direct_writer import TableLayout
from icefloe.format.json_metadata import copy_json, require_names, unstorable_entry_error
from icefloe.model.strings import Strings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from icefloe.format.direct_reader import DirectTable
    from icefloe.format.direct_writer import DirectWriter
    from icefloe.format.flatbuffer_reader import Tables
    from icefloe.format.flatbuffer_writer import Layout


_ITEM = TableLayout(schema.MetadataItem.NAME, schema.MetadataItem.VALUE)


class EncodedMetadata(Mapping[str, Any]):
    """Metadata whose values are decoded on access; damaged values then raise `FormatError`."""

    def __init__(self, items: dict[str, bytes], spec_version: int, file: str) -> None:
        self._items, self._file = items, file
        self.spec_version = spec_version

    def __getitem__(self, name: str) -> Any:
        return _decode_value(self._items[name], self.spec_version, f"{self._file}: {name}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return repr(dict(self))

    def get_encoded(self, name: str) -> bytes:
        """Return the encoded form of a value."""
        return self._items[name]


def encode_metadata(metadata: Mapping[str, Any], spec_version: int) -> EncodedMetadata:
    """Encode metadata; raise `InvalidInputError` if it is not a mapping of names to JSON."""
    require_names(metadata)
    items = {name: _encode_entry(metadata, name, spec_version) for name in sorted(metadata)}
    return EncodedMetadata(items, spec_version, "metadata")


def read_metadata(
    owners: Tables, field: schema.Field, spec_version: int, *, required: bool
) -> list[Mapping[str, Any]]:
    """Read the metadata of each owner, a snapshot or repository; empty if it has none."""
    splits, items = owners.get_children(field, "MetadataItem", required=required)
    names = [name or "" for name in items.read_texts(schema.MetadataItem.NAME)]
    values = items.read_blobs(schema.MetadataItem.VALUE)
    result: list[Mapping[str, Any]] = [{} for _ in range(len(owners))]
    for owner in np.flatnonzero(np.diff(splits)):
        span = slice(int(splits[owner]), int(splits[owner + 1]))
        require_ascending(names[span], "metadata", owners.buffer.file)
        entries = dict(zip(names[span], values[span], strict=True))
        result[owner] = EncodedMetadata(entries, spec_version, owners.buffer.file)
    return result


def read_table_metadata(
    owner: DirectTable, field: schema.Field, spec_version: int, *, required: bool
) -> Mapping[str, Any]:
    """Read the metadata of one owner; empty if it has none."""
    items = owner.get_tables(field, "MetadataItem", required=required)
    if not items:
        return {}
    file = owner.buffer.file
    names = [item.read_string(schema.MetadataItem.NAME) or "" for item in items]
    require_ascending(names, "metadata", file)
    values = [item.read_blob(schema.MetadataItem.VALUE) or b"" for item in items]
    return EncodedMetadata(dict(zip(names, values, strict=True)), spec_version, file)


def add_metadata(writer: DirectWriter, metadata: Mapping[str, Any], spec_version: int) -> int:
    """Add the metadata of one owner; return the position of its vector."""
    names = sorted(metadata)
    vector = writer.add_pointers(len(names))
    item = schema.MetadataItem
    tables = [writer.add_table(_ITEM, 0, 0) for _ in names]
    writer.point_items(vector, tables)
    for name, table in zip(names, tables, strict=True):
        writer.point_field(table, _ITEM, item.NAME, writer.add_blob(name.encode()))
        value = _encode_entry(metadata, name, spec_version)
        writer.point_field(table, _ITEM, item.VALUE, writer.add_blob(value))
    return vector


def write_metadata(
    layout: Layout, owners: Sequence[Mapping[str, Any]], spec_version: int
) -> NDArray[np.int64]:
    """Add the metadata of each owner; return the position of the vector of each."""
    entries = [(owner, name) for owner in owners for name in sorted(owner)]
    values = [_encode_entry(owner, name, spec_version) for owner, name in entries]
    item = schema.MetadataItem
    num_items = [len(owner) for owner in owners]
    positions, records = layout.add_table_vectors(num_items, [item.NAME, item.VALUE])
    records.point(item.NAME, layout.add_blobs(Strings.of([name for _, name in entries])))
    records.point(item.VALUE, layout.add_blobs(Strings.of(values)))
    return positions


def require_ascending(names: Sequence[str], label: str, file: str) -> None:
    """Raise if names are not sorted and distinct."""
    if any(name >= next_name for name, next_name in pairwise(names)):
        raise FormatError(f"its {label} must be sorted by name, without duplicates", file=file)


def _encode_entry(owner: Mapping[str, Any], name: str, spec_version: int) -> bytes:
    if isinstance(owner, EncodedMetadata) and owner.spec_version == spec_version:
        return owner.get_encoded(name)
    value = owner[name]
    try:
        if spec_version > 1:
            return flexbuffers.dumps(value)
        return bytes(msgpack.packb(copy_json(value, allow_nan=True), use_bin_type=True))
    except (TypeError, ValueError, OverflowError) as error:  # or InvalidInputError, a ValueError
        raise unstorable_entry_error(name, error) from error


def _build_map(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    entries = list(pairs)
    result = dict(entries)
    if len(result) != len(entries):
        raise ValueError("a map has a duplicate key")
    return result


def _decode_value(data: bytes, spec_version: int, file: str) -> Any:
    if spec_version > 1:
        return flexbuffers.loads(data, file=file)
    try:
        # The C decoder allocates the declared number of items of nested arrays without a check, and
        # leaks them if the data is truncated.
        value = msgpack.fallback.unpackb(data, raw=False, object_pairs_hook=_build_map)
        return copy_json(value, allow_nan=True)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise FormatError(
            f"a metadata value is not valid MessagePack ({error})", file=file
        ) from error
