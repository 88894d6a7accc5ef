"""Garbage collection deletes the files that no live snapshot needs, and no others."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
import zarr

from icefloe.errors import (
    ErrorKind,
    FormatError,
    ObjectNotFoundError,
    ReadOnlyError,
    SessionStateError,
    StorageError,
)
from icefloe.format.generation import V2, get_generation
from icefloe.maintenance.garbage_collection import collect_garbage
from icefloe.maintenance.limits import ReadLimits
from icefloe.maintenance.progress import Phase, Step
from icefloe.maintenance.sweep import DeleteLimits, GCSummary
from icefloe.model.config import PackingConfig, RepositoryConfig
from icefloe.refs import commit_check
from icefloe.repository import Repository
from icefloe.storage import LocalStorage, MemoryStorage, Overwrite
from icefloe.storage.forwarding import ForwardingStorage
from icefloe.storage.latency import LatencyStorage
from support import SUPPORT
from support.counting_storage import CountingStorage
from support.faulty_storage import FaultyStorage
from support.generations import find_kind
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


def test_only_reachable_files_remain(tmp_path: Path, generation: str) -> None:
    """The data of branches and tags is unchanged, and no unreachable file remains."""
    root = tmp_path / "repo"
    repository, ids = make_history(root, generation)
    before = read_everything(repository)
    planned = repository.garbage_collect(_now(), dry_run=True)
    assert read_snapshot(Repository.open(LocalStorage(root)), ids[9])  # nothing happened
    listed = files(root)
    summary = repository.garbage_collect(_now())
    assert summary == planned
    layout = get_generation(generation).layout
    num_garbage = 3 if get_generation(generation).has_repo_info else 2  # one amended away
    assert (summary.snapshots_deleted, summary.transaction_logs_deleted) == (
        num_garbage,
        num_garbage if layout.transaction_logs else 0,
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
    in_use = {layout.snapshots.format_key(snapshot_id) for snapshot_id in before}
    assert {name for name in files(root) if layout.snapshots.parse_name(name)} == in_use


def test_recent_files_are_kept(tmp_path: Path, generation: str) -> None:
    """Files newer than the cutoff are kept, and so are all files that recent snapshots need."""
    root = tmp_path / "repo"
    repository, ids = make_history(root, generation)
    for name in files(root):
        os.utime(root / name, (written_at(5).timestamp(),) * 2)
    assert repository.garbage_collect(written_at(5)) == GCSummary()
    # Recent unreachable snapshots need their chunks; the unused chunk is deleted.
    for name in files(root):
        if find_kind(name, generation) == "chunks":
            os.utime(root / name, (written_at(4).timestamp(),) * 2)
    summary = repository.garbage_collect(written_at(5))
    assert (summary.chunks_deleted, summary.snapshots_deleted) == (3, 0)
    assert all(read_snapshot(repository, snapshot_id) for snapshot_id in ids[1:])


def test_foreign_files_are_kept(tmp_path: Path, generation: str) -> None:
    """Files whose names are not ids are kept, and so are backups of ``repo``, for the ops log."""
    root = tmp_path / "repo"
    repository, _ = make_history(root, generation)
    layout = get_generation(generation).layout
    foreign = [
        layout.chunks.format_key("README"),
        layout.chunks.format_key("sub/0123456789ABCDEFGHJK"),
        layout.snapshots.format_key("0123456789abcdefghj0"),
        layout.manifests.format_key(".hidden"),
    ]
    foreign += ["other/0123456789ABCDEFGHJ0", "overwritten/repo.x"]
    for name in foreign:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"precious")
        os.utime(root / name, (0, 0))
    assert repository.garbage_collect(_now()).chunks_deleted
    assert all((root / name).read_bytes() == b"precious" for name in foreign)
    if get_generation(generation).has_repo_info:
        assert len(list(repository.ops_log())) > 15


def test_packs(tmp_path: Path, generation: str) -> None:
    """A pack is kept while any of its chunks is live, and deleted with the last."""
    root = tmp_path / "repo"
    packing = RepositoryConfig(packing=PackingConfig(max_chunk_bytes=10_000))
    packing.inline_chunk_threshold_bytes = 0
    repository = Repository.create(LocalStorage(root), packing, generation=generation)
    session = repository.writable_session("main")
    for row in range(4):
        write(session, "a", row, row + 1)
    session.commit("four rows in one pack")
    for row in (0, 1, 2):
        commit(repository, "a", row, 10 + row)
    chunks = get_generation(generation).layout.chunks
    assert len(list((root / chunks.prefix).iterdir())) == 4
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
def test_missing_files(tmp_path: Path, generation: str, kind: str) -> None:
    """If a file that a branch needs is missing, nothing is deleted: its references are unknown."""
    root = tmp_path / "repo"
    repository, ids = make_history(root, generation)
    name = ids[5] if kind == "snapshots" else repository.list_manifest_files(ids[6])[0].id
    (root / getattr(get_generation(generation).layout, kind).format_key(name)).unlink()
    before = files(root)
    with pytest.raises(ObjectNotFoundError):
        Repository.open(LocalStorage(root)).garbage_collect(_now())
    assert files(root) == before


def test_killed_collections(tmp_path: Path, generation: str) -> None:
    """A collection killed at any request keeps all live files, and the next one completes."""
    root = tmp_path / "repo"
    repository, _ = make_history(root, generation)
    before = read_everything(repository)
    deaths = 0
    for dies_at in range(1000):

        def fail(number: int, name: str, key: str, dies_at: int = dies_at) -> None:
            if number == dies_at:
                raise KeyboardInterrupt

        try:
            storage = FaultyStorage(LocalStorage(root), fail, fail_after=fail)
            collect_garbage(storage, get_generation(generation), older_than=_now())
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


def test_failing_deletes(tmp_path: Path, generation: str) -> None:
    """After a failure no referenced file is deleted, and the summary reports it."""
    has_logs = get_generation(generation).has_transaction_logs
    failing = "transaction_logs" if has_logs else "manifests"
    root = tmp_path / "repo"
    repository, _ = make_history(root, generation)
    before = files(root)

    def fail(number: int, name: str, key: str) -> None:
        if name == "delete_many" and find_kind(key, generation) == failing:
            raise StorageError("no deleting today")

    storage = FaultyStorage(LocalStorage(root), fail)
    summary = collect_garbage(storage, get_generation(generation), older_than=_now())
    assert summary.snapshots_deleted == len(before - files(root)) > 0
    assert summary.objects_failed_to_delete > 0
    assert summary.delete_errors == ["no deleting today"]
    assert summary.skipped_phases == (
        ["manifests", "chunks"] if has_logs else ["attributes", "chunks"]
    )
    with pytest.raises(StorageError, match="no deleting today") as raised:
        collect_garbage(
            storage,
            get_generation(generation),
            older_than=_now(),
            delete_limits=DeleteLimits(10, 1),
        )
    assert raised.value.kind is ErrorKind.GC_DELETES_FAILING
    assert repository.garbage_collect(_now()).skipped_phases == []


def test_throttled_deletes_are_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Throttling is not a failure."""
    monkeypatch.setattr("icefloe.maintenance.sweep._FIRST_PAUSE_S", 0.001)
    make_history(tmp_path / "repo", "v2")
    asked: list[str] = []

    def fail(number: int, name: str, key: str) -> None:
        if name == "delete_many" and len(asked) < 3:
            asked.append(key)
            raise StorageError("slow down", kind=ErrorKind.THROTTLED)

    storage = FaultyStorage(LocalStorage(tmp_path / "repo"), fail)
    summary = collect_garbage(storage, V2, older_than=_now())
    assert (summary.throttled_batches, summary.objects_failed_to_delete) == (3, 0)
    assert summary.chunks_deleted


def test_progress(tmp_path: Path, generation: str) -> None:
    """The progress callback gets every phase, in order, up to its end."""
    make_history(tmp_path / "repo", generation)
    steps: list[Step] = []
    storage = LocalStorage(tmp_path / "repo")
    collect_garbage(storage, get_generation(generation), older_than=_now(), progress=steps.append)
    phases = list(dict.fromkeys(step.phase for step in steps))
    expected = [Phase.DELETE_SNAPSHOTS, Phase.DELETE_MANIFESTS, Phase.DELETE_CHUNKS]
    if get_generation(generation).has_transaction_logs:
        expected.insert(1, Phase.DELETE_TRANSACTION_LOGS)
    assert [phase for phase in phases if phase in expected] == expected
    assert phases[-1] == Phase.DELETE_CHUNKS
    assert steps[-1].done == steps[-1].total
    assert all(step.done <= step.total for step in steps)


def test_concurrent_requests(generation: str) -> None:
    """Remote storage gets concurrent requests, within the limits, with the same result."""
    storage, repository, _ = _garbage_and_session(generation)
    for number in range(6):
        repository.create_branch(f"branch-{number}", repository.lookup_branch("main"))
        commit(repository, "a", 2, number + 1, branch=f"branch-{number}")
    before = read_everything(repository)
    counting = CountingStorage(LatencyStorage(storage, read_latency_ms=20))
    summary = collect_garbage(
        counting,
        get_generation(generation),
        older_than=_now(),
        read_limits=ReadLimits(max_snapshots_in_memory=4, max_concurrent_manifest_fetches=3),
    )
    assert summary.snapshots_deleted == 1
    assert 1 < counting.most_at_once("get") <= 4
    assert read_everything(Repository.open(storage)) == before


def test_read_only_storage(tmp_path: Path, generation: str) -> None:
    """On read-only storage a dry run works, and a collection fails immediately."""
    make_history(tmp_path / "repo", generation)
    storage = _ReadOnly(LocalStorage(tmp_path / "repo"))
    assert collect_garbage(
        storage, get_generation(generation), older_than=_now(), dry_run=True
    ).chunks_deleted
    with pytest.raises(ReadOnlyError):
        collect_garbage(storage, get_generation(generation), older_than=_now())


class _ReadOnly(ForwardingStorage):
    @property
    def read_only(self) -> bool:
        return True


def test_requests(tmp_path: Path) -> None:
    """Version 2: four listings, each live snapshot and manifest once, ``repo`` once per phase."""
    root = tmp_path / "repo"
    repository, _ = make_history(root, "v2")
    kept = read_everything(repository)
    manifests = {info.id for name in kept for info in repository.list_manifest_files(name)}
    counting = CountingStorage(LocalStorage(root))
    collect_garbage(counting, V2, older_than=_now())
    gets = counting.keys("get")
    assert sorted(key for key in gets if key != "repo") == sorted(
        [f"snapshots/{name}" for name in kept] + [f"manifests/{name}" for name in manifests]
    )
    assert gets.count("repo") == 1  # then the change, and a look for each phase
    assert counting.keys("get_if_changed") == ["repo"] * (1 + 4)
    counts = counting.counts()
    assert counts["list"] == counts["delete_many"] == 4 + 1  # one for marks of collections
    assert counts["put"] == 3  # a mark, `repo` and its backup


@pytest.mark.parametrize("generation", ["draft", "v1", "v2"])  # sequence has no order
def test_manifests_are_read_until_no_chunk_is_in_doubt(generation: str) -> None:
    """Without garbage, the newest manifest settles the matter; the listings are concurrent."""
    storage = MemoryStorage()
    repository = Repository.create(storage, UNPACKED, generation=generation)
    for row in range(4):
        commit(repository, "a", row, row + 1)
    counting = CountingStorage(LatencyStorage(storage, read_latency_ms=20))
    limits = ReadLimits(max_concurrent_manifest_fetches=1)
    kinds = get_generation(generation)
    summary = collect_garbage(counting, kinds, older_than=_now(), read_limits=limits)
    assert (summary.chunks_deleted, summary.manifests_deleted) == (0, 0)
    manifests = kinds.layout.manifests
    assert len([key for key in counting.keys("get") if manifests.parse_name(key)]) == 1
    snapshots = kinds.layout.snapshots
    assert len([key for key in counting.keys("get") if snapshots.parse_name(key)]) == 5
    assert counting.most_at_once("list") == 4


def test_ancestors_are_read_ahead() -> None:
    """In version 1, ancestors are read concurrently, each once, with a bounded surplus."""
    storage = MemoryStorage()
    repository = Repository.create(storage, UNPACKED, generation="v1")
    for number in range(40):
        commit(repository, "a", 0, number + 1)
    live = {info.id for info in repository.ancestry(branch="main")}
    for number in range(60):  # garbage that is newer than all ancestors
        commit(repository, "a", 1, number + 1)
    tip = next(info.id for info in repository.ancestry(branch="main") if info.id in live)
    newest = repository.lookup_branch("main")
    repository.reset_branch("main", tip)
    storage.put(f"snapshots/{newest}", b"damaged garbage", Overwrite())
    counting = CountingStorage(LatencyStorage(storage, read_latency_ms=1))
    summary = collect_garbage(counting, get_generation("v1"), older_than=_now())
    assert summary.snapshots_deleted == 60
    read = [key.removeprefix("snapshots/") for key in counting.keys("get") if "snapshots/" in key]
    assert len(read) == len(set(read))
    assert live <= set(read)
    assert len(read) <= len(live) + 32
    counting.forget()
    assert collect_garbage(counting, get_generation("v1"), older_than=_now()) == GCSummary()
    assert sum("snapshots/" in key for key in counting.keys("get")) == len(live)
    assert counting.most_at_once("get") > 8


def test_a_missing_ancestor_that_would_be_read_ahead() -> None:
    """In version 1, a damaged ancestor stops the collection, also if it was read ahead."""
    storage = MemoryStorage()
    repository = Repository.create(storage, UNPACKED, generation="v1")
    for number in range(4):
        commit(repository, "a", 0, number + 1)
    damaged = [info.id for info in repository.ancestry(branch="main")][2]
    storage.put(f"snapshots/{damaged}", b"damaged", Overwrite())
    files = {info.key for info in storage.list()}
    slow = LatencyStorage(storage, read_latency_ms=1)
    with pytest.raises(FormatError, match=damaged):
        collect_garbage(slow, get_generation("v1"), older_than=_now())
    assert {info.key for info in storage.list()} == files


def _garbage_and_session(generation: str) -> tuple[MemoryStorage, Repository, str]:
    storage = MemoryStorage()
    repository = Repository.create(storage, UNPACKED, generation=generation)
    commit(repository, "a", 0, 1)
    unreachable = commit(repository, "a", 1, 2)
    repository.reset_branch("main", next(repository.ancestry(snapshot_id=unreachable)).parent_id)  # type: ignore[arg-type]
    return storage, repository, unreachable


def test_commits_during_a_collection(generation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit of files older than the cutoff loses nothing, at any time, or it is refused."""
    monkeypatch.setattr(commit_check, "MAX_UNCHECKED_AGE_S", -1)  # the session counts as old
    outcomes = []
    for at in range(_count_requests(generation)):
        storage, reason, _ = _commit_at(at, generation)
        outcomes.append((len(read_everything(Repository.open(storage))), reason))
    kept, refused = (3, None), (2, ErrorKind.COLLECTION_RUNNING)
    lost = (2, ErrorKind.COLLECTED_BEFORE_COMMIT)
    assert {kept, refused} <= set(outcomes) <= {kept, refused, lost}
    assert len(outcomes) > 10


def test_commits_of_young_sessions_during_a_collection(generation: str) -> None:
    """Generations without an ops log keep old chunks until the last check for new commits.

    This is more than is documented: the cutoff is later than the start of the session.
    """
    if generation == "v2":
        return
    at = 0
    while (found := _commit_at(at, generation))[2]:
        assert len(read_everything(Repository.open(found[0]))) == 3, f"lost before request {at}"
        at += 1
    assert at > 10


def _count_requests(generation: str) -> int:
    storage, _, _ = _garbage_and_session(generation)
    counting = CountingStorage(storage)
    collect_garbage(counting, get_generation(generation), older_than=_now() + timedelta(days=1))
    return len(counting.calls)


def _commit_at(at: int, generation: str) -> tuple[MemoryStorage, ErrorKind | None, bool]:
    """Commit before one request of a collection.

    Returns the storage, the reason if the commit was refused, and whether the request was before
    the last check for new commits.
    """
    storage, repository, _ = _garbage_and_session(generation)
    session = repository.writable_session("main")
    write(session, "b", 0, 42)
    requests: list[tuple[str, str]] = []
    refused: ErrorKind | None = None

    def commit_once(number: int, name: str, key: str) -> None:
        nonlocal refused
        requests.append((name, key))
        if number == at:
            try:
                session.commit("in between")
            except SessionStateError as error:
                refused = error.kind

    collect_garbage(
        FaultyStorage(storage, commit_once),
        get_generation(generation),
        older_than=_now() + timedelta(days=1),
    )
    deletion = requests.index(("delete_many", _first_deleted_chunk(requests, generation)))
    # The tip of a branch is found by a bounded listing, or by the request before the deletion.
    listings = [n for n, (name, _) in enumerate(requests[:deletion]) if name == "list_first"]
    last_check = listings[-1] if listings else deletion - 1
    return storage, refused, at < last_check


def _first_deleted_chunk(requests: list[tuple[str, str]], generation: str) -> str:
    deleted = [key for name, key in requests if name == "delete_many"]
    return next(key for key in deleted if find_kind(key, generation) == "chunks")


def test_new_branch_at_an_unreachable_snapshot(generation: str) -> None:
    """A new branch at a snapshot that is being collected keeps it and its files."""
    storage, repository, unreachable = _garbage_and_session(generation)
    expected = read_snapshot(repository, unreachable)

    def create(number: int, name: str, key: str) -> None:
        # The collection has already marked the live files.
        if name == "get" and find_kind(key, generation) == "manifests" and not created:
            created.append(key)
            repository.create_branch("again", unreachable)

    created: list[str] = []
    summary = collect_garbage(
        FaultyStorage(storage, create), get_generation(generation), older_than=_now()
    )
    assert created
    assert summary.snapshots_deleted == 0
    assert read_everything(Repository.open(storage))[unreachable] == expected


def test_commit_on_a_snapshot_being_collected() -> None:
    """Version 2: a commit on a snapshot that is being collected restarts the collection."""
    storage, repository, unreachable = _garbage_and_session("v2")
    repository.create_branch("again", unreachable)
    session = repository.writable_session("again")
    write(session, "a", 2, 3)
    repository.delete_branch("again")
    flushed: list[str] = []

    def flush(number: int, name: str, key: str) -> None:
        if name == "get" and key.startswith("manifests/") and not flushed:
            flushed.append(session.flush("detached"))

    collect_garbage(FaultyStorage(storage, flush), V2, older_than=_now())
    info = Repository.open(storage).lookup_snapshot(flushed[0])
    # Its old parent is collected; the log of the parent is kept.
    assert info.parent_id != unreachable
    assert read_snapshot(Repository.open(storage), flushed[0])["a"]
    log = Repository.open(storage).diff(
        from_snapshot_id=str(info.parent_id), to_snapshot_id=flushed[0]
    )
    assert sorted(log.updated_chunks["/a"]) == [[row, part] for row in (1, 2) for part in range(3)]


def test_uploads_of_killed_writers_are_deleted(tmp_path: Path) -> None:
    """The staged file of a killed writer is deleted, that of a running writer is kept."""
    root = tmp_path / "repo"
    repository, _ = make_history(root, "v2")
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
