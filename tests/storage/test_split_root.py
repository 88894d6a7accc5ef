"""A storage of two roots sends each request to one of them; `test_conformance` runs on it too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from icefloe.errors import ObjectNotFoundError, ReadOnlyError
from icefloe.storage import Fresh, LocalStorage, MemoryStorage, UpdateIfMatch, http_storage
from icefloe.storage.split_root import SplitRootStorage
from support.counting_storage import CountingStorage

if TYPE_CHECKING:
    from pathlib import Path

    from icefloe.storage import Storage

KEYS = frozenset(("config.yaml", "state.json"))


@pytest.fixture
def state() -> Storage:
    return MemoryStorage()


@pytest.fixture
def data() -> Storage:
    return MemoryStorage()


@pytest.fixture
def split(state: Storage, data: Storage) -> SplitRootStorage:
    return SplitRootStorage(state, data, KEYS)


def list_keys(storage: Storage, prefix: str = "") -> list[str]:
    return [info.key for info in storage.list(prefix)]


def test_each_key_has_one_place(split: SplitRootStorage, state: Storage, data: Storage) -> None:
    """Keys of the state are read, updated and deleted in one root, all others in the other."""
    version = split.put("state.json", b"1")
    split.put("s/A", b"22", Fresh())
    assert (list_keys(state), list_keys(data)) == (["state.json"], ["s/A"])
    split.put("state.json", b"3", UpdateIfMatch(version))
    assert bytes(state.get("state.json").data) == bytes(split.get("state.json").data) == b"3"
    assert list_keys(split) == ["s/A", "state.json"]
    assert list_keys(split, "s/") == ["s/A"]
    split.delete_many(["state.json", "s/A"])
    assert list_keys(state) == list_keys(data) == []


def test_other_files_are_hidden(split: SplitRootStorage, state: Storage, data: Storage) -> None:
    """Files of other repositories in either root are neither read nor listed."""
    state.put("s/A", b"x")
    state.put("repo", b"x")
    data.put("state.json", b"x")
    assert list_keys(split) == []
    for key in ("s/A", "repo", "state.json"):
        with pytest.raises(ObjectNotFoundError):
            split.get(key)
    split.delete_many(["s/A", "repo", "state.json"])
    assert (list_keys(state), list_keys(data)) == (["repo", "s/A"], ["state.json"])


def test_copies_between_the_roots(split: SplitRootStorage, state: Storage, data: Storage) -> None:
    """A copy may cross the roots."""
    split.put("state.json", b"x")
    split.copy("state.json", "backup/state.json")
    split.copy("backup/state.json", "config.yaml")
    assert (list_keys(state), list_keys(data)) == (
        ["config.yaml", "state.json"],
        ["backup/state.json"],
    )


def test_a_read_only_root() -> None:
    """If one root is read-only, no write is sent to the other."""
    roots: tuple[tuple[Storage, Storage], ...] = (
        (http_storage("http://localhost:1"), MemoryStorage()),
        (MemoryStorage(), http_storage("http://localhost:1")),
    )
    for state, data in roots:
        split = SplitRootStorage(state, data, KEYS)
        assert split.read_only
        for key in ("state.json", "s/A"):
            with pytest.raises(ReadOnlyError, match="localhost"):
                split.put(key, b"x")
            with pytest.raises(ReadOnlyError, match="localhost"):
                split.delete_many([key])


def test_data_is_durable_before_the_state(tmp_path: Path) -> None:
    """A put of the state first flushes the files that it may refer to."""
    events: list[str] = []

    class Flushing(LocalStorage):
        """Records flushes."""

        def flush_fresh(self) -> None:
            events.append("flush of the data")
            super().flush_fresh()

    class Recording(MemoryStorage):
        """Records puts."""

        def put(self, *arguments: object, **named: object):  # type: ignore[no-untyped-def] # noqa: ANN202
            events.append("put of the state")
            return super().put(*arguments, **named)  # type: ignore[arg-type]

    split = SplitRootStorage(Recording(), Flushing(tmp_path), KEYS)
    split.put("s/A", b"x", Fresh())
    assert events == []
    split.put("state.json", b"x")
    assert events == ["flush of the data", "put of the state"]


def test_settings_of_the_state_are_kept(tmp_path: Path) -> None:
    """Settings apply to the data; the URL and the user agent to both."""
    inner = CountingStorage(MemoryStorage())
    split = SplitRootStorage(inner, LocalStorage(tmp_path), KEYS)
    changed = split.with_settings(split.default_settings()).with_user_agent("test")
    assert changed.default_settings() == LocalStorage(tmp_path).default_settings()
    assert changed.url == "memory://"
    assert changed.store_root_url == LocalStorage(tmp_path).url
    assert CountingStorage(changed).store_root_url == changed.store_root_url
    assert MemoryStorage().store_root_url is None
