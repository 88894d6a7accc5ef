"""A storage in a directory of a POSIX file system, with compare-and-swap across processes.

Writing. The bytes go to a staged file (`staged_files`), are flushed, and then appear under their
key in one step: ``link`` for `Create`, which fails where the name exists; ``rename`` under the lock
of the directory (`directory_lock`) for everything that replaces. A process killed at any point
leaves the old object or the new one, and at worst a staged file that no listing shows.

A `Fresh` put, which every chunk is, does none of this: it opens, writes and closes. A process
killed in between leaves part of an object, under a random key that nothing refers to. That takes
some 40 µs for 16 KB, where staging takes 300, and a flush of each as long again.

Durability. A commit must be whole after a power failure too: the object that a put publishes may be
on disk only after all that it refers to. A `Fresh` put flushes nothing. So every other put first
flushes, before it publishes, all that was written to the file system of the root (`write_back`), by
whomever: the objects that a commit refers to may come from other processes of this machine, so the
storage cannot know them, and always flushes. Then it flushes its own file, and after publishing
the directory with its name. That is three flushes per object that is published, however many it
refers to. They wait for whatever is not on the disk yet, of other programs too.

What this does not cover. Objects that processes on *other* machines wrote to a file system that is
shared over a network are on the server once their writer has closed them (NFS flushes on close),
and on its disk as far as the server promises that. A file system in user space may take a flush
of all for nothing. Without `syncfs`, as on macOS, ``sync`` does not wait, so that a power failure
within seconds of a commit can take chunks of it. ``durable=False`` leaves all flushes out: safe
when a process dies, not when the machine does.

Reading. A published file never changes, it is only replaced, so an open file is one consistent
version, however long it is read.

Not here: Windows, which has no flock and whose renames fail while somebody reads.
"""

# ruff: noqa: PTH100, PTH102, PTH104, PTH108, PTH112, PTH116, PTH120 - strings, not Path objects:
# this is the hot path of every chunk
from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

from icefloe.errors import (
    ErrorKind,
    InvalidInputError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    ReadOnlyError,
    StorageError,
)
from icefloe.model.byte_range import Bounded, resolve
from icefloe.model.storage_settings import LOCAL_FILE_SYSTEM_DEFAULTS, StorageSettings
from icefloe.storage.directory_lock import LOCK_FILE_NAME, hold_lock
from icefloe.storage.interface import (
    Create,
    Fetched,
    Fresh,
    ObjectInfo,
    Overwrite,
    PutMode,
    Storage,
    UpdateIfMatch,
    Version,
)
from icefloe.storage.keys import find_key_problem, is_plain_key, validate_key, validate_list_prefix
from icefloe.storage.size_limit import require_at_most
from icefloe.storage.staged_files import StagedFile, flush, is_staged_name, stage_file, write_all
from icefloe.storage.write_back import WriteBack

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from icefloe.model.byte_range import ByteRange

_NO_HARD_LINKS: Final = frozenset(
    {errno.EPERM, errno.EMLINK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}
)
"""What file systems without hard links answer to ``link`` (FAT, exFAT, many in user space)."""

# A FIFO that somebody planted would otherwise make open wait for a writer, forever.
_READ_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK

_FRESH_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW

_UNKNOWN_VERSION: Final = Version()
"""What a `Fresh` put answers: to learn the version would cost a look at the file."""

_MAX_UNCHECKED_BYTES: Final = 16 * 1024 * 1024
"""How much `get_bytes` reserves before it knows that the file is as large."""


def version_of(present: os.stat_result) -> Version:
    """Tell the version of a file that its inode, modification time and size make.

    No two versions of a key that icefloe wrote are equal, also after A, B, A. A file and the one
    that replaces it exist at the same time, so their inodes differ; and under the lock of the
    directory the new one is made strictly newer (`StagedFile.make_newer_than`), so that a later
    one, which may get a used inode again, differs in its time from all before. After a deletion the
    time is the clock's, in nanoseconds, not the kernel's last tick. A digest of the content would
    not tell A from the later A, and would make every range read a read of the whole file.
    """
    return Version(etag=f"{present.st_ino:x}-{present.st_mtime_ns:x}-{present.st_size:x}")


class LocalStorage(Storage):
    """The objects below one directory, a file each.

    Nothing is created until the first put. An object and a "directory" of objects cannot have the
    same name here, as they can in an object store: after ``a/b``, a put of ``a/b/c`` raises.

    Parameters
    ----------
    path
        The directory; relative paths are resolved now.
    durable
        Whether a commit waits until all that it refers to is on the disk, and then itself. From
        its first write on the storage keeps a directory open, so that it notices lost writes.
    follow_symlinks
        Whether links below the directory are followed. Without it (the directory itself may be a
        link in any case) they are not part of the storage: what meets one, a listing too, raises.
        A repository that came from somebody else could otherwise name any file of this machine as
        one of its objects, and one that a listing left out in silence could be taken for garbage.
        With it, a put replaces a link to an object, and not the file that the link leads to.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, durable: bool = True, follow_symlinks: bool = False
    ) -> None:
        self._root: Final = os.path.abspath(path)
        self._durable: Final = durable
        self._follow_symlinks: Final = follow_symlinks
        self._read_flags: Final = _READ_FLAGS | (0 if follow_symlinks else os.O_NOFOLLOW)
        # Directories that were seen to be no links. There are a handful per repository.
        self._directories_without_links: set[str] = set()
        # Directories that exist and are watched for lost writes.
        self._directories_for_fresh: set[str] = set()
        self._write_back: Final = WriteBack()

    @property
    def url(self) -> str:
        """The directory as a ``file://`` URL."""
        return Path(self._root).as_uri()

    def __repr__(self) -> str:
        return f"LocalStorage({self._root!r})"

    def __reduce__(self) -> tuple[partial[LocalStorage], tuple[()]]:
        # What was checked on this machine says nothing about the next one.
        make = partial(
            LocalStorage,
            self._root,
            durable=self._durable,
            follow_symlinks=self._follow_symlinks,
        )
        return make, ()

    @property
    def is_low_latency(self) -> bool:
        """Always: a read takes microseconds, or as long as the disk does."""
        return True

    def default_settings(self) -> StorageSettings:
        """Tell the defaults of a local file system, with the conditional update that it has here.

        The reference implementation has no such update, and its defaults say so.
        """
        return LOCAL_FILE_SYSTEM_DEFAULTS.merge(StorageSettings(unsafe_use_conditional_update=True))

    def get(
        self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int | None = None
    ) -> Fetched:
        """Fetch an object or a range of it: open, look, read."""
        path = self._path(key)
        with _translate_errors("read", key), self._open_object(path, key) as (fd, present):
            wanted = resolve(byte_range, present.st_size)
            require_at_most(max_bytes, wanted, key)
            return Fetched(_read(fd, wanted, key), _info(key, present))

    def get_ranges(self, key: str, ranges: Sequence[Bounded]) -> list[bytes | memoryview]:
        """Fetch several ranges of one version of an object."""
        path = self._path(key)
        with _translate_errors("read", key), self._open_object(path, key) as (fd, present):
            wanted = [resolve(one, present.st_size) for one in ranges]
            return [_read(fd, one, key) for one in wanted]

    def get_bytes(self, key: str, start: int, length: int) -> bytes | memoryview:
        """Fetch the bytes of one range: open, read, close."""
        path = self._path(key)
        if 0 < length <= _MAX_UNCHECKED_BYTES:
            try:
                fd = os.open(path, self._read_flags)
                try:
                    data = os.pread(fd, length, start)
                finally:
                    os.close(fd)
                if len(data) == length:
                    return data
            except (OSError, OverflowError):
                pass  # see below
        # Looks at the file first, and so can tell what is wrong with it or with the range.
        return self.get(key, Bounded(start, start + length)).data

    def put(self, key: str, data: bytes | memoryview, mode: PutMode = Overwrite()) -> Version:  # noqa: B008
        """Write an object under the condition of ``mode``.

        The object and all that was written before it are on the disk when this returns, except
        after a `Fresh` put, which writes a file and answers no version.
        """
        if isinstance(mode, Fresh):
            return self._put_fresh(key, data)
        path = self._path(key)
        directory = os.path.dirname(path)
        with _translate_errors("write", key):
            # An update that cannot succeed should not first write and flush.
            if isinstance(mode, UpdateIfMatch):
                self._check_condition(key, mode, self._stat_object_or_none(path))
            if self._durable:
                self._flush_all_written()
            with self._stage(directory, data) as new:
                if isinstance(mode, Create):
                    return self._create(key, path, directory, new)
                return self._replace(key, path, directory, new, mode)

    def delete_many(self, keys: Iterable[str]) -> None:
        """Delete objects; what is absent is not an error."""
        paths = [(self._path(key), key) for key in keys]
        for directory, group in groupby(paths, key=lambda item: os.path.dirname(item[0])):
            with (
                suppress(FileNotFoundError, NotADirectoryError),
                _open_directory(directory) as fd,
            ):
                for path, key in group:
                    # The lock keeps a deletion from falling between the look and the rename of
                    # an update, which would bring the object back.
                    with _translate_errors("delete", key), hold_lock(fd, directory):
                        _unlink(path)
                if self._durable:
                    flush(fd)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List the objects below ``prefix``; the names of one directory are held at a time."""
        validate_list_prefix(prefix)
        directory = f"{self._root}/{prefix}".rstrip("/")
        self._require_no_links(directory)
        return self._walk(directory, prefix)

    def head(self, key: str) -> ObjectInfo:
        """Tell what is known of one object."""
        path = self._path(key)
        with _translate_errors("read", key):
            present = os.stat(path, follow_symlinks=self._follow_symlinks)
            _require_file(present, key)
            return _info(key, present)

    def copy(self, source: str, target: str) -> None:
        """Copy an object, replacing what is at ``target``."""
        self._path(target)  # is refused before the source is read
        # Not by a hard link: both names would share one modification time, hence their versions.
        self.put(target, self.get(source).data)

    def delete_abandoned(self, *, before: datetime) -> int:
        """Delete staged files that writers left behind when they died; answer how many.

        Parameters
        ----------
        before
            Younger files stay, because their writer may still be at work. So do the files that
            locks stand on: without the file, the next one to come would hold the lock as well.
        """
        deleted = 0
        for directory, _, names in os.walk(self._root, onerror=_refuse_to_skip):
            for name in names:
                if not is_staged_name(name) or name == LOCK_FILE_NAME:
                    continue
                path = f"{directory}/{name}"
                with _translate_errors("delete", path):
                    present = _stat_or_none(path)
                    if present is not None and _time(present) < before:
                        _unlink(path)
                        deleted += 1
        return deleted

    def _path(self, key: str) -> str:
        if not is_plain_key(key):
            validate_key(key)
            if is_staged_name(key.rpartition("/")[2]):
                raise InvalidInputError(
                    f"{key!r} is no key in a local file system: names that end in '#' and digits "
                    "are uploads in progress there",
                    kind=ErrorKind.INVALID_KEY,
                )
        path = f"{self._root}/{key}"
        directory = path[: path.rindex("/")]
        if directory not in self._directories_without_links:
            self._require_no_links(directory)
        return path

    def _require_no_links(self, directory: str) -> None:
        if self._follow_symlinks or directory in self._directories_without_links:
            return
        below = os.path.relpath(directory, self._root)
        unlinked = os.path.normpath(f"{os.path.realpath(self._root)}/{below}")
        if os.path.realpath(directory) != unlinked:
            raise _link_at(directory)
        if os.path.isdir(directory):
            self._directories_without_links.add(directory)

    def _stat_object_or_none(self, path: str) -> os.stat_result | None:
        # The same file that get and head look at, so that an update finds the version they told.
        return _stat_or_none(path, follow_symlinks=self._follow_symlinks)

    @contextmanager
    def _open_object(self, path: str, key: str) -> Iterator[tuple[int, os.stat_result]]:
        fd = os.open(path, self._read_flags)
        try:
            present = os.fstat(fd)
            _require_file(present, key)
            yield fd, present
        finally:
            os.close(fd)

    def _put_fresh(self, key: str, data: bytes | memoryview) -> Version:
        path = self._path(key)
        try:
            fd = self._open_fresh(path)
            try:
                try:
                    write_all(fd, data)
                finally:
                    os.close(fd)
            except BaseException:
                with suppress(OSError):
                    os.unlink(path)
                raise
        except FileExistsError as error:
            raise self._raise_create_refused(key, path) from error
        except OSError as error:
            raise _storage_error("write", key, error) from error
        return _UNKNOWN_VERSION

    def _open_fresh(self, path: str) -> int:
        directory = path[: path.rindex("/")]
        if directory in self._directories_for_fresh:
            with suppress(FileNotFoundError):  # somebody removed the directory
                return os.open(path, _FRESH_FLAGS, 0o666)
        self._make_directory(directory)
        self._require_no_links(directory)
        if self._durable:
            self._write_back.watch(directory)
        fd = os.open(path, _FRESH_FLAGS, 0o666)
        self._directories_for_fresh.add(directory)
        return fd

    @contextmanager
    def _stage(self, directory: str, data: bytes | memoryview) -> Iterator[StagedFile]:
        while True:
            entered = False
            try:
                with stage_file(directory, data, durable=self._durable) as new:
                    entered = True
                    yield new
            except FileNotFoundError:
                if entered:
                    raise
                self._make_directory(directory)
            else:
                return

    def _make_directory(self, directory: str) -> None:
        parent = os.path.dirname(directory)
        if not os.path.isdir(parent):
            self._make_directory(parent)
        with suppress(FileExistsError):
            os.mkdir(directory)
            if self._durable:
                _flush_directory(parent)

    def _create(self, key: str, path: str, directory: str, new: StagedFile) -> Version:
        version = version_of(new.stat())
        try:
            os.link(new.path, path)
        except FileExistsError as error:
            raise self._raise_create_refused(key, path) from error
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            # Without hard links, looking and renaming under the lock excludes all writers that
            # take it, which is every icefloe; it cannot exclude another implementation.
            with _open_directory(directory) as fd, hold_lock(fd, directory):
                if _stat_or_none(path) is not None:
                    raise self._raise_create_refused(key, path) from error
                os.rename(new.path, path)
        self._flush_published(directory, key)
        return version

    def _raise_create_refused(self, key: str, path: str) -> StorageError:
        if os.path.isdir(path):
            return _directory_at(key)
        return PreconditionFailedError(f"{key}: not created in {self.url}, it is there already")

    def _replace(
        self, key: str, path: str, directory: str, new: StagedFile, mode: Overwrite | UpdateIfMatch
    ) -> Version:
        # Nothing is flushed while the lock is held: it excludes others for microseconds.
        with _open_directory(directory) as fd, hold_lock(fd, directory):
            present = self._stat_object_or_none(path)
            self._check_condition(key, mode, present)
            if present is not None:
                new.make_newer_than(present)
            version = version_of(new.stat())
            os.rename(new.path, path)
        self._flush_published(directory, key)
        return version

    def _check_condition(
        self, key: str, mode: Overwrite | UpdateIfMatch, present: os.stat_result | None
    ) -> None:
        if isinstance(mode, UpdateIfMatch) and (
            present is None or version_of(present) != mode.version
        ):
            raise PreconditionFailedError(
                f"{key}: not updated in {self.url}, it changed since it was read"
            )

    def _flush_all_written(self) -> None:
        if os.path.isdir(self._root):
            with os.scandir(self._root) as entries:
                directories = [one.path for one in entries if self._is_directory(one)]
            # A directory for data may lie on another disk than the root.
            for directory in [self._root, *directories]:
                # Nobody puts objects where they may not open the directory; and the root of a disk
                # has a `lost+found` that only the administrator may open.
                with suppress(FileNotFoundError, PermissionError):
                    self._write_back.watch(directory)
        self._write_back.flush()

    def _flush_published(self, directory: str, key: str) -> None:
        if not self._durable:
            return
        try:
            _flush_directory(directory)
        except OSError as error:
            # The new object is visible now, and may be gone after a power failure.
            raise OutcomeUnknownError(
                f"{key}: written to {self.url}, but the disk did not confirm it: {error}"
            ) from error

    def _walk(self, directory: str, prefix: str) -> Iterator[ObjectInfo]:
        try:
            with os.scandir(directory) as entries:
                # All keys below a directory `a` start with `a/`, which sorts after `a-b`.
                found = sorted(
                    (os.fsencode(one.name + "/" * self._is_directory(one)), one)
                    for one in entries
                    if self._may_be_listed(one, prefix)
                )
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise _storage_error("list", prefix, error) from error
        for sort_key, entry in found:
            key = prefix + entry.name
            if sort_key.endswith(b"/"):
                yield from self._walk(entry.path, f"{key}/")
                continue
            try:
                present = entry.stat(follow_symlinks=self._follow_symlinks)
            except FileNotFoundError:  # deleted since the directory was read
                continue
            if stat.S_ISREG(present.st_mode):
                yield _info(key, present)

    def _is_directory(self, entry: os.DirEntry[str]) -> bool:
        return entry.is_dir(follow_symlinks=self._follow_symlinks)

    def _may_be_listed(self, entry: os.DirEntry[str], prefix: str) -> bool:
        # What could not be fetched is no object: uploads in progress, and names that are no keys.
        # A directory is no upload, whatever its name: branches may be called `a#1`.
        if find_key_problem(prefix + entry.name) is not None:
            return False
        if entry.is_symlink() and not self._follow_symlinks:
            raise _link_at(prefix + entry.name)
        return self._is_directory(entry) or not is_staged_name(entry.name)


def _read(fd: int, wanted: Bounded, key: str) -> bytes:
    start, missing = wanted.start, wanted.end - wanted.start
    data = os.pread(fd, missing, start)
    if len(data) == missing:
        return data
    # One pread returns at most 2 GiB.
    parts = [data]
    while data and (missing := missing - len(data)):
        start += len(data)
        data = os.pread(fd, missing, start)
        parts.append(data)
    if not data and missing:
        raise StorageError(f"{key}: the file became shorter while it was read", kind=ErrorKind.IO)
    return b"".join(parts)


def _info(key: str, present: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, present.st_size, _time(present), version_of(present))


def _time(present: os.stat_result) -> datetime:
    return datetime.fromtimestamp(present.st_mtime_ns // 1000 / 1_000_000, UTC)


def _stat_or_none(path: str, *, follow_symlinks: bool = False) -> os.stat_result | None:
    try:
        return os.stat(path, follow_symlinks=follow_symlinks)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _require_file(present: os.stat_result, key: str) -> None:
    if stat.S_ISDIR(present.st_mode):
        raise ObjectNotFoundError(f"{key}: no such object, it is a directory")
    if stat.S_ISLNK(present.st_mode):
        raise _link_at(key)
    if not stat.S_ISREG(present.st_mode):
        raise StorageError(f"{key}: not a regular file, and so no object", kind=ErrorKind.IO)


def _unlink(path: str) -> None:
    # A directory at this path is no object, so there is nothing to delete: Linux answers EISDIR,
    # others EPERM.
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):
        if not os.path.isdir(path):
            raise


def _refuse_to_skip(error: OSError) -> None:
    """Raise what `os.walk` would pass over, except where nothing of this user's can be."""
    if not isinstance(error, FileNotFoundError | PermissionError):
        raise _storage_error("list", str(error.filename), error) from error


@contextmanager
def _open_directory(directory: str) -> Iterator[int]:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _flush_directory(directory: str) -> None:
    with _open_directory(directory) as fd:
        try:
            flush(fd)
        except OSError as error:
            # Some network and user-space file systems have no flush of directories; their names
            # are as durable as the server makes them.
            if error.errno not in {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF}:
                raise


@contextmanager
def _translate_errors(doing: str, key: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _storage_error(doing, key, error) from error


def _storage_error(doing: str, key: str, error: OSError) -> StorageError | ReadOnlyError:
    match error:
        case FileNotFoundError() if doing == "read":
            return ObjectNotFoundError(f"{key}: no such object: {error}")
        case NotADirectoryError() if doing == "read":
            return ObjectNotFoundError(f"{key}: no such object: {error}")
        case IsADirectoryError():
            return _directory_at(key)
        case NotADirectoryError():
            return StorageError(
                f"{key}: a shorter key is an object already, and a file cannot hold others: "
                f"{error}",
                kind=ErrorKind.IO,
            )
        case OSError(errno=errno.EROFS):
            return ReadOnlyError(f"{key}: the file system takes no writes: {error}")
        case OSError(errno=errno.ELOOP):
            return _link_at(key)
        case _:
            return StorageError(f"{key}: could not {doing} it: {error}", kind=ErrorKind.IO)


def _link_at(key: str) -> StorageError:
    return StorageError(
        f"{key}: a symbolic link, which could lead anywhere; if that is meant, open the storage "
        "with follow_symlinks=True",
        kind=ErrorKind.STORAGE_CONFIG,
    )


def _directory_at(key: str) -> StorageError:
    return StorageError(
        f"{key}: a directory has this name, because longer keys are objects already",
        kind=ErrorKind.IO,
    )
