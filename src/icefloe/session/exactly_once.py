"""Idempotent commits: a job or micro-batch commits once, however often it is retried.

A job or a stream has an *application* name and numbers its commits by *version*: the micro-batch,
or 0 for a job with a transaction id. Every commit of the pipeline records its own application and
version, and copies the last version of every other application from the previous record, so that
the most recent record is complete even if older commits expired. `commit_once` reads this record
before each attempt to commit: a conflict may be with an earlier attempt whose response was lost.

Expiration: the tip of a branch never expires, so the record remains while the tip is a commit of
the pipeline. Other commits do not copy the record. Once the last commit of the pipeline is no
longer the tip and expires, the record is lost, and an application counts as one that never
committed: expire only snapshots older than any job or stream that may still be retried.

Commit metadata is untrusted: a malformed record is ignored.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from icefloe.conflicts import ConflictDetector
from icefloe.errors import ConflictError, ErrorKind, RebaseFailedError, SessionStateError
from icefloe.session.commit_policy import NO_POLICY
from icefloe.storage.backoff import compute_backoff_s

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.conflicts import ConflictSolver
    from icefloe.repository import Repository
    from icefloe.session.commit_policy import CommitPolicy
    from icefloe.session.session import Session

METADATA_KEY: Final = "icefloe"
"""Key of the pipeline's record in the metadata of a commit."""

_MAX_APPLICATIONS: Final = 1000
"""Maximum number of applications in a record; the commits of others are found in the history."""

_MAX_ATTEMPTS: Final = 1000
_FIRST_PAUSE_S: Final = 0.05
_MAX_PAUSE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class JobId:
    """Identity of a commit: a version of an application."""

    application: str
    version: int = 0


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The commit of a job: made now (``is_new``) or by an earlier attempt.

    ``snapshot_id`` is None if the snapshot of an earlier attempt has expired, or if the branch only
    has a later version of the application.
    """

    snapshot_id: str | None
    is_new: bool


def find_commit(repository: Repository, branch: str, job: JobId) -> CommitResult | None:
    """Return the commit of a job if the branch has it or a later version, otherwise None.

    Stops at the commit itself, or at the first record that rules it out. Reads the whole history if
    there is neither: the branch has no record, or only full records without the application.
    """
    is_committed = False
    for info in repository.ancestry(branch=branch):
        record = _get_record(info.metadata)
        if record.get("application") == job.application and record.get("version") == job.version:
            return CommitResult(info.id, is_new=False)
        applications = _get_applications(record)
        if is_committed or applications is None:
            continue
        last_version = applications.get(job.application)
        if last_version is not None and last_version >= job.version:
            is_committed = True  # continue, to find the snapshot id
        elif last_version is not None or len(applications) < _MAX_APPLICATIONS:
            return None  # only an older version, or no version in a record that is complete
    return CommitResult(None, is_new=False) if is_committed else None


def commit_once(
    repository: Repository,
    session: Session,
    message: str,
    job: JobId | None,
    *,
    about: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    solver: ConflictSolver | None = None,
    policy: CommitPolicy = NO_POLICY,
) -> CommitResult:
    """Commit a session, unless the branch already has the commit of the job.

    Parameters
    ----------
    job
        Identity of the commit; if None, commits of earlier attempts are not recognized.
    about
        Further entries of the record: the kind of job, its sources, what it skipped.
    metadata
        Further metadata of the commit, besides the record.
    solver
        Resolves conflicts with newer commits; if None, any conflict raises.

    Raises
    ------
    RebaseFailedError
        If other commits changed the same chunks or nodes. Nothing was committed.
    """
    branch = session.branch
    if branch is None:
        raise SessionStateError(
            "only a writable session can commit: use repository.writable_session(branch)",
            kind=ErrorKind.READ_ONLY_SESSION,
        )
    for attempt in range(_MAX_ATTEMPTS):
        if job is not None:
            earlier = find_commit(repository, branch, job)
            if earlier is not None:
                return earlier
        record = {**(about or {}), **_build_record(repository, session.snapshot_id, job)}
        try:
            commit_metadata = {**(metadata or {}), METADATA_KEY: record}
            snapshot_id = session.commit(message, commit_metadata, policy=policy)
        except RebaseFailedError:
            raise
        except ConflictError:
            if attempt + 1 == _MAX_ATTEMPTS:
                raise
        else:
            return CommitResult(snapshot_id, is_new=True)
        if attempt:  # the first retry is immediate
            time.sleep(compute_backoff_s(attempt, _FIRST_PAUSE_S, _MAX_PAUSE_S))
        try:
            session.rebase(solver or ConflictDetector(), policy=policy)
        except ConflictError:
            # The conflict may be with the commit of another attempt of this job.
            earlier = None if job is None else find_commit(repository, branch, job)
            if earlier is None:
                raise
            return earlier
    raise AssertionError("the last attempt raises or returns")


def _build_record(repository: Repository, parent_id: str, job: JobId | None) -> dict[str, Any]:
    """Return the record of a commit: its own version, and the last version of each application."""
    history = repository.ancestry(snapshot_id=parent_id)
    candidates = (_get_applications(_get_record(info.metadata)) for info in history)
    applications = dict(next((found for found in candidates if found is not None), {}))
    own: dict[str, Any] = {}
    if job is not None:
        own = {"application": job.application, "version": job.version}
        applications.pop(job.application, None)  # so that the most recent comes last
        applications[job.application] = job.version
    recent = list(applications.items())[-_MAX_APPLICATIONS:]
    return {**own, "applications": dict(recent)}


def _get_record(metadata: Mapping[str, Any]) -> dict[str, Any]:
    record = metadata.get(METADATA_KEY)
    return record if isinstance(record, dict) else {}


def _get_applications(record: Mapping[str, Any]) -> dict[str, int] | None:
    """Return the last version of each application in a record; None if missing or malformed."""
    applications = record.get("applications")
    if not isinstance(applications, dict):
        return None
    is_valid = all(type(version) is int for version in applications.values())
    return applications if is_valid else None
