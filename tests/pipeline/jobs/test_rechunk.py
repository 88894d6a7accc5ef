"""Rechunking: the same data and metadata in other chunks, or an early error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from zarr.codecs import BytesCodec, GzipCodec

from icefloe.errors import AlreadyExistsError, InvalidInputError, NodeNotFoundError
from icefloe.pipeline.arrays.array_copy import plan_array_copy
from icefloe.pipeline.arrays.nodes import require_array
from icefloe.pipeline.jobs.rechunk import rechunk
from icefloe.pipeline.options import merge_options
from icefloe.pipeline.report import JobFailedError, Plan, Report
from icefloe.pipeline.run import JobRun
from support.array_repositories import (
    array,
    chunk_bytes,
    cube,
    tip,
    write_every_dtype,
    write_weather,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import icefloe


def done(answer: Plan | Report) -> Report:
    assert isinstance(answer, Report)
    return answer


def test_metadata_stays_and_history_keeps_the_old_chunks(repository: icefloe.Repository) -> None:
    values = write_weather(repository)
    before = repository.lookup_branch("main")
    report = done(rechunk(None, repository, "air", {"time": -1, "lat": 5}))
    found = array(repository, "air")
    assert found.chunks == (20, 5, 6)
    assert found.metadata.dimension_names == ("time", "lat", "lon")
    assert dict(found.attrs) == {"units": "K", "_FillValue": "AAAAAAAA+H8="}
    assert np.isnan(found.fill_value)
    np.testing.assert_array_equal(found[:], values)
    old = zarr.open_array(
        repository.readonly_session(snapshot_id=before).store, path="air", mode="r"
    )
    assert old.chunks == (5, 4, 6)
    np.testing.assert_array_equal(old[:], values)
    assert report.chunks == len(chunk_bytes(repository, "air"))


@pytest.mark.parametrize("task_bytes", [10**9, 1_000])
def test_chunks_are_what_a_single_process_writes(
    repository: icefloe.Repository, task_bytes: int
) -> None:
    values = write_weather(repository)
    with repository.transaction("main", message="reference") as store:
        reference = zarr.open_group(store).create_array(
            "reference", shape=values.shape, chunks=(20, 2, 3), dtype="f4", fill_value=np.nan
        )
        reference[:] = values
    rechunk(None, repository, "air", (20, 2, 3), task_bytes=task_bytes)
    assert chunk_bytes(repository, "air") == chunk_bytes(repository, "reference")


def test_two_passes_leave_nothing_on_the_branch_but_the_result(
    repository: icefloe.Repository,
) -> None:
    values = write_weather(repository)
    plan = rechunk(None, repository, "air", (20, 1, 1), task_bytes=1_000, dry_run=True)
    assert "two passes" in str(plan)
    before = {name for name, _ in tip(repository).members(max_depth=None)}
    rechunk(None, repository, "air", (20, 1, 1), task_bytes=1_000)
    np.testing.assert_array_equal(array(repository, "air")[:], values)
    assert {name for name, _ in tip(repository).members(max_depth=None)} == before
    assert len(list(repository.ancestry(branch="main"))) == 3


@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
@pytest.mark.parametrize("repository", ["v1"], indirect=True)
def test_every_data_type_scalars_empty_arrays_and_shards(repository: icefloe.Repository) -> None:
    arrays = write_every_dtype(repository)
    one = {name: (2,) for name, values in arrays.items() if values.ndim == 1}
    chunks: dict[str, Any] = {**one, "scalar": (), "empty": (1, 2), "shards": (1, 3)}
    dtypes = {name: array(repository, name).dtype for name in arrays}
    rechunk(None, repository, chunks, task_bytes=400)
    for name, values in arrays.items():
        found = array(repository, name)
        assert found.dtype == dtypes[name]
        np.testing.assert_array_equal(found[...], values, err_msg=name)
        assert found.chunks == chunks[name]
    assert array(repository, "shards").shards == (4, 9)


def test_shards_come_and_go(repository: icefloe.Repository) -> None:
    values = write_weather(repository)
    rechunk(None, repository, "air", (5, 2, 2), shards=(10, 4, 4))
    assert (array(repository, "air").chunks, array(repository, "air").shards) == (
        (5, 2, 2),
        (10, 4, 4),
    )
    np.testing.assert_array_equal(array(repository, "air")[:], values)
    rechunk(None, repository, "air", (4, 4, 4), shards=False)
    assert array(repository, "air").shards is None
    np.testing.assert_array_equal(array(repository, "air")[:], values)


def test_codecs_and_data_type_change_where_asked(repository: icefloe.Repository) -> None:
    values = write_weather(repository)
    codecs = [BytesCodec(), GzipCodec(level=1)]
    rechunk(None, repository, "air", codecs=codecs, dtype="f8")
    found = array(repository, "air")
    assert found.dtype == np.dtype("f8")
    assert [type(codec).__name__ for codec in found.compressors] == ["GzipCodec"]
    np.testing.assert_array_equal(found[:], values)


def test_numbers_that_do_not_fit_fail_the_job_and_name_the_block(
    repository: icefloe.Repository,
) -> None:
    write_weather(repository)
    with pytest.raises(JobFailedError, match=r"/mask \[0:13, 0:17\]: .* do not fit int8"):
        rechunk(None, repository, "mask", dtype="i1")
    assert len(list(repository.ancestry(branch="main"))) == 2


@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
@pytest.mark.parametrize("name, dtype", [("string", "U4"), ("fixed", "U1"), ("datetime", "M8[D]")])
@pytest.mark.parametrize("repository", ["v1"], indirect=True)
def test_texts_are_not_cut_off_nor_times_rounded(
    repository: icefloe.Repository, name: str, dtype: str
) -> None:
    write_every_dtype(repository)
    with repository.transaction("main", message="longer") as store:
        zarr.open_array(store, path="fixed")[3] = "four"
    before = repository.lookup_branch("main")
    says = rf"/{name} \[0:7\]: .* do not fit|cannot convert"
    with pytest.raises((JobFailedError, InvalidInputError), match=says):
        rechunk(None, repository, name, dtype=dtype)
    assert repository.lookup_branch("main") == before


def test_what_was_never_written_stays_so(repository: icefloe.Repository) -> None:
    """Also if Zarr is configured to write chunks that contain only the fill value."""
    with repository.transaction("main", message="sparse") as store:
        made = zarr.create_group(store).create_array(
            "a", shape=(40, 40), chunks=(5, 5), shards=(10, 10), dtype="f4", fill_value=-1
        )
        made[:10, :10] = 3
    with zarr.config.set({"array.write_empty_chunks": True}):
        rechunk(None, repository, "a", (4, 4), shards=False)
    assert sorted(chunk_bytes(repository, "a")) == [
        (row, at) for row in range(3) for at in range(3)
    ]
    assert array(repository, "a").nchunks == 100


def test_a_group_means_its_arrays_with_the_dimension(repository: icefloe.Repository) -> None:
    write_weather(repository)
    rechunk(None, repository, "/", {"lat": 3, "time": 2})
    found = {name: one.chunks for name, one in tip(repository).arrays()}
    assert found["air"] == (2, 3, 6)
    assert found["mask"] == (3, 17)
    assert (found["lat"], found["time"]) == ((13,), (20,))  # coordinates stay whole


def test_a_new_group_has_everything_and_shares_what_is_not_rechunked(
    repository: icefloe.Repository,
) -> None:
    values = write_weather(repository)
    rechunk(None, repository, "/", {"time": 20}, target="/series")
    series = tip(repository)["series"]
    assert dict(series.attrs) == {"title": "weather"}
    np.testing.assert_array_equal(array(repository, "series/air")[:], values)
    assert array(repository, "air").chunks == (5, 4, 6)
    session = repository.readonly_session("main")
    one, other = (session.path(path) for path in ("/lat", "/series/lat"))
    assert session.transaction.get_payload(one, (0,)) == session.transaction.get_payload(
        other, (0,)
    )


@pytest.mark.parametrize("source", ["/", "nested"])
def test_a_new_group_has_the_subgroups(repository: icefloe.Repository, source: str) -> None:
    session = repository.writable_session("main")
    root = zarr.group(session.store)
    values = root.create_array(
        "nested/deep/values", data=np.arange(10), chunks=(5,), dimension_names=["x"]
    )
    values.attrs["units"] = "K"
    session.commit("nested groups")
    rechunk(None, repository, source, {"x": 2}, target="/copy")
    copied = array(repository, "copy/nested/deep/values" if source == "/" else "copy/deep/values")
    assert copied.chunks == (2,)
    assert dict(copied.attrs) == {"units": "K"}
    np.testing.assert_array_equal(copied[:], np.arange(10))


def test_an_array_that_is_as_it_should_be_is_left_alone(repository: icefloe.Repository) -> None:
    write_weather(repository)
    report = done(rechunk(None, repository, "air", (5, 4, 6)))
    assert report.snapshot_id is None
    assert len(list(repository.ancestry(branch="main"))) == 2


def test_the_second_run_with_one_transaction_id_does_nothing(
    repository: icefloe.Repository, files: Callable[[], set[str]]
) -> None:
    write_weather(repository)
    first = done(rechunk(None, repository, "air", (1, 4, 6), transaction_id="nightly"))
    before = files()
    second = done(rechunk(None, repository, "air", (2, 4, 6), transaction_id="nightly"))
    assert (second.snapshot_id, second.is_new) == (first.snapshot_id, False)
    assert files() == before
    plan = rechunk(None, repository, "air", (2, 4, 6), transaction_id="nightly", dry_run=True)
    assert isinstance(plan, Plan)
    assert not plan.has_work


def test_a_dry_run_writes_nothing(
    repository: icefloe.Repository, files: Callable[[], set[str]]
) -> None:
    write_weather(repository)
    before = files()
    plan = rechunk(None, repository, "air", (20, 1, 1), task_bytes=1_000, dry_run=True)
    assert isinstance(plan, Plan)
    assert plan.tasks > 1
    assert plan.task_bytes <= 1_000
    assert files() == before


@pytest.mark.parametrize(
    "arguments, error, says",
    [
        ({"arrays": "none", "chunks": (1,)}, NodeNotFoundError, "no group or array at /none"),
        ({"arrays": "air", "chunks": (0, 1, 1)}, InvalidInputError, "/air: .* must be positive"),
        ({"arrays": "air", "chunks": (-2, 1, 1)}, InvalidInputError, "must be positive"),
        ({"arrays": "air", "chunks": (1.5, 1, 1)}, InvalidInputError, "must be integers"),
        ({"arrays": "air", "chunks": (5, 5)}, InvalidInputError, "the 3 dimensions of the array"),
        ({"arrays": "air", "chunks": {"depth": 2}}, InvalidInputError, "dimension 'depth'"),
        ({"arrays": "/", "chunks": {"depth": 2}}, InvalidInputError, "no array in / has"),
        ({"arrays": "/", "chunks": (1, 1, 1)}, InvalidInputError, "/ is a group"),
        (
            {"arrays": "air", "chunks": (5, 4, 6), "shards": (7, 4, 6)},
            InvalidInputError,
            "multiple",
        ),
        (
            {"arrays": "air", "chunks": (5, 4, 6), "target": "mask"},
            AlreadyExistsError,
            "/mask already",
        ),
        ({"arrays": "air", "chunks": (20, 13, 17), "task_bytes": 100}, InvalidInputError, "memory"),
        ({"arrays": "air", "dtype": "i4"}, InvalidInputError, "cannot convert float32 to int32"),
        ({"arrays": "air", "codecs": [{"name": "nonsense"}]}, InvalidInputError, "nonsense"),
        ({"arrays": "air", "transaction_id": ""}, InvalidInputError, "transaction_id is empty"),
        ({"arrays": "air", "task_bytes": 0}, InvalidInputError, "task_bytes, the memory limit"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    repository: icefloe.Repository,
    files: Callable[[], set[str]],
    arguments: dict[str, Any],
    error: type[Exception],
    says: str,
) -> None:
    write_weather(repository)
    before = files()
    with pytest.raises(error, match=says):
        rechunk(None, repository, **arguments)
    assert files() == before


def test_the_cube_has_chunks_of_nothing_but_its_fill_value(repository: icefloe.Repository) -> None:
    """The tests above rely on it to show that empty chunks are not written."""
    write_weather(repository)
    assert len(chunk_bytes(repository, "air")) < 4 * 4 * 3
    assert np.isnan(cube()).any()


class WideRun(JobRun):
    """A job with sixteen cores."""

    @property
    def slots(self) -> int:
        return 16


def test_one_box_for_many_cores_becomes_two_passes(repository: icefloe.Repository) -> None:
    """One pass would fit into the memory of one task, but use only one core."""
    with repository.transaction("main", message="never written") as store:
        zarr.create_array(store, name="a", shape=(730, 180, 360), chunks=(1, 180, 360), dtype="f4")
    session = repository.writable_session("main")
    source = require_array(session, "a")
    target = source.with_chunks((730, 20, 20))
    options = merge_options(None, None, {"task_bytes": 10**9})
    plans = {
        kind: plan_array_copy(kind("rechunk", None, repository, session, options), source, target)
        for kind in (JobRun, WideRun)
    }
    assert (len(plans[JobRun].last_boxes), plans[JobRun].first_boxes) == (1, [])
    assert len(plans[WideRun].first_boxes) >= 16
    assert len(plans[WideRun].last_boxes) >= 16
