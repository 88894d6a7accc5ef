"""Arrays that files have in common, because they lie along none of the combined dimensions.

Curvilinear coordinates, masks, the altitude of stations: a dataset has one of each, for all files.
Workers read them where they are not too large, and answer with digests, so that files are compared
without anybody holding their values.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import numpy as np

from icefloe.errors import IcefloeError
from icefloe.pipeline.nodes import path_of
from icefloe.spark.group import open_array
from icefloe.virtual.files.agreement import Disagreement
from icefloe.virtual.files.dataset import VirtualArray
from icefloe.virtual.files.loading import load_values, size_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from icefloe.pipeline.staged_refs import ParsedFile
    from icefloe.session import Session
    from icefloe.virtual.files.dataset import VirtualDataset
    from icefloe.virtual.files.sources import OpenSource, Sources

_COMPARED_BYTES: Final = 16 << 20
"""Larger arrays are taken from the first file: reading them from all would take longer than all
else that is done with a file that is only referred to."""


def digests(
    dataset: VirtualDataset, url: str, sources: Sources, dims: frozenset[str]
) -> dict[str, bytes]:
    """Read the static arrays of a file, and return what their values are known by."""
    source = sources.open(url)
    within = f"{source.url}/"

    def opened(location: str) -> OpenSource:
        if location == source.url:
            return source
        if location.startswith(within):  # a Zarr store
            return source.below(unquote(location.removeprefix(within)))
        return sources.open_named_by(location, source)

    return {
        path: _digest(load_values(array, path, source.url, opened))
        for path, array in dataset.arrays.items()
        if isinstance(array, VirtualArray)
        and not dims & set(array.dimension_names)
        and size_bytes(array) <= _COMPARED_BYTES
    }


def unlike_arrays(files: Sequence[ParsedFile]) -> Iterator[Disagreement]:
    """Find the files whose static arrays have other values than those of the most."""
    for path in files[0].digests:
        found = Counter(file.digests.get(path) for file in files)
        usual, count = found.most_common(1)[0]
        if count == len(files):
            continue
        like = next(file.url for file in files if file.digests.get(path) == usual)
        for file in files:
            if file.digests.get(path) != usual:
                yield _disagreement(file, path, like)


def unlike_stored(
    files: Sequence[ParsedFile], session: Session, group: str
) -> Iterator[Disagreement]:
    """Find the files whose static arrays have other values than the group that they go to."""
    stored = _stored_digests(files[0], session, group)
    for file in files:
        for path, digest in stored.items():
            if file.digests.get(path, digest) != digest:
                yield _disagreement(file, path, "the repository")


def _stored_digests(file: ParsedFile, session: Session, group: str) -> Mapping[str, bytes]:
    base = path_of(group).value.rstrip("/")
    found = {}
    for path in file.digests:
        place = f"{base}/{path}"
        if session.transaction.get_node(path_of(place)) is None:
            continue
        array = open_array(session, place)
        said = file.dataset.arrays[path].metadata
        if array.metadata.to_dict()["data_type"] != said["data_type"] or array.shape != tuple(
            said["shape"]
        ):
            continue  # it was converted, or is told of otherwise
        try:
            found[path] = _digest(np.asarray(array[...]))
        except IcefloeError:
            continue  # it is in a file that may not be read here
    return found


def _disagreement(file: ParsedFile, path: str, like: str) -> Disagreement:
    return Disagreement(
        file.url,
        path,
        "values",
        f"has other values than in {like}, and one for all files is kept; "
        f"drop_variables={[path]} leaves it out",
    )


def _digest(values: NDArray[Any]) -> bytes:
    if values.dtype.kind in "fc":
        # Zeros of either sign, and all that is not a number, count as one.
        values = np.where(np.isnan(values), np.nan, values + 0)
    if values.dtype.hasobject or values.dtype.kind == "T":
        data = repr(values.tolist()).encode()
    else:
        data = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<")).tobytes()
    return hashlib.blake2b(data, digest_size=16).digest()
