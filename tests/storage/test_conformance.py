"""What every storage promises, run against each of them: memory, local, S3 and Azure servers.

GCS is not among them: there is no emulator of it to run here. It shares all code but the choice
of the client with S3 and Azure, and `test_constructors` makes one.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import secrets
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from icefloe.errors import (
    ErrorKind,
    IcefloeError,
    InvalidInputError,
    ObjectNotFoundError,
    PreconditionFailedError,
    SessionStateError,
    StorageError,
)
from icefloe.model.byte_range import Bounded, ByteRange, From, Last, Until
from icefloe.storage import (
    Create,
    Fresh,
    LocalStorage,
    MemoryStorage,
    Overwrite,
    Storage,
    UpdateIfMatch,
    Version,
)

if TYPE_CHECKING:
    from collections.abc import Callable

CONTENT = b"0123456789"


def content_of(storage: Storage, key: str) -> bytes:
    return bytes(storage.get(key).data)


def test_get_returns_the_bytes_of_put(storage: Storage) -> None:
    """A get returns the bytes, the size, a recent time and the version that the put returned."""
    version = storage.put("snapshots/A", CONTENT)
    fetched = storage.get("snapshots/A")
    assert bytes(fetched.data) == CONTENT
    assert fetched.info.key == "snapshots/A"
    assert fetched.info.size_bytes == len(CONTENT)
    assert fetched.info.version == version
    age = datetime.now(UTC) - fetched.info.last_modified
    assert timedelta(seconds=-5) < age < timedelta(minutes=1)


def test_views_of_any_shape_are_stored_as_bytes(storage: Storage) -> None:
    """A put accepts any contiguous view and stores its bytes."""
    view = memoryview(bytes(range(48))).cast("H", (4, 6))
    storage.put("chunks/V", view)
    assert content_of(storage, "chunks/V") == bytes(range(48))
    storage.put("refs/V", view, Create())
    assert content_of(storage, "refs/V") == bytes(range(48))


def test_empty_objects_are_objects(storage: Storage) -> None:
    """An object may have no bytes; its ranges are empty, and it is listed."""
    storage.put("empty", b"")
    assert content_of(storage, "empty") == b""
    assert bytes(storage.get("empty", Last(5)).data) == b""
    assert bytes(storage.get("empty", From(0)).data) == b""
    assert [info.size_bytes for info in storage.list()] == [0]


@pytest.mark.parametrize(
    "byte_range, expected",
    [
        (None, b"0123456789"),
        (Bounded(2, 5), b"234"),
        (Bounded(0, 10), b"0123456789"),
        (Bounded(4, 4), b""),
        (Bounded(10, 10), b""),
        (From(0), b"0123456789"),
        (From(7), b"789"),
        (From(10), b""),
        (Last(0), b""),
        (Last(3), b"789"),
        (Last(10), b"0123456789"),
        (Last(99), b"0123456789"),
        (Until(0), b"0123456789"),
        (Until(3), b"0123456"),
        (Until(10), b""),
    ],
)
def test_ranges(storage: Storage, byte_range: ByteRange | None, expected: bytes) -> None:
    """Every kind of range returns exactly its bytes, and the size of the object."""
    storage.put("chunks/R", CONTENT)
    fetched = storage.get("chunks/R", byte_range)
    assert bytes(fetched.data) == expected
    assert fetched.info.size_bytes == len(CONTENT)


@pytest.mark.parametrize(
    "byte_range", [Bounded(0, 11), Bounded(5, 20), Bounded(11, 12), Bounded(11, 11), From(11)]
)
def test_ranges_past_the_end_raise(storage: Storage, byte_range: ByteRange) -> None:
    """A range past the end raises; fewer bytes than requested are never returned."""
    storage.put("chunks/R", CONTENT)
    with pytest.raises(InvalidInputError, match="10 bytes"):
        storage.get("chunks/R", byte_range)
    if isinstance(byte_range, Bounded):
        with pytest.raises(InvalidInputError, match="10 bytes"):
            storage.get_ranges("chunks/R", [Bounded(0, 1), byte_range])


def test_until_before_the_beginning_raises(storage: Storage) -> None:
    """`Until` of more bytes than the object has raises."""
    storage.put("chunks/R", CONTENT)
    with pytest.raises(InvalidInputError):
        storage.get("chunks/R", Until(11))


def test_many_ranges_of_one_object(storage: Storage) -> None:
    """Ranges are returned in the requested order, also overlapping, repeated and empty ones."""
    storage.put("chunks/R", CONTENT)
    ranges = [Bounded(7, 9), Bounded(0, 3), Bounded(5, 5), Bounded(1, 8), Bounded(0, 3)]
    found = [bytes(data) for data in storage.get_ranges("chunks/R", ranges)]
    assert found == [b"78", b"012", b"", b"1234567", b"012"]
    assert storage.get_ranges("chunks/R", []) == []


@pytest.mark.parametrize(
    "start, length", [(0, 10), (2, 3), (0, 1), (9, 1), (4, 0), (0, 0), (10, 0)]
)
def test_bytes_of_one_range(storage: Storage, start: int, length: int) -> None:
    """`get_bytes` and its twin answer exactly the bytes asked for, an empty range too."""
    storage.put("chunks/R", CONTENT)
    expected = CONTENT[start : start + length]
    assert bytes(storage.get_bytes("chunks/R", start, length)) == expected
    assert bytes(asyncio.run(storage.get_bytes_async("chunks/R", start, length))) == expected


@pytest.mark.parametrize(
    "start, length",
    [(0, 11), (5, 15), (10, 1), (11, 1), (11, 0), (-1, 2), (3, -1), (0, 2**60), (2**62, 1)],
)
def test_get_bytes_past_the_end_raises(storage: Storage, start: int, length: int) -> None:
    """A read returns all bytes or raises, and does not allocate an unchecked size."""
    storage.put("chunks/R", CONTENT)
    with pytest.raises(InvalidInputError, match=r"10 bytes|byte range"):
        storage.get_bytes("chunks/R", start, length)
    with pytest.raises(InvalidInputError, match=r"10 bytes|byte range"):
        asyncio.run(storage.get_bytes_async("chunks/R", start, length))


def test_fresh_objects_are_objects(storage: Storage) -> None:
    """Objects of `Fresh` puts and `put_async` are read and listed like others, in any size."""
    contents = {
        f"chunks/{secrets.token_hex(10)}": content
        for content in (b"", CONTENT, os.urandom(16_384), os.urandom(9_000_000))
    }
    keys = list(contents)
    for key in keys[:2]:
        storage.put(key, contents[key], Fresh())

    async def put_rest() -> None:
        await asyncio.gather(*(storage.put_async(key, contents[key]) for key in keys[2:]))

    asyncio.run(put_rest())
    for key, content in contents.items():
        fetched = storage.get(key)
        assert bytes(fetched.data) == content
        assert bytes(storage.get_bytes(key, 0, len(content))) == content
        assert fetched.info == storage.head(key)
    assert [info.key for info in storage.list()] == sorted(contents)
    view = memoryview(bytes(range(48))).cast("H", (4, 6))
    storage.put("manifests/V", view, Fresh())
    asyncio.run(storage.put_async("manifests/W", view))
    assert content_of(storage, "manifests/V") == content_of(storage, "manifests/W")
    assert content_of(storage, "manifests/V") == bytes(range(48))


def test_fresh_objects_are_replaced_like_others(storage: Storage) -> None:
    """Other modes apply to them: a create raises, an update checks the current version."""
    answered = storage.put("chunks/A", b"1", Fresh())
    with pytest.raises(PreconditionFailedError):
        storage.put("chunks/A", b"2", Create())
    version = storage.head("chunks/A").version
    assert answered in {version, Version()}
    with pytest.raises(PreconditionFailedError):
        storage.put("chunks/A", b"2", UpdateIfMatch(Version("0")))
    storage.put("chunks/A", b"2", UpdateIfMatch(version))
    assert content_of(storage, "chunks/A") == b"2"


def test_many_requests_of_one_event_loop(storage: Storage) -> None:
    """One loop runs hundreds of requests; other loops follow, also in other threads."""
    contents = {f"chunks/{i:04}": os.urandom(100) for i in range(200)}

    async def put_all() -> None:
        await asyncio.gather(*(storage.put_async(*item) for item in contents.items()))

    async def get_all() -> list[bytes]:
        waiting = (storage.get_bytes_async(key, 10, 80) for key in contents)
        return [bytes(data) for data in await asyncio.gather(*waiting)]

    asyncio.run(put_all())
    expected = [data[10:90] for data in contents.values()]
    assert asyncio.run(get_all()) == expected
    with ThreadPoolExecutor(1) as elsewhere:
        assert elsewhere.submit(lambda: asyncio.run(get_all())).result() == expected


def test_low_latency(storage: Storage) -> None:
    """Memory and local storages have low latency, servers do not."""
    assert storage.is_low_latency == isinstance(storage, LocalStorage | MemoryStorage)


def test_list_objects_metadata(storage: Storage) -> None:
    """Keys are relative to the prefix, which has complete segments, with or without a slash."""
    for key in ("repo", "snapshots/A", "snapshots/B"):
        storage.put(key, key.encode())
    found = storage.list_objects_metadata()
    assert [(info.key, info.size_bytes) for info in found] == [
        ("repo", 4),
        ("snapshots/A", 11),
        ("snapshots/B", 11),
    ]
    assert [info.created_at for info in found] == [info.last_modified for info in storage.list()]
    for prefix in ("snapshots", "snapshots/"):
        assert storage.list_objects(prefix=prefix) == [("A", 11), ("B", 11)]
    settings = storage.default_settings()
    assert storage.list_objects_metadata(settings, "snap") == []
    assert storage.list_objects_metadata(settings, "") == found


def test_max_bytes(storage: Storage) -> None:
    """A get of more than ``max_bytes`` raises and names both sizes; for a range its size counts."""
    storage.put("snapshots/A", CONTENT)
    for byte_range, size_bytes in ((None, 10), (Bounded(2, 9), 7), (From(3), 7), (Until(1), 9)):
        with pytest.raises(StorageError, match=f"{size_bytes} bytes.* 6 ") as raised:
            storage.get("snapshots/A", byte_range, max_bytes=6)
        assert raised.value.kind is ErrorKind.INVALID_OBJECT_SIZE
        storage.get("snapshots/A", byte_range, max_bytes=size_bytes)
    with pytest.raises(StorageError, match="4 bytes"):
        storage.get("snapshots/A", Last(4), max_bytes=3)
    assert bytes(storage.get("snapshots/A", Last(4), max_bytes=4).data) == b"6789"
    assert bytes(storage.get("snapshots/A", From(10), max_bytes=0).data) == b""


def test_get_if_changed(storage: Storage) -> None:
    """An object is fetched unless it has the version of a put or a read."""
    written = storage.put("repo", CONTENT)
    assert storage.get_if_changed("repo", written) is None
    assert storage.get_if_changed("repo", storage.get("repo").info.version) is None
    assert storage.get_if_changed("repo", storage.head("repo").version) is None
    storage.put("repo", b"changed", UpdateIfMatch(written))
    fetched = storage.get_if_changed("repo", written)
    assert fetched is not None
    assert fetched == storage.get("repo")
    assert storage.get_if_changed("repo", fetched.info.version) is None
    with pytest.raises(StorageError, match="7 bytes"):
        storage.get_if_changed("repo", written, max_bytes=6)
    assert storage.get_if_changed("repo", Version()) == fetched
    with pytest.raises(InvalidInputError):
        storage.get_if_changed("../repo", written)


def test_missing_objects(storage: Storage) -> None:
    """Every operation on a missing object raises the same error."""
    version = storage.put("a/b", CONTENT)
    for key in ("nothing", "a", "a/c", "snapshots/X"):
        with pytest.raises(ObjectNotFoundError):
            storage.get(key)
        with pytest.raises(ObjectNotFoundError):
            storage.get_if_changed(key, version)
        with pytest.raises(ObjectNotFoundError):
            storage.get(key, Last(2))
        with pytest.raises(ObjectNotFoundError):
            storage.get_ranges(key, [Bounded(0, 1)])
        for length in (0, 1):
            with pytest.raises(ObjectNotFoundError):
                storage.get_bytes(key, 0, length)
            with pytest.raises(ObjectNotFoundError):
                asyncio.run(storage.get_bytes_async(key, 0, length))
        with pytest.raises(ObjectNotFoundError):
            storage.head(key)
        with pytest.raises(ObjectNotFoundError):
            storage.copy(key, "target")


def test_create_happens_once(storage: Storage) -> None:
    """A second create raises and changes nothing."""
    version = storage.put("refs/tag.a/ref.json", b"first", Create())
    with pytest.raises(PreconditionFailedError):
        storage.put("refs/tag.a/ref.json", b"second", Create())
    fetched = storage.get("refs/tag.a/ref.json")
    assert bytes(fetched.data) == b"first"
    assert fetched.info.version == version


def test_update_needs_the_current_version(storage: Storage) -> None:
    """An update succeeds with the current version only."""
    first = storage.put("repo", b"1", Create())
    second = storage.put("repo", b"2", UpdateIfMatch(first))
    with pytest.raises(PreconditionFailedError):
        storage.put("repo", b"3", UpdateIfMatch(first))
    assert content_of(storage, "repo") == b"2"
    third = storage.put("repo", b"3", UpdateIfMatch(second))
    assert storage.head("repo").version == third
    assert len({first, second, third}) == 3


def test_update_accepts_versions_of_all_reads(storage: Storage) -> None:
    """An update accepts the versions that get, head and list return."""
    storage.put("repo", b"1")
    storage.put("repo", b"2", UpdateIfMatch(storage.get("repo").info.version))
    storage.put("repo", b"3", UpdateIfMatch(storage.head("repo").version))
    (listed,) = storage.list()
    storage.put("repo", b"4", UpdateIfMatch(listed.version))
    assert content_of(storage, "repo") == b"4"


def test_update_of_a_missing_object_raises(storage: Storage) -> None:
    """An update never creates an object, also not after a deletion."""
    version = storage.put("repo", b"1")
    with pytest.raises(PreconditionFailedError):
        storage.put("other", b"2", UpdateIfMatch(version))
    storage.delete_many(["repo"])
    with pytest.raises(PreconditionFailedError):
        storage.put("repo", b"2", UpdateIfMatch(version))
    assert list(storage.list()) == []


def test_update_after_an_overwrite_raises(storage: Storage) -> None:
    """An unconditional put creates a new version."""
    version = storage.put("repo", b"1", Create())
    storage.put("repo", b"2", Overwrite())
    with pytest.raises(PreconditionFailedError):
        storage.put("repo", b"3", UpdateIfMatch(version))


def test_delete_many(storage: Storage) -> None:
    """Deletes several batches of objects; missing objects are ignored, others stay."""
    kept = [f"chunks/{i:05}" for i in range(3)]
    doomed = [f"manifests/{i:05}" for i in range(5)]
    for key in kept + doomed:
        storage.put(key, CONTENT)
    absent = [f"manifests/absent{i:05}" for i in range(3)]
    storage.delete_many(iter([doomed[0], *absent, *doomed[1:]]))
    assert [info.key for info in storage.list()] == kept
    storage.delete_many(doomed)
    storage.delete_many([])
    assert [info.key for info in storage.list()] == kept


def test_list_is_in_the_order_of_bytes(storage: Storage) -> None:
    """Keys are listed in the order of their UTF-8 bytes, not of a directory tree."""
    keys = ["a-b", "a/b", "a/c/d", "a/é", "a0", "a~", "b b", "é", "中/x", "🧊"]
    keys.append("refs/branch.a#1/ref.json")
    if not isinstance(storage, LocalStorage):
        keys.append("a/b/c")  # no file system has a file and a directory of one name
    for key in reversed(keys):
        storage.put(key, key.encode())
    listed = list(storage.list())
    assert [info.key for info in listed] == sorted(keys, key=str.encode)
    assert [info.size_bytes for info in listed] == [len(info.key.encode()) for info in listed]
    assert all(content_of(storage, info.key) == info.key.encode() for info in listed)
    assert all(info == storage.head(info.key) for info in listed)


def test_list_below_a_prefix(storage: Storage) -> None:
    """A prefix consists of complete segments, and listed keys include it."""
    for key in ("refs/branch.main/ref.json", "refs/tag.v1/ref.json", "refs2/x", "repo"):
        storage.put(key, b"x")
    assert [info.key for info in storage.list("refs/")] == [
        "refs/branch.main/ref.json",
        "refs/tag.v1/ref.json",
    ]
    assert [info.key for info in storage.list("refs/tag.v1/")] == ["refs/tag.v1/ref.json"]
    assert list(storage.list("nothing/")) == []
    assert list(storage.list("repo/")) == []
    with pytest.raises(InvalidInputError):
        list(storage.list("refs"))


def test_list_first(storage: Storage) -> None:
    """The first objects of a directory, in the order of their keys, at most as many as asked."""
    names = [f"{number:04}.json" for number in range(30)]
    for name in reversed(names):
        storage.put(f"r/main/{name}", name.encode())
    storage.put("r/main.json", b"x")
    for limit in (1, 2, 25, 30, 31):
        listed = storage.list_first("r/main/", limit)
        assert [info.key for info in listed] == [f"r/main/{name}" for name in names[:limit]]
    assert listed[0] == storage.head("r/main/0000.json")
    assert list(storage.list_first("r/other/", 2)) == []
    with pytest.raises(InvalidInputError):
        storage.list_first("r/main", 2)


def test_copy(storage: Storage) -> None:
    """A copy replaces its target and is independent of its source."""
    storage.put("repo", b"old")
    storage.put("overwritten/repo.1", b"something longer")
    storage.copy("repo", "overwritten/repo.1")
    storage.put("repo", b"new")
    assert content_of(storage, "overwritten/repo.1") == b"old"
    assert content_of(storage, "repo") == b"new"


@pytest.mark.parametrize(
    "key",
    ["", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/./b", "a\0b", "a\nb", "\ud800"],
)
def test_invalid_keys_raise(storage: Storage, key: str) -> None:
    """Keys that leave the root or are ambiguous raise."""
    attempts: list[Callable[[], object]] = [
        lambda: storage.get(key),
        lambda: storage.get_ranges(key, [Bounded(0, 1)]),
        lambda: storage.get_bytes(key, 0, 1),
        lambda: asyncio.run(storage.get_bytes_async(key, 0, 1)),
        lambda: storage.put(key, b"x"),
        lambda: storage.put(key, b"x", Fresh()),
        lambda: asyncio.run(storage.put_async(key, b"x")),
        lambda: storage.put(key, b"x", Create()),
        lambda: storage.put(key, b"x", UpdateIfMatch(Version("1"))),
        lambda: storage.delete_many([key]),
        lambda: storage.head(key),
        lambda: storage.copy(key, "a"),
        lambda: storage.copy("a", key),
    ]
    for attempt in attempts:
        with pytest.raises(InvalidInputError):
            attempt()
    assert list(storage.list()) == []


def test_long_keys_raise(storage: Storage) -> None:
    """A key of 1025 bytes raises on every storage."""
    with pytest.raises(InvalidInputError, match="1025 bytes"):
        storage.put("é/" * 341 + "ab", b"x")
    with pytest.raises(InvalidInputError, match="1025 bytes"):
        storage.put("a" * 1025, b"x")


def test_large_objects(storage: Storage) -> None:
    """20 MiB arrive unharmed, whole and in parts."""
    data = bytes(range(256)) * (20 * 1024 * 4)
    storage.put("chunks/L", data)
    assert content_of(storage, "chunks/L") == data
    assert (
        bytes(storage.get("chunks/L", Bounded(12_345_678, 12_445_678)).data)
        == (data[12_345_678:12_445_678])
    )
    far_apart = [Bounded(0, 10), Bounded(19_000_000, 19_000_010)]
    assert [bytes(data) for data in storage.get_ranges("chunks/L", far_apart)] == [
        data[:10],
        data[19_000_000:19_000_010],
    ]
    storage.put("refs/L", data, Create())
    assert content_of(storage, "refs/L") == data


def test_threads_share_a_storage(storage: Storage) -> None:
    """Many threads write, read and delete through one storage, each its own objects."""

    def work(number: int) -> bytes:
        key = f"chunks/{number:03}"
        storage.put(key, str(number).encode() * 1000, Fresh() if number % 3 else Overwrite())
        data = content_of(storage, key)
        if number % 2:
            storage.delete_many([key])
        return data

    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(work, range(64)))
    assert results == [str(number).encode() * 1000 for number in range(64)]
    assert [info.key for info in storage.list()] == [f"chunks/{i:03}" for i in range(0, 64, 2)]


def test_threads_update_one_object(storage: Storage) -> None:
    """No update is lost if many threads update one object."""
    storage.put("counter", b"0")

    def increment(_: int) -> int:
        refused = 0
        while True:
            fetched = storage.get("counter")
            following = str(int(bytes(fetched.data)) + 1).encode()
            try:
                storage.put("counter", following, UpdateIfMatch(fetched.info.version))
            except PreconditionFailedError:
                refused += 1
            else:
                return refused

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(increment, range(24)))
    assert content_of(storage, "counter") == b"24"


def test_pickles(storage: Storage) -> None:
    """A pickled storage has the same objects; a memory storage cannot be pickled."""
    storage.put("repo", CONTENT)
    if isinstance(storage, MemoryStorage):
        with pytest.raises(SessionStateError, match="cannot be pickled"):
            pickle.dumps(storage)
        return
    again = pickle.loads(pickle.dumps(storage))  # noqa: S301
    assert content_of(again, "repo") == CONTENT
    assert again.url == storage.url
    assert again.default_settings() == storage.default_settings()


def test_secrets_are_not_shown(storage: Storage) -> None:
    """Neither the repr, the URL nor the errors of a storage contain a secret."""
    with pytest.raises(IcefloeError) as raised:
        storage.get("missing")
    shown = repr(storage) + str(storage) + storage.url + str(raised.value) + repr(raised.value)
    for secret in ("do-not-show", "Eby8vdM02", "writer-key"):
        assert secret not in shown
    assert not storage.read_only
