"""The mutable part of generation v2: the one object ``repo``, and the backups of it.

A change reads ``repo``, applies a pure function (`icefloe.refs.changes`), copies the old object to
``overwritten/``, and replaces it under the condition that it is still the one that was read: a get,
a copy and a put. If somebody else was faster, all of it happens again on the new state.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from icefloe.assets import fetch_file
from icefloe.errors import (
    ConflictError,
    ErrorKind,
    FormatError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
)
from icefloe.format.keys import OVERWRITTEN, REPO
from icefloe.format.metadata import encode_metadata
from icefloe.format.repo_info import decode_repo_info, encode_repo_info
from icefloe.model.config import RepositoryConfig
from icefloe.model.ids import SnapshotId
from icefloe.model.repo_info import FEATURE_FLAGS, ExpirationRan
from icefloe.refs import changes, own_changes, problems, retention
from icefloe.refs.interface import Refs
from icefloe.refs.names import require_ref_name
from icefloe.storage.backoff import backoff_delay_s
from icefloe.storage.interface import UpdateIfMatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from collections.abc import Set as AbstractSet
    from typing import Any

    from icefloe.model.repo_info import FeatureFlag, OpsLogEntry, RepoInfo, RepoStatus, UpdateType
    from icefloe.model.snapshot import SnapshotInfo
    from icefloe.refs.changes import Change
    from icefloe.refs.interface import SnapshotSource
    from icefloe.refs.retention import ExpirationPolicy
    from icefloe.storage.interface import Storage, Version

_IMMEDIATE_TRIES = 5
# Backups sort newest first: their names count down from the year 3000, in milliseconds.
_FAR_FUTURE_MS = 32_503_680_000_000


class RepoFile(Refs):
    """Reads and changes ``repo``: one request for whatever is asked, the ops log aside.

    With ``pinned``, all is answered from that state without a request.
    """

    spec_version = 2

    def __init__(self, storage: Storage, pinned: RepoInfo | None = None) -> None:
        self._storage = storage
        self._pinned = pinned

    def fetch(self) -> RepoInfo:
        """Fetch everything at once, as one consistent state."""
        return self._fetch()[0] if self._pinned is None else self._pinned

    def pin(self) -> RepoFile:
        """Fetch ``repo`` once, for any number of questions."""
        return RepoFile(self._storage, self.fetch())

    def with_assets(self, assets: SnapshotSource) -> RepoFile:  # noqa: ARG002 - see below
        """Return these: ``repo`` has the history of all snapshots."""
        return self

    def fetch_branches(self) -> Mapping[str, SnapshotId]:
        """Fetch all branches with the snapshots that they point at."""
        return self.fetch().branches

    def fetch_branch(self, branch: str) -> SnapshotId:
        """Fetch where one branch points."""
        return changes.find_branch(self.fetch(), branch)

    def fetch_tags(self) -> Mapping[str, SnapshotId]:
        """Fetch all tags with the snapshots that they point at."""
        return self.fetch().tags

    def fetch_tag(self, tag: str) -> SnapshotId:
        """Fetch where one tag points."""
        return changes.find_tag(self.fetch(), tag)

    def fetch_deleted_tags(self) -> frozenset[str]:
        """Fetch the names of deleted tags."""
        return self.fetch().deleted_tags

    def fetch_snapshot_info(self, snapshot_id: SnapshotId) -> SnapshotInfo:
        """Fetch what history says of one snapshot."""
        return changes.find_snapshot(self.fetch(), snapshot_id)

    def fetch_ancestry(self, snapshot_id: SnapshotId) -> Iterator[SnapshotInfo]:
        """Follow parents inside ``repo``."""
        infos = {info.id: info for info in self.fetch().snapshots}
        current: SnapshotId | None = snapshot_id
        while current is not None:
            if current not in infos:
                raise problems.no_such_snapshot(current, self._storage.url)
            yield infos[current]
            current = infos[current].parent_id

    def fetch_config(self) -> RepositoryConfig | None:
        """Fetch the persisted configuration."""
        return self.fetch().config

    def fetch_ops_log(self) -> Iterator[OpsLogEntry]:
        """Follow the log from ``repo`` into its backups; a backup that is gone ends it."""
        info, seen = self.fetch(), set[str]()
        yield from info.latest_updates
        while True:
            backup = info.repo_before_updates
            if backup is None:
                return
            key = OVERWRITTEN + backup
            if key in seen:
                raise FormatError("the ops log goes in a circle", file=key)
            seen.add(key)
            try:
                info = decode_repo_info(fetch_file(self._storage, key).data, key)
            except ObjectNotFoundError:
                return
            # When a state becomes a backup, its newest entry cannot learn the name any more.
            yield from (replace(one, backup_path=backup) for one in info.latest_updates[:1])
            yield from info.latest_updates[1:]

    def fetch_metadata(self) -> Mapping[str, Any]:
        """Fetch the repository's own metadata."""
        return self.fetch().metadata

    def fetch_status(self) -> RepoStatus:
        """Fetch whether the repository takes changes."""
        return self.fetch().status

    def require_online(self) -> None:
        """Refuse if the repository takes no changes."""
        changes.require_online(self.fetch())

    def fetch_feature_flags(self) -> list[FeatureFlag]:
        """Fetch what the repository allows, in the order of the flags' ids."""
        info = self.fetch()
        return [info.feature_flag(known) for known in FEATURE_FLAGS]

    def commit(self, branch: str, parent: SnapshotId, snapshot: SnapshotInfo) -> None:
        """Move a branch from ``parent`` to a snapshot whose files are all written."""
        self.change(changes.commit(branch, parent, snapshot))

    def begin_commit(self, branch: str, parent: SnapshotId) -> Callable[[SnapshotInfo], None]:
        """Look whether a branch is at ``parent``: one request."""
        seen = self._fetch()
        changes.require_online(seen[0])
        changes.require_tip(seen[0], branch, parent)

        def finish(snapshot: SnapshotInfo) -> None:
            self.change(changes.commit(branch, parent, snapshot), seen=seen)

        return finish

    def amend(self, branch: str, previous: SnapshotId, snapshot: SnapshotInfo) -> None:
        """Put a snapshot, whose files are all written, in the place of a branch's tip."""
        self.change(changes.amend(branch, previous, snapshot))

    def add_snapshot(self, snapshot: SnapshotInfo) -> None:
        """Make a snapshot, whose files are all written, known without moving a branch."""
        self.change(changes.add_snapshot(snapshot))

    def create_branch(self, branch: str, snapshot_id: SnapshotId) -> None:
        """Create a branch that is not there."""
        require_ref_name(branch, self.spec_version, new=True)
        self.change(changes.create_branch(branch, snapshot_id))

    def reset_branch(
        self, branch: str, snapshot_id: SnapshotId, *, expected: SnapshotId | None = None
    ) -> None:
        """Let a branch point at another snapshot."""
        self.change(changes.reset_branch(branch, snapshot_id, expected))

    def delete_branch(self, branch: str) -> None:
        """Delete a branch, any but main."""
        self.change(changes.delete_branch(branch))

    def create_tag(self, tag: str, snapshot_id: SnapshotId) -> None:
        """Create a tag, whose name must be new for ever."""
        require_ref_name(tag, self.spec_version, new=True)
        self.change(changes.create_tag(tag, snapshot_id))

    def delete_tag(self, tag: str) -> None:
        """Delete a tag; its name stays taken."""
        self.change(changes.delete_tag(tag))

    def expire_snapshots(self, policy: ExpirationPolicy) -> frozenset[SnapshotId]:
        """Take old snapshots out of history, and return which; their files stay."""
        released: frozenset[SnapshotId] = frozenset()

        def change(info: RepoInfo) -> tuple[UpdateType, RepoInfo]:
            nonlocal released
            released, expired = retention.plan_expiration(info, policy)
            return ExpirationRan(), expired

        self.change(change)
        return released

    def collect_snapshots(
        self, dropped: AbstractSet[SnapshotId], *, known: AbstractSet[SnapshotId]
    ) -> RepoInfo:
        """Take snapshots that nothing reaches out of the list, so that their files can go.

        ``known`` are all that were there when it was decided which ones go. Raises `ConflictError`
        of kind ``REPO_INFO_UPDATED`` if something needs one of them by now.
        """
        return self.change(retention.collect(dropped, known))

    def save_config(self, config: RepositoryConfig, *, expected: RepositoryConfig | None) -> None:
        """Replace the configuration if it is still ``expected``."""
        self.change(changes.set_config(config, expected))

    def save_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Replace the repository's own metadata."""
        self.change(changes.set_metadata(encode_metadata(metadata, self.spec_version)))

    def update_metadata(self, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
        """Set some keys of the repository's own metadata, and return all of it."""
        encoded = encode_metadata(metadata, self.spec_version)
        return self.change(changes.update_metadata(encoded)).metadata

    def save_status(self, status: RepoStatus) -> None:
        """Set whether the repository takes changes; allowed in any state."""
        self.change(changes.set_status(status), in_any_status=True)

    def set_feature_flag(self, name: str, setting: bool | None) -> None:  # noqa: FBT001
        """Allow or forbid something, or let its default apply again."""
        self.change(changes.set_feature_flag(name, setting))

    def change(
        self,
        change: Change,
        *,
        in_any_status: bool = False,
        seen: tuple[RepoInfo, Version] | None = None,
    ) -> RepoInfo:
        """Apply a change to whatever is there, until it takes effect or its precondition fails.

        It begins with what was ``seen``: if that is not there any more, it looks.
        """
        for attempt in itertools.count():
            (info, version), seen = seen or self._fetch(), None
            config = RepositoryConfig() if info.config is None else info.config
            retries = config.effective_repo_update_retries.effective_default
            if attempt >= retries.effective_max_tries:
                break
            if not in_any_status:
                changes.require_online(info)
            kind, changed = change(info)
            now = datetime.now(UTC)
            backup = _backup_name(now)
            updated = changes.record(
                changed,
                kind,
                now=now,
                backup_path=backup,
                max_updates=config.effective_num_updates_per_repo_info_file,
            )
            if self._replace(updated, version, backup):
                return updated
            if attempt >= _IMMEDIATE_TRIES:
                initial_s = retries.effective_initial_backoff_ms / 1000
                most_s = retries.effective_max_backoff_ms / 1000
                time.sleep(backoff_delay_s(attempt - _IMMEDIATE_TRIES + 1, initial_s, most_s))
        raise ConflictError(
            f"{self._storage.url}: others changed the repository {attempt} times in a row before "
            "this change could be made; try again, or raise repo_update_retries",
            kind=ErrorKind.UPDATE_ATTEMPTS_EXHAUSTED,
        )

    def _fetch(self) -> tuple[RepoInfo, Version]:
        try:
            fetched = fetch_file(self._storage, REPO)
        except ObjectNotFoundError as error:
            raise problems.repository_gone(self._storage.url) from error
        return decode_repo_info(fetched.data, REPO), fetched.info.version

    def _replace(self, info: RepoInfo, version: Version, backup: str) -> bool:
        data = encode_repo_info(info)  # what cannot be encoded must not leave a backup behind
        # If somebody replaces `repo` before the copy, the put below fails and nothing ever points
        # at this backup: whatever a successful put points at is what was read.
        self._storage.copy(REPO, OVERWRITTEN + backup)
        try:
            own_changes.note()
            self._storage.put(REPO, data, UpdateIfMatch(version))
        except PreconditionFailedError:
            return False
        except OutcomeUnknownError:
            # Whoever built on our state has the name of our backup in its log.
            if self._is_in_history(backup):
                return True
            raise
        return True

    def _is_in_history(self, backup: str) -> bool:
        info, _ = self._fetch()
        paths = [update.backup_path for update in info.latest_updates]
        return backup in (*paths, info.repo_before_updates)


def _backup_name(now: datetime) -> str:
    countdown = _FAR_FUTURE_MS - int(now.timestamp() * 1000)
    return f"repo.{countdown:014d}.{SnapshotId.random()}"
