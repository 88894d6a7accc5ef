"""Branches of the generation ``sequence``: series of files that are only created."""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

import pytest

from icefloe.errors import (
    ConflictError,
    ErrorKind,
    FormatError,
    InvalidInputError,
    OutcomeUnknownError,
    RefNotFoundError,
    RepositoryNotFoundError,
    SnapshotNotFoundError,
    StorageError,
)
from icefloe.format.generation import SEQUENCE
from icefloe.format.sequence.keys import format_branch_key, format_tag_key
from icefloe.format.sequence.ref import RefData, decode_ref, encode_ref
from icefloe.model.config import RepositoryConfig
from icefloe.refs import create_refs, open_refs
from icefloe.refs.branch_sequences import BranchSequences
from icefloe.refs.retention import ExpirationPolicy
from icefloe.storage import Create, LocalStorage, MemoryStorage, Overwrite
from icefloe.storage.interface import UpdateIfMatch
from support.counting_refs_storage import CountingStorage
from support.faulty_storage import FaultyStorage
from support.ref_snapshots import write_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from icefloe.model.byte_range import ByteRange
    from icefloe.model.ids import SnapshotId
    from icefloe.model.snapshot import SnapshotInfo
    from icefloe.storage import Fetched, ObjectInfo, PutMode, Storage, Version

FIRST = SEQUENCE.initial_snapshot_id
NOW = datetime.now(UTC)
LATER = NOW + timedelta(days=1)


def commit(storage: Storage, branch: str = "main", message: str = "a commit") -> SnapshotId:
    refs = BranchSequences(storage)
    parent = refs.fetch_branch(branch)
    info = write_snapshot(storage, SEQUENCE, parent, message)
    refs.commit(branch, parent, info)
    return info.id


def list_numbers(storage: Storage, branch: str = "main") -> list[int]:
    keys = {format_branch_key(branch, number): number for number in range(200)}
    return [keys[info.key] for info in storage.list(f"r/{branch}/")]


def put_ref(storage: Storage, key: str, snapshot_id: SnapshotId = FIRST) -> None:
    storage.put(key, encode_ref(RefData(snapshot_id, NOW)))


def make_refs(storage: Storage) -> BranchSequences:
    refs = create_refs(storage, generation=SEQUENCE)
    assert isinstance(refs, BranchSequences)
    return refs


def test_files(storage: Storage) -> None:
    """Each change of a branch is one more file; a tag is a file beside the branches."""
    refs = make_refs(storage)
    tip = commit(storage)
    refs.create_branch("dev", tip)
    refs.reset_branch("dev", FIRST)
    refs.delete_branch("dev")
    refs.create_tag("dev", tip)
    assert [info.key for info in storage.list("r/")] == [
        "r/dev.json",
        "r/dev/ZZZZZZZX.json",
        "r/dev/ZZZZZZZY.json",
        "r/dev/ZZZZZZZZ.json",
        "r/main/ZZZZZZZY.json",
        "r/main/ZZZZZZZZ.json",
    ]
    assert b'"deleted":true' in bytes(storage.get("r/dev/ZZZZZZZX.json").data)


def test_a_deleted_branch(storage: Storage) -> None:
    """A deleted branch is gone, and a new branch of its name continues the series."""
    refs = make_refs(storage)
    tip = commit(storage)
    refs.create_branch("dev", tip)
    refs.delete_branch("dev")
    for call in (
        lambda: refs.fetch_branch("dev"),
        lambda: refs.delete_branch("dev"),
        lambda: refs.reset_branch("dev", tip),
        lambda: refs.begin_commit("dev", tip),
    ):
        with pytest.raises(RefNotFoundError) as caught:
            call()
        assert caught.value.kind is ErrorKind.BRANCH_NOT_FOUND
    assert refs.fetch_branches() == {"main": tip}
    assert refs.fetch_live_snapshots() == {tip, FIRST}
    refs.create_branch("dev", FIRST)
    assert refs.fetch_branches() == {"main": tip, "dev": FIRST}
    assert list_numbers(storage, "dev") == [2, 1, 0]


def test_a_branch_and_a_tag_of_one_name(storage: Storage) -> None:
    """A branch and a tag of one name are independent."""
    refs = make_refs(storage)
    tip = commit(storage)
    refs.create_tag("main", FIRST)
    assert (refs.fetch_branch("main"), refs.fetch_tag("main")) == (tip, FIRST)
    assert (refs.fetch_branches(), refs.fetch_tags()) == ({"main": tip}, {"main": FIRST})


@pytest.mark.parametrize("name", [".", "..", "v1.json"])
def test_names_that_collide(storage: Storage, name: str) -> None:
    """A branch cannot have the name of the file of a tag, nor one that is not a file name."""
    refs = make_refs(storage)
    for create in (refs.create_branch, refs.create_tag):
        with pytest.raises(InvalidInputError, match="must not be") as caught:
            create(name, FIRST)
        assert caught.value.kind is ErrorKind.INVALID_REF_NAME


@pytest.mark.parametrize(
    "added, removed, file, problem",
    [
        ([4], [], "ZZZZZZZV", "file 3 is missing"),
        ([], [1], "ZZZZZZZX", "file 1 is missing"),
        ([], [0, 1], "ZZZZZZZX", "file 1 is missing"),
        ([4, 3], [2], "ZZZZZZZV", None),
        ([], [0], "ZZZZZZZX", None),
    ],
)
def test_gaps(
    storage: Storage, added: Sequence[int], removed: Sequence[int], file: str, problem: str | None
) -> None:
    """A gap right below the newest file raises; older files may be missing."""
    refs = make_refs(storage)
    for _ in range(2):
        commit(storage)
    for number in added:
        put_ref(storage, format_branch_key("main", number))
    storage.delete_many([format_branch_key("main", number) for number in removed])
    if problem is None:
        assert refs.fetch_branch("main") == refs.fetch_branches()["main"]
        return
    for read in (
        lambda: refs.fetch_branch("main"),
        refs.fetch_branches,
        lambda: open_refs(storage),
    ):
        with pytest.raises(FormatError, match=problem) as caught:
            read()
        assert caught.value.file == f"r/main/{file}.json"


@pytest.mark.parametrize("name", ["ZZZZZZZI.json", "00.json", "Z/ZZZZZZZZ.json", "ZZZZZZZY"])
def test_wrong_names(name: str) -> None:
    """A file whose name is not canonical raises: it could be a second tip."""
    storage = MemoryStorage()
    refs = make_refs(storage)
    put_ref(storage, f"r/main/{name}")
    with pytest.raises(FormatError, match="Crockford") as caught:
        refs.fetch_branches()
    assert caught.value.file == f"r/main/{name}"
    with pytest.raises(FormatError, match="Crockford"):
        refs.collect_ref_files(before=LATER, dry_run=False)
    if name < "ZZZZZZZZ.json":  # among the first when listed
        with pytest.raises(FormatError, match="Crockford"):
            refs.fetch_branch("main")


def test_a_listing_that_is_not_atomic() -> None:
    """If a listing misses a file that is created meanwhile, the branch is listed again."""

    class Torn(MemoryStorage):
        """Leaves out the second file of the next listing."""

        is_torn = False

        def list_first(self, prefix: str, limit: int) -> Sequence[ObjectInfo]:
            listed = list(super().list_first(prefix, limit + 1))
            if self.is_torn:
                self.is_torn = False
                del listed[1]
            return listed[:limit]

    storage = Torn()
    refs = make_refs(storage)
    tip = [commit(storage) for _ in range(3)][-1]
    storage.is_torn = True
    assert refs.fetch_branch("main") == tip
    assert not storage.is_torn


def test_a_file_that_is_collected_after_it_was_listed() -> None:
    """A reader whose file was deleted lists again."""

    class Slow(MemoryStorage):
        """Lets others commit, and collects garbage, between a listing and the next get."""

        is_slow = False

        def get(
            self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int | None = None
        ) -> Fetched:
            if self.is_slow and key.startswith("r/"):
                self.is_slow = False
                for _ in range(3):
                    commit(self)
                BranchSequences(self).collect_ref_files(before=LATER, dry_run=False)
            return super().get(key, byte_range, max_bytes=max_bytes)

    storage = Slow()
    refs = make_refs(storage)
    reads: list[Callable[[], SnapshotId]] = [
        lambda: refs.fetch_branch("main"),
        lambda: refs.fetch_branches()["main"],
    ]
    for read in reads:
        storage.is_slow = True
        tip = read()
        assert not storage.is_slow
        assert tip == refs.fetch_branch("main")


class Intruding(MemoryStorage):
    """Runs an action right before, or after, the next creation of a branch file."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[], object] | None = None
        self.after: Callable[[], object] | None = None

    def put(self, key: str, data: bytes | memoryview, mode: PutMode = Overwrite()) -> Version:  # noqa: B008
        if not key.startswith("r/"):
            return super().put(key, data, mode)
        before, self.before = self.before, None
        after, self.after = self.after, None
        if before is not None:
            before()
        version = super().put(key, data, mode)
        if after is not None:
            after()
        return version


def advance_and_collect(storage: Storage, count: int = 4) -> None:
    for _ in range(count):
        commit(storage, message="theirs")
    BranchSequences(storage).collect_ref_files(before=LATER, dry_run=False)


@pytest.mark.parametrize("way", ["commit", "begin_commit"])
def test_a_commit_after_its_file_was_collected(way: str) -> None:
    """A commit whose file replaces a collected one is a conflict, and its file is removed."""
    storage = Intruding()
    refs = make_refs(storage)
    parent = commit(storage)
    info = write_snapshot(storage, SEQUENCE, parent, "ours")
    finish: Callable[[SnapshotInfo], None] = partial(refs.commit, "main", parent)
    if way == "begin_commit":
        finish = refs.begin_commit("main", parent)
    storage.before = lambda: advance_and_collect(storage)
    with pytest.raises(ConflictError) as caught:
        finish(info)
    tip = refs.fetch_branch("main")
    assert caught.value.kind is ErrorKind.COMMIT_CONFLICT
    assert caught.value.actual_parent == str(tip)
    assert list_numbers(storage) == [5, 4]
    messages = [info.message for info in refs.fetch_ancestry(tip)]
    assert messages == ["theirs"] * 4 + ["a commit", "Repository initialized"]


def test_a_commit_with_newer_commits() -> None:
    """A commit on which others are based succeeded, even if its file was collected."""
    storage = Intruding()
    refs = make_refs(storage)
    info = write_snapshot(storage, SEQUENCE, FIRST, "ours")
    storage.after = lambda: advance_and_collect(storage, 60)
    refs.commit("main", FIRST, info)
    assert info.id in [ancestor.id for ancestor in refs.fetch_ancestry(refs.fetch_branch("main"))]
    assert list_numbers(storage) == [61, 60]


def test_a_commit_before_a_reset() -> None:
    """A commit that was the newest succeeded, even if a reset discards it at once."""
    storage = Intruding()
    refs = make_refs(storage)
    info = write_snapshot(storage, SEQUENCE, FIRST, "ours")
    storage.after = lambda: BranchSequences(storage).reset_branch("main", FIRST)
    refs.commit("main", FIRST, info)
    assert refs.fetch_branch("main") == FIRST
    assert list_numbers(storage) == [2, 1, 0]


def test_a_reset_after_its_file_was_collected() -> None:
    """A reset whose file replaces a collected one is repeated, or is a conflict."""
    storage = Intruding()
    refs = make_refs(storage)
    parent = commit(storage)
    storage.before = lambda: advance_and_collect(storage)
    with pytest.raises(ConflictError):
        refs.reset_branch("main", FIRST, expected=parent)
    assert refs.fetch_branch("main") not in (FIRST, parent)
    storage.before = lambda: advance_and_collect(storage)
    refs.reset_branch("main", FIRST)
    assert refs.fetch_branch("main") == FIRST
    assert list_numbers(storage) == [10, 9, 8]


def test_a_commit_that_cannot_be_confirmed() -> None:
    """If the listing after the creation fails, the outcome is unknown, and the file stays."""
    inner = MemoryStorage()
    make_refs(inner)
    listings = 0

    def fail(number: int, name: str, key: str) -> None:
        nonlocal listings
        listings += name == "list_first"
        if listings == 2:
            raise StorageError("unavailable")

    info = write_snapshot(inner, SEQUENCE, FIRST, "ours")
    with pytest.raises(OutcomeUnknownError, match="unavailable"):
        BranchSequences(FaultyStorage(inner, fail)).commit("main", FIRST, info)
    assert BranchSequences(inner).fetch_branch("main") == info.id


def test_racing_commits_and_collection(tmp_path: Path) -> None:
    """Collection of all old files beside racing commits: none is lost, or reported twice."""
    storage = LocalStorage(tmp_path, durable=False)
    refs = make_refs(storage)
    done = threading.Event()

    def collect() -> None:
        while not done.is_set():
            refs.collect_ref_files(before=LATER, dry_run=False)

    def commit_some(name: int) -> list[SnapshotId]:
        ids: list[SnapshotId] = []
        while len(ids) < 6:
            parent = refs.fetch_branch("main")
            info = write_snapshot(storage, SEQUENCE, parent, str(name))
            try:
                refs.commit("main", parent, info)
            except ConflictError:
                continue
            ids.append(info.id)
        return ids

    with ThreadPoolExecutor(5) as pool:
        collecting = pool.submit(collect)
        try:
            ids = [id_ for group in pool.map(commit_some, range(4)) for id_ in group]
        finally:
            done.set()
        collecting.result()
    history = [info.id for info in refs.fetch_ancestry(refs.fetch_branch("main"))]
    assert sorted(history[:-1]) == sorted(ids)
    refs.collect_ref_files(before=LATER, dry_run=False)
    assert list_numbers(storage) == [24, 23]


def test_collection(storage: Storage) -> None:
    """Files older than a time are deleted, except the two newest of each branch, and tags."""
    refs = make_refs(storage)
    for _ in range(3):
        commit(storage)
    refs.create_branch("dev", FIRST)
    for _ in range(3):
        commit(storage, "dev")
    refs.delete_branch("dev")
    refs.create_tag("v1", FIRST)
    before = refs.fetch_branches()
    assert refs.collect_ref_files(before=NOW - timedelta(days=1), dry_run=False) == 0
    sizes = {info.key: info.size_bytes for info in storage.list("r/")}
    collected = [
        *(format_branch_key("dev", number) for number in range(3)),
        *(format_branch_key("main", number) for number in range(2)),
    ]
    num_bytes = sum(sizes[key] for key in collected)
    assert refs.collect_ref_files(before=LATER, dry_run=True) == num_bytes
    assert {info.key for info in storage.list("r/")} == set(sizes)
    assert refs.collect_ref_files(before=LATER, dry_run=False) == num_bytes
    assert {info.key for info in storage.list("r/")} == set(sizes) - set(collected)
    assert [list_numbers(storage, branch) for branch in ("main", "dev")] == [[3, 2], [4, 3]]
    assert (refs.fetch_branches(), refs.fetch_tags()) == (before, {"v1": FIRST})
    assert refs.collect_ref_files(before=LATER, dry_run=False) == 0


def test_only_conditional_creation_is_needed() -> None:
    """Every change of refs works on a storage without conditional updates."""

    class Creating(MemoryStorage):
        """Supports conditional creation, as all object stores, and nothing else."""

        def put(self, key: str, data: bytes | memoryview, mode: PutMode = Overwrite()) -> Version:  # noqa: B008
            if isinstance(mode, UpdateIfMatch):
                raise StorageError("NotImplemented", kind=ErrorKind.OBJECT_STORE)
            assert isinstance(mode, Create) or not key.startswith("r/")
            return super().put(key, data, mode)

    storage = Creating()
    refs = make_refs(storage)
    commit(storage)
    tip = commit(storage)
    refs.create_branch("dev", FIRST)
    refs.reset_branch("dev", tip)
    refs.delete_branch("dev")
    refs.create_tag("v1", tip)
    refs.expire_snapshots(ExpirationPolicy(LATER))
    config = RepositoryConfig(inline_chunk_threshold_bytes=1)
    refs.save_config(config, expected=None)
    with pytest.raises(StorageError, match=r"config\.yaml .* needs conditional updates"):
        refs.save_config(RepositoryConfig(), expected=config)
    assert open_refs(storage).config == config


def write_history(storage: Storage, count: int) -> list[SnapshotInfo]:
    refs = BranchSequences(storage)
    ids = [commit(storage, message=f"main {number}") for number in range(count)]
    return [refs.fetch_snapshot_info(snapshot_id) for snapshot_id in ids]


def test_expiration(storage: Storage) -> None:
    """Histories are cut, no snapshot file changes, and later files of main keep the cut."""
    refs = make_refs(storage)
    infos = write_history(storage, 5)
    refs.create_tag("v1", infos[2].id)
    before = {info.key: info.version for info in storage.list()}
    held = list(refs.fetch_ancestry(infos[-1].id))
    pinned = refs.pin()
    assert pinned.fetch_branch("main") == infos[-1].id
    expired = refs.expire_snapshots(ExpirationPolicy(infos[3].flushed_at))
    assert expired == {info.id for info in infos[:3]}

    def walk(refs: BranchSequences, snapshot_id: SnapshotId) -> list[SnapshotId]:
        return [info.id for info in refs.fetch_ancestry(snapshot_id)]

    main = [infos[4].id, infos[3].id, FIRST]
    assert walk(refs, infos[4].id) == main
    assert walk(refs, infos[2].id) == [infos[2].id, FIRST]
    assert refs.fetch_snapshot_info(infos[3].id).parent_id == FIRST
    after = {info.key: info.version for info in storage.list()}
    assert {key: after[key] for key in before} == before
    assert set(after) - set(before) == {format_branch_key("main", 6)}
    assert [info.id for info in pinned.fetch_ancestry(infos[-1].id)] == [info.id for info in held]
    tip = commit(storage)
    assert walk(refs, tip) == [tip, *main]
    refs.reset_branch("main", infos[4].id)
    assert walk(refs, infos[4].id) == main
    assert walk(open_refs(storage).opening_refs, infos[4].id) == main  # type: ignore[arg-type]
    assert refs.expire_snapshots(ExpirationPolicy(infos[3].flushed_at)) == set()
    assert list_numbers(storage)[0] == 8  # nothing to change, nothing written


def test_new_parents_are_removed_with_their_snapshots() -> None:
    """Parents of snapshots that do not exist any more are not kept."""
    storage = MemoryStorage()
    refs = make_refs(storage)
    infos = write_history(storage, 6)
    for cut in (2, 4):
        refs.expire_snapshots(ExpirationPolicy(infos[cut].flushed_at))
    assert refs.fetch_parents() == {infos[2].id: FIRST, infos[4].id: FIRST}
    storage.delete_many(SEQUENCE.layout.snapshots.format_key(info.id) for info in infos[:4])
    refs.expire_snapshots(ExpirationPolicy(infos[5].flushed_at))
    assert refs.fetch_parents() == {infos[4].id: FIRST, infos[5].id: FIRST}
    assert [info.id for info in refs.fetch_ancestry(infos[5].id)] == [infos[5].id, FIRST]
    with pytest.raises(SnapshotNotFoundError):
        refs.fetch_snapshot_info(infos[3].id)


def test_expiration_beside_commits() -> None:
    """A commit while histories are read is kept, and its history is cut too."""
    storage = Intruding()
    refs = make_refs(storage)
    infos = write_history(storage, 4)
    storage.before = lambda: commit(storage, message="theirs")
    expired = refs.expire_snapshots(ExpirationPolicy(infos[2].flushed_at))
    assert expired == {info.id for info in infos[:2]}
    history = [info.message for info in refs.fetch_ancestry(refs.fetch_branch("main"))]
    assert history == ["theirs", "main 3", "main 2", "Repository initialized"]


def test_a_commit_beside_expiration() -> None:
    """A commit that finds the file of an expiration in its place takes the next one."""
    storage = Intruding()
    refs = make_refs(storage)
    infos = write_history(storage, 4)
    policy = ExpirationPolicy(infos[2].flushed_at)
    storage.before = lambda: BranchSequences(storage).expire_snapshots(policy)
    tip = commit(storage)
    history = [info.id for info in refs.fetch_ancestry(tip)]
    assert history == [tip, infos[3].id, infos[2].id, FIRST]


def test_expiration_of_branches_and_tags(storage: Storage) -> None:
    """Expired branches are deleted; tags cannot be, which raises before anything is written."""
    refs = make_refs(storage)
    commit(storage)
    refs.create_branch("dev", refs.fetch_branch("main"))
    commit(storage, "dev")
    commit(storage)
    before = {info.key: info.version for info in storage.list()}
    with pytest.raises(FormatError, match="v1 or v2") as caught:
        refs.expire_snapshots(ExpirationPolicy(LATER, delete_expired_tags=True))
    assert caught.value.kind is ErrorKind.UNSUPPORTED_OPERATION_FOR_VERSION
    assert {info.key: info.version for info in storage.list()} == before
    refs.expire_snapshots(ExpirationPolicy(LATER, delete_expired_branches=True))
    assert set(refs.fetch_branches()) == {"main"}
    assert len(list(refs.fetch_ancestry(refs.fetch_branch("main")))) == 2


def test_unreadable_history_expires_nothing() -> None:
    """If a history cannot be read, nothing is written."""
    storage = MemoryStorage()
    refs = make_refs(storage)
    infos = write_history(storage, 60)
    # The first after the 50 that the newest file lists.
    storage.delete_many([SEQUENCE.layout.snapshots.format_key(infos[8].id)])
    before = [info.key for info in storage.list("r/")]
    with pytest.raises(SnapshotNotFoundError):
        refs.expire_snapshots(ExpirationPolicy(LATER))
    assert [info.key for info in storage.list("r/")] == before


def test_requests_of_history() -> None:
    """A snapshot file lists 50 ancestors, and each file is one request."""
    inner = MemoryStorage()
    make_refs(inner)
    ids = [commit(inner) for _ in range(120)]
    storage = CountingStorage(inner)
    refs = BranchSequences(storage).pin()
    tip = refs.fetch_branch("main")
    assert storage.requests == {"list_first r/main/": 1, f"get {format_branch_key('main', 120)}": 1}
    storage.requests.clear()
    history = list(refs.fetch_ancestry(tip))
    assert [info.id for info in history] == [*reversed(ids), FIRST]
    assert [info.parent_id for info in history] == [*(info.id for info in history[1:]), None]
    assert storage.requests.total() == 3
    storage.requests.clear()
    assert len(list(refs.fetch_ancestry(ids[49]))) == 51
    assert storage.requests.total() == 1


def test_opening_a_long_branch() -> None:
    """Opening lists one page and reads the newest file, after files of other generations."""
    inner = MemoryStorage()
    make_refs(inner)
    tip = write_snapshot(inner, SEQUENCE, FIRST, "the last of many").id
    for number in range(1, 10_000):
        put_ref(inner, format_branch_key("main", number), tip)
    storage = CountingStorage(inner)
    opened = open_refs(storage)
    assert opened.opening_refs.fetch_branch("main") == tip
    next(opened.opening_refs.fetch_ancestry(tip))
    assert storage.requests == {
        "get repo": 1,
        "get refs/branch.main/ref.json": 1,
        "get state.json": 1,
        "get config.yaml": 1,
        "list_first r/main/": 1,
        f"get {format_branch_key('main', 9_999)}": 1,
        f"get {SEQUENCE.layout.snapshots.format_key(tip)}": 1,
    }


def test_pickles(storage: Storage) -> None:
    """Refs pickle with the state that they hold."""
    if isinstance(storage, MemoryStorage):
        pytest.skip("does not pickle")
    make_refs(storage)
    opened = open_refs(storage)
    commit(storage)
    copy = pickle.loads(pickle.dumps(opened))  # noqa: S301
    assert copy.opening_refs.fetch_branch("main") == FIRST
    assert copy.refs.fetch_branch("main") != FIRST


def test_a_deleted_main_is_no_repository() -> None:
    """The branch main cannot be deleted by any writer."""
    storage = MemoryStorage()
    make_refs(storage)
    data = encode_ref(RefData(FIRST, NOW, is_deleted=True))
    storage.put(format_branch_key("main", 1), data)
    with pytest.raises(FormatError, match="main is deleted"):
        open_refs(storage)


def test_storages_that_cannot_list() -> None:
    """A storage that cannot list has no repository of this generation, which is no other error."""

    class Unlistable(MemoryStorage):
        """Cannot list, as a web server."""

        def list_first(self, prefix: str, limit: int) -> Sequence[ObjectInfo]:
            raise StorageError("cannot list", kind=ErrorKind.UNIMPLEMENTED)

    with pytest.raises(RepositoryNotFoundError):
        open_refs(Unlistable())


def test_lost_responses_of_tags() -> None:
    """A tag whose response was lost exists, or its outcome is unknown."""
    inner = MemoryStorage()
    make_refs(inner)

    def lose(number: int, name: str, key: str) -> None:
        if name == "put":
            raise OutcomeUnknownError("lost")

    BranchSequences(FaultyStorage(inner, fail_after=lose)).create_tag("v1", FIRST)
    assert BranchSequences(inner).fetch_tag("v1") == FIRST
    with pytest.raises(OutcomeUnknownError):
        BranchSequences(FaultyStorage(inner, lose)).create_tag("v2", FIRST)
    assert decode_ref(inner.get(format_tag_key("v1")).data, "").snapshot_id == FIRST
