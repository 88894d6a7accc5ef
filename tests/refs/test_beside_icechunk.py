"""Features of version 2: Icechunk 2.x and icefloe read each other's state."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from icefloe.errors import IcefloeError, ReadOnlyError, SessionStateError
from icefloe.format.generation import V1, V2
from icefloe.format.repo_info import decode_repo_info, encode_repo_info
from icefloe.model.config import RepositoryConfig
from icefloe.model.ids import INITIAL_SNAPSHOT_ID, SnapshotId
from icefloe.model.repo_info import RepoAvailability, RepoStatus
from icefloe.refs import Refs, create_refs, open_refs
from icefloe.storage import LocalStorage
from support import SUPPORT, warm_python
from support.ref_snapshots import write_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from icefloe.model.repo_info import OpsLogEntry
    from icefloe.model.snapshot import SnapshotInfo


def _ask_icechunk(python: Path, repository: Path, *arguments: str) -> dict[str, Any]:
    script = SUPPORT / "icechunk_refs.py"
    done = warm_python.run(python, script, repository, *arguments)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _describe(refs: Refs, snapshot_ids: list[str]) -> dict[str, Any]:
    """Describe the state that icefloe reads, in the form of ``icechunk_refs.py``."""
    refs = refs.pin()
    status = refs.fetch_status()
    infos = [refs.fetch_snapshot_info(SnapshotId.parse(text)) for text in snapshot_ids]
    return {
        "branches": {name: str(tip) for name, tip in refs.fetch_branches().items()},
        "tags": {name: str(tip) for name, tip in refs.fetch_tags().items()},
        "ancestry": [_describe_info(i) for i in refs.fetch_ancestry(refs.fetch_branch("main"))],
        "snapshots": [_describe_info(info) for info in infos],
        "ops_log": [_describe_update(update) for update in refs.fetch_ops_log()],
        "feature_flags": [
            [flag.id, flag.name, flag.default_enabled, flag.setting, flag.enabled]
            for flag in refs.fetch_feature_flags()
        ],
        "metadata": refs.fetch_metadata(),
        "status": [
            status.availability.name.lower(),
            status.set_at.isoformat(),
            status.limited_availability_reason,
        ],
    }


def _describe_info(info: SnapshotInfo) -> dict[str, Any]:
    return {
        "id": str(info.id),
        "parent_id": None if info.parent_id is None else str(info.parent_id),
        "written_at": info.flushed_at.isoformat(),
        "message": info.message,
    }


def _describe_update(update: OpsLogEntry) -> dict[str, Any]:
    names = ("name", "branch", "previous_snap_id", "new_snap_id", "id", "new_value")
    fields = {name: getattr(update.kind, name) for name in names if hasattr(update.kind, name)}
    return {
        "kind": type(update.kind).__name__,
        "fields": {
            name: str(value) if isinstance(value, SnapshotId) else value
            for name, value in fields.items()
        },
        "updated_at": update.updated_at.isoformat(),
        "backup_path": update.backup_path,
    }


def _change(refs: Refs, storage: LocalStorage) -> SnapshotId:
    """Make the changes of ``icechunk_refs.py change``, and return the amended commit."""
    tip = refs.fetch_branch("main")
    ours = write_snapshot(storage, V2, tip, "ours")
    refs.commit("main", tip, ours)
    amended = write_snapshot(storage, V2, tip, "ours, amended")
    refs.amend("main", ours.id, amended)
    refs.add_snapshot(write_snapshot(storage, V2, amended.id, "ours, detached"))
    refs.set_feature_flag("delete_tag", False)
    refs.set_feature_flag("create_tag", True)
    refs.set_feature_flag("create_tag", None)
    refs.save_metadata({"ours": [1, None, "x"], "both": {"a": 1}})
    refs.update_metadata({"both": {"b": 2.5}})
    reason = "ours to move"
    refs.save_status(RepoStatus(RepoAvailability.read_only, limited_availability_reason=reason))
    return ours.id


KINDS = [
    "RepoStatusChanged",
    *["MetadataChanged"] * 2,
    *["FeatureFlagChanged"] * 3,
    "NewDetachedSnapshot",
    "CommitAmended",
    "NewCommit",
]


# With 2 entries in each file, the ops log goes on in backups again and again.
_LIMITS = pytest.mark.parametrize("limit", [None, 2], ids=["one file", "many files"])


@_LIMITS
def test_icechunk_reads_ours(tmp_path: Path, icechunk2: Path, limit: int | None) -> None:
    """Icechunk reads amended and detached snapshots, flags, metadata and status of icefloe."""
    storage = LocalStorage(tmp_path)
    config = RepositoryConfig(num_updates_per_repo_info_file=limit)
    refs = create_refs(storage, generation=V2, config=config)
    refs.create_tag("v1", INITIAL_SNAPSHOT_ID)
    replaced = _change(refs, storage)
    found = _ask_icechunk(icechunk2, tmp_path)
    assert [update["kind"] for update in found["ops_log"]] == [
        *KINDS,
        "TagCreated",
        "RepoInitialized",
    ]
    assert [info["message"] for info in found["ancestry"]] == [
        "ours, amended",
        "Repository initialized",
    ]
    snapshot_ids = [info["id"] for info in found["snapshots"]]
    assert len(snapshot_ids) == 4
    assert str(replaced) in snapshot_ids
    assert found == _describe(refs, snapshot_ids)


@_LIMITS
def test_we_read_icechunk(tmp_path: Path, icechunk2: Path, limit: int | None) -> None:
    """State that Icechunk wrote is read and continued by icefloe."""
    storage = LocalStorage(tmp_path)
    config = RepositoryConfig(num_updates_per_repo_info_file=limit)
    create_refs(storage, generation=V2, config=config).create_tag("v1", INITIAL_SNAPSHOT_ID)
    theirs = _ask_icechunk(icechunk2, tmp_path, "change")
    refs = open_refs(storage).refs
    snapshot_ids = [info["id"] for info in theirs["snapshots"]]
    assert _describe(refs, snapshot_ids) == theirs
    assert [update["kind"] for update in theirs["ops_log"]][: len(KINDS)] == KINDS
    with pytest.raises(ReadOnlyError, match="theirs to move"):
        refs.create_tag("v2", INITIAL_SNAPSHOT_ID)
    refs.save_status(RepoStatus(RepoAvailability.online))
    with pytest.raises(SessionStateError, match="delete_tag"):
        refs.delete_tag("v1")
    _change(refs, storage)
    found = _ask_icechunk(icechunk2, tmp_path)
    assert found == _describe(refs, [info["id"] for info in found["snapshots"]])
    assert len(found["snapshots"]) == len(snapshot_ids) + 3


def test_icechunk_continues_our_history(tmp_path: Path, icechunk2: Path) -> None:
    """Icechunk amends a commit of icefloe, and keeps the settings of icefloe."""
    storage = LocalStorage(tmp_path)
    refs = create_refs(storage, generation=V2)
    _change(refs, storage)
    refs.save_status(RepoStatus(RepoAvailability.online))
    found = _ask_icechunk(icechunk2, tmp_path, "change")
    assert found == _describe(refs, [info["id"] for info in found["snapshots"]])
    assert [info["message"] for info in found["ancestry"]] == [
        "theirs, amended",
        "ours, amended",
        "Repository initialized",
    ]
    assert len(found["ops_log"]) == 2 * len(KINDS) + 2
    assert "ours" not in found["metadata"]


def test_icechunk_reads_spliced_files_as_those_written_in_full(
    tmp_path: Path, icechunk2: Path
) -> None:
    """Commits that copy the tables of older ones, of both libraries in turns."""
    storage = LocalStorage(tmp_path)
    refs = create_refs(storage, generation=V2)
    for number in range(3):
        for _ in range(4):
            tip = refs.fetch_branch("main")
            refs.commit("main", tip, write_snapshot(storage, V2, tip, f"commit {number}"))
        refs.create_tag(f"tag {number}", refs.fetch_branch("main"))
        _change(refs, storage)
        refs.save_status(RepoStatus(RepoAvailability.online))
        spliced = _ask_icechunk(icechunk2, tmp_path)
        info = decode_repo_info((tmp_path / "repo").read_bytes(), "repo")
        objects = replace(
            info, snapshots=tuple(info.snapshots), latest_updates=tuple(info.latest_updates)
        )
        (tmp_path / "repo").write_bytes(encode_repo_info(objects))
        assert _ask_icechunk(icechunk2, tmp_path) == spliced
        assert _describe(refs, [info["id"] for info in spliced["snapshots"]]) == spliced
        _ask_icechunk(icechunk2, tmp_path, "change")
        refs.save_status(RepoStatus(RepoAvailability.online))
        refs.set_feature_flag("delete_tag", None)


def test_version_1_raises_like_icechunk(tmp_path: Path, icechunk2: Path) -> None:
    """Features that version 1 does not have raise the same class and kind of error in both."""
    refs = create_refs(LocalStorage(tmp_path), generation=V1)
    script = f"""
import icechunk
icechunk.set_logs_filter("error")
repository = icechunk.Repository.open(icechunk.local_filesystem_storage({str(tmp_path)!r}))
for call in (
    repository.ops_log,
    repository.get_metadata,
    lambda: repository.set_metadata({{}}),
    lambda: repository.update_metadata({{}}),
    repository.get_status,
    repository.feature_flags,
    lambda: repository.set_feature_flag("create_tag", False),
    lambda: repository.writable_session("main").amend("amended", allow_empty=True),
):
    try:
        call()
    except icechunk.IcechunkError as error:
        print(type(error).__name__, error.kind)
"""
    done = warm_python.run(icechunk2, "-c", script)
    done.check_returncode()
    first = refs.fetch_snapshot_info(INITIAL_SNAPSHOT_ID)
    calls: list[Callable[[], object]] = [
        refs.fetch_ops_log,
        refs.fetch_metadata,
        lambda: refs.save_metadata({}),
        lambda: refs.update_metadata({}),
        refs.fetch_status,
        refs.fetch_feature_flags,
        lambda: refs.set_feature_flag("create_tag", False),
        lambda: refs.amend("main", INITIAL_SNAPSHOT_ID, first),
    ]
    found = []
    for call in calls:
        with pytest.raises(IcefloeError) as caught:
            call()
        found.append(f"{type(caught.value).__name__} {caught.value.kind}")
    assert done.stdout.splitlines() == found
