"""Static arrays: arrays that lack a dimension along which files are combined.

Examples are curvilinear coordinates, masks and station altitudes. A dataset keeps one copy for all
files, or for all files at one position along the combined dimensions that the array has. Workers
read static arrays up to a size limit and return digests, so the driver compares no values.
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

_MAX_COMPARED_BYTES: Final = 16 << 20
"""Larger arrays are not compared: reading them would take most of the time of `virtualize`."""

_DIGESTS_ATTRIBUTE: Final = "_nc_icefloe_static"
"""Group attribute with the digests of static arrays in the source files."""


class StaticDigests:
    """Computes the digests of static arrays; equal bytes are decoded once."""

    def __init__(self, sources: Sources, dims: frozenset[str]) -> None:
        self._sources = sources
        self._dims = dims
        self._digests: dict[bytes, bytes] = {}

    def compute(self, dataset: VirtualDataset, url: str) -> dict[str, bytes]:
        """Compute the digests of a file's static arrays that are virtual and not too large."""
        source = self._sources.open(url)
        prefix = f"{source.url}/"

        def open_location(location: str) -> OpenSource:
            if location == source.url:
                return source
            if location.startswith(prefix):  # an object of a Zarr store
                return source.open_child(unquote(location.removeprefix(prefix)))
            return self._sources.open_referenced(location, source)

        digests = {}
        for path, array in dataset.arrays.items():
            if (
                isinstance(array, VirtualArray)
                and not self._dims <= {*array.dimension_names}
                and compute_size_bytes(array) <= _MAX_COMPARED_BYTES
            ):
                encoded = fetch_encoded(array, open_location)
                description = json.dumps(
                    [array.metadata, array.refs.coords.tolist()], sort_keys=True
                )
                encoded_hash = hashlib.blake2b(description.encode())
                for chunk in encoded:
                    encoded_hash.update(len(chunk).to_bytes(8, "little") + chunk)
                key = encoded_hash.digest()
                if key not in self._digests:
                    values = decode_values(array, path, source.url, encoded)
                    self._digests[key] = _compute_digest(values)
                digests[path] = self._digests[key]
        return digests


def find_static_mismatches(
    files: Sequence[ParsedFile], dims: frozenset[str]
) -> Iterator[Disagreement]:
    """Find files whose static arrays differ from those of most files at the same position."""
    for path in files[0].digests:
        files_by_position: dict[bytes, list[ParsedFile]] = {}
        for file in files:
            files_by_position.setdefault(_encode_position(file, path, dims), []).append(file)
        for peers in files_by_position.values():
            counts = Counter(file.digests.get(path) for file in peers)
            common_digest, num_files = counts.most_common(1)[0]
            if num_files == len(peers):
                continue
            reference = next(file.url for file in peers if file.digests.get(path) == common_digest)
            for file in peers:
                if file.digests.get(path) != common_digest:
                    yield _make_disagreement(file, path, reference)


def find_stored_mismatches(
    files: Sequence[ParsedFile], session: Session, group: str, dims: frozenset[str]
) -> Iterator[Disagreement]:
    """Find files whose static arrays differ from the values, or else the digests, of the group."""
    attribute = get_group_attribute(session, group, _DIGESTS_ATTRIBUTE)
    source_digests = attribute if isinstance(attribute, dict) else {}
    group_digests: dict[tuple[str, bytes], bytes | None] = {}
    for file in files:
        for path, digest in file.digests.items():
            key = path, _encode_position(file, path, dims)
            if key not in group_digests:
                group_digest = _read_stored_digest(file, path, session, group, dims)
                has_dims = bool(dims & {*_get_dims(file, path)})
                if group_digest is None and not has_dims and path in source_digests:
                    group_digest = bytes.fromhex(str(source_digests[path]))
                group_digests[key] = group_digest
            if group_digests[key] not in {None, digest}:
                yield _make_disagreement(file, path, "the repository")


def store_digests(session: Session, group: str, file: ParsedFile, dims: frozenset[str]) -> None:
    """Store digests of arrays without combined dimensions: values in the group may be converted."""
    digests = {
        path: digest.hex()
        for path, digest in file.digests.items()
        if not dims & {*_get_dims(file, path)}
    }
    if digests:
        set_group_attribute(session, group, _DIGESTS_ATTRIBUTE, digests)


def _read_stored_digest(
    file: ParsedFile, path: str, session: Session, group: str, dims: frozenset[str]
) -> bytes | None:
    """Return the digest of the file's part of the stored array; None if not comparable."""
    array_path = f"{parse_path(group).value.rstrip('/')}/{path}"
    if contents.get_node(session, parse_path(array_path)) is None:
        return None
    array = open_array(session.store, array_path)
    metadata = file.dataset.arrays[path].metadata
    if array.metadata.to_dict()["data_type"] != metadata["data_type"]:
        return None  # the values in the group are converted
    selection = []
    for name, length in zip(_get_dims(file, path), metadata["shape"], strict=True):
        if name not in dims:
            selection.append(slice(0, length))
            continue
        start = _find_start(file, name, session, group)
        if start is None:
            return None  # the file is at a new position
        selection.append(slice(start, start + length))
    try:
        values = np.asarray(array[tuple(selection)])
    except IcefloeError:
        return None  # unreadable, for example in a container that is not authorized
    return _compute_digest(values) if values.shape == tuple(metadata["shape"]) else None


def _find_start(file: ParsedFile, dim: str, session: Session, group: str) -> int | None:
    values = _get_coordinate(file, dim)
    path = f"{parse_path(group).value.rstrip('/')}/{dim}"
    if values is None or not len(values) or contents.get_node(session, parse_path(path)) is None:
        return None
    matches = np.flatnonzero(np.asarray(open_array(session.store, path)[...]) == values[0])
    return int(matches[0]) if len(matches) else None


def _encode_position(file: ParsedFile, path: str, dims: frozenset[str]) -> bytes:
    """Return the coordinates of a file along the combined dimensions of an array, as bytes."""
    names = [str(name) for name in _get_dims(file, path) if name in dims]
    coordinates = [_get_coordinate(file, name) for name in names]
    return b"|".join(b"" if values is None else values.tobytes() for values in coordinates)


def _get_coordinate(file: ParsedFile, dim: str) -> NDArray[Any] | None:
    path = find_coordinate(file.dataset.arrays, "", dim)
    array = None if path is None else file.dataset.arrays[path]
    return array.values if isinstance(array, LoadedArray) else None


def _get_dims(file: ParsedFile, path: str) -> tuple[str | None, ...]:
    return tuple(file.dataset.arrays[path].dimension_names)


def _make_disagreement(file: ParsedFile, path: str, reference: str) -> Disagreement:
    return Disagreement(
        file.url,
        path,
        "values",
        f"differs in value from {reference}, and only one copy is kept; drop_variables={[path]} "
        "excludes it",
    )


def _compute_digest(values: NDArray[Any]) -> bytes:
    if values.dtype.kind in "fc":
        # Make all NaN equal, and zeros of either sign: -0.0 + 0 is 0.0.
        values = np.where(np.isnan(values), np.nan, values + 0)
    if values.dtype.hasobject or values.dtype.kind == "T":
        data = repr(values.tolist()).encode()
    else:
        data = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<")).tobytes()
    return hashlib.blake2b(data, digest_size=16).digest()
