"""Parallel writes: each task writes through a fork, and one session merges and commits.

A task returns a change set: references to the chunks that it wrote, with the bytes of inline chunks
only, and without a connection. A task that fails or runs twice leaves objects under random names
that no snapshot refers to. Only garbage collection deletes them, because another attempt, or a
commit whose response was lost, may need them. `exactly_once.commit_once` makes the commit
idempotent.

Tasks that produce very many references write whole manifests (`write_manifest`), which the session
adopts: its time and memory then grow with the number of manifests, not of references.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from icefloe.errors import InternalError
from icefloe.model.chunk_index_columns import ChunkIndexColumns
from icefloe.model.ids import ManifestId
from icefloe.model.manifest import ChunkPayloads, Manifest
from icefloe.model.node import ManifestRef
from icefloe.session.session import ForkSession, Session
from icefloe.transaction import overlay
from icefloe.transaction.adopted import AdoptedManifest, AdoptedManifests, add_adopted_chunks
from icefloe.transaction.array_manifests import compute_extents
from icefloe.transaction.change_set import ChangeSet
from icefloe.transaction.chunk_changes import ChunkChanges
from icefloe.types import SessionMode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from icefloe.model.ids import NodeId, SnapshotId
    from icefloe.model.manifest import ArrayManifest
    from icefloe.model.path import Path
    from icefloe.model.transaction_log import TransactionLog
    from icefloe.refs.commit_check import SessionStart
    from icefloe.session.connection import Connection

__all__ = [
    "AdoptedManifest",
    "AdoptedManifests",
    "ChangeSet",
    "ForkPoint",
    "adopt_manifests",
    "copy_changes",
    "finish_task",
    "make_scratch_fork",
    "open_session_at",
    "write_manifest",
    "write_transaction_log",
]


@dataclass(frozen=True, slots=True, eq=False)
class ForkPoint:
    """The state that tasks fork from. Pickles, including the credentials of the repository.

    Parameters
    ----------
    base_id
        Snapshot that the commit is based on.
    fork_id
        Snapshot of the session with its changes at the fork, which no branch refers to;
        ``base_id`` if there were no changes.
    start
        Start of the session.
    """

    connection: Connection
    base_id: SnapshotId
    fork_id: SnapshotId
    start: SessionStart

    @classmethod
    def of(cls, session: Session) -> ForkPoint:
        """Fork a session; its uncommitted changes are written as a snapshot."""
        fork = session.fork()
        return cls(session.connection, fork.origin, fork.transaction.base_id, fork.start)

    def fork(self, changes: ChangeSet | None = None) -> ForkSession:
        """Return a fork for one task."""
        return ForkSession(
            self.connection,
            self.fork_id,
            origin=self.base_id,
            changes=changes,
            start=self.start,
        )

    def merge(self, session: Session, parts: Iterable[ChangeSet]) -> None:
        """Merge the chunk changes of tasks into the session that was forked."""
        session.merge(self.fork(_join_changes(parts)))


def finish_task(fork: ForkSession) -> ChangeSet:
    """Finish the writes of a task and return its changes."""
    fork.transaction.finish_chunks()
    return fork.transaction.changes


def copy_changes(session: Session) -> ChangeSet:
    """Return a copy of the uncommitted changes of a session, with all chunks written."""
    return session.transaction.copy_changes()


def make_scratch_fork(session: Session) -> ForkSession:
    """Make a fork at the base of a session, for data that is never committed."""
    base_id = session.transaction.base_id
    return ForkSession(session.connection, base_id, origin=base_id)


def open_session_at(
    connection: Connection,
    base_id: SnapshotId,
    branch: str | None,
    changes: ChangeSet | None = None,
) -> Session:
    """Open a writable session on a branch as if the tip of the branch were ``base_id``."""
    mode = SessionMode.writable
    return Session(connection, base_id, mode=mode, branch=branch, changes=changes)


# -- manifests written by tasks


def write_manifest(
    connection: Connection, arrays: Mapping[NodeId, ArrayManifest]
) -> dict[NodeId, AdoptedManifest]:
    """Write one manifest with the references of several arrays, for a session to adopt."""
    node_ids = sorted(arrays)
    manifest = Manifest(
        connection.generation.make_id(ManifestId),
        ChunkIndexColumns.of({node_id: arrays[node_id].coords for node_id in node_ids}),
        ChunkPayloads.concatenate([arrays[node_id].payloads for node_id in node_ids]),
    )
    info = connection.assets.write_manifest(manifest, connection.location_compression)
    return {
        node_id: AdoptedManifest(ManifestRef(manifest.id, compute_extents(refs.coords)), info)
        for node_id, refs in arrays.items()
    }


def adopt_manifests(session: Session, path: Path, manifests: Iterable[AdoptedManifest]) -> None:
    """Add to an array the manifests that tasks wrote.

    The result is as if the session had written their chunks.
    """
    session.transaction.adopt_manifests(path, tuple(manifests))


def write_transaction_log(
    connection: Connection, log: TransactionLog, adopted: AdoptedManifests
) -> None:
    """Write the log of a commit, with the chunks of adopted manifests added."""
    assets = connection.assets
    assets.write_transaction_log(add_adopted_chunks(log, adopted, assets))


def _join_changes(parts: Iterable[ChangeSet]) -> ChangeSet:
    # All at once: merging parts one by one would compare each part with all earlier parts.
    by_array: dict[NodeId, list[ArrayManifest]] = {}
    for part in parts:
        for node_id, changes in part.chunks.items():
            by_array.setdefault(node_id, []).append(changes.to_columns())
    joined = ChangeSet()
    for node_id, columns in by_array.items():
        stacked = overlay.stack(columns)
        if len(stacked) != sum(map(len, columns)):
            raise InternalError("two tasks of one write wrote the same chunk")
        joined.chunks[node_id] = ChunkChanges.of(stacked)
    return joined
