"""What garbage collection deletes, no snapshot that is kept needs; what none needs, it deletes."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
import zarr

from icefloe.errors import ErrorKind, ObjectNotFoundError, ReadOnlyError, StorageError
from icefloe.maintenance.garbage_collection import collect_garbage
from icefloe.maintenance.limits import ReadLimits
from icefloe.maintenance.progress import Phase, Step
from icefloe.maintenance.sweep import DeleteLimits, GCSummary
from icefloe.model.config import PackingConfig, RepositoryConfig
from icefloe.repository import Repository
from icefloe.storage import LocalStorage, MemoryStorage
from icefloe.storage.forwarding import ForwardingStorage
from icefloe.storage.latency import LatencyStorage
from support import SUPPORT
from support.counting_storage import CountingStorage
from support.faulty_storage import FaultyStorage
from support.histories import (
    UNPACKED,
    commit,
    files,
    make_history,
    read_everything,
    read_snapshot,
    write,
    written_at,
)

if TYPE_CHECKING:
    from pathlib import Path


def _now() -> datetime:
    return datetime.now(UTC)


def test_only_what_is_reachable_is_left(tmp_path: Path, spec_version: int) -> None:
    """All that branches and tags show is the same as before, and no other file is left."""
    root = tmp_path / "repo"
    repository, ids = make_history(root, spec_version)
    before = read_everything(repository)
    planned = repository.garbage_collect(_now(), dry_run=True)
    assert read_snapshot(Repository.open(LocalStorage(root)), ids[9])  # nothing happened
    listed = files(root)
    summary = repository.garbage_collect(_now())
    assert summary == planned
    assert (summary.snapshots_deleted, summary.transaction_logs_deleted) == (
        (2, 2) if spec_version == 1 else (3, 3)
    )
    assert summary.chunks_deleted >= 9
    counts = (
        summary.chunks_deleted + summary.manifests_deleted,
        summary.snapshots_deleted + summary.transaction_logs_deleted,
    )
    assert len(listed - files(root)) == sum(counts)
    reopened = Repository.open(LocalStorage(root))
    assert read_everything(reopened) == before
    assert repository.garbage_collect(_now()) == GCSummary()
    in_use = {f"snapshots/{snapshot_id}" for snapshot_id in before}
    assert {name for name in files(root) if name.startswith("snapshots/")} == in_use


def test_young_files_stay(tmp_path: Path, spec_version: int) -> None:
    """Files that are not older than the time stay, and all that young snapshots need with them."""
    root = tmp_path / "repo"
    repository, ids = make_history(root, spec_version)
    for name in files(root):
        os.utime(root / name, (written_at(5).timestamp(),) * 2)
    assert repository.garbage_collect(written_at(5)) == GCSummary()
    # Chunks are needed by young snapshots that nothing points at; one that none needs goes.
    for name in files(root):
        if name.startswith("chunks/"):
            os.utime(root / name, (written_at(4).timestamp(),) * 2)
    summary = repository.garbage_collect(written_at(5))
    assert (summary.chunks_deleted, summary.snapshots_deleted) == (3, 0)
    assert all(read_snapshot(repository, snapshot_id) for snapshot_id in ids[1:])


def test_foreign_files_stay(tmp_path: Path, spec_version: int) -> None:
    """Names that are no ids are not ours, and backups of ``repo`` are needed by the ops log."""
    root = tmp_path / "repo"
    repository, _ = make_history(root, spec_version)
    foreign = ["chunks/README", "chunks/sub/0123456789ABCDEFGHJK", "snapshots/0123456789abcdefghj0"]
    foreign += ["manifests/.hidden", "other/0123456789ABCDEFGHJ0", "overwritten/repo.x"]
    for name in foreign:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"precious")
        os.utime(root / name, (0, 0))
    assert repository.garbage_collect(_now()).chunks_deleted
    assert all((root / name).read_bytes() == b"precious" for name in foreign)
    if spec_version == 2:
        assert len(list(repository.ops_log())) > 15


def test_packs(tmp_path: Path, spec_version: int) -> None:
    """An object with many chunks stays while any of them is needed, and goes with the last."""
    root = tmp_path / "repo"
    packing = RepositoryConfig(packing=PackingConfig(max_chunk_bytes=10_000))
    packing.inline_chunk_threshold_bytes = 0
    repository = Repository.create(LocalStorage(root), packing, spec_version=spec_version)
    session = repository.writable_session("main")
    for row in range(4):
        write(session, "a", row, row + 1)
    session.commit("four rows in one pack")
    for row in (0, 1, 2):
        commit(repository, "a", row, 10 + row)
    assert len(list((root / "chunks").iterdir())) == 4
    assert repository.chunk_storage_stats().native_bytes == 8 * (4 + 3) * 300
    repository.expire_snapshots(_now())
    # Of the first pack only row 3 is left, and of it not everything counts.
    assert repository.garbage_collect(_now()).chunks_deleted == 0
    assert repository.chunk_storage_stats().native_bytes == 8 * 4 * 300
    data = zarr.open_array(repository.readonly_session("main").store, path="a", mode="r")
    assert data[:, 0].tolist() == [10, 11, 12, 4]  # type: ignore[union-attr]
    commit(repository, "a", 3, 13)
    repository.expire_snapshots(_now())
    assert repository.garbage_collect(_now()).chunks_deleted == 1
    assert repository.chunk_storage_stats().native_bytes == 8 * 4 * 300


@pytest.mark.parametrize("kind", ["snapshots", "manifests"])
def test_what_is_missing(tmp_path: Path, spec_version: int, kind: str) -> None:
    """If something is missing that a branch needs, nothing is deleted: who knows what it needed."""
    root = tmp_path / "repo"
    repository, ids = make_history(root, spec_version)
    name = ids[5] if kind == "snapshots" else repository.list_manifest_files(ids[6])[0].id
    (root / kind / name).unlink()
    before = files(root)
    with pytest.raises(ObjectNotFoundError):
        Repository.open(LocalStorage(root)).garbage_collect(_now())
    assert files(root) == before


def test_dying_half_way(tmp_path: Path, spec_version: int) -> None:
    """A collection killed at any request keeps all live files, and the next one completes."""
    root = tmp_path / "repo"
    repository, _ = make_history(root, spec_version)
    before = read_everything(repository)
    deaths = 0
    for dies_at in range(1000):

        def fail(number: int, name: str, key: str, dies_at: int = dies_at) -> None:
            if number == dies_at:
                raise KeyboardInterrupt

        try:
            storage = FaultyStorage(LocalStorage(root), fail, fail_after=fail)
            collect_garbage(storage, spec_version, older_than=_now())
        except KeyboardInterrupt:
            deaths += 1
            if dies_at % 5 == 0:
                assert read_everything(Repository.open(LocalStorage(root))) == before
        else:
            break
    assert deaths > 15
    reopened = Repository.open(LocalStorage(root))
    assert read_everything(reopened) == before
    assert reopened.garbage_collect(_now()) == GCSummary()


def test_deletes_that_fail(tmp_path: Path, spec_version: int) -> None:
    """After a failure nothing that others refer to is deleted; the summary says so."""
    root = tmp_path / "repo"
    repository, _ = make_history(root, spec_version)
    before = files(root)

    def fail(number: int, name: str, key: str) -> None:
        if name == "delete_many" and key.startswith("transactions/"):
            raise StorageError("no deleting today")

    storage = FaultyStorage(LocalStorage(root), fail)
    summary = collect_garbage(storage, spec_version, older_than=_now())
    assert summary.snapshots_deleted == len(before - files(root)) > 0
    assert summary.objects_failed_to_delete > 0
    assert summary.delete_errors == ["no deleting today"]
    assert summary.skipped_phases == ["manifests", "chunks"]
    with pytest.raises(StorageError, match="no deleting today") as raised:
        collect_garbage(storage, spec_version, older_than=_now(), delete_limits=DeleteLimits(10, 1))
    assert raised.value.kind is ErrorKind.GC_DELETES_FAILING
    assert repository.garbage_collect(_now()).skipped_phases == []


def test_throttled_deletes_are_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A storage that asks to slow down is no failure."""
    monkeypatch.setattr("icefloe.maintenance.sweep._FIRST_PAUSE_S", 0.001)
    make_history(tmp_path / "repo", 2)
    asked: list[str] = []

    def fail(number: int, name: str, key: str) -> None:
        if name == "delete_many" and len(asked) < 3:
            asked.append(key)
            raise StorageError("slow down", kind=ErrorKind.THROTTLED)

    storage = FaultyStorage(LocalStorage(tmp_path / "repo"), fail)
    summary = collect_garbage(storage, 2, older_than=_now())
    assert (summary.throttled_batches, summary.objects_failed_to_delete) == (3, 0)
    assert summary.chunks_deleted


def test_progress(tmp_path: Path, spec_version: int) -> None:
    """The progress callback gets every phase, in order, up to its end."""
    make_history(tmp_path / "repo", spec_version)
    steps: list[Step] = []
    storage = LocalStorage(tmp_path / "repo")
    collect_garbage(storage, spec_version, older_than=_now(), progress=steps.append)
    phases = list(dict.fromkeys(step.phase for step in steps))
    assert phases[-4:] == [
        Phase.DELETE_SNAPSHOTS,
        Phase.DELETE_TRANSACTION_LOGS,
        Phase.DELETE_MANIFESTS,
        Phase.DELETE_CHUNKS,
    ]
    assert steps[-1].done == steps[-1].total
    assert all(step.done <= step.total for step in steps)


def test_many_at_a_time(spec_version: int) -> None:
    """Over a network the same happens with many requests under way, within the limits."""
    storage, repository, _ = _garbage_and_session(spec_version)
    for number in range(6):
        repository.create_branch(f"branch-{number}", repository.lookup_branch("main"))
        commit(repository, "a", 2, number + 1, branch=f"branch-{number}")
    before = read_everything(repository)
    counting = CountingStorage(LatencyStorage(storage, read_latency_ms=20))
    summary = collect_garbage(
        counting,
        spec_version,
        older_than=_now(),
        read_limits=ReadLimits(max_snapshots_in_memory=4, max_concurrent_manifest_fetches=3),
    )
    assert summary.snapshots_deleted == 1
    assert 1 < counting.most_at_once("get") <= 4
    assert read_everything(Repository.open(storage)) == before


def test_read_only_storage(tmp_path: Path, spec_version: int) -> None:
    """Where nothing can be deleted, counting works and collecting is refused at once."""
    make_history(tmp_path / "repo", spec_version)
    storage = _ReadOnly(LocalStorage(tmp_path / "repo"))
    assert collect_garbage(storage, spec_version, older_than=_now(), dry_run=True).chunks_deleted
    with pytest.raises(ReadOnlyError):
        collect_garbage(storage, spec_version, older_than=_now())


class _ReadOnly(ForwardingStorage):
    @property
    def read_only(self) -> bool:
        return True


def test_requests(tmp_path: Path) -> None:
    """Version 2: four listings, each kept snapshot and manifest once, ``repo`` once per phase."""
    root = tmp_path / "repo"
    repository, _ = make_history(root, 2)
    kept = read_everything(repository)
    manifests = {info.id for name in kept for info in repository.list_manifest_files(name)}
    counting = CountingStorage(LocalStorage(root))
    collect_garbage(counting, 2, older_than=_now())
    gets = counting.keys("get")
    assert sorted(key for key in gets if key != "repo") == sorted(
        [f"snapshots/{name}" for name in kept] + [f"manifests/{name}" for name in manifests]
    )
    assert gets.count("repo") == 1 + 1 + 4  # what is there, the change, and a look for each phase
    counts = counting.counts()
    assert (counts["list"], counts["delete_many"], counts["put"], counts["copy"]) == (4, 4, 1, 1)


def _garbage_and_session(spec_version: int) -> tuple[MemoryStorage, Repository, str]:
    storage = MemoryStorage()
    repository = Repository.create(storage, UNPACKED, spec_version=spec_version)
    commit(repository, "a", 0, 1)
    left_behind = commit(repository, "a", 1, 2)
    repository.reset_branch("main", next(repository.ancestry(snapshot_id=left_behind)).parent_id)  # type: ignore[arg-type]
    return storage, repository, left_behind


def test_commits_until_the_last_look(spec_version: int) -> None:
    """A session's old chunks are safe if it is committed at any request before the last look.

    Its chunks are older than the time, which is more than is promised.
    """
    at = 0
    while (found := _commit_at(at, spec_version)) is not None:
        assert found == 3, f"a commit before request {at} lost something"
        at += 1
    assert at > 10


def _commit_at(at: int, spec_version: int) -> int | None:
    """Commit before one request of a collection; tell how many snapshots are whole.

    None if the request comes after the last look.
    """
    storage, repository, _ = _garbage_and_session(spec_version)
    session = repository.writable_session("main")
    write(session, "b", 0, 42)
    requests: list[tuple[str, str]] = []

    def commit_once(number: int, name: str, key: str) -> None:
        requests.append((name, key))
        if number == at:
            session.commit("in between")

    collect_garbage(
        FaultyStorage(storage, commit_once), spec_version, older_than=_now() + timedelta(days=1)
    )
    last_look = requests.index(("delete_many", _first_deleted_chunk(requests))) - 1
    return len(read_everything(Repository.open(storage))) if at < last_look else None


def _first_deleted_chunk(requests: list[tuple[str, str]]) -> str:
    return next(key for name, key in requests if name == "delete_many" and key[:7] == "chunks/")


def test_left_behind_and_found_again(spec_version: int) -> None:
    """A branch for a snapshot that was about to be collected keeps it, and all that it needs."""
    storage, repository, left_behind = _garbage_and_session(spec_version)
    expected = read_snapshot(repository, left_behind)

    def create(number: int, name: str, key: str) -> None:
        # All manifests are read: what is kept seems to be known.
        if name == "get" and key.startswith("manifests/") and not created:
            created.append(key)
            repository.create_branch("again", left_behind)

    created: list[str] = []
    summary = collect_garbage(FaultyStorage(storage, create), spec_version, older_than=_now())
    assert created
    assert summary.snapshots_deleted == 0
    assert read_everything(Repository.open(storage))[left_behind] == expected


def test_built_on_what_was_to_go() -> None:
    """Version 2: a commit on a snapshot that is about to be dropped restarts the collection."""
    storage, repository, left_behind = _garbage_and_session(2)
    repository.create_branch("again", left_behind)
    session = repository.writable_session("again")
    write(session, "a", 2, 3)
    repository.delete_branch("again")
    flushed: list[str] = []

    def flush(number: int, name: str, key: str) -> None:
        if name == "get" and key.startswith("manifests/") and not flushed:
            flushed.append(session.flush("detached"))

    collect_garbage(FaultyStorage(storage, flush), 2, older_than=_now())
    info = Repository.open(storage).lookup_snapshot(flushed[0])
    # The snapshot that it was built on is old and gone, and its log is known.
    assert info.parent_id != left_behind
    assert read_snapshot(Repository.open(storage), flushed[0])["a"]
    log = Repository.open(storage).diff(
        from_snapshot_id=str(info.parent_id), to_snapshot_id=flushed[0]
    )
    assert sorted(log.updated_chunks["/a"]) == [[row, part] for row in (1, 2) for part in range(3)]


def test_uploads_of_dead_writers_are_deleted(tmp_path: Path) -> None:
    """A killed writer's staged file is collected; that of a live writer stays, and is published."""
    root = tmp_path / "repo"
    repository, _ = make_history(root, 2)
    repository.garbage_collect(_now())

    def start(key: str) -> subprocess.Popen[str]:
        writer = subprocess.Popen(
            [sys.executable, str(SUPPORT / "paused_writer.py"), str(root), key],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdout is not None
        assert writer.stdout.readline() == "staged\n"
        return writer

    with start("dead/object") as dead:
        dead.kill()
    with start("live/object") as live:
        staged = {path.parent.name: path for path in root.rglob("staged#*")}
        assert set(staged) == {"dead", "live"}
        old = _now() - timedelta(hours=1)
        assert repository.garbage_collect(old) == GCSummary()
        planned = repository.garbage_collect(_now(), dry_run=True)
        assert staged["dead"].exists()
        assert repository.garbage_collect(_now()) == planned == GCSummary(bytes_deleted=7)
        assert not staged["dead"].exists()
        assert staged["live"].exists()
        live.communicate("go on\n")
    assert live.returncode == 0
    assert (root / "live" / "object").read_bytes() == b"written"
