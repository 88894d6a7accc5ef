"""Rows and streams where users run them: what one process writes, chunk by chunk, once."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

import icefloe
from support.array_repositories import array
from support.cluster_attempts import Trouble
from support.cluster_programs import TESTS, needs_connect, run_program
from support.connect_port import hold_connect_port
from support.netcdf_files import arrays, assert_same_chunks
from support.standalone_cluster import standalone_cluster

pytest.importorskip("pyspark", reason="SPARK IS NOT TESTED ON THIS MACHINE: no pyspark")

from support import cluster_rows

if TYPE_CHECKING:
    from pathlib import Path
    from subprocess import CompletedProcess

    from support.servers import S3Server

KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


@pytest.fixture(scope="module")
def references() -> tuple[icefloe.Repository, icefloe.Repository]:
    """Do everything in this process."""
    made = (
        cluster_rows.create(icefloe.in_memory_storage()),
        cluster_rows.create(icefloe.in_memory_storage()),
    )
    cluster_rows.write_reference(*made)
    return made


@pytest.fixture
def keys(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Put the keys of the bucket into the environment."""
    given = dict(zip(KEYS, (s3_server.access_key_id, s3_server.secret_access_key), strict=True))
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    return given


@pytest.fixture
def place(s3_server: S3Server, keys: dict[str, str]) -> cluster_rows.Place:
    """Create a repository, and one that its stream is copied to."""
    assert keys
    made = cluster_rows.Place(s3_server.endpoint_url, s3_server.bucket, f"rows/{uuid.uuid4()}")
    for copy in (made, made.copy()):
        cluster_rows.create(copy.storage())
    return made


def run(
    part: str, kind: str, url: str, place: cluster_rows.Place, folder: Path
) -> CompletedProcess[str]:
    where = (place.endpoint_url, place.bucket, place.prefix)
    return run_program(cluster_rows.__file__, part, kind, url, *where, str(folder))


@needs_connect
def test_spark_connect(
    references: tuple[icefloe.Repository, icefloe.Repository],
    place: cluster_rows.Place,
    tmp_path: Path,
    keys: dict[str, str],
) -> None:
    """Python's processes die, and a micro-batch comes again."""
    with hold_connect_port():
        done = run("all", "remote", "local[2,4]", place, tmp_path)
    assert done.returncode == 0, done.stderr[-6000:]
    assert json.loads(done.stdout.splitlines()[-1])["is_connect"]
    assert_once(references, place, tmp_path)
    assert_no_secrets(tmp_path, [done], keys)


def test_a_cluster(
    references: tuple[icefloe.Repository, icefloe.Repository],
    place: cluster_rows.Place,
    tmp_path: Path,
    keys: dict[str, str],
) -> None:
    """Attempts die and run twice, an executor is killed, and the driver between commit and note."""
    with standalone_cluster(tmp_path / "cluster", {**TESTS, **keys}) as master:
        died = run("dying-stream", "master", master, place, tmp_path)
        assert died.returncode != 0
        noted = {file.name for file in (tmp_path / "checkpoint" / "commits").glob("[0-9]*")}
        assert noted == {str(number) for number in range(cluster_rows.REPLAYED)}
        streamed = icefloe.Repository.open(place.storage())
        assert num_commits(streamed) == cluster_rows.REPLAYED + 1

        done = run("all", "master", master, place, tmp_path)
        assert done.returncode == 0, done.stderr[-6000:]
    assert not json.loads(done.stdout.splitlines()[-1])["is_connect"]
    assert_once(references, place, tmp_path)
    waited = {name for name, kind in cluster_rows.TROUBLES.items() if kind == "waits"}
    tasks = {Trouble(tmp_path, name, "waits").chosen[:2] for name in waited}
    assert tasks <= find_speculated(tmp_path / "events")
    assert_no_secrets(tmp_path, [died, done], keys)


def assert_once(
    references: tuple[icefloe.Repository, icefloe.Repository],
    place: cluster_rows.Place,
    folder: Path,
) -> None:
    """Every trouble took place, and nothing is seen of it."""
    for name in cluster_rows.TROUBLES:
        assert Trouble(folder, name, "raises").attempts > 1, name
    for copy, reference in zip((place, place.copy()), references, strict=True):
        repository = icefloe.Repository.open(copy.storage())
        assert num_commits(repository) == num_commits(reference)
        assert_same_chunks(repository, reference)
        assert_icechunk_agrees(repository, copy)


def find_speculated(events: Path) -> set[tuple[int, int]]:
    """Find stages and partitions that Spark started a second attempt of while one was running."""
    found = set()
    for file in events.rglob("events_*"):
        for line in file.read_text().splitlines():
            event = json.loads(line)
            if event["Event"] == "SparkListenerTaskStart" and event["Task Info"]["Speculative"]:
                found.add((event["Stage ID"], event["Task Info"]["Partition ID"]))
    return found


def num_commits(repository: icefloe.Repository) -> int:
    return len(list(repository.ancestry(branch="main"))) - 1


def assert_icechunk_agrees(repository: icefloe.Repository, place: cluster_rows.Place) -> None:
    """Compare all arrays with what the real Icechunk reads."""
    icechunk: Any = pytest.importorskip("icechunk")
    storage = icechunk.s3_storage(
        bucket=place.bucket,
        prefix=place.prefix,
        endpoint_url=place.endpoint_url,
        allow_http=True,
        force_path_style=True,
        region="us-east-1",
        from_env=True,
    )
    store = icechunk.Repository.open(storage).readonly_session("main").store
    for path in arrays(repository):
        theirs = zarr.open_array(store, path=path.strip("/"), mode="r")
        np.testing.assert_array_equal(theirs[...], array(repository, path)[...])


def assert_no_secrets(
    folder: Path, programs: list[CompletedProcess[str]], keys: dict[str, str]
) -> None:
    """No plan, no output, no log of any process and no event log shows the keys."""
    plans = json.loads(programs[-1].stdout.splitlines()[-1])["plans"]
    assert all("icefloe" in plan for plan in plans)
    shown = [text.encode() for program in programs for text in (program.stdout, program.stderr)]
    shown += [file.read_bytes() for file in folder.rglob("*") if file.is_file()]
    assert any(b"SparkListenerSQLExecutionStart" in text for text in shown)
    for key in keys.values():
        assert not any(key.encode() in text for text in shown)
