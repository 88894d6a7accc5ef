"""Storage on a local file system."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import pickle
import signal
import subprocess
import sys
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
from icefloe.model.storage_settings import StorageSettings
from icefloe.storage import (
    Create,
    Fresh,
    LocalStorage,
    Overwrite,
    PutMode,
    Storage,
    UpdateIfMatch,
    Version,
    directory_lock,
    local_filesystem_storage,
    storage_from_url,
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


def test_puts_leave_only_objects(root: Path, storage: LocalStorage) -> None:
    """Neither lock files nor staged files remain in the directory."""
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
    """Even with a stopped clock and reused inodes, writing A, B, A creates three versions."""
    monkeypatch.setattr(time, "time_ns", lambda: 1_800_000_000_000_000_000)
    versions = [storage.put("repo", b"AB"[i % 2 : i % 2 + 1]) for i in range(50)]
    assert len(set(versions)) == 50
    with pytest.raises(PreconditionFailedError):
        storage.put("repo", b"A", UpdateIfMatch(versions[0]))


def test_a_recreated_object_has_another_version(root: Path) -> None:
    """An update with a version from before a deletion raises, also for the same content."""
    storage = LocalStorage(root, durable=False)  # many within one tick of the kernel's clock
    seen = set()
    for _ in range(50):
        seen.add(storage.put("repo", b"same", Create()))
        storage.delete_many(["repo"])
    assert len(seen) == 50


def test_a_reader_keeps_its_version(root: Path, storage: LocalStorage) -> None:
    """Concurrent readers get the complete bytes of one version, with its metadata."""
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
    """On a file system without hard links, a second create raises too."""

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


def test_locks_of_suspended_processes(
    root: Path, storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A put waits for a suspended process up to a limit; the error names the process."""
    storage.put("repo", b"0")
    script = (
        "import fcntl, os, sys, time; fd = os.open(sys.argv[1], os.O_RDONLY);"
        "fcntl.flock(fd, fcntl.LOCK_EX); print(flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", script, str(root)]
    monkeypatch.setattr(directory_lock, "MAX_WAIT_S", 0.2)
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        holder.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(StorageError, match=f"process {holder.pid} has locked"):
                storage.put("repo", b"1")
        finally:
            holder.kill()
    storage.put("repo", b"1")


def test_locks_where_directories_cannot_be_locked(
    root: Path, storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on NFS, a lock file is locked instead of the directory, and is not listed."""
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
    """Record flushes and publications, in order."""
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
    """Fresh puts flush nothing; a ref is published after all objects are on the disk."""
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
    """A directory on another disk is flushed too."""
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
def test_nothing_is_published_after_lost_writes(
    root: Path, storage: LocalStorage, monkeypatch: pytest.MonkeyPatch, mode: PutMode
) -> None:
    """The kernel reports lost writes only once, so later attempts must fail too."""
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
    """If ``syncfs`` is missing or a sandbox rejects it, ``sync`` is called."""
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


def test_descriptors_are_closed_with_the_storage(root: Path) -> None:
    """The descriptor that detects lost writes is closed with the storage."""

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


def test_unreadable_directories_are_not_flushed(
    tmp_path: Path, storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither directories that cannot be opened, as ``lost+found``, nor links prevent commits."""
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


@pytest.mark.parametrize(
    "make",
    [
        lambda root: local_filesystem_storage(root, durable=False),
        lambda root: Storage.new_local_filesystem(root, durable=False),
        lambda root: storage_from_url(f"{root.as_uri()}?durable=false"),
        lambda root: pickle.loads(pickle.dumps(LocalStorage(root, durable=False))),  # noqa: S301
        lambda root: LocalStorage(root, durable=False).with_settings(StorageSettings()),
    ],
)
def test_non_durable_storages_flush_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], Storage]
) -> None:
    """With ``durable=False`` no put waits for the disk, and conditions still hold."""

    def no_flush(_: int) -> None:
        raise AssertionError("flushed")

    monkeypatch.setattr(os, "fsync", no_flush)
    monkeypatch.setattr(write_back, "sync_file_system", no_flush)
    storage = make(root)
    storage.put("chunks/A", b"x", Fresh())
    version = storage.put("refs/main", b"x", Create())
    storage.put("refs/main", b"y", UpdateIfMatch(version))
    storage.delete_many(["refs/main"])


def test_repr_has_the_options(root: Path) -> None:
    """The repr has the options that are not the default."""
    assert repr(LocalStorage(root)) == f"LocalStorage({str(root)!r})"
    scratch = LocalStorage(root, durable=False)
    assert repr(scratch) == f"LocalStorage({str(root)!r}, durable=False)"
    linked = LocalStorage(root, follow_symlinks=True)
    assert repr(linked) == f"LocalStorage({str(root)!r}, follow_symlinks=True)"


def test_fresh_puts_are_three_system_calls(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fresh put opens, writes and closes a file; a read opens, reads and closes it."""
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
    """A fresh put never replaces an object, a directory or a link."""
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
    """A directory that is a link raises, in the first put and later ones."""
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


def test_fresh_puts_recreate_a_removed_directory(root: Path, storage: LocalStorage) -> None:
    """A directory that was removed while empty is created again."""
    storage.put("chunks/A", b"1", Fresh())
    storage.delete_many(["chunks/A"])
    (root / "chunks").rmdir()
    storage.put("chunks/B", b"2", Fresh())
    assert bytes(storage.get_bytes("chunks/B", 0, 1)) == b"2"


def test_short_writes_are_continued(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The object is complete, however few bytes each write call accepts."""
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
    """If the disk is full, also if only close reports it, the partial file is removed."""
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
    """Above a limit the file size is checked first; the bytes are the same."""
    monkeypatch.setattr(local_module, "_MAX_UNCHECKED_BYTES", 5)
    storage.put("chunks/A", b"0123456789", Fresh())
    assert storage.get_bytes("chunks/A", 1, 5) == b"12345"
    assert storage.get_bytes("chunks/A", 1, 6) == b"123456"


def test_a_flush_that_fails_after_the_rename_is_unknown(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcome of a put that is visible but not flushed is unknown."""
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


def test_links_raise(tmp_path: Path, root: Path) -> None:
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
    """With ``follow_symlinks=True`` all calls follow links, inside and outside the root."""
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
    """The update checks the version that was read; the target of the link stays."""
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
    """A root that is a symbolic link is followed."""
    LocalStorage(root).put("chunks/A", b"x")
    (tmp_path / "link").symlink_to(root)
    assert bytes(LocalStorage(tmp_path / "link").get("chunks/A").data) == b"x"


def test_special_files_raise(root: Path, storage: LocalStorage) -> None:
    """A FIFO under a key raises instead of blocking."""
    storage.put("chunks/A", b"x")
    os.mkfifo(root / "chunks" / "pipe")
    with pytest.raises(StorageError, match="not a regular file"):
        storage.get("chunks/pipe")
    with pytest.raises(StorageError, match="not a regular file"):
        storage.get_bytes("chunks/pipe", 0, 1)
    assert [info.key for info in storage.list()] == ["chunks/A"]


def test_keys_that_are_prefixes_of_keys_raise(storage: LocalStorage) -> None:
    """Keys that are prefixes of other keys raise with an explanation."""
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


def test_names_of_uploads_are_not_keys(storage: LocalStorage) -> None:
    """A key with the name of a staged file would never be listed, so it raises."""
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
    """Only files are uploads in progress: objects below a directory ``a#1`` are listed."""
    storage.put("refs/branch.a#1/ref.json", b"x")
    for prefix in ("", "refs/", "refs/branch.a#1/"):
        assert [info.key for info in storage.list(prefix)] == ["refs/branch.a#1/ref.json"]


def test_a_huge_object_is_not_read(root: Path, storage: LocalStorage) -> None:
    """A file of 300 GB raises without being read if the caller sets a limit."""
    storage.put("snapshots/X", b"x")
    os.truncate(root / "snapshots" / "X", 300 * 10**9)
    with pytest.raises(StorageError, match="300000000000 bytes"):
        storage.get("snapshots/X", max_bytes=1_000_000)
    assert bytes(storage.get("snapshots/X", Bounded(0, 1), max_bytes=1).data) == b"x"


def test_a_relative_path_is_resolved_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changing the working directory does not move a storage."""
    monkeypatch.chdir(tmp_path)
    storage = LocalStorage("repository")
    monkeypatch.chdir("/")
    storage.put("repo", b"x")
    assert (tmp_path / "repository" / "repo").exists()
    assert storage.url == (tmp_path / "repository").as_uri()
