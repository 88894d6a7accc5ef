"""Sessions: read one snapshot, or change it and commit (Icechunk spec, "Write Session")."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from icefloe import display
from icefloe import store as store_package
from icefloe.compat.async_twins import add_async_twins
from icefloe.conflicts import VersionSelection, require_solver, require_version_selection
from icefloe.containers.dependencies import DependencyCounter
from icefloe.containers.virtual_refs import (
    RefsQuery,
    build_refs_table,
    find_distinct_locations,
    iter_record_batches,
    iter_refs,
    list_refs,
)
from icefloe.errors import (
    ConflictError,
    ErrorKind,
    InvalidInputError,
    InvalidTypeError,
    ObjectNotFoundError,
    ReadOnlyError,
    RebaseFailedError,
    SessionStateError,
)
from icefloe.format.config_tree import flatten_variants, to_tree
from icefloe.format.unsupported import unsupported_error
from icefloe.model.chunk_payload import ChunkRef, InlineChunk
from icefloe.model.config import RepositoryConfig
from icefloe.model.manifest_config import ManifestConfig
from icefloe.model.path import Path
from icefloe.refs.commit_check import UNKNOWN_START, CommitCheck, SessionStart
from icefloe.session.commit_policy import NO_POLICY
from icefloe.session.written_files import require_written_files
from icefloe.storage.backoff import compute_backoff_s
from icefloe.storage.clock import require_no_lead
from icefloe.transaction import overlay
from icefloe.transaction.adopted import add_adopted_chunks
from icefloe.transaction.change_columns import gather_changes
from icefloe.transaction.change_set import build_transaction_log
from icefloe.transaction.commit_log import fetch_commit_logs
from icefloe.transaction.diff import diff_along_history
from icefloe.transaction.flush import Flusher
from icefloe.transaction.merge import merge_changes
from icefloe.transaction.rebase import OtherCommit, rebase
from icefloe.transaction.reindex import parse_coordinates, reindex_refs, shift_refs
from icefloe.types import ChunkType, SessionMode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence

    from icefloe.conflicts import ConflictSolver
    from icefloe.containers.dependencies import Dependencies
    from icefloe.containers.virtual_refs import RefsPart, VirtualRef
    from icefloe.model.chunk_payload import ChunkPayload
    from icefloe.model.ids import SnapshotId
    from icefloe.model.manifest import ArrayManifest
    from icefloe.model.snapshot import SnapshotInfo, SnapshotLinks
    from icefloe.model.transaction_log import TransactionLog
    from icefloe.session.commit_policy import CommitPolicy
    from icefloe.session.connection import Connection
    from icefloe.snapshots import Diff
    from icefloe.store import IcechunkStore
    from icefloe.transaction.change_set import ChangeSet
    from icefloe.transaction.flush import FlushResult
    from icefloe.types import CommitMethod

__all__ = ["ForkSession", "Session"]

_LOGGER = logging.getLogger(__name__)

# Backoff between rebases, so that competing writers do not collide again.
_FIRST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 1.0


@add_async_twins(
    "move",
    "get_node_id",
    "all_virtual_chunk_locations",
    "virtual_refs_table",
    "virtual_locations",
    "dependencies",
    "chunk_type",
    "merge",
    "commit",
    "amend",
    "flush",
    "rebase",
    "reindex_array",
    "shift_array",
)
class Session:
    """Reads one snapshot and, if it is writable, changes it.

    A session sees its snapshot and its own writes, and nothing else. A commit is atomic; after it
    the session is read-only and reads the new snapshot.
    """

    def __init__(
        self,
        connection: Connection,
        snapshot_id: SnapshotId,
        *,
        mode: SessionMode = SessionMode.readonly,
        branch: str | None = None,
        changes: ChangeSet | None = None,
        start: SessionStart | None = None,
    ) -> None:
        self.connection = connection
        self.transaction = connection.begin_transaction(snapshot_id, changes)
        self.start = start or (UNKNOWN_START if changes else SessionStart())
        self._mode = mode
        self._branch = branch

    # -- properties

    @property
    def read_only(self) -> bool:
        """Whether the session refuses writes."""
        return self._mode is SessionMode.readonly

    @property
    def mode(self) -> SessionMode:
        """Whether the session reads, writes, or moves nodes."""
        return self._mode

    @property
    def snapshot_id(self) -> str:
        """The snapshot that is read, and that changes are based on."""
        return str(self.transaction.base_id)

    @property
    def branch(self) -> str | None:
        """The branch of a commit; None if the session cannot commit."""
        return self._branch

    @property
    def config(self) -> RepositoryConfig:
        """A copy of the effective configuration."""
        return self.connection.config.copy()

    @property
    def has_uncommitted_changes(self) -> bool:
        """Whether there are changes to commit."""
        return not self.read_only and self.transaction.has_changes

    @cached_property
    def store(self) -> IcechunkStore:
        """The Zarr store of the session."""
        return store_package.IcechunkStore(self)

    def __eq__(self, value: object) -> bool:
        if not isinstance(value, Session):
            return NotImplemented
        return self is value or (
            self.connection.is_same_repository(value.connection)
            and self.snapshot_id == value.snapshot_id
            and (self._mode, self._branch) == (value._mode, value._branch)
            and not self.transaction.has_changes
            and not value.transaction.has_changes
        )

    def __hash__(self) -> int:
        return hash(self.snapshot_id)

    def __repr__(self) -> str:
        where = f" on {self._branch!r}" if self._branch else ""
        changes = ", uncommitted changes" if self.has_uncommitted_changes else ""
        url = self.connection.storage.url
        kind = f"{type(self).__name__} {self._mode.name}{where}"
        return f"<{kind} at {self.snapshot_id} of {url}{changes}>"

    @display.with_repr_fallback
    def _repr_html_(self) -> str:
        from icefloe.inspection import summarize_node  # noqa: PLC0415 - only needed here

        below = self.transaction.iter_nodes_below(Path("/"))
        nodes = sorted(islice(below, display.MAX_NODES + 1), key=lambda node: node.path.segments)
        return display.render_session_html(
            type(self).__name__,
            self.connection.storage.url,
            mode=self._mode.name,
            branch=self._branch,
            snapshot_id=self.snapshot_id,
            has_changes=self.has_uncommitted_changes,
            nodes=[(node.path.value, summarize_node(node)) for node in nodes],
        )

    def __reduce__(self) -> Any:
        if not self.read_only:
            hint = "pickle session.fork() and merge the forks that come back"
            if self._mode is SessionMode.rearrange:
                hint = "move nodes in this process, or pickle the repository"
            raise InvalidInputError(
                f"a {self._mode.name} session cannot be pickled, because only one copy could be "
                f"committed: {hint}",
                kind=ErrorKind.PICKLE,
            )
        return _unpickle_reader, (self.connection, self.transaction.base_id)

    def status(self) -> Diff:
        """Return the uncommitted changes."""
        log = self._build_log()
        after = {node.id: node for node in self.transaction.changes.edits.iter_nodes()}
        return diff_along_history([log], self.transaction.base.by_id, after)

    def discard_changes(self) -> None:
        """Discard all uncommitted changes."""
        self.require_writable()
        self.transaction.discard()

    # -- inspection

    def path(self, path: str) -> Path:
        """Parse the path of a node, with or without a leading slash."""
        if not isinstance(path, str):
            raise InvalidInputError(
                f"a node path must be a str, not {path!r:.80}", kind=ErrorKind.INVALID_PATH
            )
        return Path("/" + path.strip("/"))

    def get_node_id(self, path: str) -> str:
        """Return the id of a node, which does not change while the node exists.

        In generations that number nodes, it is the number, which a new node gets when it is
        committed.
        """
        node_id = self.transaction.require_node(self.path(path)).id
        return str(self.connection.generation.describe_node_id(node_id))

    def chunk_type(self, array_path: str, chunk_coordinates: Sequence[int]) -> ChunkType:
        """Return where the bytes of a chunk are stored."""
        path = self.path(array_path)
        self.transaction.require_array(path)
        indices = parse_coordinates(chunk_coordinates, "chunk_coordinates")
        match self.transaction.get_payload(path, indices):
            case None:
                return ChunkType.uninitialized
            case ChunkRef():
                return ChunkType.native
            case InlineChunk():
                return ChunkType.inline
            case _:
                return ChunkType.virtual

    async def chunk_coordinates(
        self, array_path: str, batch_size: int = 1000
    ) -> AsyncIterator[tuple[int, ...]]:
        """Yield the coordinates of the stored chunks of an array."""
        async for coords, *_ in self.store.array_chunk_iterator(array_path, batch_size):
            for row in coords.tolist():
                yield tuple(row)

    def all_virtual_chunk_locations(self) -> list[str]:
        """Return the absolute location of every virtual chunk."""
        locations: list[str] = []
        virtual = self.connection.virtual
        for part in self._list_refs(RefsQuery(), with_containers=False):
            table = [virtual.expand(location) for location in part.refs.payloads.locations]
            locations += map(table.__getitem__, part.refs.payloads.location_codes.tolist())
        return locations

    def virtual_refs(
        self,
        *,
        array_path: str | None = None,
        prefix: str | None = None,
        glob: str | None = None,
        regex: str | None = None,
        container: str | None = None,
    ) -> Iterator[VirtualRef]:
        """Yield the virtual chunks that match all filters, manifest by manifest.

        Parameters
        ----------
        array_path
            Path of an array, or of a group for all arrays below it.
        prefix
            Prefix of the location.
        glob
            Shell pattern (``*``, ``?``, ``[…]``) of the whole location; ``*`` matches slashes.
        regex
            Regular expression to find in the location.
        container
            Name or URL prefix of the container.
        """
        query = RefsQuery(array_path, prefix, glob, regex, container)
        return iter_refs(self._list_refs(query), self._container_prefixes)

    def virtual_refs_batches(
        self,
        *,
        array_path: str | None = None,
        prefix: str | None = None,
        glob: str | None = None,
        regex: str | None = None,
        container: str | None = None,
    ) -> Iterator[Any]:
        """Like `virtual_refs`, as Arrow record batches of one schema."""
        query = RefsQuery(array_path, prefix, glob, regex, container)
        return iter_record_batches(self._list_refs(query), self._container_prefixes)

    def virtual_refs_table(
        self,
        *,
        array_path: str | None = None,
        prefix: str | None = None,
        glob: str | None = None,
        regex: str | None = None,
        container: str | None = None,
    ) -> Any:
        """Like `virtual_refs`, as an Arrow table.

        Columns are ``array_path``, ``index``, ``location``, ``offset``, ``length``, ``etag``,
        ``last_modified`` and ``container``. `IcechunkStore.set_virtual_refs_table` accepts the
        table of one array.
        """
        query = RefsQuery(array_path, prefix, glob, regex, container)
        return build_refs_table(self._list_refs(query), self._container_prefixes)

    def virtual_locations(
        self,
        *,
        array_path: str | None = None,
        prefix: str | None = None,
        glob: str | None = None,
        regex: str | None = None,
        container: str | None = None,
    ) -> list[str]:
        """Return the distinct locations of the chunks that `virtual_refs` yields, unordered."""
        query = RefsQuery(array_path, prefix, glob, regex, container)
        return find_distinct_locations(self._list_refs(query, with_containers=False))

    def dependencies(self) -> Dependencies:
        """Count the files that virtual chunks refer to, by container, without reading them.

        `Repository.dependencies` counts those of the whole history.
        """
        count = DependencyCounter()
        for node in self.transaction.iter_nodes_below(Path("/")):
            if node.is_array:
                for part in self.transaction.fetch_chunk_refs(node.path):
                    count.add(node.id, part.payloads)
        return count.finish(self.connection.virtual)

    @property
    def _container_prefixes(self) -> list[str]:
        return [access.container.url_prefix for access in self.connection.virtual.containers()]

    def _list_refs(self, query: RefsQuery, *, with_containers: bool = True) -> Iterator[RefsPart]:
        virtual = self.connection.virtual
        return list_refs(self.transaction, virtual, query, with_containers=with_containers)

    # -- changes

    def move(self, from_path: str, to_path: str) -> None:
        """Move or rename a node and its descendants; no chunk is copied."""
        self.require_writable()
        if self._mode is not SessionMode.rearrange:
            raise SessionStateError(
                "only a rearrange session moves nodes: use repository.rearrange_session(branch)",
                kind=ErrorKind.REARRANGE_SESSION_ONLY,
            )
        self.transaction.move_node(self.path(from_path), self.path(to_path))

    def shift_array(self, array_path: str, chunk_offset: Iterable[int]) -> None:
        """Shift all chunks of an array by a number of chunks along each dimension.

        Chunks shifted out of the array are dropped; places that none moves to become empty.
        Only references change: no chunk is read or written.
        """
        offset = parse_coordinates(chunk_offset, "chunk_offset")
        self._relabel(array_path, lambda refs, grid: shift_refs(refs, grid, offset))

    def reindex_array(
        self,
        array_path: str,
        forward: Callable[[Iterable[int]], Iterable[int] | None],
        backward: Callable[[Iterable[int]], Iterable[int] | None] | None = None,
    ) -> None:
        """Assign new coordinates to the chunks of an array.

        Parameters
        ----------
        forward
            Maps coordinates of a chunk to new ones, or to None to keep them.
        backward
            Inverse of ``forward``. If given, chunks that no chunk moves to are deleted; otherwise
            they stay.
        """
        self._relabel(array_path, lambda refs, grid: reindex_refs(refs, grid, forward, backward))

    def merge(
        self,
        *others: Session,
        on_chunk_conflict: VersionSelection = VersionSelection.Fail,
    ) -> None:
        """Merge the changes of forks of this session, in the given order.

        Other writable sessions of the same snapshot can be merged too, and keep their changes.

        Parameters
        ----------
        on_chunk_conflict
            What to do with a chunk that is written with different bytes: raise (``Fail``), keep
            the chunk of this session (``UseOurs``) or of the fork (``UseTheirs``).

        Raises
        ------
        SessionStateError
            If changes conflict, or a fork started with changes that this session does not have.
            Nothing is merged then.
        ConflictError
            If a fork is based on another snapshot than this session.
        """
        self.require_writable()
        require_version_selection(on_chunk_conflict)
        for fork in others:
            self._require_mergeable(fork)
        # Before this session is locked: two sessions that merge each other would deadlock.
        changes = [fork.transaction.copy_changes() for fork in others]
        rollback = self.transaction.rollback_on_error(exclusive=True)
        with rollback if len(others) > 1 else nullcontext():
            for fork, changed in zip(others, changes, strict=True):
                if fork is self:
                    continue
                self._require_fork_point(fork)
                fork_point = fork.connection.begin_transaction(fork.transaction.base_id)
                merge_changes(self.transaction, fork_point, changed, on_chunk_conflict)
                # A fork of an earlier session at the same snapshot may have older files.
                self.start = self.start.combine(fork.start)

    # -- commits

    def commit(
        self,
        message: str,
        metadata: Mapping[str, Any] | None = None,
        *,
        rebase_with: ConflictSolver | None = None,
        rebase_tries: int = 1000,
        allow_empty: bool = False,
        policy: CommitPolicy = NO_POLICY,
    ) -> str:
        """Commit all changes atomically as a new snapshot of the branch, and return its id.

        Parameters
        ----------
        message, metadata
            Recorded in history.
        rebase_with
            Solver of conflicts with newer commits of the branch; without it, any newer commit
            raises `ConflictError`.
        rebase_tries
            Maximum number of rebases.
        allow_empty
            Whether to commit without changes.
        policy
            Hooks for commits of jobs.

        Raises
        ------
        ConflictError
            If the branch moved. Nothing is committed, and the session can be rebased.
        RebaseFailedError
            If the solver could not resolve a conflict.
        OutcomeUnknownError
            If it is unknown whether the commit succeeded.
        """
        branch = self._require_branch()
        if policy.has_work is not None:
            allow_empty = allow_empty or policy.has_work(self.transaction.base)
        self._require_changes(allow_empty=allow_empty)
        if rebase_with is not None:
            require_solver(rebase_with)
        entries = _require_entries(metadata)
        start = time.monotonic()
        with self.transaction.seal():
            attempts = 0
            while True:
                if rebase_with is not None:
                    entries = _add_rebase_attempts(entries, attempts)
                base_id = self.transaction.base_id
                refs = self.connection.refs
                # Without a solver, check for conflicts before anything is written. With one, the
                # files are needed in any case: read the branch as late as possible.
                publish = (
                    refs.begin_commit(branch, base_id)
                    if rebase_with is None
                    else partial(refs.commit, branch, base_id)
                )
                flushed = self._flush(message, entries, parent_id=base_id, policy=policy)
                try:
                    publish(_make_info(flushed, base_id), self._make_check(flushed))
                except ConflictError:
                    if rebase_with is None or attempts >= rebase_tries:
                        raise
                else:
                    snapshot_id = self._become_reader(flushed)
                    seconds = time.monotonic() - start
                    _LOGGER.info("committed %s to %r in %.3f s", snapshot_id, branch, seconds)
                    return snapshot_id
                attempts += 1
                _LOGGER.info("rebase attempt %d of %d on %r", attempts, rebase_tries, branch)
                if attempts > 1:
                    time.sleep(compute_backoff_s(attempts - 1, _FIRST_PAUSE_S, _LONGEST_PAUSE_S))
                self._rebase(branch, rebase_with, policy)

    def amend(
        self,
        message: str,
        *,
        metadata: Mapping[str, Any] | None = None,
        allow_empty: bool = False,
    ) -> str:
        """Replace the last commit of the branch in the history (spec version 2)."""
        branch = self._require_branch()
        self._require_changes(allow_empty=allow_empty)
        with self.transaction.seal():
            return self._amend(branch, message, _require_entries(metadata), rewrite=False)

    def flush(self, message: str, *, metadata: Mapping[str, Any] | None = None) -> str:
        """Write a snapshot that no branch points at, and return its id."""
        self.require_writable()
        if self._branch is None:
            raise SessionStateError(
                "cannot flush a forked session: merge it into the session that created it, and "
                "flush that",
                kind=ErrorKind.COMMIT_NOT_ALLOWED,
            )
        base_id = self.transaction.base_id
        with self.transaction.seal():
            entries = _require_entries(metadata)
            flushed = self._flush(message, entries, parent_id=base_id, durable=True)
            check = self._make_check(flushed)
            self.connection.refs.add_snapshot(_make_info(flushed, base_id), check)
            return self._become_reader(flushed)

    def rebase(self, solver: ConflictSolver, *, policy: CommitPolicy = NO_POLICY) -> None:
        """Move the changes onto the current tip of the branch.

        Replays the changes on each newer commit, oldest first. After a failure the session is based
        on the last commit without conflicts, and keeps its changes.

        Raises
        ------
        RebaseFailedError
            If changes conflict with a commit; the error lists all conflicts with it.
        """
        branch = self._require_branch()
        require_solver(solver)
        with self.transaction.seal():
            self._rebase(branch, solver, policy)

    def _rebase(self, branch: str, solver: ConflictSolver, policy: CommitPolicy) -> None:
        refs = self.connection.refs.pin()
        newer: list[SnapshotLinks] = []
        tip = refs.fetch_branch(branch)
        for links in refs.iter_links(tip):
            if links.id == self.transaction.base_id:
                break
            after_base = links.trim_logs(self.transaction.base_id)
            newer.append(after_base)
            if after_base is not links:
                break  # the base expired, but its log and those of newer commits remain
        else:
            raise ConflictError(
                f"branch {branch!r} no longer contains snapshot {self.snapshot_id}, which this "
                "session is based on: the branch was reset or amended, or the snapshot expired; "
                "start a new session",
                expected_parent=self.snapshot_id,
                actual_parent=str(tip),
            )
        newer.reverse()
        parents = {log_id: links.parent_id for links in newer for log_id in links.log_ids}
        logs = self._fetch_logs(parents)
        assets, base = self.connection.assets, self.transaction.base
        for links in newer:
            # A commit that only writes chunks has the nodes of its parent. The snapshot of the last
            # commit is read in any case, for the next commit.
            is_needed = (
                links is newer[-1]
                or assets.generation.numbers_nodes
                or any(logs[log_id].changes_nodes for log_id in links.log_ids)
            )
            tree = assets.fetch_tree(links.id) if is_needed else base
            get_payload = partial(self._fetch_payload, links.id)
            changes, numbers = self.transaction.plan_numbers(tree)
            for log_id in links.log_ids:
                theirs = OtherCommit(logs[log_id], tree, get_payload)
                changes, conflicts = rebase(base, changes, theirs, solver)
                if conflicts:
                    raise _rebase_error(refs.fetch_snapshot_info(links.id), conflicts)
            self.transaction.replace_base(links.id, changes, numbers)
            base = tree
        if policy.check_rebased is not None:
            policy.check_rebased(self.transaction.base)

    def rewrite_manifests(
        self,
        message: str,
        metadata: Mapping[str, Any] | None = None,
        *,
        commit_method: CommitMethod = "new_commit",
    ) -> str:
        """Rewrite all manifests with the current splitting configuration, and commit."""
        branch = self._require_branch()
        if commit_method not in {"new_commit", "amend"}:
            raise InvalidInputError(
                f"commit_method must be 'new_commit' or 'amend', not {commit_method!r}",
                kind=ErrorKind.INVALID_COMMIT_CONFIGURATION,
            )
        if self.transaction.has_changes:
            raise SessionStateError(
                "commit or discard the changes of this session before manifests are rewritten",
                kind=ErrorKind.UNCOMMITTED_CHANGES,
            )
        entries = _require_entries(metadata)
        entries["__icechunk"] = {"splitting_config": self._dump_splitting_config()}
        base_id = self.transaction.base_id
        with self.transaction.seal():
            if commit_method == "amend":
                return self._amend(branch, message, entries, rewrite=True)
            flushed = self._flush(message, entries, parent_id=base_id, rewrite=True)
            check = self._make_check(flushed)
            self.connection.refs.commit(branch, base_id, _make_info(flushed, base_id), check)
            return self._become_reader(flushed)

    def fork(self) -> ForkSession:
        """Return a session that can be pickled, written to in another process, and merged back.

        It sees the current state of this session: uncommitted changes are written as a snapshot
        that nothing refers to.
        """
        if self.read_only:
            raise SessionStateError(
                "cannot fork a read-only session: pickle the session itself",
                kind=ErrorKind.CANNOT_FORK_READ_ONLY_SESSION,
            )
        if self._mode is SessionMode.rearrange:
            raise SessionStateError(
                "a rearrange session cannot be forked", kind=ErrorKind.NON_REARRANGE_SESSION
            )
        with self.transaction.lock:
            base_id = self.transaction.base_id
            if self.transaction.has_changes:
                flushed = self._flush("fork", {}, parent_id=base_id, with_log=False)
                base_id = flushed.tree.snapshot.id
                self.transaction.changes.fork_points.add(base_id)
        return ForkSession(self.connection, base_id, origin=self.origin, start=self.start)

    # -- implementation

    @property
    def origin(self) -> SnapshotId:
        """The committed snapshot that all changes are based on."""
        return self.transaction.base_id

    @cached_property
    def _flusher(self) -> Flusher:
        connection = self.connection
        return Flusher(connection.assets, connection.config, connection.location_compression)

    def _dump_splitting_config(self) -> Any:
        splitting = self.connection.config.effective_manifest.effective_splitting
        tree = to_tree(RepositoryConfig(manifest=ManifestConfig(splitting=splitting)))
        manifest = tree["manifest"]
        return flatten_variants(manifest["splitting"]) if isinstance(manifest, dict) else None

    def _flush(
        self,
        message: str,
        metadata: Mapping[str, Any],
        *,
        parent_id: SnapshotId | None,
        amended: TransactionLog | None = None,
        rewrite: bool = False,
        with_log: bool = True,
        durable: bool = False,
        policy: CommitPolicy = NO_POLICY,
    ) -> FlushResult:
        _require_message(message)
        entries = {**self.connection.default_commit_metadata, **metadata}
        encoded = self.connection.generation.codec.encode_metadata(entries)
        # All arguments are valid: nothing was written before this point.
        self.transaction.finish_chunks()
        self.transaction.number_new_nodes()
        flushed = self._flusher.flush(
            self.transaction.base,
            self.transaction.changes,
            message=message,
            metadata=encoded,
            parent_id=parent_id,
            amended=amended,
            rewrite=rewrite,
            with_log=with_log,
            durable=durable,
            merge_manifests=policy.merge_manifests,
            write_log=policy.write_log,
        )
        layout = self.connection.generation.layout
        require_no_lead(
            self.connection.storage, layout.snapshots.format_key(flushed.tree.snapshot.id)
        )
        return flushed

    def _amend(
        self, branch: str, message: str, metadata: Mapping[str, Any], *, rewrite: bool
    ) -> str:
        if not self.connection.generation.has_repo_info:
            raise unsupported_error(
                "amending a commit",
                self.connection.generation,
                url=self.connection.storage.url,
                alternative="commit instead",
            )
        previous = self.connection.refs.fetch_snapshot_info(self.transaction.base_id)
        if previous.parent_id is None:
            raise SessionStateError(
                "the first snapshot of a repository cannot be amended: commit instead",
                kind=ErrorKind.NO_AMEND_FOR_INITIAL_COMMIT,
            )
        amended_log = self.connection.assets.fetch_transaction_log(previous.id)
        if amended_log.moved_nodes and self._mode is not SessionMode.rearrange:
            raise SessionStateError(
                f"commit {previous.id} moved nodes: amend it with a rearrange session",
                kind=ErrorKind.REARRANGE_SESSION_ONLY,
            )
        flushed = self._flush(
            message,
            metadata,
            parent_id=previous.parent_id,
            amended=amended_log,
            rewrite=rewrite,
        )
        info = _make_info(flushed, previous.parent_id)
        self.connection.refs.amend(branch, previous.id, info, self._make_check(flushed))
        return self._become_reader(flushed)

    def _make_check(self, flushed: FlushResult) -> CommitCheck:
        transaction = self.transaction
        return CommitCheck(
            self.connection.storage,
            self.start,
            lambda: require_written_files(
                self.connection.assets,
                transaction.changes,
                transaction.base.snapshot,
                flushed.tree.snapshot,
            ),
        )

    def _become_reader(self, flushed: FlushResult) -> str:
        self.transaction.finish(flushed.tree.snapshot.id)
        self._mode = SessionMode.readonly
        self._branch = None
        return self.snapshot_id

    def _build_log(self) -> TransactionLog:
        transaction = self.transaction
        with transaction.lock:
            chunks = gather_changes(transaction.changes.chunks)
            log = build_transaction_log(
                transaction.base_id, transaction.find_node_changes(), chunks
            )
            adopted = dict(transaction.changes.adopted)
        return add_adopted_chunks(log, adopted, transaction.assets) if adopted else log

    def _fetch_logs(
        self, parents: Mapping[SnapshotId, SnapshotId | None]
    ) -> dict[SnapshotId, TransactionLog]:
        """Fetch the changes of commits, given with their parents."""
        try:
            logs = fetch_commit_logs(self.connection.assets, parents.items())
        except ObjectNotFoundError as error:
            raise SessionStateError(
                f"the changes of newer commits are not known, so that conflicts with this session "
                f"cannot be detected: {error.message}; start a new session",
                kind=ErrorKind.REBASE_TX_LOG_PRUNED,
            ) from error
        return dict(zip(parents, logs, strict=True))

    def _fetch_payload(
        self, snapshot_id: SnapshotId, path: Path, indices: tuple[int, ...]
    ) -> ChunkPayload | None:
        return self.connection.begin_transaction(snapshot_id).get_payload(path, indices)

    def _relabel(
        self,
        array_path: str,
        relabel: Callable[[ArrayManifest, tuple[int, ...]], ArrayManifest],
    ) -> None:
        self.require_editable()
        path = self.path(array_path)
        node = self.transaction.require_array(path)
        grid = self.transaction.require_regular_grid(path)
        parts = [part for part in self.transaction.fetch_chunk_refs(path) if len(part)]
        if parts:
            self.transaction.change_chunks(node, relabel(overlay.stack(parts), grid))

    def require_writable(self, problem: str = "this session is read-only") -> None:
        """Raise `ReadOnlyError` if the session is read-only."""
        if self.read_only:
            raise ReadOnlyError(
                f"{problem}; use repository.writable_session(branch) to write "
                "(a session becomes read-only when it is committed)",
                kind=ErrorKind.READ_ONLY_SESSION,
            )

    def require_editable(self) -> None:
        """Raise if the session is read-only or a rearrange session."""
        self.require_writable()
        if self._mode is SessionMode.rearrange:
            raise SessionStateError(
                "a rearrange session only moves nodes: use repository.writable_session(branch)",
                kind=ErrorKind.NON_REARRANGE_SESSION,
            )

    def _require_branch(self) -> str:
        self.require_writable("commits are not allowed: this session is read-only")
        if self._branch is None:
            raise SessionStateError(
                "commits are not allowed on forks: merge it into the session that created it",
                kind=ErrorKind.COMMIT_NOT_ALLOWED,
            )
        return self._branch

    def _require_changes(self, *, allow_empty: bool) -> None:
        if not allow_empty and not self.transaction.has_changes:
            raise SessionStateError(
                "cannot commit, no changes made to the session: pass allow_empty=True for an empty "
                "commit",
                kind=ErrorKind.NO_CHANGES_TO_COMMIT,
            )

    def _require_mergeable(self, fork: object) -> None:
        if not isinstance(fork, Session) or fork.read_only:
            got = "a read-only session" if isinstance(fork, Session) else f"a {type(fork).__name__}"
            raise SessionStateError(
                f"only forks and writable sessions can be merged, got {got}: create a fork with "
                "session.fork()",
                kind=ErrorKind.MERGE_NOT_ALLOWED,
            )
        if SessionMode.rearrange in {self._mode, fork.mode}:
            raise SessionStateError(
                "a rearrange session cannot merge or be merged",
                kind=ErrorKind.NON_REARRANGE_SESSION,
            )
        if not self.connection.is_same_repository(fork.connection):
            fork_url, url = fork.connection.storage.url, self.connection.storage.url
            where = f"at {fork_url} instead of {url}"
            if fork_url == url:
                where = f"also at {url}: each in-memory storage is a separate location"
            raise SessionStateError(
                f"the fork belongs to another repository, {where}; merge it into the session that "
                "created it",
                kind=ErrorKind.MERGE_NOT_ALLOWED,
            )
        if fork.origin != self.origin:
            raise ConflictError(
                f"the fork is based on snapshot {fork.origin}, but this session on {self.origin}: "
                f"merge it into a session based on {fork.origin}, and detect conflicts with "
                "commit(rebase_with=...)",
                expected_parent=str(fork.origin),
                actual_parent=str(self.origin),
            )

    def _require_fork_point(self, fork: Session) -> None:
        """Raise if a fork started with changes that this session does not have."""
        start_id, base_id = fork.transaction.base_id, self.transaction.base_id
        if start_id != base_id and start_id not in self.transaction.changes.fork_points:
            raise SessionStateError(
                f"the fork started at {start_id} and this session is at {base_id}: uncommitted "
                "changes that only one of them has would be lost; nothing was merged. Merge all "
                "forks into the session that created them with session.merge(*forks), and a fork "
                "of a fork after the fork that it came from",
                kind=ErrorKind.MERGE_NOT_ALLOWED,
            )


class ForkSession(Session):
    """A session for other processes: can be pickled, written to and merged, but not committed."""

    def __init__(
        self,
        connection: Connection,
        snapshot_id: SnapshotId,
        *,
        origin: SnapshotId,
        changes: ChangeSet | None = None,
        start: SessionStart | None = None,
    ) -> None:
        mode = SessionMode.writable
        super().__init__(connection, snapshot_id, mode=mode, changes=changes, start=start)
        self._origin = origin

    @property
    def origin(self) -> SnapshotId:
        """The committed snapshot that all changes, also those before the fork, are based on."""
        return self._origin

    def __reduce__(self) -> Any:
        transaction = self.transaction
        changes = transaction.copy_changes()
        base_id = transaction.base_id
        return _unpickle_fork, (self.connection, base_id, self.origin, changes, self.start)


def _unpickle_reader(connection: Connection, snapshot_id: SnapshotId) -> Session:
    return Session(connection, snapshot_id)


def _unpickle_fork(
    connection: Connection,
    snapshot_id: SnapshotId,
    origin: SnapshotId,
    changes: ChangeSet,
    start: SessionStart,
) -> ForkSession:
    return ForkSession(connection, snapshot_id, origin=origin, changes=changes, start=start)


def _require_message(message: object) -> None:
    kind = ErrorKind.INVALID_COMMIT_CONFIGURATION
    if not isinstance(message, str):
        raise InvalidInputError(f"a commit message must be a str, not {message!r:.80}", kind)
    try:
        message.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(
            f"the commit message {message!r:.80} contains a lone surrogate", kind
        ) from error


def _require_entries(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the metadata of a commit as a dictionary, or raise if it is not a mapping."""
    if metadata is not None and not isinstance(metadata, Mapping):
        raise InvalidTypeError(
            f"commit metadata must be a mapping of names to JSON values, not {metadata!r:.80}"
        )
    return dict(metadata or {})


def _add_rebase_attempts(metadata: Mapping[str, Any], attempts: int) -> dict[str, Any]:
    entry = metadata.get("__icechunk", {})
    if not isinstance(entry, Mapping):
        raise InvalidInputError(
            f"the metadata entry '__icechunk' is {entry!r:.80}, but a commit with rebase_with "
            "records its attempts there: use another name, or a mapping",
            kind=ErrorKind.BAD_METADATA,
        )
    return {**metadata, "__icechunk": {**entry, "rebase_attempts": attempts}}


def _make_info(flushed: FlushResult, parent_id: SnapshotId | None) -> SnapshotInfo:
    return replace(flushed.tree.snapshot.get_info(), parent_id=parent_id)


def _rebase_error(info: SnapshotInfo, conflicts: list[Any]) -> RebaseFailedError:
    listed = "; ".join(str(conflict) for conflict in conflicts[:5])
    more = f"; and {len(conflicts) - 5} more" if len(conflicts) > 5 else ""
    return RebaseFailedError(
        f"commit {info.id} ({info.message!r}) conflicts with this session: {listed}{more}. The "
        "session keeps its changes; use another solver, or start a new session",
        snapshot=str(info.id),
        conflicts=conflicts,
    )
