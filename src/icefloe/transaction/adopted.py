"""Manifests that somebody else wrote, and that a transaction takes over as they are.

Where references are made by many workers, they write the manifest files too, and the transaction
sees only their names, sizes and extents: its time and memory grow with manifests, not with
references. All chunks in such a manifest count as written by the transaction.
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
    """One manifest of an array: where its references lie, and its file."""

    ref: ManifestRef
    info: ManifestFileInfo


Adopted: TypeAlias = "Mapping[NodeId, tuple[AdoptedManifest, ...]]"

LogWriter: TypeAlias = "Callable[[TransactionLog, Adopted], None]"
"""Writes the transaction log of a commit, completed by the chunks of adopted manifests."""


def complete_log(log: TransactionLog, adopted: Adopted, assets: Assets) -> TransactionLog:
    """Add the chunks of adopted manifests to a transaction log; fetches the manifests."""
    chunks = dict(
        zip(log.updated_chunks.nodes(), map(log.updated_chunks.matrix, _count(log)), strict=True)
    )
    for node_id, manifests in adopted.items():
        parts = [chunks[node_id]] if node_id in chunks else []
        parts += [_coords(assets, one.ref, node_id) for one in manifests]
        if not parts:
            continue  # an array that no file has written anything of
        coords = np.concatenate(parts)
        # Of adopted manifests none overlap, but a chunk of one may have been written again.
        chunks[node_id] = np.unique(coords, axis=0) if node_id in chunks else coords
    return replace(log, updated_chunks=ChunkIndexColumns.of(chunks))


def _count(log: TransactionLog) -> range:
    return range(len(log.updated_chunks.node_ids))


def _coords(assets: Assets, ref: ManifestRef, node_id: NodeId) -> NDArray[np.uint32]:
    refs = assets.fetch_manifest(ref.id).array(node_id)
    return np.zeros((0, len(ref.extents.ranges)), np.uint32) if refs is None else refs.coords
