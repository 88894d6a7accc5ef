"""Access to the group of a session that a dataset is written to or compared with."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from icefloe.model.manifest import ArrayManifest, ChunkPayloads
from icefloe.store.open_array import open_array
from icefloe.virtual.arrays import LoadedArray, VirtualArray
from icefloe.virtual.contiguous import split_chunks

if TYPE_CHECKING:
    from icefloe.model.path import Path
    from icefloe.session import Session
    from icefloe.virtual.arrays import AnyArray
    from icefloe.virtual.dataset import VirtualDataset

NO_PAYLOADS: Final = ChunkPayloads.of([])


def resolve_group(session: Session, group: str) -> Path:
    """Return the path of a group; leading and trailing slashes are optional."""
    return session.path(f"/{group.strip('/')}")


def join_path(base: Path, path: str) -> Path:
    """Return the absolute path of a node from its path in a dataset."""
    for name in path.split("/") if path else ():
        base = base.child(name)
    return base


def open_stored_array(session: Session, path: Path) -> Any:
    """Open an array of the session with zarr."""
    with warnings.catch_warnings():
        # zarr warns about codecs and data types that are not in the Zarr specification.
        warnings.simplefilter("ignore")
        return open_array(session.store, path.value, mode="r+")


def fetch_stored_dataset(session: Session, base: Path, dataset: VirtualDataset) -> VirtualDataset:
    """Return the stored group, with the values of arrays that are loaded in ``dataset``.

    Other arrays have only metadata.
    """
    start = len(base.value) + (not base.is_root)
    groups: dict[str, dict[str, Any]] = {"": {}}
    arrays: dict[str, AnyArray] = {}
    for node in session.transaction.iter_nodes_below(base):
        path = node.path.value[start:]
        document = json.loads(node.user_data)
        if not node.is_array:
            groups[path] = document.get("attributes") or {}
        elif isinstance(dataset.arrays.get(path), LoadedArray):
            values = np.asarray(open_stored_array(session, node.path)[...])
            arrays[path] = LoadedArray(document, values)
        else:
            coords = np.zeros((0, len(document["shape"])), np.uint32)
            arrays[path] = VirtualArray(document, ArrayManifest(coords, NO_PAYLOADS))
    return replace(dataset, sources=(), groups=groups, arrays=dict(sorted(arrays.items())))


def align_with_stored(
    session: Session, base: Path, dataset: VirtualDataset, dim: str
) -> VirtualDataset:
    """Split contiguous arrays into chunks of the stored length along a dimension."""
    arrays = dict(dataset.arrays)
    for path, array in dataset.arrays.items():
        node = session.transaction.get_node(join_path(base, path))
        if isinstance(array, VirtualArray) and dim in array.dimension_names and node is not None:
            grid = json.loads(node.user_data).get("chunk_grid", {})
            axis = array.dimension_names.index(dim)
            chunk = grid.get("configuration", {}).get("chunk_shape", [])
            if len(chunk) == len(array.shape):
                arrays[path] = split_chunks(array, axis, chunk[axis])
    return replace(dataset, arrays=arrays)
