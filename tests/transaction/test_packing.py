"""Small chunks in shared objects: on, off, read before they are written, and written again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import icechunk
import pytest

from icefloe.errors import ErrorKind, StorageError
from icefloe.format.generation import get_generation
from icefloe.model.chunk_payload import ChunkRef
from icefloe.model.config import PackingConfig, RepositoryConfig
from icefloe.model.path import Path
from icefloe.repository import Repository
from icefloe.storage import LocalStorage, MemoryStorage
from icefloe.types import ChunkType
from support.counting_storage import CountingStorage
from support.faulty_storage import FaultyStorage
from support.generations import find_kind
from support.zarr_nodes import array, contents, get, group, put

if TYPE_CHECKING:
    import pathlib

    from icefloe.session import Session
    from icefloe.storage import Storage


def _config(max_chunk_bytes: int = 100, target_object_bytes: int = 1000) -> RepositoryConfig:
    return RepositoryConfig(
        inline_chunk_threshold_bytes=5,
        packing=PackingConfig(
            max_chunk_bytes=max_chunk_bytes, target_object_bytes=target_object_bytes
        ),
    )


def _begin(storage: Storage, config: RepositoryConfig, generation: str = "v1") -> Session:
    session = Repository.create(storage, config, generation=generation).writable_session("main")
    put(session.store, "zarr.json", group())
    put(session.store, "a/zarr.json", array((200,)))
    return session


def _value(index: int) -> bytes:
    return f"chunk number {index:03}".encode() * (1 + index % 3)


def _ref(session: Session, index: int) -> ChunkRef:
    ref = session.transaction.get_payload(Path("/a"), (index,))
    assert isinstance(ref, ChunkRef)
    return ref


def test_packs_are_shared_objects(generation: str) -> None:
    """Chunks lie one behind the other in a few objects, at the offsets that references say."""
    storage = CountingStorage(MemoryStorage())
    session = _begin(storage, _config(), generation)
    for index in range(100):
        put(session.store, f"a/c/{index}", _value(index))
    put(session.store, "a/c/100", b"tiny")
    put(session.store, "a/c/101", b"x" * 101)
    session.commit("packed")
    objects = [key for key in storage.keys("put") if find_kind(key, generation) == "chunks"]
    total = sum(len(_value(index)) for index in range(100))
    assert len(objects) == len(set(objects)) <= total // 1000 + 2
    layout = get_generation(generation).layout
    for index in range(100):
        ref = _ref(session, index)
        stored = bytes(storage.get(layout.chunks.format_key(ref.id)).data)
        assert stored[ref.offset : ref.offset + ref.length] == _value(index)
        assert len(stored) < 1000 + 100
    refs = [_ref(session, index) for index in range(100)]
    assert len({ref.id for ref in refs}) == len(objects) - 1
    assert len({(ref.id, ref.offset) for ref in refs}) == 100
    assert session.chunk_type("/a", [100]) is ChunkType.inline
    assert (_ref(session, 101).offset, _ref(session, 101).length) == (0, 101)
    reader = Repository.open(storage.inner).readonly_session("main")
    assert [get(reader.store, f"a/c/{index}") for index in range(100)] == list(
        map(_value, range(100))
    )


@pytest.mark.parametrize("config", [RepositoryConfig(inline_chunk_threshold_bytes=5), _config(0)])
def test_off(config: RepositoryConfig) -> None:
    """Without packing, or with a limit of 0, every chunk is an object, written at once."""
    storage = CountingStorage(MemoryStorage())
    session = _begin(storage, config)
    for index in range(5):
        put(session.store, f"a/c/{index}", _value(index))
    objects = [key for key in storage.keys("put") if key.startswith("chunks/")]
    assert len(objects) == 5
    assert {f"chunks/{_ref(session, index).id}" for index in range(5)} == set(objects)


def test_read_before_it_is_written() -> None:
    """A session reads its chunks while they wait in memory, and writes nothing for that."""
    storage = CountingStorage(MemoryStorage())
    session = _begin(storage, _config())
    storage.forget()
    for index in range(3):
        put(session.store, f"a/c/{index}", _value(index))
    put(session.store, "a/c/1", b"written again")
    assert get(session.store, "a/c/0") == _value(0)
    assert get(session.store, "a/c/1") == b"written again"
    assert contents(session.store)["a/c/2"] == _value(2)
    assert storage.calls == ()
    session.commit("packed")
    keys = [key for key in storage.keys("put") if key.startswith("chunks/")]
    assert len(keys) == 1
    assert get(Repository.open(storage.inner).readonly_session("main").store, "a/c/1") == (
        b"written again"
    )


def test_discarded_packs_are_not_written() -> None:
    """After the changes were discarded nothing waits any more."""
    storage = CountingStorage(MemoryStorage())
    session = _begin(storage, _config())
    storage.forget()
    put(session.store, "a/c/0", _value(0))
    session.discard_changes()
    put(session.store, "zarr.json", group())
    session.commit("without")
    assert not [key for key in storage.keys("put") if key.startswith("chunks/")]


@pytest.mark.parametrize("how_many", [1, 30], ids=["at commit", "when full"])
def test_a_failed_write_is_tried_again(how_many: int) -> None:
    """A pack that could not be written waits on, and the next commit writes it."""
    inner = MemoryStorage()
    is_broken = True

    def fail(call_number: int, name: str, key: str) -> None:
        if is_broken and name.startswith("put") and key.startswith("chunks/"):
            raise StorageError("no", kind=ErrorKind.IO)

    session = _begin(FaultyStorage(inner, fail), _config(target_object_bytes=500))
    stored = []
    for index in range(how_many):
        try:
            put(session.store, f"a/c/{index}", _value(index))
        except StorageError:
            continue
        stored.append(index)
    with pytest.raises(StorageError):
        session.commit("fails")
    for index in stored:
        assert get(session.store, f"a/c/{index}") == _value(index)
    is_broken = False
    session.commit("works")
    reader = Repository.open(inner).readonly_session("main").store
    assert {int(key[4:]) for key in contents(reader) if key.startswith("a/c/")} == set(stored)
    for index in stored:
        assert get(reader, f"a/c/{index}") == _value(index)


def test_icechunk_reads_packs(tmp_path: pathlib.Path) -> None:
    """Icechunk 1.1 reads chunks that share objects."""
    session = _begin(LocalStorage(tmp_path), _config())
    for index in range(60):
        put(session.store, f"a/c/{index}", _value(index))
    session.commit("packed")
    theirs = icechunk.Repository.open(icechunk.local_filesystem_storage(str(tmp_path)))
    found = contents(theirs.readonly_session("main").store)
    assert found == contents(session.store)
    assert found["a/c/59"] == _value(59)
