from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr

from icefloe.errors import (
    InvalidInputError,
    ReadOnlyError,
    SessionStateError,
)
from icefloe.repository import Repository
from icefloe.storage import MemoryStorage, local_filesystem_storage
from icefloe.xarray import to_icechunk
from support import SUPPORT, warm_python
from support.counting_storage import CountingStorage
from support.written_datasets import SEQUENCES, assert_same_dataset, weather

if TYPE_CHECKING:
    from icefloe.session import Session


def read(repository: Repository, group: str | None = None) -> xr.Dataset:
    store = repository.readonly_session("main").store
    opened: xr.Dataset = xr.open_zarr(store, group=group, consolidated=False)
    return opened


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make all sequences with icefloe; a folder with a repository for each."""
    folder = tmp_path_factory.mktemp("written")
    for name, sequence in SEQUENCES.items():
        repository = Repository.create(local_filesystem_storage(folder / name))
        for number, writes in enumerate(sequence()):
            session = repository.writable_session("main")
            for obj, options in writes:
                to_icechunk(obj, session, **options)
            session.commit(f"{number}")
    return folder


def compare(python: Path, written: Path) -> None:
    script = SUPPORT / "icechunk_writer.py"
    done = warm_python.run(python, script, written)
    assert done.returncode == 0, done.stderr[-4000:]
    # Icechunk 1.x logs there, too.
    assert [line for line in done.stdout.splitlines() if line in SEQUENCES] == list(SEQUENCES)


def test_icechunk_reads_what_it_would_have_written(written: Path) -> None:
    """Icechunk finds every key with the value it gives it itself.

    Both use the xarray of this environment, because metadata depends on its version.
    """
    compare(Path(sys.executable), written)


@pytest.mark.parametrize("name", [None, "t", "x"])
def test_an_array_comes_back_under_its_name(repository: Repository, name: str | None) -> None:
    array = xr.DataArray(np.arange(3.0), {"x": [1, 2, 3]}, name=name)
    session = repository.writable_session("main")
    to_icechunk(array, session)
    store: Any = session.store
    again = xr.open_dataarray(store, engine="zarr", consolidated=False)
    xr.testing.assert_identical(again.load(), array)


def test_dask_arrays_come_back(repository: Repository) -> None:
    """With threads; `test_dask` has the other schedulers."""
    dataset = weather(0, 8)
    session = repository.writable_session("main")
    to_icechunk(dataset.chunk(time=2, x=4), session)
    assert session.status().updated_chunks["/temperature"] == [
        [row, column] for row in range(4) for column in range(2)
    ]
    session.commit("written")
    assert_same_dataset(read(repository).load(), dataset)


def test_how_to_compute_can_be_said(repository: Repository) -> None:
    """chunkmanager_store_kwargs go to dask: the default scheduler would fail here."""
    session = repository.writable_session("main")
    with dask.config.set(scheduler="no such scheduler"):
        to_icechunk(
            weather(0, 4).chunk(time=2),
            session,
            chunkmanager_store_kwargs={"scheduler": "threads", "num_workers": 2},
            split_every=2,
        )
    assert_same_dataset(xr.open_zarr(session.store, consolidated=False).load(), weather(0, 4))


def test_nothing_is_visible_before_the_commit(repository: Repository) -> None:
    session = repository.writable_session("main")
    to_icechunk(weather(0, 4).chunk(time=2), session, group="g")
    with pytest.raises(FileNotFoundError):
        read(repository, "g")
    session.commit("written")
    assert read(repository, "g").sizes["time"] == 4


def test_changes_before_stay_part_of_the_transaction(repository: Repository) -> None:
    """A session that has changes already takes dask arrays all the same, in one commit."""
    session = repository.writable_session("main")
    to_icechunk(weather(0, 4).chunk(time=2), session, group="a")
    to_icechunk(weather(4, 6), session, group="b")
    to_icechunk(weather(4, 8).drop_vars(["x", "station"]), session, group="a", append_dim="time")
    session.commit("all")
    xr.testing.assert_equal(read(repository, "a").temperature.load(), weather(0, 8).temperature)
    assert len(list(repository.ancestry(branch="main"))) == 2


def test_a_fork_takes_datasets_too(repository: Repository) -> None:
    session = repository.writable_session("main")
    fork = session.fork()
    to_icechunk(weather(0, 4).chunk(time=2), fork)
    session.merge(fork)
    session.commit("by a fork")
    assert_same_dataset(read(repository).load(), weather(0, 4))


def test_threads_share_a_storage_in_memory() -> None:
    """One process needs no pickles: dask's threads write to a storage that has none."""
    repository = Repository.create(MemoryStorage())
    session = repository.writable_session("main")
    to_icechunk(weather(0, 4).chunk(time=1), session)
    session.commit("in memory")
    assert_same_dataset(read(repository).load(), weather(0, 4))


def test_processes_cannot_share_a_storage_in_memory() -> None:
    session = Repository.create(MemoryStorage()).writable_session("main")
    with (
        dask.config.set(scheduler="processes"),
        pytest.raises(SessionStateError, match="use local_filesystem_storage"),
    ):
        to_icechunk(weather(0, 4).chunk(time=1), session)


def test_requests_are_one_for_each_chunk_and_a_snapshot_for_the_fork() -> None:
    storage = CountingStorage(MemoryStorage())
    repository = Repository.create(storage)
    values = np.random.default_rng(0).random((8, 1000))
    dataset = xr.Dataset({"a": (("t", "x"), values)}).chunk(t=2)
    session = repository.writable_session("main")
    storage.forget()
    to_icechunk(dataset, session)
    assert sorted(key.split("/")[0] for key in storage.keys("put")) == [
        *["chunks"] * 4,
        "snapshots",
    ]
    assert storage.counts() == {"put": 5}


def test_a_failing_task_tells_its_error_and_can_be_taken_back(repository: Repository) -> None:
    def fail(block: Any) -> Any:
        raise ZeroDivisionError("this block")

    broken = da.zeros(4, chunks=1).map_blocks(fail, dtype=float, meta=np.zeros(0))
    session = repository.writable_session("main")
    with pytest.raises(ZeroDivisionError, match="this block"):
        to_icechunk(xr.Dataset({"a": ("x", broken)}), session)
    session.discard_changes()
    assert not session.has_uncommitted_changes


def test_chunks_that_several_tasks_would_write_are_refused(repository: Repository) -> None:
    """Xarray refuses them; `test_dask` has who writes them all the same."""
    dataset = xr.Dataset({"a": ("x", da.arange(8, chunks=2))})
    encoding = {"a": {"chunks": (4,)}}
    session = repository.writable_session("main")
    with pytest.raises(ValueError, match="safe_chunks"):
        to_icechunk(dataset, session, encoding=encoding)


class TestWhatIsRefused:
    def test_a_read_only_session(self, repository: Repository) -> None:
        with pytest.raises(ReadOnlyError, match="writable_session"):
            to_icechunk(weather(0, 2), repository.readonly_session("main"))

    def test_a_committed_session(self, repository: Repository) -> None:
        session = repository.writable_session("main")
        to_icechunk(weather(0, 2), session)
        session.commit("done")
        with pytest.raises(ReadOnlyError, match="committed"):
            to_icechunk(weather(0, 2), session, mode="w")

    def test_a_rearrange_session(self, repository: Repository) -> None:
        with pytest.raises(SessionStateError, match="only moves nodes"):
            to_icechunk(weather(0, 2), repository.rearrange_session("main"))

    def test_a_store(self, repository: Repository) -> None:
        store: Any = repository.writable_session("main").store
        with pytest.raises(InvalidInputError, match=r"pass store\.session"):
            to_icechunk(weather(0, 2), store)

    def test_what_is_not_of_xarray(self, repository: Repository) -> None:
        numbers: Any = np.zeros(3)
        with pytest.raises(InvalidInputError, match="got a ndarray"):
            to_icechunk(numbers, repository.writable_session("main"))

    def test_a_group_that_is_there(self, repository: Repository) -> None:
        session = repository.writable_session("main")
        to_icechunk(weather(0, 2), session)
        with pytest.raises(FileExistsError, match="already contains data"):
            to_icechunk(weather(0, 2), session)

    @pytest.mark.parametrize(
        "options", [{"mode": "w", "append_dim": "time"}, {"mode": "w", "region": "auto"}]
    )
    def test_modes_that_contradict(self, repository: Repository, options: dict[str, Any]) -> None:
        session: Session = repository.writable_session("main")
        with pytest.raises(ValueError, match="cannot set"):
            to_icechunk(weather(0, 2), session, **options)
