"""The refs of the generation ``sequence``: JSON files that are created and never changed.

A branch is a series of numbered files (`branch_files`), a tag is one file. All changes need nothing
from the storage but conditional creation; only a change of ``config.yaml`` needs a conditional
update. Snapshot files are never replaced: the newest file of main has the new parents of snapshots
whose ancestors expired (``docs/format/sequence.md``). There are no ops log, metadata, status or
feature flags, and tags cannot be deleted.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from icefloe.errors import (
    AbsentOrDeniedError,
    ConflictError,
    ErrorKind,
    FormatError,
    InvalidInputError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    SnapshotNotFoundError,
    StorageError,
)
from icefloe.format.generation import SEQUENCE
from icefloe.format.sequence.keys import format_branch_key, format_tag_key
from icefloe.format.sequence.ref import RefData, encode_ref
from icefloe.format.unsupported import unsupported_error
from icefloe.refs import branch_files, config_file, ref_errors
from icefloe.refs.history import walk_history
from icefloe.refs.interface import Refs
from icefloe.refs.names import MAIN, require_ref_name
from icefloe.refs.recent_ancestors import AncestorReader, replace_parent
from icefloe.refs.repeated_creation import create_or_compare
from icefloe.refs.retention import plan_ref_files_expiration
from icefloe.refs.snapshot_files import fetch_snapshot
from icefloe.storage.interface import Create

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from icefloe.model.config import RepositoryConfig
    from icefloe.model.ids import SnapshotId
    from icefloe.model.snapshot import Snapshot, SnapshotInfo
    from icefloe.refs.branch_files import BranchFile
    from icefloe.refs.commit_check import CommitCheck
    from icefloe.refs.interface import Publish, SnapshotSource
    from icefloe.refs.retention import ExpirationPolicy, RefFilesExpiration
    from icefloe.refs.state import RefsState
    from icefloe.storage.interface import Storage

T = TypeVar("T")

_MAX_ATTEMPTS: Final = 100


class MainAtOpening(NamedTuple):
    """The newest file of main and the configuration, as read at opening."""

    main: BranchFile
    config: RepositoryConfig | None


class BranchSequences(Refs):
    """Reads and changes ``r/BRANCH/NUMBER.json``, ``r/TAG.json`` and ``config.yaml``.

    History is read from the snapshots of ``assets``, or from the storage if that is None. State in
    ``at_opening`` is not read again.
    """

    generation = SEQUENCE

    def __init__(
        self,
        storage: Storage,
        assets: SnapshotSource | None = None,
        at_opening: MainAtOpening | None = None,
        *,
        is_pinned: bool = False,
    ) -> None:
        self._storage = storage
        self._assets = assets
        self._at_opening = at_opening
        self._is_pinned = is_pinned or at_opening is not None
        self._pinned_main = None if at_opening is None else at_opening.main

    @classmethod
    def create(cls, storage: Storage, initial: Snapshot, config: RepositoryConfig | None) -> None:
        config_file.create_config(storage, config)
        data = encode_ref(RefData(initial.id, datetime.now(UTC)))
        storage.put(format_branch_key(MAIN, 0), data, Create())

    @classmethod
    def restore(cls, storage: Storage, state: RefsState) -> None:
        """Create a file per branch and tag; the branch main comes last and publishes the rest.

        The time of each is that of its snapshot, so that a repeated attempt writes the same file.
        """
        config_file.restore_config(storage, state.config)
        times = {info.id: info.flushed_at for info in state.snapshots}
        files = {format_tag_key(tag): state.tags[tag] for tag in sorted(state.tags)}
        for branch in (*sorted(state.branches.keys() - {MAIN}), MAIN):
            files[format_branch_key(branch, 0)] = state.branches[branch]
        for key, snapshot_id in files.items():
            create_or_compare(storage, key, encode_ref(RefData(snapshot_id, times[snapshot_id])))

    @classmethod
    def require_new_name(cls, name: str) -> None:
        _require_name(name, new=True)

    def pin(self) -> BranchSequences:
        """Return refs that read the branch main once, when it is first needed.

        Other files have no common state with it.
        """
        if self._is_pinned:
            return self
        return BranchSequences(self._storage, self._assets, is_pinned=True)

    def with_assets(self, assets: SnapshotSource) -> BranchSequences:
        refs = BranchSequences(self._storage, assets, self._at_opening, is_pinned=self._is_pinned)
        refs._pinned_main = self._pinned_main
        return refs

    def fetch_branches(self) -> dict[str, SnapshotId]:
        """Fetch all branches; one listing of all reference files, and one request per branch."""
        branches = {}
        for branch, files in sorted(branch_files.list_refs(self._storage).branches.items()):
            if branch == MAIN and self._is_pinned:
                newest: BranchFile | None = self._fetch_main()
            else:
                newest = self._fetch_listed(branch, list(files))
            if newest is not None and not newest.ref.is_deleted:
                branches[branch] = newest.ref.snapshot_id
        return branches

    def fetch_branch(self, branch: str) -> SnapshotId:
        """Fetch the tip of a branch; one listing of one page, and one request."""
        if branch == MAIN:
            return self._fetch_main().ref.snapshot_id
        return self._fetch_branch(branch).ref.snapshot_id

    def fetch_tags(self) -> dict[str, SnapshotId]:
        """Fetch all tags; one listing of all reference files, and one request per tag."""
        return {
            tag: branch_files.fetch_ref(self._storage, format_tag_key(tag)).snapshot_id
            for tag in sorted(branch_files.list_refs(self._storage).tags)
        }

    def fetch_tag(self, tag: str) -> SnapshotId:
        _require_name(tag)
        try:
            return branch_files.fetch_ref(self._storage, format_tag_key(tag)).snapshot_id
        except ObjectNotFoundError as error:
            raise ref_errors.missing_tag_error(tag, where=self._storage.url) from error

    def fetch_deleted_tags(self) -> frozenset[str]:
        """Return nothing: tags cannot be deleted."""
        return frozenset()

    def fetch_snapshot_info(self, snapshot_id: SnapshotId) -> SnapshotInfo:
        """Fetch the history entry of a snapshot: one request, and those of main unless pinned."""
        return replace_parent(self._fetch_snapshot(snapshot_id).get_info(), self.fetch_parents())

    def fetch_ancestry(self, snapshot_id: SnapshotId) -> Iterator[SnapshotInfo]:
        """Yield a snapshot and its ancestors; one request for as many as a snapshot file lists.

        Unless the refs are pinned, the branch main is read once.
        """
        reader = AncestorReader(self._fetch_snapshot, self.fetch_parents())
        yield from walk_history(snapshot_id, reader.fetch_info)

    def fetch_parents(self) -> Mapping[SnapshotId, SnapshotId]:
        """Fetch the parents of snapshots that expiration changed; snapshot files have the old ones.

        As many requests as to read the branch main.
        """
        return self._fetch_main().ref.parents

    def fetch_live_snapshots(self) -> set[SnapshotId]:
        pinned = self.pin()
        tips = {*pinned.fetch_branches().values(), *pinned.fetch_tags().values()}
        return set(pinned.fetch_reachable(tips))

    def fetch_config(self) -> RepositoryConfig | None:
        if self._at_opening is not None:
            return self._at_opening.config
        return config_file.fetch_config(self._storage)

    def require_online(self) -> None:
        """Do nothing: this generation has no status."""

    def commit(
        self,
        branch: str,
        parent: SnapshotId,
        snapshot: SnapshotInfo,
        check: CommitCheck | None = None,
    ) -> None:
        self._commit(branch, parent, None, snapshot, check)

    def begin_commit(self, branch: str, parent: SnapshotId) -> Publish:
        """Check the tip of a branch; see `Refs`. Saves one listing and one get."""
        current = self._fetch_branch(branch)
        if current.ref.snapshot_id != parent:
            raise ref_errors.commit_conflict_error(branch, parent, current.ref.snapshot_id)
        return partial(self._commit, branch, parent, current)

    def _commit(
        self,
        branch: str,
        parent: SnapshotId,
        current: BranchFile | None,
        snapshot: SnapshotInfo,
        check: CommitCheck | None = None,
    ) -> None:
        ref_errors.require_parent(snapshot, parent)
        if check is not None:
            check.check_age()
        self._move_branch(
            branch,
            snapshot.id,
            parent,
            ref_errors.commit_conflict_error,
            current,
            was_newest=lambda _: self._is_in_history(branch, snapshot),
        )
        if check is not None:
            check.confirm(lambda: self.reset_branch(branch, parent, expected=snapshot.id))

    def add_snapshot(
        self,
        snapshot: SnapshotInfo,  # noqa: ARG002
        check: CommitCheck | None = None,
    ) -> None:
        """Run the check only: this generation keeps no list of snapshots."""
        if check is not None:
            check.check_age()

    def create_branch(self, branch: str, snapshot_id: SnapshotId) -> None:
        """Create a branch; the files of a deleted branch of this name are continued."""
        _require_name(branch, new=True)
        self._require_snapshot(snapshot_id)
        for _ in range(_MAX_ATTEMPTS):
            current = branch_files.fetch_newest(self._storage, branch)
            if current is not None and not current.ref.is_deleted:
                break
            if self._append(branch, current, RefData(snapshot_id, datetime.now(UTC))):
                return
        raise ref_errors.existing_branch_error(branch)

    def reset_branch(
        self, branch: str, snapshot_id: SnapshotId, *, expected: SnapshotId | None = None
    ) -> None:
        _require_name(branch)
        self._require_snapshot(snapshot_id)
        self._move_branch(branch, snapshot_id, expected, ref_errors.reset_conflict_error)

    def delete_branch(self, branch: str) -> None:
        """Delete a branch other than main, by one more file that says so."""
        ref_errors.require_not_main(branch)
        self._delete_branch(branch, None)

    def create_tag(self, tag: str, snapshot_id: SnapshotId) -> None:
        _require_name(tag, new=True)
        self._require_snapshot(snapshot_id)
        ref = RefData(snapshot_id, datetime.now(UTC))
        if not branch_files.create_ref(self._storage, format_tag_key(tag), ref):
            raise ref_errors.existing_tag_error(tag)

    def delete_tag(self, tag: str) -> None:
        """Raise: tags cannot be deleted."""
        self.fetch_tag(tag)
        raise self._make_tag_error("deleting a tag")

    def expire_snapshots(
        self, policy: ExpirationPolicy, *, dry_run: bool = False
    ) -> frozenset[SnapshotId]:
        """Make the oldest remaining snapshot of each history a child of the first snapshot.

        No snapshot file changes, so that readers go on. All histories are read before anything is
        written. The next file of main, with the new parents, is the atomic change. Expired branches
        are deleted last.
        """
        if policy.delete_expired_tags:
            raise self._make_tag_error("deleting expired tags")
        expired: frozenset[SnapshotId] = frozenset()
        for _ in range(_MAX_ATTEMPTS):
            pinned = BranchSequences(self._storage, is_pinned=True)
            main = pinned._fetch_main()
            branches, tags = pinned.fetch_branches(), pinned.fetch_tags()
            infos = pinned.fetch_reachable({*branches.values(), *tags.values()})
            plan = plan_ref_files_expiration(infos, branches, tags, policy)
            expired |= plan.expired
            if dry_run:
                return expired
            parents = self._plan_parents(main.ref.parents, infos, plan)
            if parents != main.ref.parents:
                ref = replace(main.ref, timestamp=datetime.now(UTC), parents=parents)
                if not self._append(MAIN, main, ref):
                    continue  # main moved
            for branch in plan.deleted_branches:
                self._delete_branch(branch, branches[branch])
            return expired
        raise ConflictError(
            f"{self._storage.url}: other processes changed the branch main during each of "
            f"{_MAX_ATTEMPTS} attempts; try again later",
            kind=ErrorKind.UPDATE_ATTEMPTS_EXHAUSTED,
        )

    def collect_ref_files(self, *, before: datetime, dry_run: bool) -> int:
        files = branch_files.collect_branch_files(self._storage, before=before, dry_run=dry_run)
        return sum(file.size_bytes for file in files)

    def save_config(self, config: RepositoryConfig, *, expected: RepositoryConfig | None) -> None:
        config_file.save_config(self._storage, config, expected=expected)

    def _fetch_main(self) -> BranchFile:
        if not self._is_pinned:
            return self._fetch_branch(MAIN)
        if self._pinned_main is None:
            self._pinned_main = self._fetch_branch(MAIN)
        return self._pinned_main

    def _fetch_branch(self, branch: str) -> BranchFile:
        _require_name(branch)
        newest = branch_files.fetch_newest(self._storage, branch)
        if newest is None or newest.ref.is_deleted:
            raise ref_errors.missing_branch_error(branch, where=self._storage.url)
        return newest

    def _fetch_listed(self, branch: str, numbers: list[int]) -> BranchFile | None:
        if branch_files.is_consecutive(numbers):
            try:
                return branch_files.fetch_branch_file(self._storage, branch, numbers[0])
            except ObjectNotFoundError:
                pass  # collected since it was listed
        return branch_files.fetch_newest(self._storage, branch)

    def _fetch_snapshot(self, snapshot_id: SnapshotId) -> Snapshot:
        return fetch_snapshot(snapshot_id, self._storage, self.generation, self._assets)

    def _move_branch(
        self,
        branch: str,
        target: SnapshotId,
        expected: SnapshotId | None,
        make_error: Callable[[str, SnapshotId, SnapshotId], ConflictError],
        current: BranchFile | None = None,
        *,
        was_newest: Callable[[BranchFile], bool] | None = None,
    ) -> None:
        for _ in range(_MAX_ATTEMPTS):
            state, current = current or self._fetch_branch(branch), None
            if expected is not None and state.ref.snapshot_id != expected:
                break
            parents = state.ref.parents if branch == MAIN else {}
            ref = RefData(target, datetime.now(UTC), parents=parents)
            if self._append(branch, state, ref, was_newest=was_newest):
                return
        tip = state.ref.snapshot_id
        raise make_error(branch, expected or tip, tip)

    def _delete_branch(self, branch: str, expected: SnapshotId | None) -> None:
        """Delete a branch; do nothing if ``expected`` is given and not its tip."""
        if expected is None:
            self._fetch_branch(branch)  # raises if missing
        for _ in range(_MAX_ATTEMPTS):
            current = branch_files.fetch_newest(self._storage, branch)
            if current is None or current.ref.is_deleted:
                return
            tip = current.ref.snapshot_id
            if expected is not None and tip != expected:
                return
            ref = RefData(tip, datetime.now(UTC), is_deleted=True)
            if self._append(branch, current, ref):
                return
        raise ref_errors.reset_conflict_error(branch, tip, tip)

    def _append(
        self,
        branch: str,
        current: BranchFile | None,
        ref: RefData,
        *,
        was_newest: Callable[[BranchFile], bool] | None = None,
    ) -> bool:
        def was_new_file_newest() -> bool:
            if current is None:
                return True  # the branch had no file just before
            return (was_newest or self._is_present)(current)

        return branch_files.append(
            self._storage, branch, current, ref, was_newest=was_new_file_newest
        )

    def _is_present(self, file: BranchFile) -> bool:
        """Whether a file that was the newest just before the change still exists.

        Garbage collection deletes the oldest files first, so no later file was collected.
        """
        return self._exists(format_branch_key(file.branch, file.number))

    def _is_in_history(self, branch: str, snapshot: SnapshotInfo) -> bool:
        """Whether later commits of a branch are based on a snapshot.

        A snapshot may also be missing because a reset discarded it: then the commit is repeated as
        if it came after the reset.
        """
        newest = branch_files.fetch_newest(self._storage, branch)
        if newest is None:
            return False
        reader = AncestorReader(self._fetch_snapshot, {})
        try:
            for info in walk_history(newest.ref.snapshot_id, reader.fetch_info):
                if info.id in (snapshot.id, snapshot.parent_id):
                    return info.id == snapshot.id
        except SnapshotNotFoundError as error:
            raise OutcomeUnknownError(
                f"it is unknown whether {snapshot.id} was committed to {branch!r}: {error.message}"
            ) from error
        return False

    def _plan_parents(
        self,
        parents: Mapping[SnapshotId, SnapshotId],
        infos: Mapping[SnapshotId, SnapshotInfo],
        plan: RefFilesExpiration,
    ) -> dict[SnapshotId, SnapshotId]:
        """Return the parents after an expiration, without those of snapshots that are gone.

        A snapshot that no branch or tag reaches may still be reached through its id, and its old
        ancestors are gone. So its parent is kept as long as its file exists.
        """
        kept = {
            child: parent
            for child, parent in parents.items()
            if child in infos or self._exists(SEQUENCE.layout.snapshots.format_key(child))
        }
        return {**kept, **plan.new_parents}

    def _require_snapshot(self, snapshot_id: SnapshotId) -> None:
        if not self._exists(self.generation.layout.snapshots.format_key(snapshot_id)):
            raise ref_errors.missing_snapshot_error(snapshot_id, self._storage.url)

    def _exists(self, key: str) -> bool:
        try:
            self._storage.head(key)
        except ObjectNotFoundError:
            return False
        return True

    def _make_tag_error(self, feature: str) -> FormatError:
        return unsupported_error(
            feature, self.generation, url=self._storage.url, needed="draft, v1 or v2"
        )


def find_main(storage: Storage) -> BranchFile | None:
    """Fetch the newest file of main, or None if there is no repository of this generation.

    Returns None too if the storage or the credentials do not allow listing, which this generation
    requires. One listing, and one get if there is a repository.
    """
    main = _probe(lambda: branch_files.fetch_newest(storage, MAIN))
    if main is not None and main.ref.is_deleted:
        raise FormatError(
            "the branch main is deleted", file=format_branch_key(main.branch, main.number)
        )
    return main


def has_main(storage: Storage) -> bool:
    """Whether there is a repository of this generation; one listing."""
    return _probe(lambda: branch_files.find_newest(storage, MAIN)) is not None


def _probe(find: Callable[[], T | None]) -> T | None:
    try:
        return find()
    except AbsentOrDeniedError:
        return None
    except StorageError as error:
        if error.kind is ErrorKind.UNIMPLEMENTED:
            return None
        raise


def _require_name(name: str, *, new: bool = False) -> None:
    """Raise if the name of a branch or tag is invalid in keys.

    ``x.json`` is not a branch: on a local disk it could not exist beside the tag ``x``.
    """
    require_ref_name(name, in_key=True, new=new)
    if name in (".", "..") or (new and name.endswith(".json")):
        raise InvalidInputError(
            f"{name!r} is not a valid branch or tag name in repositories of the generation "
            f"{SEQUENCE.name}: it must not be '.' or '..', nor end in '.json'",
            kind=ErrorKind.INVALID_REF_NAME,
        )
