"""Eight processes that commit to one branch lose nothing: on disk, on S3, in every generation."""

from __future__ import annotations

import pickle
import sys
import uuid
from typing import TYPE_CHECKING

import pytest

from icefloe.refs import create_refs, open_refs
from icefloe.storage import LocalStorage, Storage, s3_storage
from support import SUPPORT, warm_python

if TYPE_CHECKING:
    from pathlib import Path

    from icefloe.format.generation import Generation
    from support.servers import S3Server

PROCESSES, COMMITS = 8, 4


@pytest.fixture(params=["local", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "local":
        return LocalStorage(tmp_path / "repo", durable=False)
    server: S3Server = request.getfixturevalue("s3_server")
    return s3_storage(
        bucket=server.bucket,
        prefix=f"race/{uuid.uuid4()}",
        endpoint_url=server.endpoint_url,
        allow_http=True,
        region="us-east-1",
        access_key_id=server.access_key_id,
        secret_access_key=server.secret_access_key,
    )


def test_no_commit_is_lost(storage: Storage, generation: Generation, tmp_path: Path) -> None:
    """Every commit that reported success is in the history exactly once, and no other is."""
    create_refs(storage, generation=generation)
    (tmp_path / "storage.pickle").write_bytes(pickle.dumps(storage))
    script = SUPPORT / "racing_refs_committer.py"
    numbers = map(str, (PROCESSES, COMMITS))
    done = warm_python.run(sys.executable, script, tmp_path / "storage.pickle", *numbers)
    assert done.returncode == 0, done.stderr
    reported = done.stdout.split()
    assert len(reported) == PROCESSES * COMMITS
    refs = open_refs(storage).refs
    history = [str(info.id) for info in refs.fetch_ancestry(refs.fetch_branch("main"))]
    assert sorted(history[:-1]) == sorted(reported)
