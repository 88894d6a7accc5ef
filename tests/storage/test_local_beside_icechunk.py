"""Icechunk and icefloe work in the same directory."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import icechunk
import obstore.store

from icefloe.storage import LocalStorage

if TYPE_CHECKING:
    from pathlib import Path


def test_icechunk_lists_no_staged_files(tmp_path: Path) -> None:
    """Neither implementation lists staged files or lock files of the other."""
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path)))
    ours = LocalStorage(tmp_path)
    before = [info.key for info in ours.list()]
    assert "snapshots/1CECHNKREP0F1RSTCMT0" in before
    left_behind = [
        tmp_path / folder / name
        for folder in ("", "snapshots", "refs")
        for name in ("staged#1234567890", "lock#0")
    ]
    for path in left_behind:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"junk")
    assert [info.key for info in ours.list()] == before
    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(str(tmp_path)))
    assert repository.list_branches() == {"main"}
    assert repository.garbage_collect(datetime.now(UTC)).snapshots_deleted == 0
    assert all(path.exists() for path in left_behind)


def test_both_list_directories_that_look_like_uploads(tmp_path: Path) -> None:
    """Icechunk and icefloe omit files with the names of uploads, but not directories."""
    ours = LocalStorage(tmp_path)
    for key in ("refs/branch.a#1/ref.json", "refs/branch.main/ref.json"):
        ours.put(key, b"{}")
    (tmp_path / "refs" / "staged#1").write_bytes(b"junk")
    theirs = obstore.list(obstore.store.LocalStore(tmp_path)).collect()
    assert [info.key for info in ours.list()] == sorted(meta["path"] for meta in theirs)
