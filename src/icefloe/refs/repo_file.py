"""The mutable part of generation v2: the one object ``repo``, and the backups of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.errors import ErrorKind, FormatError, NotFoundError, ObjectNotFoundError
from icefloe.format.keys import OVERWRITTEN, REPO
from icefloe.format.repo_info import decode_repo_info
from icefloe.refs.interface import Refs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from icefloe.model.config import RepositoryConfig
    from icefloe.model.ids import SnapshotId
    from icefloe.model.repo_info import RepoInfo, Update
    from icefloe.model.snapshot import SnapshotInfo
    from icefloe.storage.interface import Storage


class RepoFile(Refs):
    """Reads ``repo``: one request for whatever is asked, the ops log aside."""

    spec_version = 2

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def fetch(self) -> RepoInfo:
        """Fetch everything at once, as one consistent state."""
        return decode_repo_info(self._storage.get(REPO).data, REPO)

    def fetch_branches(self) -> Mapping[str, SnapshotId]:
        """Fetch all branches with the snapshots that they point at."""
        return self.fetch().branches

    def fetch_tags(self) -> Mapping[str, SnapshotId]:
        """Fetch all tags with the snapshots that they point at."""
        return self.fetch().tags

    def fetch_deleted_tags(self) -> frozenset[str]:
        """Fetch the names of deleted tags."""
        return self.fetch().deleted_tags

    def fetch_ancestry(self, snapshot_id: SnapshotId) -> Iterator[SnapshotInfo]:
        """Follow parents inside ``repo``."""
        infos = {info.id: info for info in self.fetch().snapshots}
        current: SnapshotId | None = snapshot_id
        while current is not None:
            if current not in infos:
                raise NotFoundError(
                    f"snapshot {current} is not in {self._storage.url}: it may have been expired "
                    "and collected",
                    kind=ErrorKind.SNAPSHOT_NOT_FOUND,
                )
            yield infos[current]
            current = infos[current].parent_id

    def fetch_config(self) -> RepositoryConfig | None:
        """Fetch the persisted configuration."""
        return self.fetch().config

    def fetch_ops_log(self) -> Iterator[Update]:
        """Follow the log from ``repo`` into its backups; a backup that is gone ends it."""
        info, seen = self.fetch(), set[str]()
        while True:
            yield from info.latest_updates
            backup = info.repo_before_updates
            if backup is None:
                return
            key = OVERWRITTEN + backup
            if key in seen:
                raise FormatError("the ops log goes in a circle", file=key)
            seen.add(key)
            try:
                info = decode_repo_info(self._storage.get(key).data, key)
            except ObjectNotFoundError:
                return
