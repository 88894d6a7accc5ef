"""Manifests that workers wrote and a transaction adopts without reading them.

The transaction holds only their ids, sizes and extents, so its time and memory grow with the number
of manifests, not of references. All chunks in them count as written by the transaction.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from icefloe.model.chunk_index_columns import ChunkIndexColumns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from icefloe.assets import Assets
    from icefloe.model.ids import NodeId
    from icefloe.model.node import ManifestRef
    from icefloe.model.snapshot import ManifestFileInfo
    from icefloe.model.transaction_log import TransactionLog


@dataclass(frozen=True, slots=True)
class AdoptedManifest:
    """A manifest of one array: its extents and its file."""

    ref: ManifestRef
    info: ManifestFileInfo


AdoptedManifests: TypeAlias = "Mapping[NodeId, tuple[AdoptedManifest, ...]]"

LogWriter: TypeAlias = "Callable[[TransactionLog, AdoptedManifests], None]"
"""Writes the transaction log of a commit, including the chunks of adopted manifests."""


def add_adopted_chunks(
    log: TransactionLog, adopted: AdoptedManifests, assets: Assets
) -> TransactionLog:
    """Fetch adopted manifests and add their chunks to a transaction log."""
    updated = log.updated_chunks
    chunks = {
        node_id: updated.get_coords(position)
        for position, node_id in enumerate(updated.iter_node_ids())
    }
    for node_id, manifests in adopted.items():
        parts = [chunks[node_id]] if node_id in chunks else []
        parts += [_fetch_coords(assets, manifest.ref, node_id) for manifest in manifests]
        if not parts:
            continue  # no manifest was adopted for this array
        coords = np.concatenate(parts)
        # Adopted manifests do not overlap each other, but the transaction may have written some of
        # their chunks itself; these are in the log already.
        chunks[node_id] = np.unique(coords, axis=0) if node_id in chunks else coords
    return replace(log, updated_chunks=ChunkIndexColumns.of(chunks))


def _fetch_coords(assets: Assets, manifest_ref: ManifestRef, node_id: NodeId) -> NDArray[np.uint32]:
    array = assets.fetch_manifest(manifest_ref.id).get_array(node_id)
    if array is None:
        return np.zeros((0, len(manifest_ref.extents.ranges)), np.uint32)
    return array.coords
