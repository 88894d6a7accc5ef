"""The check of conditional writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from icefloe.errors import StorageError
from icefloe.storage import LocalStorage, MemoryStorage, Overwrite, PutMode, Version
from icefloe.storage.forwarding import ForwardingStorage
from icefloe.storage.write_check import check_writes

if TYPE_CHECKING:
    from pathlib import Path

    from icefloe.storage import Storage


class CarelessStorage(ForwardingStorage):
    """A storage that ignores the conditions of writes."""

    def put(self, key: str, data: bytes | memoryview, mode: PutMode = Overwrite()) -> Version:  # noqa: B008
        return super().put(key, data, Overwrite())


class UnconditionalStorage(ForwardingStorage):
    """A storage that has no conditional writes."""

    def put(self, key: str, data: bytes | memoryview, mode: PutMode = Overwrite()) -> Version:  # noqa: B008
        if not isinstance(mode, Overwrite):
            raise StorageError("501 Not Implemented")
        return super().put(key, data, mode)


@pytest.mark.parametrize("kind", ["memory", "local", "s3"])
def test_working_storages(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """No problem is found, the clocks agree, and nothing is left behind."""
    storage: Storage
    match kind:
        case "memory":
            storage = MemoryStorage()
        case "local":
            storage = LocalStorage(tmp_path)
        case _:
            storage = request.getfixturevalue("s3")
    result = check_writes(storage)
    assert (result.create_problem, result.update_problem) == (None, None)
    assert abs(result.clock_ahead_s) < 60
    assert list(storage.list()) == []


def test_a_storage_that_ignores_conditions() -> None:
    """Writes whose condition does not hold are noticed, and the object is deleted."""
    inner = MemoryStorage()
    result = check_writes(CarelessStorage(inner))
    assert result.create_problem == "it wrote although the condition did not hold"
    assert result.update_problem == "it wrote although the condition did not hold"
    assert list(inner.list()) == []


def test_a_storage_without_conditions() -> None:
    """The error of the storage is the problem."""
    result = check_writes(UnconditionalStorage(MemoryStorage()))
    assert result.create_problem == "501 Not Implemented"
    assert result.update_problem == "501 Not Implemented"
