"""The main jobs one after the other, on whatever Spark there is; a program and a module.

``python jobs.py remote|master URL STORAGE ARCHIVE``: the storage as pickled bytes in a file. Prints
as JSON what the tests ask about.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import icefloe
from icefloe.pipeline import Output, Report, append, compute, ingest, rechunk, virtualize
from icefloe.spark.engine.progress import is_connect
from support.cluster_attempts import EXECUTOR, WORKER, ancestor
from support.cluster_sessions import session

if TYPE_CHECKING:
    from icefloe.storage import Storage


def create(storage: Storage, archive: Path) -> icefloe.Repository:
    """Create a repository that may refer to the files of an archive."""
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    prefix = f"{archive.as_uri()}/"
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(prefix, icefloe.local_filesystem_store(str(archive)))
    )
    access = {prefix: icefloe.Credentials.LocalFileSystemAccess()}
    return icefloe.Repository.create(storage, config, access)


def run_jobs(
    spark: Any, repository: icefloe.Repository, archive: Path, deadly: Path | None = None
) -> list[Report]:
    """Run the jobs, each on what the one before it made.

    Parameters
    ----------
    deadly
        A folder to remember in that an executor and a worker were killed, each in the middle of a
        job; none without it.
    """
    parts = f"{archive}/part-00[0-2].nc"
    series = {"time": -1, "lat": 1, "lon": 1}
    reports = [
        virtualize(spark, repository, parts, group="files"),
        ingest(spark, repository, parts, group="maps", chunks={"time": 4, "lat": 6, "lon": 5}),
        append(spark, repository, f"{archive}/*.nc", group="files"),
        append(spark, repository, f"{archive}/*.nc", group="maps"),
        rechunk(spark, repository, "maps", series, target="series", task_bytes=500),
    ]
    for name, kind in (("executor", EXECUTOR), ("worker", WORKER)):
        reports.append(
            compute(
                spark,
                repository,
                _adding(None if deadly is None else deadly / name, kind),
                {"rain": "maps/rain"},
                {f"without-{name}": Output("f4", chunks={"time": 2, "lat": 3, "lon": 4})},
                probe=False,
                task_bytes=200,
            )
        )
    return [report for report in reports if isinstance(report, Report)]


def _adding(died: Path | None, kind: bytes) -> Any:
    def function(rain: Any, location: Any) -> Any:
        # Not in the first block, so that chunks of this job are written already.
        if died is not None and location.start["time"] == 4 and not died.exists():
            died.touch()
            os.kill(ancestor(kind), signal.SIGKILL)
        return rain + 1

    return function


def main(kind: str, url: str, storage: str, archive: str) -> None:
    spark = session(kind, url)
    try:
        place = pickle.loads(Path(storage).read_bytes())  # noqa: S301 - the test's
        repository = create(place, Path(archive))
        deadly = Path(storage).parent if kind == "master" else None
        reports = run_jobs(spark, repository, Path(archive), deadly)
        on_connect = is_connect(spark)
    finally:
        spark.stop()
    reported = [[report.job, report.files, report.chunks, report.is_new] for report in reports]
    print(json.dumps({"is_connect": on_connect, "reports": reported}))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
