"""Jobs on Spark write the same chunks as in one process, also after failures."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.errors import AlreadyExistsError, InvalidInputError
from icefloe.pipeline.jobs.compact import compact
from icefloe.pipeline.jobs.compute import Output, compute
from icefloe.pipeline.jobs.export import export
from icefloe.pipeline.jobs.materialize import materialize
from icefloe.pipeline.jobs.pyramid import pyramid
from icefloe.pipeline.jobs.rechunk import rechunk
from icefloe.pipeline.options import merge_options
from icefloe.pipeline.report import JobFailedError, Report
from icefloe.pipeline.run import JobRun, TaskWriter, WorkUnit, _make_write_task
from icefloe.session.parallel_write import ForkPoint
from support.array_repositories import (
    array,
    chunk_bytes,
    seen_by_icechunk,
    sha256,
    write_weather,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def reference(tmp_path: Path) -> icefloe.Repository:
    """Create a second repository, for the job without Spark."""
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    return icefloe.Repository.create(
        icefloe.local_filesystem_storage(str(tmp_path / "reference")), config
    )


def test_results_are_those_of_one_process_and_icechunk_reads_them(
    spark: Any, repository: icefloe.Repository, reference: icefloe.Repository, tmp_path: Path
) -> None:
    for copy, engine in ((repository, spark), (reference, None)):
        values = write_weather(copy)
        rechunk(
            engine, copy, "air", {"time": 20, "lat": 1, "lon": 1}, target="/s", task_bytes=1_000
        )
        compute(engine, copy, lambda air, mask: air * mask, ["air", "mask"], "x", task_bytes=9_000)
        pyramid(engine, copy, "air", "/p", levels=1, method="max")
        compact(engine, copy)
        target = str(tmp_path / f"out-{copy is reference}")
        export(engine, copy, target, group="s", chunks=(9, 9, 1), task_bytes=1_000)
    for path in ("s", "x", "p/0/air", "p/1/air"):
        assert chunk_bytes(repository, path) == chunk_bytes(reference, path)
        assert chunk_bytes(repository, path)
    out = [zarr.open_array(str(tmp_path / f"out-{flag}"), mode="r")[:] for flag in (False, True)]
    np.testing.assert_array_equal(out[0], out[1])
    seen = seen_by_icechunk(repository)
    assert seen["/s"]["sha256"] == seen["/air"]["sha256"] == sha256(values)
    assert seen["/s"]["chunks"] == [20, 1, 1]
    assert seen["/x"]["sha256"] == sha256(array(reference, "x")[:])
    assert seen["/p/1/air"]["sha256"] == sha256(array(reference, "p/1/air")[:])


def test_executors_materialize_and_name_the_files_that_they_cannot_read(
    spark: Any, tmp_path: Path
) -> None:
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    prefix = f"file://{tmp_path}/data/"
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(prefix, icefloe.local_filesystem_store(str(tmp_path)))
    )
    access: Any = {prefix: icefloe.Credentials.LocalFileSystemAccess()}
    storage = icefloe.local_filesystem_storage(str(tmp_path / "repo"))
    repository = icefloe.Repository.create(storage, config, access)
    (tmp_path / "data").mkdir()
    values = np.arange(600, dtype="i4")
    session = repository.writable_session("main")
    zarr.create_group(session.store).create_array(
        "v", shape=(600,), chunks=(100,), dtype="i4", compressors=None
    )
    for number, part in enumerate(np.split(values, 6)):
        (tmp_path / "data" / f"{number}.bin").write_bytes(part.tobytes())
        location = f"{prefix}{number}.bin"
        session.store.set_virtual_ref(f"v/c/{number}", location, offset=0, length=400)
    session.commit("virtual")
    for number in (1, 4):
        (tmp_path / "data" / f"{number}.bin").rename(tmp_path / f"{number}.bin")
    with pytest.raises(JobFailedError) as failed:
        materialize(spark, repository)
    sources = [failure.source.removeprefix(prefix) for failure in failed.value.failures]
    assert sources == ["1.bin", "4.bin"]
    for number in (1, 4):
        (tmp_path / f"{number}.bin").rename(tmp_path / "data" / f"{number}.bin")
    report = materialize(spark, repository)
    assert isinstance(report, Report)
    assert (report.chunks, len(report.released)) == (6, 6)
    for file in (tmp_path / "data").iterdir():
        file.unlink()
    np.testing.assert_array_equal(array(repository, "v")[:], values)


def test_a_killed_worker_loses_and_doubles_nothing(
    spark: Any, repository: icefloe.Repository, tmp_path: Path
) -> None:
    values = write_weather(repository)
    died = tmp_path / "died"

    def function(air: Any, location: Any) -> Any:
        # In the second block of a task, so that chunks of the first are written already.
        if location.start["lat"] == 12 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return air + 1

    outputs = {"x": Output("f4", chunks={"lon": 6})}
    report = compute(spark, repository, function, "air", outputs, probe=False, task_bytes=3_500)
    assert died.exists()
    assert isinstance(report, Report)
    np.testing.assert_array_equal(array(repository, "x")[:], values + 1)
    assert report.chunks == len(chunk_bytes(repository, "x")) == len(chunk_bytes(repository, "air"))


class Interrupted:
    """Progress callback that commits while a job runs."""

    def __init__(self, repository: icefloe.Repository, path: str, value: float) -> None:
        self.repository, self.path, self.value = repository, path, value
        self.heard: list[tuple[int, int]] = []

    def __call__(self, done: int, total: int) -> None:
        if not self.heard:
            with self.repository.transaction("main", message="theirs") as store:
                zarr.open_array(store, path=self.path)[:2] = self.value
        self.heard.append((done, total))


def test_a_concurrent_commit_elsewhere_is_rebased_over(
    spark: Any, repository: icefloe.Repository
) -> None:
    values = write_weather(repository)
    progress = Interrupted(repository, "mask", 77)
    report = rechunk(spark, repository, "air", (20, 4, 6), progress=progress)
    assert isinstance(report, Report)
    assert progress.heard
    messages = [info.message for info in repository.ancestry(branch="main")]
    assert messages[:2] == ["rechunked /air", "theirs"]
    np.testing.assert_array_equal(array(repository, "air")[:], values)
    assert (array(repository, "mask")[:2] == 77).all()


def test_a_concurrent_change_of_the_array_is_an_error_and_stays(
    spark: Any, repository: icefloe.Repository
) -> None:
    write_weather(repository)
    progress = Interrupted(repository, "air", 77)
    with pytest.raises(icefloe.RebaseFailedError):
        rechunk(spark, repository, "air", (20, 4, 6), progress=progress)
    assert (array(repository, "air")[:2] == 77).all()
    assert array(repository, "air").chunks == (5, 4, 6)


def test_failing_blocks_are_named_and_nothing_is_committed(
    spark: Any, repository: icefloe.Repository
) -> None:
    write_weather(repository)

    def function(air: Any, location: Any) -> Any:
        if location.start["time"] == 5:
            raise KeyError("nowhere")
        return air

    with pytest.raises(JobFailedError, match=r"/x \[time 5:10, .*KeyError: 'nowhere'"):
        compute(spark, repository, function, "air", {"x": Output("f4")}, task_bytes=8_000)
    assert len(list(repository.ancestry(branch="main"))) == 2


def test_workers_that_die_every_time_fail_the_job(
    spark: Any, repository: icefloe.Repository
) -> None:
    write_weather(repository)

    def function(air: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)
        return air

    with pytest.raises(JobFailedError, match="lower task_bytes"):
        compute(spark, repository, function, "air", {"x": Output("f4")}, probe=False)
    assert len(list(repository.ancestry(branch="main"))) == 2


def test_workers_with_another_python_are_named(
    spark: Any, repository: icefloe.Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the setting to change; the error is not that of unpickling."""
    write_weather(repository)
    (tmp_path / "icefloe.py").write_text("import icefloe_is_not_here")
    without_package = tmp_path / "python"
    without_package.write_text(
        f'#!/bin/sh\nPYTHONPATH="{tmp_path}:$PYTHONPATH" exec {sys.executable} "$@"\n'
    )
    without_package.chmod(0o755)
    version = ".".join(map(str, sys.version_info[:2]))
    cases = [
        ("pythonVer", "3.1", f"the workers run Python {version}, but"),
        ("pythonExec", str(tmp_path / "absent"), f"the workers have no Python {tmp_path}/absent"),
        ("pythonExec", str(without_package), "has no module icefloe_is_not_here: install it there"),
    ]
    for name, value, reason in cases:
        with monkeypatch.context() as patch:
            patch.setattr(spark.sparkContext, name, value)
            with pytest.raises(JobFailedError) as failed:
                rechunk(spark, repository, "air", {"time": 3})
        (failure,) = failed.value.failures
        assert reason in failure.reason
        assert "set PYSPARK_PYTHON, or spark.pyspark.python, to " in failure.reason
        assert len(failure.reason.splitlines()) == 1


def test_rows_in_long_form(spark: Any, repository: icefloe.Repository, tmp_path: Path) -> None:
    values = write_weather(repository)
    target = str(tmp_path / "rows")
    plan = export(spark, repository, target, format="parquet", variables=["air"], dry_run=True)
    assert "4,420 rows of time, lat, lon, air become Parquet files" in str(plan)
    assert not (tmp_path / "rows").exists()
    heard: list[tuple[int, int]] = []
    report = export(
        spark,
        repository,
        target,
        format="parquet",
        variables=["air"],
        progress=lambda done, total: heard.append((done, total)),
    )
    assert isinstance(report, Report)
    parts = list((tmp_path / "rows").glob("*.parquet"))
    size_bytes = sum(part.stat().st_size for part in parts)
    assert (report.rows, report.files, report.bytes_written) == (4420, len(parts), size_bytes)
    assert heard
    rows = spark.read.parquet(target).toPandas().sort_values(["time", "lat", "lon"])
    assert list(rows.columns) == ["time", "lat", "lon", "air"]
    np.testing.assert_array_equal(rows["air"].to_numpy("f4"), values.reshape(-1))
    np.testing.assert_array_equal(rows["lon"].to_numpy()[:17], np.arange(17) * 0.5)
    for dry_run in (True, False):
        with pytest.raises(AlreadyExistsError, match="rows already exists"):
            export(spark, repository, target, format="parquet", dry_run=dry_run)
    assert list((tmp_path / "rows").glob("*.parquet")) == parts


def test_rows_in_folders(spark: Any, repository: icefloe.Repository, tmp_path: Path) -> None:
    write_weather(repository)
    target = (tmp_path / "all rows").as_uri()
    given: Any = {"format": "parquet", "variables": ["air"], "isel": {"time": [0, 3]}}
    export(spark, repository, target, partition_by=["time"], **given)
    folders = {entry.name for entry in (tmp_path / "all rows").iterdir() if entry.is_dir()}
    assert folders == {"time=0.0", "time=1.5"}
    assert spark.read.parquet(str(tmp_path / "all rows")).count() == 2 * 13 * 17
    with pytest.raises(InvalidInputError, match="partition_by: unknown column 'depth'"):
        export(spark, repository, f"{target}-2", partition_by=["depth"], **given)


def test_rows_that_cannot_be_read_leave_no_file_and_do_not_block_the_next_try(
    spark: Any, repository: icefloe.Repository, tmp_path: Path
) -> None:
    write_weather(repository)
    session = repository.readonly_session("main")
    (part,) = session.transaction.fetch_chunk_refs(session.path("air"))
    chunks = session.connection.generation.layout.chunks
    lost = tmp_path / "repo" / chunks.format_key(part.payloads[-1].id)  # type: ignore[union-attr]
    data = lost.read_bytes()
    lost.unlink()
    given: Any = {"format": "parquet", "variables": ["air"]}
    with pytest.raises(JobFailedError, match=f"object not found: .*{lost.name}"):
        export(spark, repository, str(tmp_path / "rows"), **given)
    assert not list((tmp_path / "rows").rglob("*.parquet"))
    lost.write_bytes(data)
    report = export(spark, repository, str(tmp_path / "rows"), **given)
    assert isinstance(report, Report)
    assert report.rows == spark.read.parquet(str(tmp_path / "rows")).count()


def test_what_tasks_get_and_answer_holds_no_credentials(tmp_path: Path) -> None:
    secret = "AKIDSECRET"
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    prefix = "s3://elsewhere/"
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(prefix, icefloe.s3_store(region="us-east-1"))
    )
    static = icefloe.s3_credentials(access_key_id=secret, secret_access_key=secret)
    key = icefloe.Credentials.S3(static)
    repository = icefloe.Repository.create(
        icefloe.local_filesystem_storage(str(tmp_path / "repo")), config, {prefix: key}
    )
    write_weather(repository)
    run = JobRun.start("test", None, repository, merge_options(None, None, {"task_bytes": 1000}))

    def work(writer: TaskWriter, value: int) -> None:
        writer.open_target("air")[value] = 3

    point = ForkPoint.of(run.session)
    assert secret.encode() in pickle.dumps(point)  # which is what goes in the function
    task = (WorkUnit("air", 1, 0),)
    answer = pickle.dumps(_make_write_task(point, work)(task))
    assert secret.encode() not in answer + pickle.dumps(task)
