"""The jobs where users run them: what one process writes, chunk by chunk."""

from __future__ import annotations

import json
import pickle
import uuid
from typing import TYPE_CHECKING, Any

import pytest

import icefloe
from support import cluster_jobs
from support.cluster_programs import TESTS, needs_connect, run_program
from support.connect_port import hold_connect_port
from support.netcdf_files import assert_same_chunks, write_files
from support.standalone_cluster import standalone_cluster

if TYPE_CHECKING:
    from pathlib import Path

    from icefloe.storage import Storage
    from support.servers import S3Server


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archive")
    write_files(folder)
    return folder


@pytest.fixture(scope="module")
def reference(archive: Path) -> tuple[icefloe.Repository, list[Any]]:
    """Do everything in this process."""
    repository = cluster_jobs.create(icefloe.in_memory_storage(), archive)
    reports = cluster_jobs.run_jobs(None, repository, archive)
    return repository, [
        [report.job, report.files, report.chunks, report.is_new] for report in reports
    ]


def run_there(kind: str, url: str, storage: Storage, archive: Path, folder: Path) -> dict[str, Any]:
    """Run the jobs on Spark."""
    place = folder / "storage.pickle"
    place.write_bytes(pickle.dumps(storage))
    done = run_program(cluster_jobs.__file__, kind, url, str(place), str(archive))
    assert done.returncode == 0, done.stderr[-4000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


@needs_connect
def test_spark_connect(
    reference: tuple[icefloe.Repository, list[Any]], archive: Path, tmp_path: Path
) -> None:
    storage = icefloe.local_filesystem_storage(str(tmp_path / "repository"))
    with hold_connect_port():
        told = run_there("remote", "local[2]", storage, archive, tmp_path)
    assert told["is_connect"]
    assert told["reports"] == reference[1]
    assert_same_chunks(icefloe.Repository.open(storage), reference[0])


def test_a_cluster_whose_processes_die(
    reference: tuple[icefloe.Repository, list[Any]],
    archive: Path,
    tmp_path: Path,
    s3_server: S3Server,
) -> None:
    """An executor is killed in the middle of one job, a worker with its executor in another."""
    storage = icefloe.s3_storage(
        bucket=s3_server.bucket,
        prefix=f"clusters/{uuid.uuid4()}",
        endpoint_url=s3_server.endpoint_url,
        allow_http=True,
        force_path_style=True,
        region="us-east-1",
        access_key_id=s3_server.access_key_id,
        secret_access_key=s3_server.secret_access_key,
    )
    with standalone_cluster(tmp_path / "cluster", TESTS) as master:
        told = run_there("master", master, storage, archive, tmp_path)
    assert (tmp_path / "executor").exists()
    assert (tmp_path / "worker").exists()
    assert not told["is_connect"]
    assert told["reports"] == reference[1]
    assert_same_chunks(icefloe.Repository.open(storage), reference[0])
