"""Two drivers make the same commit, one of them before any request of the other that matters."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
import xarray as xr

from icefloe.model.config import RepositoryConfig
from icefloe.repository import Repository
from icefloe.session.exactly_once import JobId
from icefloe.storage import in_memory_storage
from icefloe.storage.forwarding import ForwardingStorage, Request
from support.stream_cells import NEW, batch, expected, found, num_commits, start, write_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.spark.writing.write_job import Written
    from icefloe.storage import Storage

T = TypeVar("T")

JOB = JobId("stream", 4)


class Moment:
    """Another writer acts right before a certain request."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self._action = action
        self._left: int | None = None
        self.has_come = False

    def after(self, number: int) -> None:
        """Choose the request: this many from now."""
        self._left = number

    def pass_by(self) -> None:
        """Take note of a request."""
        if self._left is None:
            return
        self._left -= 1
        if not self._left:
            self.has_come = True
            self._action()


class MeanwhileStorage(ForwardingStorage):
    """The same objects, changed by another writer at one moment."""

    def __init__(self, inner: Storage, moment: Moment) -> None:
        super().__init__(inner)
        self._moment = moment

    def _intercept(self, request: Request, run: Callable[[], T]) -> T:
        # Of the other objects none ever changes: between requests for them nothing can happen.
        if request.keys[0].startswith(("refs/", "repo")):
            self._moment.pass_by()
        return run()


def append_rows(repository: Repository) -> Callable[[], Written]:
    """Append day 2 as micro-batches do: the rows find their places when they are committed."""
    return lambda: write_rows(repository, batch([2]), append_dim="time", job=JOB)


def append_chunks(repository: Repository) -> Callable[[], Written]:
    """Append day 2 as jobs do that know their labels: all but the commit is done."""
    write = start(repository, append_dim="time", coords={"time": ["2020-01-02"]})
    part = write.write_unrouted([batch([2])])
    return lambda: write.commit([part], JOB)


@pytest.mark.parametrize("append", [append_rows, append_chunks])
def test_the_same_commit_at_any_moment(
    append: Callable[[Repository], Callable[[], Written]],
) -> None:
    """The second writer finds the commit; nothing is refused or written twice."""
    for number in count(1):
        storage = in_memory_storage()
        config = RepositoryConfig(inline_chunk_threshold_bytes=0)
        repository = Repository.create(storage, config)
        write_rows(repository, batch([1]), **NEW)
        # Prepared before: Zarr's thread, which it needs, may be the one that it interrupts.
        moment = Moment(append_chunks(repository))
        commit = append(Repository.open(MeanwhileStorage(storage, moment)))
        moment.after(number)
        made = commit()
        assert num_commits(repository) == 2
        assert made.snapshot_id == repository.lookup_branch("main")
        xr.testing.assert_equal(found(repository), expected([1, 2]))
        if made.is_new and not moment.has_come:
            break
    assert number > 3
