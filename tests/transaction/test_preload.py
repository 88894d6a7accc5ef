"""Preloading of manifests: which, how many, and that failures are harmless."""

from __future__ import annotations

import time

import pytest

from icefloe.errors import StorageError
from icefloe.model.config import RepositoryConfig
from icefloe.model.ids import SnapshotId
from icefloe.model.manifest_config import (
    ManifestConfig,
    ManifestPreloadCondition,
    ManifestPreloadConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
)
from icefloe.model.node import ArrayNodeData
from icefloe.model.path import Path
from icefloe.repository import Repository
from icefloe.storage import MemoryStorage, Storage
from icefloe.transaction.preload import matches, plan_preload
from support.counting_storage import CountingStorage
from support.faulty_storage import FaultyStorage
from support.zarr_nodes import array, get, group, put

_If = ManifestPreloadCondition


@pytest.mark.parametrize(
    "condition, expected",
    [
        (_If.true(), True),
        (_If.false(), False),
        (_If.name_matches("^time$"), True),
        (_If.name_matches("^g$"), False),
        (_If.path_matches("^/g/"), True),
        (_If.path_matches("^time"), False),
        (_If.num_refs(5, 6), True),
        (_If.num_refs(6, None), False),
        (_If.num_refs(None, 5), False),
        (_If.num_refs(), True),
        (_If.true() & _If.false(), False),
        (_If.true() | _If.false(), True),
        (_If.and_conditions([]), True),
        (_If.or_conditions([]), False),
    ],
)
def test_conditions(condition: ManifestPreloadCondition, *, expected: bool) -> None:
    """A condition holds for ``/g/time`` with 5 references, or does not."""
    assert matches(condition, Path("/g/time"), 5) is expected


def _repository(storage: Storage) -> Repository:
    """Make arrays of 1, 2, 3 ... chunks, each with manifests of its own."""
    rules = ManifestSplittingConfig.from_dict(
        {ManifestSplitCondition.AnyArray(): {ManifestSplitDimCondition.Any(): 1}}
    )
    config = RepositoryConfig(manifest=ManifestConfig(splitting=rules))
    repository = Repository.create(storage, config)
    session = repository.writable_session("main")
    put(session.store, "zarr.json", group())
    for number, name in enumerate(["lat", "other", "time", "x"], 1):
        put(session.store, f"{name}/zarr.json", array((5,)))
        for index in range(number):
            put(session.store, f"{name}/c/{index}", b"value")
    session.commit("begin")
    return repository


def _plan(repository: Repository, config: ManifestPreloadConfig) -> dict[str, int]:
    """Tell how many of each array's manifests would be loaded."""
    tip = SnapshotId.parse(repository.lookup_branch("main"))
    tree = repository._connection.assets.fetch_tree(tip)
    plan = plan_preload(tree, config)
    assert len(plan) == len(set(plan))
    counts = {
        node.path.name: len({ref.id for ref in node.node_data.manifests} & set(plan))
        for node in tree.snapshot.nodes
        if isinstance(node.node_data, ArrayNodeData)
    }
    return {name: count for name, count in counts.items() if count}


def test_plan() -> None:
    """Arrays are taken in the order of their paths, as long as there is room for all of one."""
    repository = _repository(MemoryStorage())
    config = ManifestPreloadConfig
    everything = {"lat": 1, "other": 2, "time": 3, "x": 4}
    assert _plan(repository, config()) == {"lat": 1, "time": 3, "x": 4}
    assert _plan(repository, config(preload_if=_If.true())) == everything
    assert _plan(repository, config(preload_if=_If.false())) == {}
    assert _plan(repository, config(preload_if=_If.true(), max_total_refs=0)) == {}
    assert _plan(repository, config(preload_if=_If.true(), max_total_refs=5)) == {
        "lat": 1,
        "other": 2,
    }
    assert _plan(repository, config(preload_if=_If.true(), max_total_refs=7)) == {
        "lat": 1,
        "other": 2,
        "time": 3,
    }
    assert _plan(repository, config(preload_if=_If.true(), max_arrays_to_scan=2)) == {
        "lat": 1,
        "other": 2,
    }
    assert _plan(repository, config(preload_if=_If.num_refs(2, 4))) == {"other": 2, "time": 3}


def test_preloaded_manifests_are_not_fetched_again() -> None:
    """A session loads what the plan says in the background, and reads from it without requests."""
    inner = MemoryStorage()
    _repository(inner)
    storage = CountingStorage(inner)
    session = Repository.open(storage).readonly_session("main")
    deadline = time.monotonic() + 10
    while sum(key.startswith("manifests/") for key in storage.keys("get")) < 8:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    storage.forget()
    assert get(session.store, "time/c/2") == b"value"
    assert storage.keys() == []
    assert get(session.store, "other/c/0") == b"value"
    (fetched,) = storage.keys()
    assert fetched.startswith("manifests/")


def test_a_failed_preload_is_nobodys_error() -> None:
    """A manifest that cannot be preloaded is loaded again by its reader."""
    inner = MemoryStorage()
    _repository(inner)
    is_broken = True

    def fail(call_number: int, name: str, key: str) -> None:
        if is_broken and key.startswith("manifests/"):
            raise StorageError("no")

    repository = Repository.open(FaultyStorage(inner, fail))
    session = repository.readonly_session("main")
    with pytest.raises(StorageError):
        get(session.store, "time/c/2")
    is_broken = False
    assert get(session.store, "time/c/2") == b"value"
