"""Eight processes that commit to one branch lose nothing: on disk, on S3, in both generations."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from icefloe.refs import create_refs, open_refs
from icefloe.storage import LocalStorage, Storage, s3_storage
from servers import seaweedfs

if TYPE_CHECKING:
    from collections.abc import Iterator

PROCESSES, COMMITS = 8, 4


@pytest.fixture(params=["local", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    if request.param == "local":
        yield LocalStorage(tmp_path / "repo", durable=False)
        return
    with seaweedfs() as server:
        yield s3_storage(
            bucket=server.bucket,
            prefix="race",
            endpoint_url=server.endpoint_url,
            allow_http=True,
            region="us-east-1",
            access_key_id=server.access_key_id,
            secret_access_key=server.secret_access_key,
        )


def test_no_commit_is_lost(storage: Storage, spec_version: int, tmp_path: Path) -> None:
    """Every commit that reported success is in the history exactly once, and no other is."""
    create_refs(storage, spec_version=spec_version)
    (tmp_path / "storage.pickle").write_bytes(pickle.dumps(storage))
    command = [sys.executable, "-m", "refs.racing_committer", str(tmp_path / "storage.pickle")]
    running = [
        subprocess.Popen(
            [*command, str(name), str(COMMITS)],
            cwd=Path(__file__).parents[1],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in range(PROCESSES)
    ]
    reported = []
    for process in running:
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        reported += output.split()
    assert len(reported) == PROCESSES * COMMITS
    refs = open_refs(storage).refs
    history = [str(info.id) for info in refs.fetch_ancestry(refs.fetch_branch("main"))]
    assert sorted(history[:-1]) == sorted(reported)
