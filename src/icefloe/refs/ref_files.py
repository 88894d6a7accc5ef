"""The mutable part of generation v1: a small JSON file for each branch and each tag."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.assets import Assets
from icefloe.errors import ErrorKind, FormatError, NotFoundError, ObjectNotFoundError
from icefloe.format import config_yaml
from icefloe.format.keys import (
    CONFIG,
    REFS,
    branch_key,
    branch_of,
    snapshot_key,
    tag_key,
    tag_of,
    tombstone_of,
)
from icefloe.format.ref_json import decode_ref
from icefloe.refs.interface import Refs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.model.config import RepositoryConfig
    from icefloe.model.ids import SnapshotId
    from icefloe.model.repo_info import Update
    from icefloe.model.snapshot import SnapshotInfo
    from icefloe.storage.interface import Storage


class RefFiles(Refs):
    """Reads ``refs/branch.*/ref.json``, ``refs/tag.*/ref.json`` and ``config.yaml``."""

    spec_version = 1

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._assets = Assets(storage, self.spec_version)

    def fetch_branches(self) -> dict[str, SnapshotId]:
        """List the branches: one request to list, and one for each branch."""
        names = (branch_of(key) for key in self._keys())
        return {name: self._fetch(branch_key(name)) for name in names if name is not None}

    def fetch_tags(self) -> dict[str, SnapshotId]:
        """List the tags: one request to list, and one for each tag."""
        keys = self._keys()
        deleted = {tombstone_of(key) for key in keys}
        names = (tag_of(key) for key in keys)
        return {
            name: self._fetch(tag_key(name))
            for name in names
            if name is not None and name not in deleted
        }

    def fetch_deleted_tags(self) -> frozenset[str]:
        """List the tombstones: one request."""
        names = (tombstone_of(key) for key in self._keys())
        return frozenset(name for name in names if name is not None)

    def fetch_ancestry(self, snapshot_id: SnapshotId) -> Iterator[SnapshotInfo]:
        """Follow parents from snapshot file to snapshot file: one request each."""
        seen = set()
        current: SnapshotId | None = snapshot_id
        while current is not None:
            if current in seen:
                raise FormatError("is its own ancestor", file=snapshot_key(current))
            seen.add(current)
            try:
                info = self._assets.fetch_snapshot(current).info()
            except ObjectNotFoundError as error:
                raise NotFoundError(
                    f"snapshot {current} is not in {self._storage.url}: it may have been expired "
                    "and collected",
                    kind=ErrorKind.SNAPSHOT_NOT_FOUND,
                ) from error
            yield info
            current = info.parent_id

    def fetch_config(self) -> RepositoryConfig | None:
        """Fetch ``config.yaml``: one request."""
        try:
            return config_yaml.loads(self._storage.get(CONFIG).data, file=CONFIG)
        except ObjectNotFoundError:
            return None

    def fetch_ops_log(self) -> Iterator[Update]:
        """Yield nothing: this generation keeps no log."""
        return iter(())

    def _keys(self) -> list[str]:
        return [info.key for info in self._storage.list(REFS)]

    def _fetch(self, key: str) -> SnapshotId:
        return decode_ref(self._storage.get(key).data, key)
