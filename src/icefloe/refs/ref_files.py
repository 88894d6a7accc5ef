"""The refs of generation v1: one JSON file per branch and tag (Icechunk spec, "Reference Files").

A branch changes by compare-and-swap of its file. A tag is created if absent and never changes; a
tombstone beside it marks it as deleted. Generation v1 has no ops log, metadata, status or feature
flags.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from icefloe.assets import fetch_file
from icefloe.errors import (
    AbsentOrDeniedError,
    ConflictError,
    ErrorKind,
    ObjectNotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    RefNotFoundError,
)
from icefloe.format.generation import V1
from icefloe.format.keys import (
    REFS,
    format_branch_key,
    format_tag_key,
    format_tombstone_key,
    parse_branch_key,
    parse_tag_key,
    parse_tombstone_key,
)
from icefloe.format.metadata_codec import fetch_no_attributes
from icefloe.format.ref_json import MAX_REF_SIZE, decode_ref, encode_ref
from icefloe.refs import change_counter, config_file, ref_errors
from icefloe.refs.history import walk_history
from icefloe.refs.interface import Refs
from icefloe.refs.names import MAIN, decode_ref_name, encode_ref_name, is_plain, require_ref_name
from icefloe.refs.repeated_creation import create_or_compare
from icefloe.refs.retention import plan_ref_files_expiration
from icefloe.refs.snapshot_files import make_info_reader
from icefloe.storage.interface import Create, UpdateIfMatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from icefloe.model.config import RepositoryConfig
    from icefloe.model.ids import SnapshotId
    from icefloe.model.snapshot import Snapshot, SnapshotInfo
    from icefloe.refs.commit_check import CommitCheck
    from icefloe.refs.interface import Publish, SnapshotSource
    from icefloe.refs.retention import ExpirationPolicy
    from icefloe.refs.state import RefsState
    from icefloe.storage.interface import Storage, Version


_MAX_ATTEMPTS = 100
# Without permission to list, S3 returns "access denied" for absent objects.
_ABSENT = (ObjectNotFoundError, AbsentOrDeniedError)


class _Branch(NamedTuple):
    """The tip of a branch, with the key and version of its file."""

    key: str
    tip: SnapshotId
    version: Version


class StateAtOpening(NamedTuple):
    """The tip of main and the configuration, as read at opening."""

    main: SnapshotId
    config: RepositoryConfig | None


class RefFiles(Refs):
    """Reads and changes ``refs/branch.*/ref.json``, ``refs/tag.*/ref.json`` and ``config.yaml``.

    History is read from the snapshots of ``assets``, or from the storage if that is None. State in
    ``at_opening`` is not read again.
    """

    generation = V1

    def __init__(
        self,
        storage: Storage,
        assets: SnapshotSource | None = None,
        at_opening: StateAtOpening | None = None,
    ) -> None:
        self._storage = storage
        self._assets = assets
        self._at_opening = at_opening

    @classmethod
    def create(cls, storage: Storage, initial: Snapshot, config: RepositoryConfig | None) -> None:
        config_file.create_config(storage, config)
        storage.put(format_branch_key(MAIN), encode_ref(initial.id), Create())

    @classmethod
    def restore(cls, storage: Storage, state: RefsState) -> None:
        """Create a file per branch and tag; the branch main comes last and publishes the rest."""
        config_file.restore_config(storage, state.config)
        files = {}
        for tag in sorted(state.deleted_tags):
            files[format_tombstone_key(tag)] = b""
            # Refuses the name, see `create_tag`; the target of the tag is not known any more.
            files[format_tag_key(tag)] = encode_ref(state.branches[MAIN])
        files |= {format_tag_key(tag): encode_ref(state.tags[tag]) for tag in sorted(state.tags)}
        others = sorted(state.branches.keys() - {MAIN})
        for branch in (*others, MAIN):
            files[format_branch_key(branch)] = encode_ref(state.branches[branch])
        for key, data in files.items():
            create_or_compare(storage, key, data)

    @classmethod
    def require_new_name(cls, name: str) -> None:
        require_ref_name(name, in_key=True, new=True)

    def pin(self) -> RefFiles:
        """Return self: separate files have no common state."""
        return self

    def with_assets(self, assets: SnapshotSource) -> RefFiles:
        return RefFiles(self._storage, assets, self._at_opening)

    def fetch_branches(self) -> dict[str, SnapshotId]:
        """Fetch all branches; one listing, and one request per branch."""
        names = self._list_branches()
        if self._at_opening is None:
            return self._fetch_all(format_branch_key, names)
        return {MAIN: self._at_opening.main} | self._fetch_all(format_branch_key, names - {MAIN})

    def fetch_branch_names(self) -> set[str]:
        """Fetch the names of all branches; one listing."""
        return {decode_ref_name(name) for name in self._list_branches()}

    def fetch_branch(self, branch: str) -> SnapshotId:
        if self._at_opening is not None and branch == MAIN:
            return self._at_opening.main
        return self._fetch_branch(branch).tip

    def fetch_tags(self) -> dict[str, SnapshotId]:
        """Fetch all tags; one listing, and one request per tag."""
        return self._fetch_all(format_tag_key, self._list_tags())

    def fetch_tag_names(self) -> set[str]:
        """Fetch the names of all tags; one listing."""
        return {decode_ref_name(name) for name in self._list_tags()}

    def fetch_tag(self, tag: str) -> SnapshotId:
        """Fetch the target of a tag; two requests, one of them for its tombstone."""
        require_ref_name(tag, in_key=True)
        stored = self._find_stored_name(tag, format_tag_key)
        if self._exists(format_tombstone_key(stored)):
            raise ref_errors.deleted_tag_error(tag)
        try:
            return self._fetch(format_tag_key(stored))
        except ObjectNotFoundError as error:
            raise ref_errors.missing_tag_error(tag, where=self._storage.url) from error

    def fetch_deleted_tags(self) -> frozenset[str]:
        """Fetch the names of deleted tags; one listing, of the tombstones."""
        names = _parse_all(parse_tombstone_key, self._list_keys())
        return frozenset(decode_ref_name(name) for name in names)

    def fetch_snapshot_info(self, snapshot_id: SnapshotId) -> SnapshotInfo:
        return make_info_reader(self._storage, self.generation, self._assets)(snapshot_id)

    def fetch_ancestry(self, snapshot_id: SnapshotId) -> Iterator[SnapshotInfo]:
        reader = make_info_reader(self._storage, self.generation, self._assets)
        return walk_history(snapshot_id, reader)

    def fetch_live_snapshots(self) -> set[SnapshotId]:
        return {*self.fetch_branches().values(), *self.fetch_tags().values()}

    def fetch_config(self) -> RepositoryConfig | None:
        if self._at_opening is not None:
            return self._at_opening.config
        return config_file.fetch_config(self._storage)

    def require_online(self) -> None:
        """Do nothing: generation v1 has no status."""

    def commit(
        self,
        branch: str,
        parent: SnapshotId,
        snapshot: SnapshotInfo,
        check: CommitCheck | None = None,
    ) -> None:
        self._commit(branch, parent, None, snapshot, check)

    def begin_commit(self, branch: str, parent: SnapshotId) -> Publish:
        current = self._fetch_branch(branch)
        if current.tip != parent:
            raise ref_errors.commit_conflict_error(branch, parent, current.tip)
        return partial(self._commit, branch, parent, current)

    def _commit(
        self,
        branch: str,
        parent: SnapshotId,
        current: _Branch | None,
        snapshot: SnapshotInfo,
        check: CommitCheck | None = None,
    ) -> None:
        ref_errors.require_parent(snapshot, parent)
        if check is not None:
            check.check_age()
        try:
            self._move_branch(
                branch, snapshot.id, parent, ref_errors.commit_conflict_error, current
            )
        except OutcomeUnknownError:
            if not self._is_in_history(branch, snapshot.id):
                raise
        if check is not None:
            check.confirm(lambda: self.reset_branch(branch, parent, expected=snapshot.id))

    def add_snapshot(
        self,
        snapshot: SnapshotInfo,  # noqa: ARG002
        check: CommitCheck | None = None,
    ) -> None:
        """Run the check only: generation v1 keeps no list of snapshots."""
        if check is not None:
            check.check_age()

    def create_branch(self, branch: str, snapshot_id: SnapshotId) -> None:
        require_ref_name(branch, in_key=True, new=True)
        self._require_snapshot(snapshot_id)
        try:
            change_counter.increment()
            self._storage.put(format_branch_key(branch), encode_ref(snapshot_id), Create())
        except PreconditionFailedError as error:
            raise ref_errors.existing_branch_error(branch) from error

    def reset_branch(
        self, branch: str, snapshot_id: SnapshotId, *, expected: SnapshotId | None = None
    ) -> None:
        self._require_snapshot(snapshot_id)
        self._move_branch(branch, snapshot_id, expected, ref_errors.reset_conflict_error)

    def delete_branch(self, branch: str) -> None:
        """Delete a branch other than main.

        Object stores have no conditional delete, so a commit between the read and the deletion is
        lost.
        """
        ref_errors.require_not_main(branch)
        change_counter.increment()
        self._storage.delete_many([self._fetch_branch(branch).key])

    def create_tag(self, tag: str, snapshot_id: SnapshotId) -> None:
        require_ref_name(tag, in_key=True, new=True)
        self._require_snapshot(snapshot_id)
        try:
            # The file of a deleted tag stays beside its tombstone and refuses the name.
            self._storage.put(format_tag_key(tag), encode_ref(snapshot_id), Create())
        except PreconditionFailedError as error:
            if self._exists(format_tombstone_key(tag)):
                raise ref_errors.reused_tag_error(tag) from error
            raise ref_errors.existing_tag_error(tag) from error

    def delete_tag(self, tag: str) -> None:
        self.fetch_tag(tag)
        try:
            stored = self._find_stored_name(tag, format_tag_key)
            self._storage.put(format_tombstone_key(stored), b"", Create())
        except PreconditionFailedError as error:
            raise ref_errors.deleted_tag_error(tag) from error

    def fetch_deleted_tag_targets(self) -> dict[str, SnapshotId]:
        """Fetch the targets of deleted tags whose files still exist."""
        return self._fetch_all(format_tag_key, _parse_all(parse_tombstone_key, self._list_keys()))

    def expire_snapshots(
        self, policy: ExpirationPolicy, *, dry_run: bool = False
    ) -> frozenset[SnapshotId]:
        """Make the oldest remaining snapshot of each history a child of the first snapshot.

        All histories are read before anything is written, so that an unreadable one changes
        nothing. Then snapshot files are replaced by compare-and-swap. Expired branches and tags
        are deleted last.
        """
        fresh = RefFiles(self._storage)
        expired: frozenset[SnapshotId] = frozenset()
        for _ in range(_MAX_ATTEMPTS):
            branches, tags = fresh.fetch_branches(), fresh.fetch_tags()
            infos = fresh.fetch_reachable({*branches.values(), *tags.values()})
            plan = plan_ref_files_expiration(infos, branches, tags, policy)
            expired |= plan.expired
            if dry_run:
                return expired
            if not all(
                fresh._replace_parent(child, infos[child].parent_id, root)
                for child, root in plan.new_parents.items()
            ):
                continue  # another process expires snapshots concurrently
            for branch in plan.deleted_branches:
                # A branch that moved is no longer expired.
                with contextlib.suppress(RefNotFoundError):
                    if fresh.fetch_branch(branch) == branches[branch]:
                        fresh.delete_branch(branch)
            for tag in plan.deleted_tags:
                with contextlib.suppress(RefNotFoundError):
                    fresh.delete_tag(tag)
            return expired
        raise ConflictError(
            f"{self._storage.url}: other processes expired snapshots during each of "
            f"{_MAX_ATTEMPTS} attempts; try again later",
            kind=ErrorKind.UPDATE_ATTEMPTS_EXHAUSTED,
        )

    def _replace_parent(
        self, child: SnapshotId, parent: SnapshotId | None, root: SnapshotId
    ) -> bool:
        """Replace the parent in a snapshot file; return False if another process changed it."""
        key = self.generation.layout.snapshots.format_key(child)
        fetched = fetch_file(self._storage, key)
        codec = self.generation.codec
        snapshot = codec.decode_snapshot(fetched.data, key, child, fetch_no_attributes)
        if snapshot.parent_id == root:
            return True
        if snapshot.parent_id != parent:
            return False
        data = codec.encode_snapshot(replace(snapshot, parent_id=root))
        try:
            self._storage.put(key, data, UpdateIfMatch(fetched.info.version))
        except PreconditionFailedError:
            return False
        except OutcomeUnknownError:
            if self.fetch_snapshot_info(child).parent_id != root:
                raise
        return True

    def save_config(self, config: RepositoryConfig, *, expected: RepositoryConfig | None) -> None:
        config_file.save_config(self._storage, config, expected=expected)

    def _move_branch(
        self,
        branch: str,
        target: SnapshotId,
        expected: SnapshotId | None,
        make_error: Callable[[str, SnapshotId, SnapshotId], ConflictError],
        current: _Branch | None = None,
    ) -> None:
        for _ in range(_MAX_ATTEMPTS):
            state, current = current or self._fetch_branch(branch), None
            if expected is not None and state.tip != expected:
                break
            try:
                change_counter.increment()
                self._storage.put(state.key, encode_ref(target), UpdateIfMatch(state.version))
            except PreconditionFailedError:
                continue  # another writer moved the branch: read it again
            return
        raise make_error(branch, expected or state.tip, state.tip)

    def _is_in_history(self, branch: str, snapshot_id: SnapshotId) -> bool:
        """Whether the commit of a snapshot took effect although its response was lost."""
        tip = self._fetch_branch(branch).tip
        return any(info.id == snapshot_id for info in self.fetch_ancestry(tip))

    def _fetch_branch(self, branch: str) -> _Branch:
        require_ref_name(branch, in_key=True)
        key = format_branch_key(self._find_stored_name(branch, format_branch_key))
        try:
            fetched = fetch_file(self._storage, key, max_bytes=MAX_REF_SIZE)
        except ObjectNotFoundError as error:
            raise ref_errors.missing_branch_error(branch, where=self._storage.url) from error
        return _Branch(key, decode_ref(fetched.data, key), fetched.info.version)

    def _find_stored_name(self, name: str, key_of: Callable[[str], str]) -> str:
        """Return a name as it is in keys; one request if the name could be encoded."""
        if is_plain(name) or not self._exists(key_of(encode_ref_name(name))):
            return name
        return encode_ref_name(name)

    def _require_snapshot(self, snapshot_id: SnapshotId) -> None:
        if not self._exists(self.generation.layout.snapshots.format_key(snapshot_id)):
            raise ref_errors.missing_snapshot_error(snapshot_id, self._storage.url)

    def _exists(self, key: str) -> bool:
        try:
            self._storage.head(key)
        except _ABSENT:
            return False
        return True

    def _list_keys(self) -> list[str]:
        return [info.key for info in self._storage.list(REFS)]

    def _list_branches(self) -> set[str]:
        return _parse_all(parse_branch_key, self._list_keys())

    def _list_tags(self) -> set[str]:
        keys = self._list_keys()
        return _parse_all(parse_tag_key, keys) - _parse_all(parse_tombstone_key, keys)

    def _fetch_all(self, key_of: Callable[[str], str], names: set[str]) -> dict[str, SnapshotId]:
        targets = {}
        for name in sorted(names):
            with contextlib.suppress(ObjectNotFoundError):  # deleted since it was listed
                targets[decode_ref_name(name)] = self._fetch(key_of(name))
        return targets

    def _fetch(self, key: str) -> SnapshotId:
        return decode_ref(fetch_file(self._storage, key, max_bytes=MAX_REF_SIZE).data, key)


def _parse_all(parse_key: Callable[[str], str | None], keys: list[str]) -> set[str]:
    """Return the stored names of the refs of one kind."""
    return {name for key in keys if (name := parse_key(key)) is not None}
