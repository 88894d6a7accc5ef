"""The conversion job: chunk files are copied by Spark tasks, to object stores too."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest

from icefloe.errors import StorageError
from icefloe.pipeline import convert_repository
from icefloe.repository import Repository
from icefloe.storage import LocalStorage, s3_storage
from support.histories import make_history, read_everything

if TYPE_CHECKING:
    from pathlib import Path

    from support.servers import S3Server


def test_on_spark(tmp_path: Path, spark: Any, s3_server: S3Server) -> None:
    """Tasks upload from a disk to S3, and copy from prefix to prefix on the server."""
    repository, _ = make_history(tmp_path / "source", "v1")
    expected = read_everything(repository)

    def open_prefix(name: str) -> Any:
        return s3_storage(
            bucket=s3_server.bucket,
            prefix=f"convert/{unique}/{name}",
            endpoint_url=s3_server.endpoint_url,
            allow_http=True,
            region="us-east-1",
            access_key_id=s3_server.access_key_id,
            secret_access_key=s3_server.secret_access_key,
        )

    unique = uuid.uuid4()
    first, second = open_prefix("first"), open_prefix("second")
    uploaded = convert_repository(repository, first, to="v2", spark=spark, task_bytes=5000)
    assert uploaded.num_copied_chunks == 24
    assert uploaded.num_transferred_bytes == 24 * 800
    copied = convert_repository(first, second, to="sequence", spark=spark, task_bytes=5000)
    assert copied.num_copied_chunks == 24
    assert copied.num_transferred_bytes == 0
    found = read_everything(Repository.open(second))
    ids = {old: copied.snapshots[new] for old, new in uploaded.snapshots.items()}
    assert found == {ids[snapshot_id]: data for snapshot_id, data in expected.items()}


def test_failed_tasks(tmp_path: Path, spark: Any) -> None:
    """Chunks that tasks could not copy are reported; the next run copies only those."""
    repository, _ = make_history(tmp_path / "source", "v1")
    chunks = sorted((tmp_path / "source" / "chunks").glob("*"))
    hidden = tmp_path / "hidden"
    # A chunk of a commit: the session of `make_history` also left some that nothing refers to.
    target = LocalStorage(tmp_path / "target")
    referenced = convert_repository(repository, LocalStorage(tmp_path / "plan"), to="v2")
    assert referenced.num_chunks == 24
    name = min(path.name for path in (tmp_path / "plan" / "chunks").glob("*"))
    path = next(path for path in chunks if path.name == name)
    path.rename(hidden)
    with pytest.raises(StorageError, match=rf"(?s)1 chunk file could not be copied.*{name}"):
        convert_repository(repository, target, to="v2", spark=spark, task_bytes=5000)
    hidden.rename(path)
    report = convert_repository(repository, target, to="v2", spark=spark, task_bytes=5000)
    assert report.num_copied_chunks == 1
    assert read_everything(Repository.open(target)) == read_everything(repository)
