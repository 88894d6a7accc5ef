"""Maintenance by icefloe and by Icechunk leaves copies of a repository in the same state."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from icefloe.refs.repo_file import RepoFile
from icefloe.repository import Repository
from icefloe.storage import LocalStorage
from support.golden_repositories import NAMES, Golden
from support.histories import files, make_history, read_snapshot, written_at

if TYPE_CHECKING:
    from pathlib import Path

    from icefloe.maintenance.statistics import ChunkStorageStats
    from maintenance.conftest import Icechunk

COUNTS = (
    "bytes_deleted",
    "chunks_deleted",
    "manifests_deleted",
    "snapshots_deleted",
    "attributes_deleted",
    "transaction_logs_deleted",
)


def _two_copies(root: Path) -> tuple[Path, Path]:
    ours, theirs = root.with_name(f"{root.name}-ours"), root.with_name(f"{root.name}-theirs")
    shutil.copytree(root, ours)
    shutil.copytree(root, theirs)
    return ours, theirs


def _require_same_files(ours: Path, theirs: Path, spec_version: int) -> None:
    assert files(ours) == files(theirs)
    if spec_version == 2:
        one, other = RepoFile(LocalStorage(ours)).fetch(), RepoFile(LocalStorage(theirs)).fetch()
        assert one.snapshots == other.snapshots  # with their parents and pruned logs
        assert (one.branches, one.tags) == (other.branches, other.tags)
        assert one.deleted_tags == other.deleted_tags
        kinds = [[update.kind for update in info.latest_updates] for info in (one, other)]
        assert kinds[0] == kinds[1]


def _counts(summary: Any) -> dict[str, int]:
    if not isinstance(summary, dict):
        summary = {name: getattr(summary, name) for name in COUNTS}
    return {name: summary[name] for name in COUNTS}


def _describe(stats: ChunkStorageStats) -> dict[str, int]:
    return {
        "native_bytes": stats.native_bytes,
        "virtual_bytes": stats.virtual_bytes,
        "inlined_bytes": stats.inlined_bytes,
        "non_virtual_bytes": stats.non_virtual_bytes(),
        "total_bytes": stats.total_bytes(),
    }


@pytest.mark.parametrize("young", [3, None])
@pytest.mark.parametrize("delete_refs", [False, True], ids=["keep", "delete"])
def test_expiration_and_collection(
    tmp_path: Path,
    icechunk_and_version: tuple[Icechunk, int],
    young: int | None,
    delete_refs: bool,  # noqa: FBT001
) -> None:
    """Both release the same snapshots, delete the same files, and show the same history and data.

    Tags of the first snapshot, which Icechunk deletes in version 1 and we do not, are left out.
    """
    icechunk, spec_version = icechunk_and_version
    repository, ids = make_history(tmp_path / "repo", f"v{spec_version}")
    if spec_version == 1 and delete_refs:
        repository.delete_tag("first")
    older_than = datetime.now(UTC)
    if young is not None:
        older_than = repository.lookup_snapshot(ids[young]).written_at
    expiration: dict[str, Any] = {
        "older_than": older_than,
        "delete_expired_branches": delete_refs,
        "delete_expired_tags": delete_refs,
    }
    ours, theirs = _two_copies(tmp_path / "repo")
    cutoff = datetime.now(UTC) + timedelta(minutes=1)
    collection = {"delete_object_older_than": cutoff}
    released, expected, stats, seen = icechunk(
        theirs,
        ("expire_snapshots", expiration),
        ("garbage_collect", collection),
        ("chunk_storage_stats", {}),
        ("read", {}),
    )
    mine = Repository.open(LocalStorage(ours))
    assert mine.expire_snapshots(**expiration) == set(released)
    would = mine.garbage_collect(cutoff, dry_run=True)
    found = mine.garbage_collect(cutoff)
    assert would == found
    counts, expected_counts = _counts(found), _counts(expected)
    if spec_version == 1:
        # Snapshots that both rewrote have different sizes.
        del counts["bytes_deleted"], expected_counts["bytes_deleted"]
    assert counts == expected_counts
    _require_same_files(ours, theirs, spec_version)
    assert _describe(mine.chunk_storage_stats()) == stats
    assert icechunk(ours, ("read", {})) == [seen]


@pytest.mark.parametrize("hours", [8, 10])
def test_collection_by_age(tmp_path: Path, run_icechunk2: Icechunk, hours: int) -> None:
    """Recent files are kept; collected parents are replaced by the nearest remaining ancestor."""
    repository, _ = make_history(tmp_path / "repo", "v2")
    repository.delete_branch("dev")
    ours, theirs = _two_copies(tmp_path / "repo")
    cutoff = written_at(hours)
    collection = {"delete_object_older_than": cutoff}
    expected, seen = run_icechunk2(theirs, ("garbage_collect", collection), ("read", {}))
    found = Repository.open(LocalStorage(ours)).garbage_collect(cutoff)
    assert _counts(found) == _counts(expected)
    _require_same_files(ours, theirs, 2)
    assert run_icechunk2(ours, ("read", {})) == [seen]


def test_recent_snapshots_of_version_1(tmp_path: Path, run_icechunk1: Icechunk) -> None:
    """In version 1 icefloe keeps all files of recent snapshots; Icechunk deletes the old ones."""
    repository, ids = make_history(tmp_path / "repo", "v1")
    repository.delete_branch("dev")
    ours, theirs = _two_copies(tmp_path / "repo")
    expected = {snapshot_id: read_snapshot(repository, snapshot_id) for snapshot_id in ids[8:]}
    collection = {"delete_object_older_than": written_at(8)}
    _, seen = run_icechunk1(theirs, ("garbage_collect", collection), ("read", {}))
    Repository.open(LocalStorage(ours)).garbage_collect(written_at(8))
    assert files(ours) > files(theirs)
    assert run_icechunk1(ours, ("read", {})) == [seen]
    mine = Repository.open(LocalStorage(ours))
    assert {snapshot_id: read_snapshot(mine, snapshot_id) for snapshot_id in ids[8:]} == expected


def test_goldens(tmp_path: Path, icechunk_and_version: tuple[Icechunk, int]) -> None:
    """Golden repositories are counted, expired and collected as by Icechunk."""
    icechunk, spec_version = icechunk_and_version
    for golden in map(Golden, NAMES):
        if golden.expected["spec_version"] != spec_version:
            continue
        shutil.copytree(golden.repository, tmp_path / golden.name)
        ours, theirs = _two_copies(tmp_path / golden.name)
        main = golden.expected["ancestry"]["main"]
        older_than = datetime.fromisoformat(main[1]["written_at"])
        cutoff = datetime.now(UTC) + timedelta(minutes=1)
        stats, released, _, seen = icechunk(
            theirs,
            ("chunk_storage_stats", {}),
            ("expire_snapshots", {"older_than": older_than}),
            ("garbage_collect", {"delete_object_older_than": cutoff}),
            ("read", {}),
        )
        mine = Repository.open(LocalStorage(ours))
        assert _describe(mine.chunk_storage_stats()) == stats
        assert stats["total_bytes"] > 0
        assert mine.expire_snapshots(older_than) == set(released)
        mine.garbage_collect(cutoff)
        _require_same_files(ours, theirs, spec_version)
        assert icechunk(ours, ("read", {})) == [seen]
