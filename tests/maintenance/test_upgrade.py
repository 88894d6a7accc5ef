"""The upgrade from version 1 to 2 is atomic and keeps everything."""

from __future__ import annotations

import pickle
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from icefloe.errors import ConflictError, ErrorKind, SessionStateError, StorageError
from icefloe.maintenance.upgrade import upgrade_icechunk_repository, upgrade_storage
from icefloe.model.repo_info import RepoInfo, RepoMigrated
from icefloe.refs.repo_file import RepoFile
from icefloe.repository import Repository
from icefloe.storage import LocalStorage, MemoryStorage
from icefloe.types import SpecVersion
from support.faulty_storage import FaultyStorage
from support.golden_repositories import NAMES, Golden
from support.histories import UNPACKED, commit, make_history, read_everything

if TYPE_CHECKING:
    from pathlib import Path

    from maintenance.conftest import Icechunk

EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


def _all_files(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


def _comparable(info: RepoInfo) -> RepoInfo:
    """Return the repo info without the time of the upgrade itself."""
    migrated, *others = info.latest_updates
    assert isinstance(migrated.kind, RepoMigrated)
    assert datetime.now(UTC) - migrated.updated_at < timedelta(hours=1)
    return replace(info, latest_updates=(replace(migrated, updated_at=EPOCH), *others))


@pytest.mark.parametrize("name", ["made by icefloe", *(name for name in NAMES if "v1" in name)])
def test_same_as_icechunk(tmp_path: Path, run_icechunk2: Icechunk, name: str) -> None:
    """Both write the same refs, history, configuration and ops log, and keep the same files."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    if name in NAMES:
        shutil.copytree(Golden(name).repository, ours)
    else:
        repository, _ = make_history(ours, "v1")
        repository.save_config()
    shutil.copytree(ours, theirs)
    before = Repository.open(LocalStorage(ours))
    branches = {branch: before.lookup_branch(branch) for branch in before.list_branches()}
    _, seen = run_icechunk2(theirs, ("upgrade", {"dry_run": False}), ("read", {}))
    after = upgrade_icechunk_repository(before, dry_run=False)
    assert after.spec_version == SpecVersion.v2
    assert {branch: after.lookup_branch(branch) for branch in after.list_branches()} == branches
    found, expected = (RepoFile(LocalStorage(root)).fetch() for root in (ours, theirs))
    assert found.config is not None
    found.config.packing = None  # of which Icechunk does not know
    assert _comparable(found) == _comparable(expected)
    our_files, their_files = _all_files(ours), _all_files(theirs)
    del our_files["repo"], their_files["repo"]
    assert our_files == their_files
    assert run_icechunk2(ours, ("read", {})) == [seen]


def test_dry_run(tmp_path: Path) -> None:
    """A dry run reads everything and changes nothing."""
    root = tmp_path / "repo"
    repository, _ = make_history(root, "v1")
    before = _all_files(root)
    again = upgrade_icechunk_repository(repository, dry_run=True)
    assert again.spec_version == repository.spec_version == SpecVersion.v1
    assert _all_files(root) == before


def test_upgraded_repository(tmp_path: Path) -> None:
    """Data, branches, tags and deleted names are unchanged, and new commits work."""
    root = tmp_path / "repo"
    repository, ids = make_history(root, "v1")
    repository.set_default_commit_metadata({"by": "me"})
    before = read_everything(repository)
    after = upgrade_icechunk_repository(repository, dry_run=False, prefetch_concurrency=2)
    assert read_everything(after) == before
    assert after.default_commit_metadata() == {"by": "me"}
    assert after.list_tags() == {"first", "old", "three"}
    with pytest.raises(Exception, match="cannot be reused"):
        after.create_tag("gone", ids[0])
    assert not (root / "refs").exists() or not any(
        path.is_file() for path in (root / "refs").rglob("*")
    )
    assert not (root / "config.yaml").exists()
    committed = commit(after, "a", 0, 99)
    after.set_metadata({"upgraded": True})
    after.expire_snapshots(datetime.now(UTC))
    after.garbage_collect(datetime.now(UTC))
    assert committed in read_everything(Repository.open(LocalStorage(root)))
    with pytest.raises(SessionStateError) as raised:
        upgrade_icechunk_repository(after, dry_run=False)
    assert raised.value.kind is ErrorKind.INVALID_REPOSITORY_MIGRATION


def test_the_old_object(tmp_path: Path) -> None:
    """The object that was opened as version 1 raises an error that says how to reopen it."""
    repository, _ = make_history(tmp_path / "repo", "v1")
    upgrade_icechunk_repository(repository, dry_run=False)
    for copy in (repository, pickle.loads(pickle.dumps(repository))):  # noqa: S301
        with pytest.raises(RuntimeError, match="invalidated by"):
            copy.lookup_branch("main")


def test_files_of_version_1_may_remain(tmp_path: Path) -> None:
    """Readers open version 2 if the files of version 1 remain."""
    root = tmp_path / "repo"
    repository, ids = make_history(root, "v1")
    before = _all_files(root)
    after = upgrade_icechunk_repository(repository, dry_run=False, delete_unused_v1_files=False)
    left = _all_files(root)
    del left["repo"]
    assert left == before
    committed = commit(after, "a", 0, 99)
    reopened = Repository.open(LocalStorage(root))
    assert reopened.spec_version == SpecVersion.v2
    assert reopened.lookup_branch("main") == committed != ids[6]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_dying_half_way(after: bool) -> None:  # noqa: FBT001
    """An upgrade killed at any request leaves a complete repository of version 1 or 2."""
    original = MemoryStorage()
    repository = Repository.create(original, UNPACKED, spec_version=1)
    first = commit(repository, "a", 0, 1)
    commit(repository, "a", 1, 2)
    repository.create_tag("tag", first)
    repository.create_branch("dev", first)
    commit(repository, "b", 0, 3, branch="dev")
    expected = read_everything(repository)
    versions = []
    for dies_at in range(1000):
        storage = _copy(original)

        def fail(number: int, name: str, key: str, dies_at: int = dies_at) -> None:
            if number == dies_at:
                raise StorageError("died")

        faulty = FaultyStorage(storage, **{"fail_after" if after else "fail": fail})
        try:
            upgrade_storage(faulty, dry_run=False)
        except StorageError:
            reopened = Repository.open(storage)
            assert read_everything(reopened) == expected
            assert reopened.list_branches() == {"main", "dev"}
            assert reopened.list_tags() == {"tag"}
            versions.append(int(reopened.spec_version))
        else:
            break
    assert versions == sorted(versions)
    assert set(versions) == {1, 2}


def _copy(storage: MemoryStorage) -> MemoryStorage:
    copy = MemoryStorage()
    for info in storage.list():
        copy.put(info.key, storage.get(info.key).data)
    return copy


def test_concurrent_commit() -> None:
    """A concurrent commit is in the upgraded repository, or the upgrade is rolled back."""
    outcomes: list[str] = []
    while (outcome := _commit_at(len(outcomes))) is not None:
        outcomes.append(outcome)
    assert outcomes == sorted(outcomes, reverse=True)
    assert set(outcomes) == {"upgraded", "taken back"}


def _commit_at(at: int) -> str | None:
    """Commit before one request of an upgrade; None if the request follows the last check."""
    storage = MemoryStorage()
    repository = Repository.create(storage, UNPACKED, spec_version=1)
    commit(repository, "a", 0, 1)
    committed: list[str] = []
    requests: list[tuple[str, str]] = []

    def meanwhile(number: int, name: str, key: str) -> None:
        requests.append((name, key))
        if number == at:
            committed.append(commit(repository, "b", 0, 2))

    try:
        upgrade_storage(FaultyStorage(storage, meanwhile), dry_run=False)
        outcome = "upgraded"
    except ConflictError:
        outcome = "taken back"
    created = requests.index(("put", "repo"))
    last_look = requests.index(("get", "refs/branch.main/ref.json"), created)
    if at > last_look:
        return None
    reopened = Repository.open(storage)
    assert reopened.lookup_branch("main") == committed[0]
    assert reopened.spec_version == (2 if outcome == "upgraded" else 1)
    return outcome
