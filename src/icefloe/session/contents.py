"""The contents of a session, for jobs, Spark and commands: nodes, chunk references, base snapshot.

`pipeline` and `spark` use `transaction` only through this module and `parallel_write`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from icefloe.model.node import ArrayNodeData
from icefloe.transaction import overlay
from icefloe.transaction.manifest_index import ManifestIndex

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from icefloe.model.chunk_payload import ChunkPayload
    from icefloe.model.ids import ManifestId, SnapshotId
    from icefloe.model.manifest import ArrayManifest, ChunkPayloads
    from icefloe.model.node import NodeSnapshot
    from icefloe.model.path import Path
    from icefloe.model.snapshot import Snapshot
    from icefloe.session.session import Session


def get_base_id(session: Session) -> SnapshotId:
    """Return the id of the snapshot that a session is based on."""
    return session.transaction.base_id


def get_base_snapshot(session: Session) -> Snapshot:
    """Return the snapshot that a session is based on, without its own changes."""
    return session.transaction.base.snapshot


# -- nodes


def get_node(session: Session, path: Path) -> NodeSnapshot | None:
    """Return the node at a path, or None."""
    return session.transaction.get_node(path)


def require_node(session: Session, path: Path) -> NodeSnapshot:
    """Return the node at a path; raise `NodeNotFoundError` if there is none."""
    return session.transaction.require_node(path)


def require_array(session: Session, path: Path) -> NodeSnapshot:
    """Return the array at a path; raise if there is no node, or if it is a group."""
    return session.transaction.require_array(path)


def iter_nodes_below(session: Session, path: Path) -> Iterator[NodeSnapshot]:
    """Yield all nodes below a path, in no particular order."""
    return session.transaction.iter_nodes_below(path)


def list_child_nodes(session: Session, path: Path) -> list[NodeSnapshot]:
    """Return the nodes directly below a path, ordered by name."""
    nodes = (get_node(session, path.child(name)) for name in _list_child_names(session, path))
    return [node for node in nodes if node is not None]


def has_children(session: Session, path: Path) -> bool:
    """Whether there is anything below a path."""
    return bool(_list_child_names(session, path))


def set_metadata(session: Session, path: Path, document: bytes) -> None:
    """Create or update a node from its ``zarr.json``."""
    session.transaction.set_metadata(path, document)


def delete_node(session: Session, path: Path) -> None:
    """Delete a node and everything below it."""
    session.transaction.delete_node(path)


def number_new_nodes(session: Session) -> None:
    """Give new nodes their final ids, before tasks write manifests with their chunks."""
    session.transaction.number_new_nodes()


# -- chunks


def fetch_chunk_refs(session: Session, path: Path) -> Iterator[ArrayManifest]:
    """Yield the chunk references of an array, manifest by manifest, as columns."""
    return session.transaction.fetch_chunk_refs(path)


def get_payload(session: Session, path: Path, indices: tuple[int, ...]) -> ChunkPayload | None:
    """Return the payload of a chunk, or None if it was never written."""
    return session.transaction.get_payload(path, indices)


def set_chunk(
    session: Session, path: Path, indices: tuple[int, ...], data: bytes | memoryview
) -> None:
    """Write the bytes of a chunk."""
    session.transaction.set_chunk(path, indices, data)


def set_payload(
    session: Session, path: Path, indices: tuple[int, ...], payload: ChunkPayload
) -> None:
    """Point a chunk at a payload."""
    session.transaction.set_payload(path, indices, payload)


def set_payloads(
    session: Session, path: Path, coords: NDArray[np.uint32], payloads: ChunkPayloads
) -> None:
    """Point many chunks of an array at payloads."""
    session.transaction.set_payloads(path, coords, payloads)


def iter_changed_chunks(session: Session) -> Iterator[ArrayManifest]:
    """Yield the chunks that a session changed, array by array."""
    for changes in session.transaction.changes.chunks.values():
        yield changes.to_columns()


def take_changed_chunks(session: Session, node: NodeSnapshot) -> ArrayManifest | None:
    """Remove the changed chunks of an array from a session and return them.

    Return None if the session changed none.
    """
    changes = session.transaction.changes.chunks.get(node.id)
    if changes is None:
        return None
    columns = changes.to_columns()
    session.transaction.changes.drop_chunks(node.id)
    return columns


def fetch_chunk_refs_in_manifests(
    session: Session, manifest_ids: Iterable[ManifestId]
) -> Iterator[tuple[ManifestId, NodeSnapshot, ArrayManifest]]:
    """Yield the chunk references in manifests of the base snapshot, by manifest and array.

    Skips references that are not visible, because an earlier manifest of the array has the same
    chunk or the array shrank.
    """
    nodes_by_manifest: dict[ManifestId, list[NodeSnapshot]] = {}
    for node in get_base_snapshot(session).nodes:
        if isinstance(node.node_data, ArrayNodeData):
            for manifest_id in {ref.id for ref in node.node_data.manifests}:
                nodes_by_manifest.setdefault(manifest_id, []).append(node)
    for manifest_id in manifest_ids:
        manifest = session.connection.assets.fetch_manifest(manifest_id)
        for node in nodes_by_manifest.get(manifest_id, ()):
            refs, data = manifest.get_array(node.id), node.node_data
            if refs is None or not len(refs) or not isinstance(data, ArrayNodeData):
                continue
            index = ManifestIndex(data.manifests, len(data.shape))
            grid = tuple(dimension.num_chunks for dimension in data.shape)
            is_visible = overlay.is_inside(refs.coords, grid)
            is_visible &= index.mask_chunks_of(manifest_id, refs.coords)
            refs = refs if is_visible.all() else overlay.select(refs, np.flatnonzero(is_visible))
            yield manifest_id, node, refs


def _list_child_names(session: Session, path: Path) -> list[str]:
    return sorted(session.transaction.list_children(path))
