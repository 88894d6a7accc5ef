"""Repositories of all generations with a damaged file are read, or refused with typed errors."""

from __future__ import annotations

import random

import pytest

from icefloe.errors import FormatError
from icefloe.format.generation import get_generation
from icefloe.repository import Repository
from icefloe.storage import MemoryStorage
from support.hypothesis_examples import examples
from support.repository_damage import damage_file, list_metadata, make_files, read_damaged


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
