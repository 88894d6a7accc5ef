"""What is special about a storage in a local file system."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from icefloe.errors import (
    InvalidInputError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    StorageError,
)
from icefloe.model.byte_range import Bounded
from icefloe.storage import (
    Create,
    Fresh,
    LocalStorage,
    Overwrite,
    PutMode,
    UpdateIfMatch,
    Version,
    write_back,
)
from icefloe.storage import local as local_module

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "some" / "repository"


@pytest.fixture
def storage(root: Path) -> LocalStorage:
    return LocalStorage(root)


def test_opening_and_reading_create_nothing(root: Path, storage: LocalStorage) -> None:
    """Only a put makes directories."""
    assert list(storage.list()) == []
    with pytest.raises(ObjectNotFoundError):
        storage.get("repo")
    storage.delete_many(["repo", "refs/x"])
    with pytest.raises(PreconditionFailedError):
        storage.put("repo", b"x", UpdateIfMatch(Version("1")))
    assert not root.parent.exists()
    storage.put("repo", b"x")
    assert [path.name for path in root.iterdir()] == ["repo"]


def test_puts_leave_nothing_but_the_objects(root: Path, storage: LocalStorage) -> None:
    """Neither locks nor staged files stay in the directory that others read."""
    version = storage.put("refs/main", b"1", Create())
    storage.put("refs/main", b"2", UpdateIfMatch(version))
    storage.put("chunks/A", b"3")
    for refused in (Create(), UpdateIfMatch(version)):
        with pytest.raises(PreconditionFailedError):
            storage.put("refs/main", b"4", refused)
    storage.copy("chunks/A", "chunks/B")
    storage.delete_many(["chunks/A"])
    files = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
    assert files == ["chunks/B", "refs/main"]


def test_versions_never_repeat(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the clock stands still and inodes come back, A, B, A are three versions."""
    monkeypatch.setattr(time, "time_ns", lambda: 1_800_000_000_000_000_000)
    versions = [storage.put("repo", b"AB"[i % 2 : i % 2 + 1]) for i in range(50)]
    assert len(set(versions)) == 50
    with pytest.raises(PreconditionFailedError):
        storage.put("repo", b"A", UpdateIfMatch(versions[0]))


def test_deleted_and_created_again_is_another_version(root: Path) -> None:
    """An update on a version from before a deletion is refused, also for the same content."""
    storage = LocalStorage(root, durable=False)  # many within one tick of the kernel's clock
    seen = set()
    for _ in range(50):
        seen.add(storage.put("repo", b"same", Create()))
        storage.delete_many(["repo"])
    assert len(seen) == 50


def test_a_reader_keeps_its_version(root: Path, storage: LocalStorage) -> None:
    """Readers that run beside a writer get one version whole, with the version that it has."""
    contents = {storage.put("repo", bytes([n]) * 100_000): n for n in range(1)}
    stop = threading.Event()
    problems: list[str] = []

    def read() -> None:
        while not stop.is_set():
            fetched = storage.get("repo")
            data = bytes(fetched.data)
            if data != data[:1] * 100_000:
                problems.append("mixed")

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(1, 100):
        contents[storage.put("repo", bytes([number]) * 100_000)] = number
    stop.set()
    for reader in readers:
        reader.join()
    assert problems == []
    assert len(contents) == 100


def test_create_without_hard_links(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the file system has no hard links, a create is still refused the second time."""

    def no_link(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_link)
    version = storage.put("refs/main", b"1", Create())
    with pytest.raises(PreconditionFailedError):
        storage.put("refs/main", b"2", Create())
    assert storage.head("refs/main").version == version
    barrier = threading.Barrier(8)
    results: list[bool] = []

    def race() -> None:
        barrier.wait()
        try:
            storage.put("refs/raced", b"x", Create())
            results.append(True)
        except PreconditionFailedError:
            results.append(False)

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [False] * 7 + [True]


def test_locks_where_directories_cannot_be_locked(
    root: Path, storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on NFS, a lock file takes the directory's place, and no listing shows it."""
    original: Callable[[int, int], None] = fcntl.flock

    def flock_of_files(fd: int, operation: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{fd}"):  # noqa: PTH112
            raise OSError(errno.EBADF, "Bad file descriptor")
        original(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock_of_files)
    storage.put("counter", b"0")

    def increment() -> None:
        for _ in range(10):
            while True:
                fetched = storage.get("counter")
                following = str(int(bytes(fetched.data)) + 1).encode()
                try:
                    storage.put("counter", following, UpdateIfMatch(fetched.info.version))
                    break
                except PreconditionFailedError:
                    continue

    threads = [threading.Thread(target=increment) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bytes(storage.get("counter").data) == b"40"
    assert [info.key for info in storage.list()] == ["counter"]
    assert (root / "lock#0").exists()


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note what is flushed and published, in order."""
    record: list[str] = []
    fsync, link, rename = os.fsync, os.link, os.rename
    sync_file_system = write_back.sync_file_system

    def record_sync(descriptor: int) -> None:
        record.append("flush all")
        sync_file_system(descriptor)

    def record_fsync(fd: int) -> None:
        record.append("flush " + Path(f"/proc/self/fd/{fd}").readlink().name.partition("#")[0])
        fsync(fd)

    def record_link(source: str, target: str) -> None:
        record.append("link")
        link(source, target)

    def record_rename(source: str, target: str) -> None:
        record.append("rename")
        rename(source, target)

    monkeypatch.setattr(write_back, "sync_file_system", record_sync)
    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "link", record_link)
    monkeypatch.setattr(os, "rename", record_rename)
    return record


def test_flush_order(root: Path, events: list[str]) -> None:
    """Fresh puts flush nothing; before a ref appears all is on disk, and its name after it."""
    storage = LocalStorage(root)
    storage.put("chunks/A", b"x", Fresh())
    storage.put("refs/other", b"x")
    events.clear()
    storage.put("chunks/B", b"x", Fresh())
    assert events == []
    version = storage.put("refs/main", b"x", Create())
    assert events == ["flush all", "flush staged", "link", "flush refs"]
    events.clear()
    storage.put("refs/main", b"y", UpdateIfMatch(version))
    assert events == ["flush all", "flush staged", "rename", "flush refs"]
    events.clear()
    storage.put("refs/main", b"z", Overwrite())
    assert events == ["flush all", "flush staged", "rename", "flush refs"]
    events.clear()
    # It has put nothing itself, but others may have.
    LocalStorage(root).put("repo", b"x", Create())
    assert events == ["flush all", "flush staged", "link", "flush repository"]
    events.clear()
    with pytest.raises(PreconditionFailedError):
        storage.put("refs/main", b"y", UpdateIfMatch(version))
    assert events == []


def test_every_disk_is_flushed_once(
    root: Path, storage: LocalStorage, events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory of data that lies on another disk is flushed with the root's."""
    storage.put("chunks/A", b"x", Fresh())
    storage.put("manifests/A", b"x", Fresh())
    stat: Callable[..., os.stat_result] = os.stat

    def stat_of_two_disks(path: str, **options: bool) -> os.stat_result:
        found = stat(path, **options)
        if str(path).endswith("/chunks"):
            return os.stat_result([*found[:2], found.st_dev + 1, *found[3:]])
        return found

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", stat_of_two_disks)
        events.clear()
        LocalStorage(root).put("repo", b"x", Create())
    assert events.count("flush all") == 2


@pytest.mark.parametrize("mode", [Create(), Overwrite()])
def test_nothing_is_published_after_the_disk_lost_something(
    root: Path, storage: LocalStorage, monkeypatch: pytest.MonkeyPatch, mode: PutMode
) -> None:
    """The kernel tells of lost writes once, so a second try must not succeed either."""
    storage.put("chunks/A", b"x", Fresh())
    with monkeypatch.context() as patch:

        def broken(_: int) -> int:
            raise OSError(errno.EIO, "Input/output error")

        patch.setattr(write_back, "sync_file_system", broken)
        with pytest.raises(StorageError, match="reopen the storage"):
            storage.put("repo", b"x", mode)
    with pytest.raises(StorageError, match="Input/output error"):
        storage.put("repo", b"x", mode)
    assert not (root / "repo").exists()
    LocalStorage(root).put("repo", b"x", mode)


def test_flushing_without_syncfs(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system has none, or a sandbox refuses it, the older call takes its place."""
    storage.put("chunks/A", b"x", Fresh())
    synced: list[str] = []
    monkeypatch.setattr(os, "sync", lambda: synced.append("sync"))

    def refused(_: int) -> int:
        ctypes.set_errno(errno.ENOSYS)
        return -1

    for missing in (None, refused):
        monkeypatch.setattr(write_back, "_syncfs", missing)
        storage.put("repo", b"x")
    assert synced == ["sync", "sync"]

    def fails(_: int) -> int:
        ctypes.set_errno(errno.ENOSPC)
        return -1

    monkeypatch.setattr(write_back, "_syncfs", fails)
    with pytest.raises(StorageError, match="No space left"):
        storage.put("repo", b"y")


def test_descriptors_end_with_the_storage(root: Path) -> None:
    """The directory that is held open to notice lost writes is closed again."""

    def held() -> list[str]:
        # Only those of this storage: connections of other tests may end meanwhile.
        links = [os.path.realpath(file) for file in Path("/proc/self/fd").iterdir()]
        return [link for link in links if Path(link).is_relative_to(root)]

    storage = LocalStorage(root)
    storage.put("chunks/A", b"x", Fresh())
    assert held()
    del storage
    assert held() == []
    for _ in range(5):
        LocalStorage(root).put("chunks/" + os.urandom(8).hex(), b"x", Fresh())
        LocalStorage(root).put("repo", b"x")
    assert held() == []


def test_commits_flush_no_directories_of_strangers(
    tmp_path: Path, storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What may not be opened, as the ``lost+found`` of a disk, stops no commit; nor do links."""
    root = tmp_path / "some" / "repository"
    storage.put("chunks/A", b"x")
    (root / "lost+found").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (root / "link").symlink_to(tmp_path / "elsewhere")
    watched: list[str] = []
    plain_watch = write_back.WriteBack.watch

    def watch_or_refuse(self: write_back.WriteBack, directory: str) -> None:
        watched.append(Path(directory).name)
        if directory.endswith("lost+found"):
            raise PermissionError(errno.EACCES, "Permission denied", directory)
        plain_watch(self, directory)

    monkeypatch.setattr(write_back.WriteBack, "watch", watch_or_refuse)
    version = storage.put("repo", b"1", Create())
    storage.put("repo", b"2", UpdateIfMatch(version))
    assert {"chunks", "lost+found", "repository"} == set(watched)
    watched.clear()
    version = storage.put("refs/main", b"1", Create())
    LocalStorage(root, follow_symlinks=True).put("refs/main", b"2", UpdateIfMatch(version))
    assert watched.count("link") == 1


def test_undurable_storages_flush_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``durable=False`` no put waits for the disk, and conditions still hold."""

    def no_flush(_: int) -> None:
        raise AssertionError("flushed")

    monkeypatch.setattr(os, "fsync", no_flush)
    monkeypatch.setattr(write_back, "sync_file_system", no_flush)
    storage = LocalStorage(root, durable=False)
    storage.put("chunks/A", b"x", Fresh())
    version = storage.put("refs/main", b"x", Create())
    storage.put("refs/main", b"y", UpdateIfMatch(version))
    storage.delete_many(["refs/main"])


def test_fresh_puts_are_three_system_calls(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Open, write, close: a session makes thousands of them."""
    storage.put("chunks/A", b"x", Fresh())
    calls: list[str] = []

    def record(name: str) -> None:
        original = getattr(os, name)

        def call(*arguments: object, **options: object) -> object:
            calls.append(name)
            return original(*arguments, **options)

        monkeypatch.setattr(os, name, call)

    for name in ("open", "write", "pread", "close", "stat", "fstat", "utime", "fsync", "rename"):
        record(name)
    storage.put("chunks/B", b"0123456789", Fresh())
    assert calls == ["open", "write", "close"]
    calls.clear()
    assert storage.get_bytes("chunks/B", 2, 3) == b"234"
    assert calls == ["open", "pread", "close"]


def test_a_fresh_key_is_written_once(root: Path, storage: LocalStorage) -> None:
    """What exists is never touched: an object, a directory, a link to somewhere."""
    storage.put("chunks/A", b"1", Fresh())
    with pytest.raises(PreconditionFailedError):
        storage.put("chunks/A", b"2", Fresh())
    assert bytes(storage.get("chunks/A").data) == b"1"
    (root / "chunks" / "link").symlink_to(root.parent / "elsewhere")
    with pytest.raises(PreconditionFailedError):
        storage.put("chunks/link", b"2", Fresh())
    assert not (root.parent / "elsewhere").exists()
    with pytest.raises(StorageError, match="directory"):
        storage.put("chunks", b"2", Fresh())
    with pytest.raises(StorageError, match="it is the key of an object"):
        storage.put("chunks/A/B", b"2", Fresh())
    with pytest.raises(InvalidInputError, match="uploads in progress"):
        storage.put("chunks/x#12", b"x", Fresh())


def test_fresh_puts_follow_no_links(tmp_path: Path, root: Path) -> None:
    """A directory that is a link is refused, in the first put and after others."""
    storage = LocalStorage(root)
    storage.put("chunks/A", b"1", Fresh())
    (tmp_path / "outside").mkdir()
    (root / "manifests").symlink_to(tmp_path / "outside")
    with pytest.raises(StorageError, match="follow_symlinks=True"):
        storage.put("manifests/A", b"1", Fresh())
    with pytest.raises(StorageError, match="follow_symlinks=True"):
        storage.get_bytes("manifests/A", 0, 1)
    (root / "chunks" / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(StorageError, match="follow_symlinks=True"):
        storage.get_bytes("chunks/link", 0, 1)
    LocalStorage(root, follow_symlinks=True).put("manifests/A", b"1", Fresh())
    assert (tmp_path / "outside" / "A").read_bytes() == b"1"


def test_fresh_puts_outlast_a_removed_directory(root: Path, storage: LocalStorage) -> None:
    """A directory that was removed while empty is created again."""
    storage.put("chunks/A", b"1", Fresh())
    storage.delete_many(["chunks/A"])
    (root / "chunks").rmdir()
    storage.put("chunks/B", b"2", Fresh())
    assert bytes(storage.get_bytes("chunks/B", 0, 1)) == b"2"


def test_short_writes_are_continued(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few bytes the system takes at a time, the object is whole."""
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, memoryview(data).cast("B")[:7]))
    content = os.urandom(100)
    storage.put("chunks/A", content, Fresh())
    storage.put("repo", memoryview(content).cast("H"))
    monkeypatch.undo()
    assert bytes(storage.get("chunks/A").data) == content
    assert bytes(storage.get("repo").data) == content


@pytest.mark.parametrize("call", ["write", "close"])
def test_a_fresh_put_that_fails_leaves_nothing(
    root: Path, storage: LocalStorage, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """When the disk is full, which network file systems say on closing, the part is removed."""
    storage.put("chunks/A", b"x", Fresh())
    write, close = os.write, os.close
    written: list[int] = []

    def full_write(fd: int, data: bytes) -> int:
        if written:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(write(fd, data[:3]))
        return written[0]

    def full_close(fd: int) -> None:
        close(fd)
        raise OSError(errno.EDQUOT, "No space left in the quota")

    monkeypatch.setattr(os, call, full_write if call == "write" else full_close)
    with pytest.raises(StorageError, match="No space left"):
        storage.put("chunks/B", b"0123456789", Fresh())
    monkeypatch.undo()
    assert [path.name for path in (root / "chunks").iterdir()] == ["A"]


def test_large_ranges_are_checked_before_they_are_read(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above a limit the size of the file is looked at first; the bytes are the same."""
    monkeypatch.setattr(local_module, "_MAX_UNCHECKED_BYTES", 5)
    storage.put("chunks/A", b"0123456789", Fresh())
    assert storage.get_bytes("chunks/A", 1, 5) == b"12345"
    assert storage.get_bytes("chunks/A", 1, 6) == b"123456"


def test_a_flush_that_fails_after_the_rename_is_unknown(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is visible but not confirmed is neither success nor failure."""
    version = storage.put("repo", b"1", Create())
    rename = os.rename

    def rename_and_break_the_disk(source: str, target: str) -> None:
        rename(source, target)

        def broken(_: int) -> None:
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(os, "fsync", broken)

    monkeypatch.setattr(os, "rename", rename_and_break_the_disk)
    with pytest.raises(OutcomeUnknownError):
        storage.put("repo", b"2", UpdateIfMatch(version))


def test_a_full_disk_leaves_the_old_object(
    root: Path, storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A put that runs out of space raises, removes its staged file and changes nothing."""
    storage.put("repo", b"old")

    def full(fd: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StorageError, match="No space left"):
        storage.put("repo", b"new")
    assert bytes(storage.get("repo").data) == b"old"
    assert [path.name for path in root.iterdir()] == ["repo"]


def test_links_are_refused(tmp_path: Path, root: Path) -> None:
    """An untrusted repository cannot present local files as its objects.

    Links that stay inside are refused as well: an object has one key. Listings raise instead of
    leaving out what another reader of the directory would see.
    """
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"not yours")
    storage = LocalStorage(root)
    storage.put("chunks/A", b"mine")
    (root / "chunks" / "file").symlink_to(outside / "secret")
    (root / "manifests").symlink_to(outside)
    (root / "snapshots").symlink_to(root / "chunks")
    for key in ("chunks/file", "manifests/secret", "snapshots/A"):
        with pytest.raises(StorageError, match="follow_symlinks=True"):
            storage.get(key)
        with pytest.raises(StorageError, match="follow_symlinks=True"):
            storage.head(key)
    for prefix in ("", "chunks/", "manifests/", "snapshots/"):
        with pytest.raises(StorageError, match="follow_symlinks=True"):
            list(storage.list(prefix))
    with pytest.raises(StorageError, match="follow_symlinks=True"):
        storage.put("manifests/new", b"x")
    with pytest.raises(StorageError, match="follow_symlinks=True"):
        storage.delete_many(["manifests/secret"])
    # Replacing the link itself stays inside.
    storage.put("chunks/file", b"new")
    assert (outside / "secret").read_bytes() == b"not yours"
    assert [info.key for info in storage.list("chunks/")] == ["chunks/A", "chunks/file"]


def test_links_are_followed_on_request(tmp_path: Path, root: Path) -> None:
    """With ``follow_symlinks=True`` all calls see what a link leads to, in and out of the root."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "B").write_bytes(b"outside")
    storage = LocalStorage(root, follow_symlinks=True)
    storage.put("chunks/A", b"inside")
    (root / "manifests").symlink_to(outside)
    (root / "snapshots").symlink_to(root / "chunks")
    listed = list(storage.list())
    assert [info.key for info in listed] == ["chunks/A", "manifests/B", "snapshots/A"]
    assert listed == [storage.head(info.key) for info in listed]
    assert listed == [storage.get(info.key).info for info in listed]


def test_an_update_of_a_linked_object_replaces_the_link(tmp_path: Path, root: Path) -> None:
    """The version that was read is the one that an update checks; the file linked to stays."""
    (tmp_path / "elsewhere").write_bytes(b"1")
    root.mkdir(parents=True)
    (root / "repo").symlink_to(tmp_path / "elsewhere")
    storage = LocalStorage(root, follow_symlinks=True)
    first = storage.get("repo").info.version
    assert first == storage.head("repo").version
    with pytest.raises(PreconditionFailedError):
        storage.put("repo", b"2", Create())
    second = storage.put("repo", b"2", UpdateIfMatch(first))
    assert storage.get("repo").info.version == second
    assert (tmp_path / "elsewhere").read_bytes() == b"1"
    with pytest.raises(PreconditionFailedError):
        storage.put("repo", b"3", UpdateIfMatch(first))


def test_the_root_may_be_a_link(tmp_path: Path, root: Path) -> None:
    """The user's own link to a repository is followed."""
    LocalStorage(root).put("chunks/A", b"x")
    (tmp_path / "link").symlink_to(root)
    assert bytes(LocalStorage(tmp_path / "link").get("chunks/A").data) == b"x"


def test_special_files_are_no_objects(root: Path, storage: LocalStorage) -> None:
    """A FIFO in the place of an object is refused instead of waited for."""
    storage.put("chunks/A", b"x")
    os.mkfifo(root / "chunks" / "pipe")
    with pytest.raises(StorageError, match="not a regular file"):
        storage.get("chunks/pipe")
    with pytest.raises(StorageError, match="not a regular file"):
        storage.get_bytes("chunks/pipe", 0, 1)
    assert [info.key for info in storage.list()] == ["chunks/A"]


def test_objects_and_directories_of_one_name(storage: LocalStorage) -> None:
    """Where a file system cannot do what object stores can, the error says so."""
    storage.put("a/b", b"x")
    with pytest.raises(StorageError, match="it is the key of an object"):
        storage.put("a/b/c", b"x")
    for mode in (Create(), UpdateIfMatch(Version("1"))):
        with pytest.raises(StorageError):
            storage.put("a", b"x", mode)
    with pytest.raises(StorageError, match="directory"):
        storage.put("a", b"x")
    storage.delete_many(["a", "a/b/c"])
    assert [info.key for info in storage.list()] == ["a/b"]


def test_names_of_uploads_are_no_keys(storage: LocalStorage) -> None:
    """A key that looks like a staged file would never be listed, so it is refused."""
    for use in (
        lambda: storage.put("chunks/x#12", b"x"),
        lambda: storage.get("chunks/x#12"),
        lambda: storage.head("chunks/x#12"),
        lambda: storage.delete_many(["chunks/x#12"]),
    ):
        with pytest.raises(InvalidInputError, match="uploads in progress"):
            use()
    storage.put("chunks/x#y", b"x")
    assert [info.key for info in storage.list()] == ["chunks/x#y"]


def test_directories_may_look_like_uploads(storage: LocalStorage) -> None:
    """Only files are uploads in progress: what lies below the branch ``a#1`` is listed."""
    storage.put("refs/branch.a#1/ref.json", b"x")
    for prefix in ("", "refs/", "refs/branch.a#1/"):
        assert [info.key for info in storage.list(prefix)] == ["refs/branch.a#1/ref.json"]


def test_a_huge_object_is_not_read(root: Path, storage: LocalStorage) -> None:
    """A file that claims 300 GB costs nothing where the caller sets a limit."""
    storage.put("snapshots/X", b"x")
    os.truncate(root / "snapshots" / "X", 300 * 10**9)
    with pytest.raises(StorageError, match="300000000000 bytes"):
        storage.get("snapshots/X", max_bytes=1_000_000)
    assert bytes(storage.get("snapshots/X", Bounded(0, 1), max_bytes=1).data) == b"x"


def test_a_relative_path_stays_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changing the working directory does not move a storage."""
    monkeypatch.chdir(tmp_path)
    storage = LocalStorage("repository")
    monkeypatch.chdir("/")
    storage.put("repo", b"x")
    assert (tmp_path / "repository" / "repo").exists()
    assert storage.url == (tmp_path / "repository").as_uri()
