"""Storage in a directory of a POSIX file system, with compare-and-swap across processes.

Writes: the bytes are written to a staged file (`staged_files`), flushed, and then published under
their key in one step. `Create` uses ``link``, which fails if the name exists; `Overwrite` and
`UpdateIfMatch` use ``rename`` under the lock of the directory (`directory_lock`). A process killed
at any point leaves the old object or the new one, and at worst a staged file, which is not listed.

A `Fresh` put, used for every chunk, only opens, writes and closes the file: about 40 µs for 16 KB,
while staging takes 300 µs and a flush another 300 µs. A process killed in between leaves a partial
object under a random key, to which nothing refers.

Durability: a commit must survive a power failure, so an object may reach the disk only after all
objects that it refers to. `Fresh` puts flush nothing. Therefore every other put first flushes the
file system of the root (`write_back`), because other processes may have written objects of the
commit. Then it flushes its own file and, after publishing, the directory. That is three flushes per
published object, regardless of how many objects it refers to. The first also waits for pending
writes of unrelated programs.

Limits: on a network file system, objects written by *other* machines are on the server once their
writer has closed them (NFS flushes on close); whether they are on its disk depends on the server.
A FUSE file system may ignore ``syncfs``. Systems without it use ``sync``, which on macOS does not
wait, so a power failure within seconds of a commit can lose chunks of it. With ``durable=False``
nothing is flushed: a commit survives the death of a process, but not a power failure.

Reads: a published file is never modified, only replaced, so an open file is one consistent version.

Windows is not supported: it has no ``flock``, and its renames fail while a file is open.
"""

# ruff: noqa: PTH100, PTH102, PTH104, PTH108, PTH112, PTH116, PTH120 - strings, not Path objects:
# this is the hot path of every chunk
from __future__ import annotations

import errno
import logging
import os
import stat
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cached_property, partial
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from icefloe.errors import (
    ErrorKind,
    InvalidInputError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    PermissionDeniedError,
    PreconditionFailedError,
    ReadOnlyError,
    StorageError,
)
from icefloe.model.byte_range import Bounded, resolve
from icefloe.model.storage_settings import LOCAL_FILE_SYSTEM_DEFAULTS, StorageSettings
from icefloe.storage.directory_lock import LOCK_FILE_NAME, hold_lock
from icefloe.storage.interface import (
    AbandonedUploads,
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
from icefloe.storage.staged_files import (
    StagedFile,
    flush,
    has_live_writer,
    is_staged_name,
    stage_file,
    write_all,
)
from icefloe.storage.write_back import WriteBack

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from icefloe.model.byte_range import ByteRange

_LOGGER = logging.getLogger(__name__)

_NO_HARD_LINKS: Final = frozenset(
    {errno.EPERM, errno.EMLINK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}
)
"""Errors of ``link`` on file systems without hard links (FAT, exFAT, many FUSE systems)."""

# Without O_NONBLOCK, opening a FIFO in an untrusted repository would wait for a writer forever.
_READ_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK

_FRESH_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW

_DEFAULT_SETTINGS: Final = LOCAL_FILE_SYSTEM_DEFAULTS.merge(
    StorageSettings(unsafe_use_conditional_update=True)
)

_UNKNOWN_VERSION: Final = Version()
"""Result of a `Fresh` put: the actual version would cost a ``stat``."""

_DELETIONS_PER_LOCK: Final = 50
"""Number of files that are deleted while the lock of their directory is held."""

_MAX_UNCHECKED_BYTES: Final = 16 * 1024 * 1024
"""Largest buffer that `get_bytes` allocates without a check of the file size."""


def make_version(file_stat: os.stat_result) -> Version:
    """Return the version of a file: its inode, modification time and size.

    All versions of a key that icefloe wrote differ, even if the same content is written again. A
    file and its replacement exist at the same time, so their inodes differ. Under the lock of the
    directory the replacement is made strictly newer (`StagedFile.make_newer_than`), so that a later
    file with a reused inode differs in its time. After a deletion there is no file to be newer
    than; the times differ because staged files get theirs from the clock in nanoseconds, not from
    the last tick of the kernel. A digest of the content would be equal for equal content, and every
    range read would have to read the complete file.
    """
    # A quarter of the time of an f-string; a listing makes one for every file.
    return Version("%x-%x-%x" % (file_stat.st_ino, file_stat.st_mtime_ns, file_stat.st_size))  # noqa: UP031


class LocalStorage(Storage):
    """Objects below one directory, one file each.

    Nothing is created before the first put. Unlike in an object store, a key cannot also be the
    directory of another key: after ``a/b`` was put, a put of ``a/b/c`` raises.

    Parameters
    ----------
    path
        Directory; a relative path is resolved immediately.
    durable
        Whether a commit waits until all objects that it refers to, and then the commit itself, are
        on the disk. From its first write the storage keeps a directory open to detect lost writes.
    follow_symlinks
        Whether symbolic links below the directory are followed; the directory itself may always be
        a link. By default a link raises, because an untrusted repository could link any local file
        as one of its objects. Listings raise too, because garbage collection could treat an omitted
        object as garbage. If True, a put replaces a link itself, not the file that it points to.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, durable: bool = True, follow_symlinks: bool = False
    ) -> None:
        self._root: Final = os.path.abspath(path)
        self._durable: Final = durable
        self._follow_symlinks: Final = follow_symlinks
        self._read_flags: Final = _READ_FLAGS | (0 if follow_symlinks else os.O_NOFOLLOW)
        # Checked for symbolic links; only a few per repository.
        self._directories_without_links: set[str] = set()
        # Created, and watched for lost writes.
        self._directories_for_fresh: set[str] = set()
        self._write_back: Final = WriteBack()

    @cached_property
    def url(self) -> str:
        return Path(self._root).as_uri()

    @property
    def real_path(self) -> str:
        """The directory, with symbolic links resolved."""
        return os.path.realpath(self._root)

    def __repr__(self) -> str:
        options = ", durable=False" * (not self._durable)
        options += ", follow_symlinks=True" * self._follow_symlinks
        return f"LocalStorage({self._root!r}{options})"

    def __reduce__(self) -> tuple[partial[LocalStorage], tuple[()]]:
        # Without the caches, which are valid on this machine only.
        make = partial(
            LocalStorage, self._root, durable=self._durable, follow_symlinks=self._follow_symlinks
        )
        return make, ()

    @property
    def is_low_latency(self) -> bool:
        return True

    def default_settings(self) -> StorageSettings:
        """Return Icechunk's defaults of a local file system, but with conditional updates.

        Icechunk does not support conditional updates on local file systems.
        """
        return _DEFAULT_SETTINGS.copy()

    def get(
        self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int | None = None
    ) -> Fetched:
        # Not with `_open_object`: context managers would take a third of the time of a small file.
        path = self._resolve_path(key)
        try:
            fd = os.open(path, self._read_flags)
            try:
                file_stat = os.fstat(fd)
                _require_file(file_stat, key)
                resolved = resolve(byte_range, file_stat.st_size)
                require_at_most(max_bytes, resolved, key)
                return Fetched(_read(fd, resolved, key), _make_info(key, file_stat))
            finally:
                os.close(fd)
        except OSError as error:
            raise _storage_error("read", key, error) from error

    def get_if_changed(
        self, key: str, version: Version, *, max_bytes: int | None = None
    ) -> Fetched | None:
        """Fetch an object unless it still has a known version; one ``stat`` if it has."""
        with _translate_errors("read", key):
            current = self._stat_object_or_none(self._resolve_path(key))
        if current is not None and make_version(current) == version:
            return None
        return self.get(key, max_bytes=max_bytes)

    def get_ranges(self, key: str, ranges: Sequence[Bounded]) -> list[bytes | memoryview]:
        with self._open_object(key) as (fd, file_stat):
            resolved = [resolve(byte_range, file_stat.st_size) for byte_range in ranges]
            return [_read(fd, byte_range, key) for byte_range in resolved]

    def get_bytes(self, key: str, start: int, length: int) -> bytes | memoryview:
        path = self._resolve_path(key)
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
                pass
        # `get` checks the file first, and raises the error for the file or the range.
        return self.get(key, Bounded(start, start + length)).data

    def put(self, key: str, data: bytes | memoryview, mode: PutMode = Overwrite()) -> Version:  # noqa: B008
        if isinstance(mode, Fresh):
            return self._put_fresh(key, data)
        path = self._resolve_path(key)
        directory = os.path.dirname(path)
        with _translate_errors("write", key):
            # Raises early, before anything is written and flushed.
            if isinstance(mode, UpdateIfMatch):
                self._check_condition(key, mode, self._stat_object_or_none(path))
            self.flush_fresh()
            with self._stage(directory, data) as staged:
                if isinstance(mode, Create):
                    return self._create(key, path, directory, staged)
                return self._replace(key, path, directory, staged, mode)

    def delete_many(self, keys: Iterable[str]) -> None:
        paths = [(self._resolve_path(key), key) for key in keys]
        for directory, group in groupby(paths, key=lambda item: item[0][: item[0].rindex("/")]):
            files = list(group)
            with (
                _translate_errors("delete", files[0][1]),
                suppress(FileNotFoundError, NotADirectoryError),
                _open_directory(directory) as fd,
            ):
                for start in range(0, len(files), _DELETIONS_PER_LOCK):
                    _unlink_files(files[start : start + _DELETIONS_PER_LOCK], fd, directory)
                if self._durable:
                    flush(fd)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List the objects below ``prefix``.

        Holds the names of one directory and its parents at a time.
        """
        validate_list_prefix(prefix)
        directory = f"{self._root}/{prefix}".rstrip("/")
        self._require_no_links(directory)
        return self._walk(directory, prefix)

    def list_first(self, prefix: str, limit: int) -> Sequence[ObjectInfo]:
        """List the first objects below ``prefix``, from all names of its directory.

        Reads the names again if one of these objects is deleted meanwhile: otherwise the result
        could be empty, although there are newer objects.
        """
        validate_list_prefix(prefix)
        directory = f"{self._root}/{prefix}".rstrip("/")
        self._require_no_links(directory)
        while True:
            with suppress(FileNotFoundError):
                return list(islice(self._walk(directory, prefix, skip_deleted=False), limit))

    def head(self, key: str) -> ObjectInfo:
        path = self._resolve_path(key)
        with _translate_errors("read", key):
            file_stat = os.stat(path, follow_symlinks=self._follow_symlinks)
            _require_file(file_stat, key)
            return _make_info(key, file_stat)

    def read_clock(self, fresh_key: str | None = None) -> datetime:
        """Return the current time of the file system, which on a network is that of the server.

        Without an object, sets the modification time of the directory, for which a full disk has
        room.
        """
        if fresh_key is not None:
            return self.head(fresh_key).last_modified
        with _translate_errors("write", ""):
            os.utime(self._root)
            return _get_mtime(os.stat(self._root))

    def copy(self, source: str, target: str) -> None:
        self._resolve_path(target)  # validates the key before the source is read
        # Not a hard link: it would share the inode and modification time, so the copy would have
        # the version and age of the source.
        self.put(target, self.get(source).data)

    def copy_from(self, source: Storage, source_key: str, key: str) -> bool:
        """Link a file of another directory of the same file system; the next `put` flushes it.

        Files of immutable objects are never modified, so both directories can share one. It stays
        until it is deleted in both.
        """
        if not isinstance(source, LocalStorage):
            return False
        path = self._resolve_path(key)
        directory = os.path.dirname(path)
        # Raises if the source is missing, a directory or a symbolic link.
        with source._open_object(source_key), _translate_errors("write", key):  # noqa: SLF001
            self._make_directory(directory)
            self._require_no_links(directory)
            try:
                os.link(
                    source._resolve_path(source_key),  # noqa: SLF001
                    path,
                    follow_symlinks=source._follow_symlinks,  # noqa: SLF001
                )
            except FileExistsError:
                return True
            except OSError as error:
                if error.errno not in _NO_HARD_LINKS | {errno.EXDEV}:
                    raise
                return False
        return True

    def delete_abandoned_uploads(
        self, *, before: datetime, dry_run: bool = False
    ) -> AbandonedUploads:
        """Delete the staged files of writers that died.

        Files that are locked by a live writer stay. Lock files stay too: after the deletion of one,
        another process could acquire a lock that is already held.
        """
        num_files = num_bytes = 0
        for directory, _, names in os.walk(self._root, onerror=_raise_walk_error):
            for name in names:
                if not is_staged_name(name) or name == LOCK_FILE_NAME:
                    continue
                path = f"{directory}/{name}"
                with _translate_errors("delete", path):
                    upload = _stat_or_none(path)
                    if upload is None or _get_mtime(upload) >= before or has_live_writer(path):
                        continue
                    if not dry_run:
                        _unlink(path)
                num_files += 1
                num_bytes += upload.st_size
        if num_files and not dry_run:
            _LOGGER.info("deleted %d abandoned uploads below %s", num_files, self._root)
        return AbandonedUploads(num_files, num_bytes)

    def _resolve_path(self, key: str) -> str:
        if not is_plain_key(key):
            validate_key(key)
            if is_staged_name(key.rpartition("/")[2]):
                raise InvalidInputError(
                    f"{key!r} is not a valid key on a local file system: names that end in '#' "
                    "and digits are reserved for uploads in progress",
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
        relative = os.path.relpath(directory, self._root)
        expected = os.path.normpath(f"{os.path.realpath(self._root)}/{relative}")
        if os.path.realpath(directory) != expected:
            raise _symlink_error(directory)
        if os.path.isdir(directory):
            self._directories_without_links.add(directory)

    def _stat_object_or_none(self, path: str) -> os.stat_result | None:
        # Follows links like `get` and `head`, so that an update compares the version they returned.
        return _stat_or_none(path, follow_symlinks=self._follow_symlinks)

    @contextmanager
    def _open_object(self, key: str) -> Iterator[tuple[int, os.stat_result]]:
        path = self._resolve_path(key)
        try:
            fd = os.open(path, self._read_flags)
            try:
                file_stat = os.fstat(fd)
                _require_file(file_stat, key)
                yield fd, file_stat
            finally:
                os.close(fd)
        except OSError as error:
            raise _storage_error("read", key, error) from error

    def _put_fresh(self, key: str, data: bytes | memoryview) -> Version:
        path = self._resolve_path(key)
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
            raise self._existing_key_error(key, path) from error
        except OSError as error:
            raise _storage_error("write", key, error) from error
        return _UNKNOWN_VERSION

    def _open_fresh(self, path: str) -> int:
        directory = path[: path.rindex("/")]
        if directory in self._directories_for_fresh:
            with suppress(FileNotFoundError):  # the directory was removed
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
            is_staged = False
            try:
                with stage_file(directory, data, durable=self._durable) as staged:
                    is_staged = True
                    yield staged
            except FileNotFoundError:
                if is_staged:
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

    def _create(self, key: str, path: str, directory: str, file: StagedFile) -> Version:
        version = make_version(file.stat())
        try:
            os.link(file.path, path)
        except FileExistsError as error:
            raise self._existing_key_error(key, path) from error
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            # Without hard links, a check and a rename under the lock are atomic for icefloe, but
            # not for writers of other implementations.
            with _open_directory(directory) as fd, hold_lock(fd, directory):
                if _stat_or_none(path) is not None:
                    raise self._existing_key_error(key, path) from error
                os.rename(file.path, path)
        self._flush_published(directory, key)
        return version

    def _existing_key_error(self, key: str, path: str) -> StorageError:
        if os.path.isdir(path):
            return _directory_error(key)
        return PreconditionFailedError(f"{key}: not created in {self.url}, it already exists")

    def _replace(
        self, key: str, path: str, directory: str, file: StagedFile, mode: Overwrite | UpdateIfMatch
    ) -> Version:
        # Nothing is flushed under the lock, so it is held for microseconds.
        with _open_directory(directory) as fd, hold_lock(fd, directory):
            current = self._stat_object_or_none(path)
            self._check_condition(key, mode, current)
            if current is not None:
                file.make_newer_than(current)
            version = make_version(file.stat())
            os.rename(file.path, path)
        self._flush_published(directory, key)
        return version

    def _check_condition(
        self, key: str, mode: Overwrite | UpdateIfMatch, current: os.stat_result | None
    ) -> None:
        if isinstance(mode, UpdateIfMatch) and (
            current is None or make_version(current) != mode.version
        ):
            raise PreconditionFailedError(
                f"{key}: not updated in {self.url}, it changed since it was read"
            )

    def flush_fresh(self) -> None:
        if not self._durable:
            return
        if os.path.isdir(self._root):
            with os.scandir(self._root) as entries:
                directories = [entry.path for entry in entries if self._is_directory(entry)]
            # A directory may be on a different file system than the root.
            for directory in [self._root, *directories]:
                # A directory that cannot be opened, such as `lost+found`, has no objects.
                with suppress(FileNotFoundError, PermissionError):
                    self._write_back.watch(directory)
        self._write_back.flush()

    def _flush_published(self, directory: str, key: str) -> None:
        if not self._durable:
            return
        try:
            _flush_directory(directory)
        except OSError as error:
            # The new object is visible, but a power failure may lose it.
            raise OutcomeUnknownError(
                f"{key}: written to {self.url}, but it could not be flushed to disk: {error}"
            ) from error

    def _walk(
        self, directory: str, prefix: str, *, skip_deleted: bool = True
    ) -> Iterator[ObjectInfo]:
        try:
            with os.scandir(directory) as entries:
                # All keys below a directory `a` start with `a/`, which sorts after `a-b`. Entries
                # are not kept: each takes a kilobyte, with its path and stat. The order is that of
                # UTF-8, because keys have no surrogates.
                names = sorted(
                    name for entry in entries if (name := self._get_listed_name(entry, prefix))
                )
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise _storage_error("list", prefix, error) from error
        for name in names:
            if name.endswith("/"):
                below = f"{directory}/{name[:-1]}"
                yield from self._walk(below, prefix + name, skip_deleted=skip_deleted)
                continue
            try:
                file_stat = os.stat(f"{directory}/{name}", follow_symlinks=self._follow_symlinks)
            except FileNotFoundError:  # deleted since the directory was read
                if skip_deleted:
                    continue
                raise
            except OSError as error:
                raise _storage_error("list", prefix + name, error) from error
            if stat.S_ISREG(file_stat.st_mode):
                yield _make_info(prefix + name, file_stat)

    def _is_directory(self, entry: os.DirEntry[str]) -> bool:
        return entry.is_dir(follow_symlinks=self._follow_symlinks)

    def _get_listed_name(self, entry: os.DirEntry[str], prefix: str) -> str | None:
        """Return the name of an entry, with "/" if it is a directory; None if it is not listed."""
        # Uploads in progress and names that are not valid keys are not objects. A directory may
        # have a name like an upload: a branch may be called `a#1`.
        name = entry.name
        if find_key_problem(prefix + name) is not None:
            return None
        if entry.is_symlink() and not self._follow_symlinks:
            raise _symlink_error(prefix + name)
        if self._is_directory(entry):
            return name + "/"
        return None if is_staged_name(name) else name


def _read(fd: int, byte_range: Bounded, key: str) -> bytes:
    start, remaining = byte_range.start, byte_range.end - byte_range.start
    data = os.pread(fd, remaining, start)
    if len(data) == remaining:
        return data
    # One pread returns at most 2 GiB.
    parts = [data]
    while data and (remaining := remaining - len(data)):
        start += len(data)
        data = os.pread(fd, remaining, start)
        parts.append(data)
    if not data and remaining:
        raise StorageError(f"{key}: the file was truncated while it was read", kind=ErrorKind.IO)
    return b"".join(parts)


def _make_info(key: str, file_stat: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, file_stat.st_size, _get_mtime(file_stat), make_version(file_stat))


def _get_mtime(file_stat: os.stat_result) -> datetime:
    return datetime.fromtimestamp(file_stat.st_mtime_ns // 1000 / 1_000_000, UTC)


def _stat_or_none(path: str, *, follow_symlinks: bool = False) -> os.stat_result | None:
    try:
        return os.stat(path, follow_symlinks=follow_symlinks)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _require_file(file_stat: os.stat_result, key: str) -> None:
    if stat.S_ISDIR(file_stat.st_mode):
        raise ObjectNotFoundError(f"object not found: {key} is a directory")
    if stat.S_ISLNK(file_stat.st_mode):
        raise _symlink_error(key)
    if not stat.S_ISREG(file_stat.st_mode):
        raise StorageError(f"{key}: not a regular file", kind=ErrorKind.IO)


def _unlink(path: str) -> None:
    # A directory is not an object and is ignored; the error is EISDIR on Linux, elsewhere EPERM.
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):
        if not os.path.isdir(path):
            raise


def _unlink_files(files: Sequence[tuple[str, str]], directory_fd: int, directory: str) -> None:
    """Delete files of one directory, given as paths and keys."""
    key = files[0][1]
    try:
        # Without the lock, the rename of a concurrent update could undo a deletion.
        with hold_lock(directory_fd, directory):
            for path, key in files:  # noqa: B007 - for the error
                _unlink(path)
    except OSError as error:
        raise _storage_error("delete", key, error) from error


def _raise_walk_error(error: OSError) -> None:
    """Raise errors that `os.walk` would ignore, except for missing or unreadable directories."""
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
            # Some network and FUSE file systems cannot flush directories.
            if error.errno not in {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF}:
                raise


@contextmanager
def _translate_errors(operation: str, key: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _storage_error(operation, key, error) from error


def _storage_error(operation: str, key: str, error: OSError) -> StorageError | ReadOnlyError:
    match error:
        case FileNotFoundError() | NotADirectoryError() if operation == "read":
            return ObjectNotFoundError(f"object not found: {key}: {error}")
        case IsADirectoryError():
            return _directory_error(key)
        case NotADirectoryError():
            return StorageError(
                f"{key}: part of the path is a file, because it is the key of an object: {error}",
                kind=ErrorKind.IO,
            )
        case PermissionError():
            return PermissionDeniedError(
                f"{key}: no permission to {operation} it; check the owner and the permissions of "
                f"the file and its directory: {error}"
            )
        case OSError(errno=errno.EROFS):
            return ReadOnlyError(f"{key}: the file system is read-only: {error}")
        case OSError(errno=errno.ELOOP):
            return _symlink_error(key)
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            return StorageError(
                f"{key}: the disk is full: make room, for example with garbage collection, which "
                f"needs none, and try again: {error}",
                kind=ErrorKind.DISK_FULL,
            )
        case _:
            return StorageError(f"{key}: {operation} failed: {error}", kind=ErrorKind.IO)


def _symlink_error(key: str) -> StorageError:
    return StorageError(
        f"{key}: the path contains a symbolic link, which could point to any file; to allow links, "
        "open the storage with follow_symlinks=True",
        kind=ErrorKind.STORAGE_CONFIG,
    )


def _directory_error(key: str) -> StorageError:
    return StorageError(
        f"{key}: it is a directory, because other keys start with it", kind=ErrorKind.IO
    )
