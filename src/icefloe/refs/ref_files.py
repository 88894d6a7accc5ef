"""The mutable part of generation v1: a small JSON file for each branch and each tag.

A branch is changed by replacing its file under the condition that it is still the one that was
read. A tag is created if absent and never changes; a tombstone beside it says that it was deleted.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

from icefloe.assets import Assets, fetch_file
from icefloe.errors import (
    ErrorKind,
    FormatError,
    NotFoundError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
)
from icefloe.format import config_yaml
from icefloe.format.keys import (
    CONFIG,
    REFS,
    branch_key,
    branch_of,
    snapshot_key,
    tag_key,
    tag_of,
    tombstone_key,
    tombstone_of,
)
from icefloe.format.ref_json import MAX_REF_SIZE, decode_ref, encode_ref
from icefloe.refs import problems
from icefloe.refs.interface import Refs
from icefloe.refs.names import decoded, encoded, is_plain, require_ref_name
from icefloe.storage.interface import Create
from icefloe.storage.interface import Update as IfUnchanged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from icefloe.model.config import RepositoryConfig
    from icefloe.model.ids import SnapshotId
    from icefloe.model.repo_info import Update
    from icefloe.model.snapshot import SnapshotInfo
    from icefloe.storage.interface import Fetched, Storage, Version


_TRIES = 100


class _Branch(NamedTuple):
    """What the file of a branch says, and which version of which object that is."""

    key: str
    tip: SnapshotId
    version: Version


class RefFiles(Refs):
    """Keeps ``refs/branch.*/ref.json``, ``refs/tag.*/ref.json`` and ``config.yaml``."""

    spec_version = 1

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._assets = Assets(storage, self.spec_version)

    def pinned(self) -> RefFiles:
        """Return these: separate files have no common moment."""
        return self

    def fetch_branches(self) -> dict[str, SnapshotId]:
        """List the branches: one request to list, and one for each branch."""
        return self._fetch_all(branch_key, {branch_of(key) for key in self._keys()})

    def fetch_branch(self, branch: str) -> SnapshotId:
        """Fetch where one branch points: one request."""
        return self._fetch_branch(branch).tip

    def fetch_tags(self) -> dict[str, SnapshotId]:
        """List the tags: one request to list, and one for each tag."""
        keys = self._keys()
        deleted = {tombstone_of(key) for key in keys}
        return self._fetch_all(tag_key, {tag_of(key) for key in keys} - deleted)

    def fetch_tag(self, tag: str) -> SnapshotId:
        """Fetch where one tag points: two requests, one to see that it was not deleted."""
        require_ref_name(tag, self.spec_version)
        stored = self._stored_name(tag, tag_key)
        if self._is_there(tombstone_key(stored)):
            raise NotFoundError(f"the tag {tag!r} was deleted", kind=ErrorKind.TAG_NOT_FOUND)
        try:
            return self._fetch(tag_key(stored))
        except ObjectNotFoundError as error:
            raise NotFoundError(
                f"there is no tag {tag!r} in {self._storage.url}", kind=ErrorKind.TAG_NOT_FOUND
            ) from error

    def fetch_deleted_tags(self) -> frozenset[str]:
        """List the tombstones: one request."""
        names = (tombstone_of(key) for key in self._keys())
        return frozenset(decoded(name) for name in names if name is not None)

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
                raise problems.no_such_snapshot(current, self._storage.url) from error
            yield info
            current = info.parent_id

    def fetch_config(self) -> RepositoryConfig | None:
        """Fetch ``config.yaml``: one request."""
        try:
            return config_yaml.loads(self._fetch_config().data, file=CONFIG)
        except ObjectNotFoundError:
            return None

    def fetch_ops_log(self) -> Iterator[Update]:
        """Yield nothing: this generation keeps no log."""
        return iter(())

    def commit(self, branch: str, parent: SnapshotId, snapshot: SnapshotInfo) -> None:
        """Move a branch from ``parent`` to a snapshot whose files are all written."""
        problems.require_parent(snapshot, parent)
        try:
            self._move_branch(branch, snapshot.id, parent)
        except OutcomeUnknownError:
            if not self._is_in_history(branch, snapshot.id):
                raise

    def create_branch(self, branch: str, snapshot_id: SnapshotId) -> None:
        """Create a branch that is not there."""
        require_ref_name(branch, self.spec_version, new=True)
        self._require_snapshot(snapshot_id)
        try:
            self._storage.put(branch_key(branch), encode_ref(snapshot_id), Create())
        except PreconditionFailedError as error:
            raise problems.branch_exists(branch) from error

    def reset_branch(
        self, branch: str, snapshot_id: SnapshotId, *, expected: SnapshotId | None = None
    ) -> None:
        """Let a branch point at another snapshot."""
        self._require_snapshot(snapshot_id)
        self._move_branch(branch, snapshot_id, expected)

    def delete_branch(self, branch: str) -> None:
        """Delete a branch, any but main.

        Object stores have no conditional delete: a commit on the branch that lands between the
        look and the deletion goes with it.
        """
        problems.require_not_main(branch)
        self._storage.delete_many([self._fetch_branch(branch).key])

    def create_tag(self, tag: str, snapshot_id: SnapshotId) -> None:
        """Create a tag, whose name must be new for ever."""
        require_ref_name(tag, self.spec_version, new=True)
        # The tombstone of a tag comes after its file, and the file stays: so if the tombstone is
        # not there yet, either the tag is new or the create below finds its file.
        if self._is_there(tombstone_key(tag)):
            raise problems.tag_was_deleted(tag)
        self._require_snapshot(snapshot_id)
        try:
            self._storage.put(tag_key(tag), encode_ref(snapshot_id), Create())
        except PreconditionFailedError as error:
            raise problems.tag_exists(tag) from error

    def delete_tag(self, tag: str) -> None:
        """Delete a tag by a tombstone; its name stays taken."""
        self.fetch_tag(tag)
        try:
            stored = self._stored_name(tag, tag_key)
            self._storage.put(tombstone_key(stored), b"", Create())
        except PreconditionFailedError as error:
            raise NotFoundError(
                f"the tag {tag!r} was deleted by somebody else", kind=ErrorKind.TAG_NOT_FOUND
            ) from error

    def save_config(self, config: RepositoryConfig, *, expected: RepositoryConfig | None) -> None:
        """Replace ``config.yaml`` if it is still ``expected``."""
        try:
            fetched = self._fetch_config()
            present: RepositoryConfig | None = config_yaml.loads(fetched.data, file=CONFIG)
            mode: Create | IfUnchanged = IfUnchanged(fetched.info.version)
        except ObjectNotFoundError:
            present, mode = None, Create()
        if present != expected:
            raise problems.config_changed()
        try:
            self._storage.put(CONFIG, config_yaml.dumps(config), mode)
        except PreconditionFailedError as error:
            raise problems.config_changed() from error

    def _move_branch(self, branch: str, target: SnapshotId, expected: SnapshotId | None) -> None:
        for _ in range(_TRIES):
            found = self._fetch_branch(branch)
            if expected is not None and found.tip != expected:
                break
            try:
                self._storage.put(found.key, encode_ref(target), IfUnchanged(found.version))
            except PreconditionFailedError:
                continue  # it moved: the next look says where, and whether that matters
            return
        raise problems.conflict(branch, expected or found.tip, found.tip)

    def _is_in_history(self, branch: str, committed: SnapshotId) -> bool:
        """Tell whether a commit whose response was lost is part of the branch by now.

        Its id is fresh and random, so that nothing else can have put it there.
        """
        tip = self.fetch_branch(branch)
        return any(info.id == committed for info in self.fetch_ancestry(tip))

    def _fetch_branch(self, branch: str) -> _Branch:
        require_ref_name(branch, self.spec_version)
        key = branch_key(self._stored_name(branch, branch_key))
        try:
            fetched = fetch_file(self._storage, key, max_bytes=MAX_REF_SIZE)
        except ObjectNotFoundError as error:
            raise NotFoundError(
                f"there is no branch {branch!r} in {self._storage.url}",
                kind=ErrorKind.BRANCH_NOT_FOUND,
            ) from error
        return _Branch(key, decode_ref(fetched.data, key), fetched.info.version)

    def _stored_name(self, name: str, key_of: Callable[[str], str]) -> str:
        """Return a name as it stands in keys: one more request, for unusual names alone."""
        if is_plain(name) or not self._is_there(key_of(encoded(name))):
            return name
        return encoded(name)

    def _require_snapshot(self, snapshot_id: SnapshotId) -> None:
        if not self._is_there(snapshot_key(snapshot_id)):
            raise problems.no_such_snapshot(snapshot_id, self._storage.url)

    def _is_there(self, key: str) -> bool:
        try:
            self._storage.head(key)
        except ObjectNotFoundError:
            return False
        return True

    def _keys(self) -> list[str]:
        return [info.key for info in self._storage.list(REFS)]

    def _fetch_all(
        self, key_of: Callable[[str], str], names: set[str | None]
    ) -> dict[str, SnapshotId]:
        found = {}
        for name in sorted(name for name in names if name is not None):
            with contextlib.suppress(ObjectNotFoundError):  # deleted since it was listed
                found[decoded(name)] = self._fetch(key_of(name))
        return found

    def _fetch(self, key: str) -> SnapshotId:
        return decode_ref(fetch_file(self._storage, key, max_bytes=MAX_REF_SIZE).data, key)

    def _fetch_config(self) -> Fetched:
        return fetch_file(self._storage, CONFIG, max_bytes=config_yaml.MAX_SIZE_BYTES)
