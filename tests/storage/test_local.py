"""What is special about a storage in a local file system."""

from __future__ import annotations

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
from icefloe.storage import Create, LocalStorage, Update, Version

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
        storage.put("repo", b"x", Update(Version("1")))
    assert not root.parent.exists()
    storage.put("repo", b"x")
    assert [path.name for path in root.iterdir()] == ["repo"]


def test_puts_leave_nothing_but_the_objects(root: Path, storage: LocalStorage) -> None:
    """Neither locks nor staged files stay in the directory that others read."""
    version = storage.put("refs/main", b"1", Create())
    storage.put("refs/main", b"2", Update(version))
    storage.put("chunks/A", b"3")
    for refused in (Create(), Update(version)):
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
        storage.put("repo", b"A", Update(versions[0]))


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
                    storage.put("counter", following, Update(fetched.info.version))
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


def test_flush_order(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a ref appears, its bytes and the names of all data are on disk; after it, its own."""
    events: list[str] = []
    fsync, link, rename = os.fsync, os.link, os.rename

    def noted_fsync(fd: int) -> None:
        events.append("flush " + Path(f"/proc/self/fd/{fd}").readlink().name.partition("#")[0])
        fsync(fd)

    def noted_link(source: str, target: str) -> None:
        events.append("link")
        link(source, target)

    def noted_rename(source: str, target: str) -> None:
        events.append("rename")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "link", noted_link)
    monkeypatch.setattr(os, "rename", noted_rename)
    storage.put("chunks/A", b"x")
    assert events[-2:] == ["flush staged", "rename"]
    storage.put("snapshots/B", b"x")
    events.clear()
    version = storage.put("refs/main", b"x", Create())
    assert events.index("flush staged") < events.index("link")
    assert events.index("flush chunks") < events.index("link")
    assert events.index("flush snapshots") < events.index("link")
    assert events[-1] == "flush refs"
    events.clear()
    storage.put("refs/main", b"y", Update(version))
    assert {"flush staged", "flush chunks", "flush snapshots"} < set(
        events[: events.index("rename")]
    )
    assert events[-2:] == ["rename", "flush refs"]


def test_commits_flush_no_directories_of_strangers(
    tmp_path: Path, storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What may not be opened, as the ``lost+found`` of a disk, stops no commit; nor do links."""
    root = tmp_path / "some" / "repository"
    storage.put("chunks/A", b"x")
    (root / "lost+found").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (root / "link").symlink_to(tmp_path / "elsewhere")
    opened: list[str] = []
    plain_open: Callable[..., int] = os.open

    def open_or_refuse(path: str, *arguments: int) -> int:
        opened.append(Path(path).name)
        if path.endswith("lost+found"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return plain_open(path, *arguments)

    monkeypatch.setattr(os, "open", open_or_refuse)
    version = storage.put("repo", b"1", Create())
    storage.put("repo", b"2", Update(version))
    assert {"chunks", "lost+found", "repository"} < set(opened)
    assert "link" not in opened
    opened.clear()
    version = storage.put("refs/main", b"1", Create())
    LocalStorage(root, follow_symlinks=True).put("refs/main", b"2", Update(version))
    assert opened.count("link") == 1


def test_undurable_storages_flush_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``durable=False`` no put waits for the disk, and conditions still hold."""

    def no_fsync(_: int) -> None:
        raise AssertionError("flushed")

    monkeypatch.setattr(os, "fsync", no_fsync)
    storage = LocalStorage(root, durable=False)
    version = storage.put("refs/main", b"x", Create())
    storage.put("refs/main", b"y", Update(version))
    storage.delete_many(["refs/main"])


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
        storage.put("repo", b"2", Update(version))


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
    """A repository from a stranger cannot name files of this machine as its objects.

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
    second = storage.put("repo", b"2", Update(first))
    assert storage.get("repo").info.version == second
    assert (tmp_path / "elsewhere").read_bytes() == b"1"
    with pytest.raises(PreconditionFailedError):
        storage.put("repo", b"3", Update(first))


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
    assert [info.key for info in storage.list()] == ["chunks/A"]


def test_objects_and_directories_of_one_name(storage: LocalStorage) -> None:
    """Where a file system cannot do what object stores can, the error says so."""
    storage.put("a/b", b"x")
    with pytest.raises(StorageError, match="shorter key is an object"):
        storage.put("a/b/c", b"x")
    for mode in (Create(), Update(Version("1"))):
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
