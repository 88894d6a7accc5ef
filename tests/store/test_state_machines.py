"""zarr's state machines against our store, with commits and reopened repositories in between."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import pytest
import zarr
from hypothesis import HealthCheck, settings
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.core.sync import sync
from zarr.testing.stateful import ZarrHierarchyStateMachine, ZarrStoreStateMachine

from icefloe.format.generation import get_generation
from icefloe.model.config import PackingConfig, RepositoryConfig
from icefloe.repository import Repository
from icefloe.storage import in_memory_storage
from support import zarr_documents
from support.generations import examples_of

if TYPE_CHECKING:
    from hypothesis.strategies import DataObject

    from icefloe.store import IcechunkStore

# Data types that the Zarr specification does not list yet, and names with unusual characters.
pytestmark = pytest.mark.filterwarnings("ignore:The (data type|object at)", "ignore::UserWarning")

BOUNDED = settings(
    max_examples=15,
    database=None,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
CONFIGS = {
    "inline": RepositoryConfig(),
    "native": RepositoryConfig(inline_chunk_threshold_bytes=0),
    "packed": RepositoryConfig(
        inline_chunk_threshold_bytes=4, packing=PackingConfig(target_object_bytes=64)
    ),
}


class Hierarchy(ZarrHierarchyStateMachine):
    """Arrays and groups, changed and read through zarr; the model is zarr's store in memory."""

    store: IcechunkStore

    def __init__(self, generation: str, config: RepositoryConfig) -> None:
        self._storage = in_memory_storage()
        self._config = config
        repository = Repository.create(self._storage, config, generation=generation)
        super().__init__(repository.writable_session("main").store)

    @rule()
    def commit(self) -> None:
        """Go on in a new session after a commit."""
        session = self.store.session
        before = self._contents()
        allow_empty = not session.has_uncommitted_changes
        session.commit("between two rules", allow_empty=allow_empty)
        assert self._contents() == before
        repository = Repository.open(self._storage, self._config)
        assert self._contents(repository.readonly_session("main").store) == before
        self.store = repository.writable_session("main").store
        assert not self.store.session.has_uncommitted_changes

    @rule()
    def merge_fork(self) -> None:
        """Let a change come from a fork."""
        session = self.store.session
        fork = session.fork()
        zarr.open_group(fork.store, mode="a").attrs["fork"] = 1
        before = self._contents(fork.store)
        session.merge(fork)
        assert self._contents() == before
        zarr.open_group(self.model, mode="a").attrs["fork"] = 1

    @precondition(lambda self: self.store.session.has_uncommitted_changes)
    @rule()
    def discard(self) -> None:
        """Throw away what was done since the last commit, then do it again from the model."""
        self.store.session.discard_changes()
        assert not self.store.session.has_uncommitted_changes
        sync(self.store.clear())
        for key in sorted(self.model._store_dict, key=lambda one: not one.endswith("zarr.json")):
            sync(self.store.set(key, self.model._store_dict[key]))

    @precondition(lambda self: bool(self.all_groups))
    @rule(data=st.data())
    def check_list_dir(self, data: DataObject) -> None:
        """List as the model does, but for the ``c`` that an array without chunks shows too."""
        path = self.draw_directory(data)
        ours = set(self._sync_iter(self.store.list_dir(path)))
        model = set(self._sync_iter(self.model.list_dir(path)))
        assert ours == (model | {"c"} if path in self.all_arrays else model)

    def _contents(self, store: IcechunkStore | None = None) -> dict[str, bytes]:
        shown = self.store if store is None else store
        keys = self._sync_iter(shown.list())
        values = [self._sync(shown.get(key, default_buffer_prototype())) for key in keys]
        found = zip(keys, values, strict=True)
        return {key: value.to_bytes() for key, value in found if value is not None}

    def teardown(self) -> None:
        """Compare all bytes in the end."""
        model = {key: value.to_bytes() for key, value in self.model._store_dict.items()}
        ours = self._contents()
        assert ours.keys() == model.keys()
        for key, value in model.items():
            # zarr 3.1 draws dimension names twice, for the model and for the store under test.
            assert ours[key] == value or _without_names(ours[key]) == _without_names(value), key


def _without_names(document: bytes) -> dict[str, Any]:
    metadata: dict[str, Any] = json.loads(document)
    metadata.pop("dimension_names", None)
    return metadata


@pytest.mark.parametrize(
    "generation, config", [("v1", "inline"), ("v1", "packed"), ("v2", "inline"), ("v2", "native")]
)
def test_hierarchy(generation: str, config: str) -> None:
    """Whatever zarr does to a hierarchy, a repository ends up with the bytes of the model."""
    make: Any = lambda: Hierarchy(generation, CONFIGS[config])  # noqa: E731 - hypothesis says type
    with zarr.config.set(_rectilinear(generation)):
        run_state_machine_as_test(make, settings=BOUNDED)


def _rectilinear(generation: str) -> dict[str, Any]:
    """Let zarr's strategies draw rectilinear grids, where zarr and the repository have them."""
    known = "array.rectilinear_chunks" in zarr.config
    has_grids = get_generation(generation).has_rectilinear_grids
    return {"array.rectilinear_chunks": has_grids} if known else {}


ARRAYS = ["a", "b/c", "b/c2"]
CHUNKS = st.builds(
    "{}/c/{}/{}".format, st.sampled_from(ARRAYS), st.integers(0, 2), st.integers(0, 1)
)
METADATA = st.sampled_from([f"{array}/zarr.json" for array in ARRAYS])
DOCUMENTS = st.builds(
    lambda number: zarr_documents.array((3, 2), attributes={"n": number}), st.integers()
)


class Keys(ZarrStoreStateMachine):
    """Keys set and deleted one by one, without zarr's arrays; the model is a dictionary.

    zarr draws any keys and any bytes, of which a hierarchy takes few. The rules that draw keys are
    written again for the keys of three arrays; what they claim, and the invariants, are zarr's.
    """

    def __init__(self, generation: str, config: RepositoryConfig) -> None:
        repository = Repository.create(in_memory_storage(), config, generation=generation)
        super().__init__(repository.writable_session("main").store)
        self._repository = repository

    @initialize()
    def init_store(self) -> None:
        assert self.store.is_empty("")

    @rule(key=METADATA, data=DOCUMENTS)
    def set_metadata(self, key: str, data: bytes) -> None:
        self.model[key] = cpu.Buffer.from_bytes(data)
        self.store.set(key, self.model[key])

    @rule(key=CHUNKS, data=st.binary(min_size=1, max_size=30))
    def set(self, key: str, data: bytes) -> None:
        metadata = key[: key.rindex("/c/")] + "/zarr.json"
        if metadata not in self.model:
            self.set_metadata(metadata, zarr_documents.array((3, 2)))
        self.model[key] = cpu.Buffer.from_bytes(data)
        self.store.set(key, self.model[key])

    @precondition(lambda self: bool(self.model))
    @rule(data=st.data())
    def get(self, data: DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.model)))
        assert self.model[key] == self.store.get(key, self.prototype)

    @rule(key=CHUNKS | METADATA)
    def get_invalid_zarr_keys(self, key: str) -> None:
        if key not in self.model:
            assert self.store.get(key, self.prototype) is None

    @rule(key=CHUNKS | METADATA)
    def exists(self, key: str) -> None:
        assert self.store.exists(key) == (key in self.model)

    @rule(key=CHUNKS | METADATA)
    def delete(self, key: str) -> None:
        """Delete a key, whether it has a value or not; an array takes its chunks along."""
        self.store.delete(key)
        prefix = key.removesuffix("zarr.json")
        for name in [name for name in self.model if name == key or name.startswith(f"{prefix}c/")]:
            if key.endswith("zarr.json") or name == key:
                del self.model[name]

    @rule()
    def commit(self) -> None:
        session = self.store.store.session  # type: ignore[attr-defined]
        session.commit("between two rules", allow_empty=not session.has_uncommitted_changes)
        self.store.store = self._repository.writable_session("main").store


@pytest.mark.parametrize("config", CONFIGS)
def test_keys(generation: str, config: str) -> None:
    """Values of keys are what was set last, before and after commits."""
    make: Any = lambda: Keys(generation, CONFIGS[config])  # noqa: E731 - hypothesis says type
    number = examples_of(generation, 25, thorough=250) // (1 if generation == "v1" else 2)
    run_state_machine_as_test(make, settings=settings(BOUNDED, max_examples=number))
