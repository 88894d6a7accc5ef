"""Static arrays: arrays that lack a dimension along which files are combined.

Curvilinear coordinates, masks, station altitudes: a dataset keeps one copy for all files, or for
all files at one position along the other dimensions. Workers read them up to a size limit and
return digests, so files are compared without collecting their values.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import numpy as np

from icefloe.errors import IcefloeError
from icefloe.pipeline.arrays.nodes import parse_path
from icefloe.pipeline.files.source_record import get_group_attribute, set_group_attribute
from icefloe.session import Session, contents
from icefloe.store.open_array import open_array
from icefloe.virtual.agreement import Disagreement
from icefloe.virtual.arrays import LoadedArray, VirtualArray, find_coordinate
from icefloe.virtual.loading import compute_size_bytes, decode_values, fetch_encoded

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from icefloe.pipeline.files.staged_refs import ParsedFile
    from icefloe.virtual.dataset import VirtualDataset
    from icefloe.virtual.sources import OpenSource, Sources

_COMPARED_BYTES: Final = 16 << 20
"""Larger arrays are taken from the first file: reading all of them would dominate a virtual job."""

_KEPT: Final = "_nc_icefloe_static"
"""Attribute of a group: digests of its static arrays as the files had them."""


class StaticDigests:
    """Digests of static arrays, file by file; equal bytes are decoded once."""

    def __init__(self, sources: Sources, dims: frozenset[str]) -> None:
        self._sources = sources
        self._dims = dims
        self._known: dict[bytes, bytes] = {}

    def of(self, dataset: VirtualDataset, url: str) -> dict[str, bytes]:
        """Return the digests of a file's static arrays."""
        source = self._sources.open(url)
        within = f"{source.url}/"

        def open_location(location: str) -> OpenSource:
            if location == source.url:
                return source
            if location.startswith(within):  # a Zarr store
                return source.open_child(unquote(location.removeprefix(within)))
            return self._sources.open_referenced(location, source)

        found = {}
        for path, array in dataset.arrays.items():
            if (
                isinstance(array, VirtualArray)
                and not self._dims <= {*array.dimension_names}
                and compute_size_bytes(array) <= _COMPARED_BYTES
            ):
                encoded = fetch_encoded(array, open_location)
                description = json.dumps(
                    [array.metadata, array.refs.coords.tolist()], sort_keys=True
                )
                key = hashlib.blake2b(description.encode())
                for chunk in encoded:
                    key.update(len(chunk).to_bytes(8, "little") + chunk)
                if key.digest() not in self._known:
                    values = decode_values(array, path, source.url, encoded)
                    self._known[key.digest()] = _digest(values)
                found[path] = self._known[key.digest()]
        return found


def find_static_mismatches(
    files: Sequence[ParsedFile], dims: frozenset[str]
) -> Iterator[Disagreement]:
    """Find files whose static arrays differ from those of most files."""
    for path in files[0].digests:
        positions: dict[bytes, list[ParsedFile]] = {}
        for file in files:
            positions.setdefault(_position(file, path, dims), []).append(file)
        for together in positions.values():
            found = Counter(file.digests.get(path) for file in together)
            usual, count = found.most_common(1)[0]
            if count == len(together):
                continue
            like = next(file.url for file in together if file.digests.get(path) == usual)
            for file in together:
                if file.digests.get(path) != usual:
                    yield _disagreement(file, path, like)


def find_stored_mismatches(
    files: Sequence[ParsedFile], session: Session, group: str, dims: frozenset[str]
) -> Iterator[Disagreement]:
    """Find files whose static arrays differ from those of the group that they are appended to."""
    kept = get_group_attribute(session, group, _KEPT)
    known = kept if isinstance(kept, dict) else {}
    stored: dict[tuple[str, bytes], bytes | None] = {}
    for file in files:
        for path, digest in file.digests.items():
            key = path, _position(file, path, dims)
            if key not in stored:
                stored[key] = _read_stored_digest(file, path, session, group, dims)
                if stored[key] is None and not dims & {*_names(file, path)} and path in known:
                    stored[key] = bytes.fromhex(str(known[path]))
            if stored[key] not in {None, digest}:
                yield _disagreement(file, path, "the repository")


def store_digests(session: Session, group: str, file: ParsedFile, dims: frozenset[str]) -> None:
    """Store the digests of static arrays in the group: stored values may be converted."""
    found = {
        path: digest.hex()
        for path, digest in file.digests.items()
        if not dims & {*_names(file, path)}
    }
    if found:
        set_group_attribute(session, group, _KEPT, found)


def _read_stored_digest(
    file: ParsedFile, path: str, session: Session, group: str, dims: frozenset[str]
) -> bytes | None:
    """Return the digest of the stored array, or of the file's part; None if not comparable."""
    place = f"{parse_path(group).value.rstrip('/')}/{path}"
    if contents.get_node(session, parse_path(place)) is None:
        return None
    array = open_array(session.store, place)
    metadata = file.dataset.arrays[path].metadata
    if array.metadata.to_dict()["data_type"] != metadata["data_type"]:
        return None  # converted
    where = []
    for name, length in zip(_names(file, path), metadata["shape"], strict=True):
        if name not in dims:
            where.append(slice(0, length))
            continue
        start = _start_in_group(file, name, session, group)
        if start is None:
            return None  # new along this dimension
        where.append(slice(start, start + length))
    try:
        values = np.asarray(array[tuple(where)])
    except IcefloeError:
        return None  # in a container without access
    return _digest(values) if values.shape == tuple(metadata["shape"]) else None


def _start_in_group(file: ParsedFile, dim: str, session: Session, group: str) -> int | None:
    values = _coordinate(file, dim)
    place = f"{parse_path(group).value.rstrip('/')}/{dim}"
    if values is None or not len(values) or contents.get_node(session, parse_path(place)) is None:
        return None
    found = np.flatnonzero(np.asarray(open_array(session.store, place)[...]) == values[0])
    return int(found[0]) if len(found) else None


def _position(file: ParsedFile, path: str, dims: frozenset[str]) -> bytes:
    """Return the position of an array along the combined dimensions that it has."""
    found = [_coordinate(file, str(name)) for name in _names(file, path) if name in dims]
    return b"|".join(b"" if values is None else values.tobytes() for values in found)


def _coordinate(file: ParsedFile, dim: str) -> NDArray[Any] | None:
    path = find_coordinate(file.dataset.arrays, "", dim)
    array = None if path is None else file.dataset.arrays[path]
    return array.values if isinstance(array, LoadedArray) else None


def _names(file: ParsedFile, path: str) -> tuple[str | None, ...]:
    return tuple(file.dataset.arrays[path].dimension_names)


def _disagreement(file: ParsedFile, path: str, like: str) -> Disagreement:
    return Disagreement(
        file.url,
        path,
        "values",
        f"differs in value from {like}, and only one copy is kept; drop_variables={[path]} "
        "excludes it",
    )


def _digest(values: NDArray[Any]) -> bytes:
    if values.dtype.kind in "fc":
        # Zeros of either sign are equal, and so are all NaN.
        values = np.where(np.isnan(values), np.nan, values + 0)
    if values.dtype.hasobject or values.dtype.kind == "T":
        data = repr(values.tolist()).encode()
    else:
        data = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<")).tobytes()
    return hashlib.blake2b(data, digest_size=16).digest()
