from __future__ import annotations

import asyncio
import multiprocessing
import pickle
import warnings
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr

from icefloe.dask import store_dask
from icefloe.errors import InvalidInputError, SessionStateError
from icefloe.repository import Repository
from icefloe.storage import MemoryStorage, local_filesystem_storage
from icefloe.xarray import to_icechunk
from support.written_datasets import assert_same_dataset, weather

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from icefloe.session import Session

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two worker processes of dask.distributed; who asks for it computes there."""
    distributed = pytest.importorskip(
        "distributed", reason="DASK.DISTRIBUTED IS NOT TESTED: it is not installed"
    )
    with (
        warnings.catch_warnings(action="ignore"),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=2, processes=True, dashboard_address=None
        ) as started,
        distributed.Client(started, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    """Two processes for all tests; dask would start two for each computation."""
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        yield pool


@pytest.fixture(params=["threads", "processes", "distributed"])
def scheduler(request: pytest.FixtureRequest) -> Iterator[str]:
    match request.param:
        case "distributed":
            with request.getfixturevalue("cluster").as_current():
                yield request.param
        case "processes":
            pool = request.getfixturevalue("processes")
            with dask.config.set(scheduler="processes", pool=pool):
                yield request.param
        case _:
            with dask.config.set(scheduler=request.param, num_workers=2):
                yield request.param


def create(session: Session, path: str, shape: tuple[int, ...], chunks: tuple[int, ...]) -> None:
    zarr.create_array(
        session.store, name=path, shape=shape, chunks=chunks, dtype="i8", fill_value=-1
    )


def open_in(session: Session, path: str) -> zarr.Array[Any]:
    return zarr.open_array(session.store, path=path, zarr_format=3)


def blocks_of(numbers: Any, chunks: tuple[int, ...]) -> da.Array:
    blocks: da.Array = da.from_array(numbers, chunks=chunks)  # type: ignore[no-untyped-call]
    return blocks


def values(session: Session, path: str) -> Any:
    return open_in(session, path)[...]


def test_many_arrays_at_once(repository: Repository, scheduler: str) -> None:
    """With every scheduler, the writes of all tasks return as one fork and are one commit."""
    first, second = np.arange(48).reshape(6, 8), np.arange(1000, 1010)
    session = repository.writable_session("main")
    create(session, "first", (6, 8), (2, 4))
    create(session, "group/second", (20,), (2,))
    fork = session.fork()
    written = store_dask(
        sources=[blocks_of(first, (2, 8)), blocks_of(second, (2,))],
        targets=[open_in(fork, "first"), open_in(fork, "group/second")],
        regions=[(slice(None), slice(None)), (slice(4, 14),)],
        split_every=2,
    )
    session.merge(written)
    session.commit("both")
    reader = repository.readonly_session("main")
    np.testing.assert_array_equal(values(reader, "first"), first)
    expected = np.full(20, -1)
    expected[4:14] = second
    np.testing.assert_array_equal(values(reader, "group/second"), expected)


def test_a_dataset_from_a_store_to_another(repository: Repository, scheduler: str) -> None:
    """Workers read through a session that was pickled to them, and write through a fork."""
    session = repository.writable_session("main")
    to_icechunk(weather(0, 8).chunk(time=2), session)
    session.commit("source")
    source = xr.open_zarr(repository.readonly_session("main").store, consolidated=False)
    session = repository.writable_session("main")
    to_icechunk(source[["temperature"]] * 2, session, group="doubled")
    session.commit("doubled")
    found = xr.open_zarr(
        repository.readonly_session("main").store, group="doubled", consolidated=False
    )
    xr.testing.assert_equal(found.temperature.load(), weather(0, 8).temperature * 2)


def test_two_tasks_that_write_one_chunk(repository: Repository, cluster: Any) -> None:
    """The error names the chunk, and the session has nothing of it."""
    session = repository.writable_session("main")
    create(session, "a", (4, 8), (2, 8))
    session.commit("empty")
    session = repository.writable_session("main")
    target = open_in(session.fork(), "a")
    blocks = da.arange(32, chunks=32).reshape(4, 8).rechunk((2, 4))
    with (
        cluster.as_current(),
        pytest.raises(SessionStateError, match=r"chunk \[[01], 0\] of /a was"),
    ):
        store_dask(sources=[blocks], targets=[target])
    assert not session.has_uncommitted_changes


def test_a_task_that_ran_twice(repository: Repository) -> None:
    """A scheduler that lost a worker runs its tasks again: equal bytes are no conflict."""
    session = repository.writable_session("main")
    create(session, "a", (4,), (2,))
    fork = pickle.dumps(session.fork())
    blocks = da.arange(4, chunks=2)
    runs = [
        store_dask(sources=[blocks], targets=[open_in(pickle.loads(fork), "a")])  # noqa: S301
        for _ in range(2)
    ]
    session.merge(*runs)
    np.testing.assert_array_equal(values(session, "a"), np.arange(4))


def test_a_repository_of_version_2(tmp_path: Path, cluster: Any) -> None:
    repository = Repository.create(local_filesystem_storage(tmp_path), spec_version=2)
    session = repository.writable_session("main")
    with cluster.as_current():
        to_icechunk(weather(0, 4).chunk(time=2), session)
    session.commit("written")
    found = xr.open_zarr(repository.readonly_session("main").store, consolidated=False)
    assert_same_dataset(found.load(), weather(0, 4))


def test_readers_read_on_workers(repository: Repository, cluster: Any) -> None:
    """A read-only session and its store are what a task may carry, and cannot write there."""
    session = repository.writable_session("main")
    create(session, "a", (100,), (10,))
    open_in(session, "a")[...] = np.arange(100)
    session.commit("numbers")
    reader = repository.readonly_session("main")

    def total(store: Any, start: int) -> tuple[int, bool, str]:
        array = zarr.open_array(store, path="a", mode="r")
        part: Any = array[start : start + 10]
        return int(part.sum()), store.read_only, store.session.snapshot_id

    futures = [cluster.submit(total, reader.store, start) for start in range(0, 100, 10)]
    found = cluster.gather(futures)
    assert sum(part for part, _, _ in found) == sum(range(100))
    assert {(read_only, at) for _, read_only, at in found} == {(True, reader.snapshot_id)}


def test_workers_keep_a_connection(repository: Repository, cluster: Any) -> None:
    """Of many tasks that carry one session, a worker connects for the first alone."""
    session = repository.writable_session("main")
    create(session, "a", (4,), (2,))
    session.commit("empty")
    reader = repository.readonly_session("main")

    def who(session: Any, _task: int) -> tuple[int, int]:
        import os  # noqa: PLC0415

        return os.getpid(), id(session.connection.assets)

    found = cluster.gather([cluster.submit(who, reader, task, pure=False) for task in range(40)])
    assert len({at for at, _ in found}) == len(set(found))


class TestWhatIsRefused:
    def test_a_target_that_is_not_of_a_fork(self, repository: Repository) -> None:
        session = repository.writable_session("main")
        create(session, "a", (4,), (2,))
        with pytest.raises(InvalidInputError, match=r"open targets from session\.fork\(\)"):
            store_dask(sources=[da.zeros(4, chunks=2)], targets=[open_in(session, "a")])

    def test_a_target_that_is_elsewhere(self) -> None:
        elsewhere = zarr.create_array({}, shape=(4,), chunks=(2,), dtype="i8")
        with pytest.raises(TypeError, match="from the store of a session"):
            store_dask(sources=[da.zeros(4, chunks=2)], targets=[elsewhere])

    @pytest.mark.parametrize("name", ["compute", "lock", "return_stored", "load_stored"])
    def test_options_that_are_decided(self, repository: Repository, name: str) -> None:
        options: dict[str, Any] = {name: True}
        with pytest.raises(InvalidInputError, match=f"omit {name}"):
            store_dask(sources=[], targets=[], **options)

    def test_nothing(self) -> None:
        with pytest.raises(InvalidInputError, match="sources is empty"):
            store_dask(sources=[], targets=[])

    def test_a_writable_session_on_a_worker(self, repository: Repository) -> None:
        with pytest.raises(ValueError, match=r"pickle session\.fork\(\)"):
            pickle.dumps(repository.writable_session("main").store)


def test_an_event_loop_may_be_running() -> None:
    """Notebooks have one: writing from a coroutine works, though it keeps the loop waiting."""
    repository = Repository.create(MemoryStorage())
    session = repository.writable_session("main")

    async def write() -> None:
        to_icechunk(weather(0, 4).chunk(time=2), session)

    asyncio.run(write())
    assert_same_dataset(xr.open_zarr(session.store, consolidated=False).load(), weather(0, 4))
