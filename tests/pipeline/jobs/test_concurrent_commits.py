"""Jobs that meet commits of others between their plan and their own commit.

Nothing of theirs is overwritten or brought back: either both are there, or the job fails and the
branch is where they left it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.errors import RebaseFailedError
from icefloe.pipeline import compact, compute, materialize, pyramid, rechunk
from icefloe.pipeline.report import Report
from support.array_repositories import array, chunk_bytes, cube, write_weather

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Job = Callable[..., Any]
    Change = Callable[[icefloe.Session], None]


class Meanwhile:
    """Runs a function once, after a job wrote its first chunks."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self.action = action
        self.answer: Any = None
        self.was_called = False

    def __call__(self, done: int, total: int) -> None:
        if not self.was_called:
            self.was_called = True
            self.answer = self.action()


@pytest.fixture
def repository(tmp_path: Path) -> icefloe.Repository:
    """Create a repository with arrays of native (``air``) and virtual (``far``) chunks."""
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    prefix = f"file://{tmp_path}/data/"
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(prefix, icefloe.local_filesystem_store(f"{tmp_path}/data"))
    )
    access: Any = {prefix: icefloe.Credentials.LocalFileSystemAccess()}
    storage = icefloe.local_filesystem_storage(str(tmp_path / "repo"))
    repository = icefloe.Repository.create(storage, config, access)
    write_weather(repository)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "far.bin").write_bytes(cube().tobytes())
    session = repository.writable_session("main")
    zarr.open_group(session.store).create_array(
        "far", shape=(20, 13, 17), chunks=(5, 13, 17), dtype="f4", compressors=None
    )
    for row in range(4):
        size = 5 * 13 * 17 * 4
        location = f"{prefix}far.bin"
        session.store.set_virtual_ref(f"far/c/{row}/0/0", location, offset=row * size, length=size)
    session.commit("far")
    return repository


def double(air: Any) -> Any:
    return air * 2


IN_PLACE: Job = partial(rechunk, arrays="air", chunks=(20, 4, 6))
NEW: dict[str, tuple[Job, str]] = {
    "rechunk": (partial(rechunk, arrays="air", chunks=(20, 4, 6), target="x/1/air"), "x/1/air"),
    "compute": (partial(compute, function=double, inputs="air", outputs="x"), "x"),
    "pyramid": (partial(pyramid, source="air", target="/x", levels=1), "x/1/air"),
}
MOVING: dict[str, tuple[Job, str]] = {
    "compact": (compact, "air"),
    "materialize": (materialize, "far"),
}


def delete(session: icefloe.Session, name: str = "air") -> None:
    session.transaction.delete_node(session.path(name))


def recreate(session: icefloe.Session, name: str = "air") -> None:
    delete(session, name)
    zarr.open_group(session.store).create_array(name, shape=(3,), dtype="i4")[:] = 9


def resize(session: icefloe.Session, name: str = "air") -> None:
    zarr.open_array(session.store, path=name).resize((25, 13, 17))


def describe(session: icefloe.Session, name: str = "air") -> None:
    zarr.open_array(session.store, path=name).attrs["note"] = "theirs"


def overwrite(session: icefloe.Session, name: str = "air") -> None:
    zarr.open_array(session.store, path=name)[:2] = 5


def delete_chunk(session: icefloe.Session, name: str = "air") -> None:
    session.transaction.delete_chunks(session.path(name), np.array([[0, 0, 0]], np.uint32))


def rename(session: icefloe.Session, name: str = "air") -> None:
    session.move(f"/{name}", "/renamed")


def commit_concurrently(repository: icefloe.Repository, change: Change) -> str:
    """Make a concurrent commit."""
    is_move = getattr(change, "func", change) is rename
    begin = repository.rearrange_session if is_move else repository.writable_session
    session = begin("main")
    change(session)
    return session.commit("theirs")


OF_NODES = [delete, recreate, resize, describe, rename]
OF_CHUNKS = [overwrite, delete_chunk]


def run(job: Job, repository: icefloe.Repository, **options: Any) -> Report:
    report = job(None, repository, **options)
    assert isinstance(report, Report)
    return report


def test_in_place_a_change_of_theirs_fails_the_job(repository: icefloe.Repository) -> None:
    """Including a deletion: an array deleted by another writer does not reappear."""
    for change in [*OF_NODES, *OF_CHUNKS]:
        before = repository.lookup_branch("main")
        meanwhile = Meanwhile(partial(commit_concurrently, repository, change))
        with pytest.raises(RebaseFailedError, match=r"/air; check them, and run the job again"):
            run(IN_PLACE, repository, progress=meanwhile)
        assert repository.lookup_branch("main") == meanwhile.answer, change
        repository.reset_branch("main", before)


def test_in_place_a_change_elsewhere_is_no_reason_to_fail(repository: icefloe.Repository) -> None:
    change: Change = partial(delete, name="mask")
    run(IN_PLACE, repository, progress=Meanwhile(partial(commit_concurrently, repository, change)))
    names = zarr.open_group(repository.readonly_session("main").store, mode="r")
    assert "mask" not in names
    assert array(repository, "air").chunks == (20, 4, 6)
    np.testing.assert_array_equal(array(repository, "air")[:], cube())


@pytest.mark.parametrize("name", NEW)
def test_new_arrays_are_those_of_the_snapshot_that_the_job_began_with(
    repository: icefloe.Repository, name: str
) -> None:
    job, made = NEW[name]
    before = repository.lookup_branch("main")
    run(job, repository)
    alone = chunk_bytes(repository, made)
    repository.reset_branch("main", before)
    for change in [*OF_NODES[:-1], *OF_CHUNKS]:
        meanwhile = Meanwhile(partial(commit_concurrently, repository, change))
        report = run(job, repository, progress=meanwhile)
        assert [info.id for info in repository.ancestry(branch="main")][:2] == [
            report.snapshot_id,
            meanwhile.answer,
        ]
        assert chunk_bytes(repository, made) == alone
        theirs, now = (
            repository.readonly_session(snapshot_id=snapshot).transaction.base.get(
                repository.readonly_session("main").path("/air")
            )
            for snapshot in (meanwhile.answer, report.snapshot_id)
        )
        assert theirs == now
        repository.reset_branch("main", before)


@pytest.mark.parametrize("name", NEW)
def test_what_they_made_at_the_same_path_stays(repository: icefloe.Repository, name: str) -> None:
    def make(session: icefloe.Session) -> None:
        zarr.open_group(session.store).create_array("x", shape=(3,), dtype="i4")[:] = 9

    meanwhile = Meanwhile(partial(commit_concurrently, repository, make))
    with pytest.raises(RebaseFailedError, match="/x"):
        run(NEW[name][0], repository, progress=meanwhile)
    assert repository.lookup_branch("main") == meanwhile.answer


@pytest.mark.parametrize("name", MOVING)
def test_chunks_that_move_give_way_to_theirs(repository: icefloe.Repository, name: str) -> None:
    job, path = MOVING[name]
    before = repository.lookup_branch("main")
    for change in OF_CHUNKS:
        theirs: Change = partial(change, name=path)
        meanwhile = Meanwhile(partial(commit_concurrently, repository, theirs))
        report = run(job, repository, progress=meanwhile)
        after = chunk_bytes(repository, path)
        repository.reset_branch("main", meanwhile.answer)
        assert after == chunk_bytes(repository, path)
        assert report.is_new
        repository.reset_branch("main", before)


@pytest.mark.parametrize("name", MOVING)
def test_chunks_that_move_never_come_back_with_their_array(
    repository: icefloe.Repository, name: str
) -> None:
    job, path = MOVING[name]
    before = repository.lookup_branch("main")
    for change in OF_NODES[:-1]:
        theirs: Change = partial(change, name=path)
        meanwhile = Meanwhile(partial(commit_concurrently, repository, theirs))
        with pytest.raises(RebaseFailedError, match=f"/{path}; check them"):
            run(job, repository, progress=meanwhile)
        assert repository.lookup_branch("main") == meanwhile.answer
        repository.reset_branch("main", before)


@pytest.mark.parametrize("name", MOVING)
def test_two_at_once_do_the_work_once(repository: icefloe.Repository, name: str) -> None:
    """The second job has nothing left to commit."""
    job, path = MOVING[name]
    before = chunk_bytes(repository, path)
    meanwhile = Meanwhile(partial(run, job, repository))
    second = run(job, repository, progress=meanwhile)
    assert second.snapshot_id is None
    assert repository.lookup_branch("main") == meanwhile.answer.snapshot_id
    assert chunk_bytes(repository, path) == before


ALL: dict[str, Job] = {
    "in place": IN_PLACE,
    **{name: job for name, (job, _) in (NEW | MOVING).items()},
}


@pytest.mark.parametrize("name", ALL)
def test_two_at_once_with_one_transaction_id_make_one_commit(
    repository: icefloe.Repository, name: str
) -> None:
    job: Job = partial(ALL[name], transaction_id="nightly")
    meanwhile = Meanwhile(partial(run, job, repository))
    second = run(job, repository, progress=meanwhile)
    first = meanwhile.answer
    assert (first.is_new, second.is_new) == (True, False)
    assert second.snapshot_id == first.snapshot_id == repository.lookup_branch("main")
    assert len(list(repository.ancestry(branch="main"))) == 4
