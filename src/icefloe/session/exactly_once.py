"""Idempotent commits: a job or micro-batch commits once, however often it is retried.

A job or a stream has an *application* name and numbers its commits by *version*: the micro-batch,
or 0 for a job with a transaction id. Every commit of the pipeline records its own application and
version, and carries forward the last version of each application before it, so that the most recent
one answers for all, also after older ones expired. `commit_once` looks there before it commits, and
again after each conflict: the conflict may be with its own commit, whose response was lost.

Expiration: the tip of a branch never expires, so its record stays while it is a commit of the
pipeline. Other commits carry nothing forward. Once the last commit of the pipeline lies below such
commits and expires, its record is gone, and an application counts as one that never committed:
expire only what is older than any job or stream that may still be retried.

Commit metadata is untrusted: a record that does not have the form written here counts as none.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from icefloe.conflicts import ConflictDetector
from icefloe.errors import ConflictError, ErrorKind, RebaseFailedError, SessionStateError
from icefloe.session.commit_policy import NO_POLICY
from icefloe.storage.backoff import backoff_delay_s

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.conflicts import ConflictSolver
    from icefloe.repository import Repository
    from icefloe.session.commit_policy import CommitPolicy
    from icefloe.session.session import Session

METADATA_KEY: Final = "icefloe"
"""Key of the pipeline's record in the metadata of a commit."""

_MAX_APPLICATIONS: Final = 1000
"""Number of applications carried forward. Those that committed longest ago are dropped, and then
searched for in the history."""

_MAX_ATTEMPTS: Final = 1000


@dataclass(frozen=True, slots=True)
class JobId:
    """Identity of a commit: a version of an application."""

    application: str
    version: int = 0


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit in the history: made now (``is_new``) or found.

    ``snapshot_id`` is None if the commit is known to have been made and has expired since.
    """

    snapshot_id: str | None
    is_new: bool


def find_committed(repository: Repository, branch: str, job: JobId) -> Committed | None:
    """Return the commit of a job, or of a later version, if the branch has one.

    Stops at the first record that decides it. Walks the whole history only if many applications
    committed since this one did.
    """
    is_known = False
    for info in repository.ancestry(branch=branch):
        record = _record(info.metadata)
        if record.get("application") == job.application and record.get("version") == job.version:
            return Committed(info.id, is_new=False)
        applications = _applications(record)
        if is_known or applications is None:
            continue
        last = applications.get(job.application)
        if last is not None and last >= job.version:
            is_known = True  # walk on to find its id
        elif last is not None or len(applications) < _MAX_APPLICATIONS:
            return None  # the record is complete
    return Committed(None, is_new=False) if is_known else None


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
) -> Committed:
    """Commit a session, unless the job's commit is on the branch already.

    Parameters
    ----------
    job
        Identity of the commit. Without one, a commit whose response is lost is not recognised.
    about
        Record of the pipeline: the kind of job, its sources, what was left out.
    solver
        Resolves conflicts with commits made since; every conflict fails if None.

    Raises
    ------
    RebaseFailedError
        If other commits changed the same chunks or nodes. Nothing was committed.
    """
    branch = session.branch
    if branch is None:
        raise SessionStateError(
            "only a writable session commits: take repository.writable_session(branch)",
            kind=ErrorKind.READ_ONLY_SESSION,
        )
    for attempt in range(_MAX_ATTEMPTS):
        if job is not None:
            found = find_committed(repository, branch, job)
            if found is not None:
                return found
        record = {**(about or {}), **_build_record(repository, session.snapshot_id, job)}
        try:
            recorded = {**(metadata or {}), METADATA_KEY: record}
            made = session.commit(message, recorded, policy=policy)
        except RebaseFailedError:
            raise
        except ConflictError:
            if attempt + 1 == _MAX_ATTEMPTS:
                raise
        else:
            return Committed(made, is_new=True)
        if attempt:
            time.sleep(backoff_delay_s(attempt, 0.05, 5.0))
        try:
            session.rebase(solver or ConflictDetector(), policy=policy)
        except ConflictError:
            # The conflict may be with this very commit, made by another attempt.
            found = None if job is None else find_committed(repository, branch, job)
            if found is None:
                raise
            return found
    raise AssertionError("the last attempt raises or returns")


def _build_record(repository: Repository, base: str, job: JobId | None) -> dict[str, Any]:
    """Return the versions that a commit records: its own, and those carried forward."""
    history = repository.ancestry(snapshot_id=base)
    records = (_applications(_record(info.metadata)) for info in history)
    applications = dict(next((record for record in records if record is not None), {}))
    own: dict[str, Any] = {}
    if job is not None:
        own = {"application": job.application, "version": job.version}
        applications.pop(job.application, None)  # the most recent comes last
        applications[job.application] = job.version
    kept = list(applications.items())[-_MAX_APPLICATIONS:]
    return {**own, "applications": dict(kept)}


def _record(metadata: Mapping[str, Any]) -> dict[str, Any]:
    record = metadata.get(METADATA_KEY)
    return record if isinstance(record, dict) else {}


def _applications(record: Mapping[str, Any]) -> dict[str, int] | None:
    """Return the last version of each application in a record; None if it has none."""
    applications = record.get("applications")
    if not isinstance(applications, dict):
        return None
    is_valid = all(type(version) is int for version in applications.values())
    return applications if is_valid else None
