"""Repositories of all generations with a damaged file are read, or refused with typed errors."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from icefloe.errors import ErrorKind, FormatError, SnapshotNotFoundError
from icefloe.format.generation import get_generation
from icefloe.inspection.repository import fetch_snapshot
from icefloe.model.ids import SnapshotId
from icefloe.refs import open_refs
from icefloe.repository import Repository
from icefloe.storage import MemoryStorage
from support.generations import OLDER
from support.hypothesis_examples import examples
from support.repository_damage import damage_file, list_metadata, make_files, read_damaged

if TYPE_CHECKING:
    from collections.abc import Callable


def test_damaged_files(generation: str) -> None:
    """Reading, comparing and committing raise only errors of icefloe, whatever a file says."""
    source = random.Random(generation)
    keys = list_metadata(generation)
    accepted = 0
    number = examples(60, thorough=5000)
    for _ in range(number):
        key = source.choice(keys)
        data = damage_file(key, make_files(generation)[key], source)
        accepted += read_damaged(generation, key, data)
    assert accepted < number


def test_undamaged_files(generation: str) -> None:
    """The files that are damaged are accepted as they are."""
    key = list_metadata(generation)[0]
    assert read_damaged(generation, key, make_files(generation)[key])


def test_truncated_files(generation: str) -> None:
    """A snapshot file without its last byte is refused with its name."""
    storage = MemoryStorage()
    for key, data in make_files(generation).items():
        storage.put(key, data)
    repository = Repository.open(storage)
    tip = repository.lookup_branch("main")
    key = get_generation(generation).layout.snapshots.format_key(tip)
    storage.put(key, make_files(generation)[key][:-1])
    with pytest.raises(FormatError, match=tip):
        Repository.open(storage).readonly_session("main")


@pytest.mark.parametrize("generation", OLDER)
def test_missing_attributes_file(generation: str) -> None:
    """The error names the attributes file, and does not say that the snapshot is missing."""
    storage = MemoryStorage()
    for key, data in make_files(generation).items():
        storage.put(key, data)
    repository = Repository.open(storage)
    tip = repository.lookup_branch("main")
    (missing,) = [info.key for info in storage.list("a/")]
    storage.delete_many([missing])
    steps: list[Callable[[], object]] = [
        lambda: repository.readonly_session("main"),
        lambda: repository.readonly_session(snapshot_id=tip),
        lambda: repository.writable_session("main"),
        lambda: repository.fetch_snapshot(snapshot_id=tip),
        lambda: fetch_snapshot(storage, open_refs(storage).refs, "main"),
    ]
    if generation == "sequence":  # its snapshot files have the history
        steps.append(lambda: list(repository.ancestry(branch="main")))
        steps.append(lambda: repository.lookup_snapshot(tip))
    for step in steps:
        with pytest.raises(
            FormatError, match=f"^{missing}: the attributes file is missing"
        ) as info:
            step()
        assert info.value.kind is ErrorKind.OBJECT_NOT_FOUND
    storage.delete_many(
        [get_generation(generation).layout.snapshots.format_key(SnapshotId.parse(tip))]
    )
    with pytest.raises(SnapshotNotFoundError):
        repository.readonly_session(snapshot_id=tip)
