"""A commit with a job id lands once, however often it is attempted."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.errors import OutcomeUnknownError, RebaseFailedError
from icefloe.session import exactly_once
from icefloe.session.exactly_once import CommitResult, JobId, commit_once, find_commit
from support import SUPPORT

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def repository(tmp_path: Path, generation: str) -> icefloe.Repository:
    storage = icefloe.local_filesystem_storage(str(tmp_path / "repo"))
    repository = icefloe.Repository.create(storage, generation=generation)
    with repository.transaction("main", message="array") as store:
        zarr.create_array(store, name="a", shape=(100,), chunks=(1,), dtype="i4", fill_value=0)
    return repository


def write(session: icefloe.Session, index: int, value: int) -> None:
    zarr.open_array(session.store, path="a")[index] = value


def commit(repository: icefloe.Repository, job: JobId | None, index: int = 0) -> CommitResult:
    session = repository.writable_session("main")
    write(session, index, 1)
    return commit_once(repository, session, "work", job)


def commits(repository: icefloe.Repository) -> list[str]:
    return [info.id for info in repository.ancestry(branch="main")]


def test_the_second_attempt_finds_the_first(repository: icefloe.Repository) -> None:
    first = commit(repository, JobId("load"))
    second = commit(repository, JobId("load"))
    assert first == CommitResult(first.snapshot_id, is_new=True)
    assert second == CommitResult(first.snapshot_id, is_new=False)
    assert commits(repository).count(str(first.snapshot_id)) == 1
    assert len(commits(repository)) == 3


def test_an_older_version_is_known_too(repository: icefloe.Repository) -> None:
    ids = [commit(repository, JobId("stream", version)).snapshot_id for version in range(3)]
    assert commit(repository, JobId("stream", 1)) == CommitResult(ids[1], is_new=False)
    assert commit(repository, JobId("stream", 3)).is_new


def test_without_an_identity_every_commit_counts(repository: icefloe.Repository) -> None:
    assert commit(repository, None, 1).is_new
    assert commit(repository, None, 2).is_new


def test_applications_are_remembered_after_their_commits_expired(
    repository: icefloe.Repository,
) -> None:
    commit(repository, JobId("one"), 1)
    commit(repository, JobId("two"), 2)
    tip = repository.lookup_branch("main")
    only = repository.lookup_snapshot(tip)
    repository.expire_snapshots(only.written_at)
    assert len(commits(repository)) == 2  # the first of all and the last
    assert find_commit(repository, "main", JobId("one")) == CommitResult(None, is_new=False)


def test_applications_that_fell_out_of_the_record_are_found_in_the_history(
    repository: icefloe.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exactly_once, "_MAX_APPLICATIONS", 3)
    first = commit(repository, JobId("mine"), 1)
    for number in range(5):
        commit(repository, JobId(f"other {number}"), number)
    tip = repository.lookup_snapshot(repository.lookup_branch("main"))
    assert len(tip.metadata["icefloe"]["applications"]) == 3
    assert commit(repository, JobId("mine"), 1) == CommitResult(first.snapshot_id, is_new=False)
    assert find_commit(repository, "main", JobId("unknown")) is None


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"applications": None},
        {"applications": [1]},
        {"applications": {"mine": "x"}},
        {"applications": {"mine": None, "other": 0}},
        {"application": ["mine"], "version": {}},
        [1],
        "text",
    ],
)
def test_a_record_that_is_not_ours_counts_as_none(
    repository: icefloe.Repository, record: Any
) -> None:
    """Older commits are still searched, and valid records are kept."""
    first = commit(repository, JobId("mine"), 1)
    session = repository.writable_session("main")
    write(session, 2, 1)
    session.commit("by hand", {"icefloe": record})
    assert commit(repository, JobId("mine"), 1) == CommitResult(first.snapshot_id, is_new=False)
    assert commit(repository, JobId("yours"), 3).is_new
    tip = repository.lookup_snapshot(repository.lookup_branch("main"))
    assert tip.metadata["icefloe"]["applications"] == {"mine": 0, "yours": 0}


def test_what_expiry_keeps_and_what_it_forgets(repository: icefloe.Repository) -> None:
    """As documented: only the record of the tip is kept."""
    commit(repository, JobId("mine"), 1)
    repository.expire_snapshots(datetime.now(UTC))
    assert find_commit(repository, "main", JobId("mine")) is not None
    session = repository.writable_session("main")
    write(session, 2, 1)
    session.commit("by hand")
    assert find_commit(repository, "main", JobId("mine")) is not None
    repository.expire_snapshots(datetime.now(UTC))
    assert find_commit(repository, "main", JobId("mine")) is None


def test_another_commit_in_between_is_rebased_over(repository: icefloe.Repository) -> None:
    session = repository.writable_session("main")
    write(session, 1, 1)
    commit(repository, JobId("other"), 2)
    assert commit_once(repository, session, "work", JobId("mine")).is_new
    values = zarr.open_array(repository.readonly_session("main").store, path="a")[:3]
    assert np.array_equal(values, [0, 1, 1])


def test_the_same_commit_in_between_is_found(repository: icefloe.Repository) -> None:
    """Two attempts of one job that write the same chunk do not conflict."""
    session = repository.writable_session("main")
    write(session, 1, 1)
    other = commit(repository, JobId("mine"), 1)
    assert commit_once(repository, session, "work", JobId("mine")) == CommitResult(
        other.snapshot_id, is_new=False
    )


def test_somebody_elses_change_of_the_same_chunk_is_never_overwritten(
    repository: icefloe.Repository,
) -> None:
    session = repository.writable_session("main")
    write(session, 1, 1)
    commit(repository, JobId("other"), 1)
    with pytest.raises(RebaseFailedError):
        commit_once(repository, session, "work", JobId("mine"))


def test_a_commit_whose_answer_was_lost_is_found(
    repository: icefloe.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = repository.writable_session("main")
    write(session, 1, 1)
    begin = session.connection.refs.begin_commit

    def begin_and_lose_the_answer(*args: Any) -> Any:
        finish = begin(*args)

        def lose_the_answer(*args: Any) -> None:
            finish(*args)
            raise OutcomeUnknownError("the connection broke")

        return lose_the_answer

    monkeypatch.setattr(session.connection.refs, "begin_commit", begin_and_lose_the_answer)
    with pytest.raises(OutcomeUnknownError):
        commit_once(repository, session, "work", JobId("mine"))
    monkeypatch.undo()
    assert not commit(repository, JobId("mine"), 1).is_new
    assert len(commits(repository)) == 3


def test_racing_processes_commit_an_identity_once(
    repository: icefloe.Repository, tmp_path: Path
) -> None:
    """Four processes try the same version of an application, with different chunks."""
    program = SUPPORT / "racing_jobs.py"
    ran = subprocess.run(
        [sys.executable, program, tmp_path / "repo"], capture_output=True, text=True, check=True
    )
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len(found) == 4
    assert sum(is_new for _, is_new in found) == 1
    assert len({snapshot for snapshot, _ in found}) == 1
    assert len(commits(repository)) == 3
