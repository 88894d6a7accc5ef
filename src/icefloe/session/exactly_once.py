"""Commits that happen once, however often they are tried.

A job or a stream has an *application* name and counts its *versions*: micro-batches, or a single
one for a job that somebody gave a transaction id. A commit records both, and carries along the last
version of every application that came before it, so that the nearest commit of the pipeline tells
all of them, also after older ones expired. Whoever is about to commit looks there first, and again
after each conflict: the conflict may be with itself, a commit whose answer was lost.

Expiry: the tip of a branch never expires, so while it is a commit of the pipeline all that it
carries is known. Commits of others carry nothing along. Once the last commit of the pipeline lies
below such ones and expires itself, its record is gone, and an application counts as one that never
committed: expire only what is older than any job or stream that may still be tried again.

What commits say is data like any other, and anybody can write it: a record that is not of the form
that this module writes counts as none.
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
"""Where the metadata of a commit says what the pipeline did."""

_MAX_APPLICATIONS: Final = 1000
"""How many applications are carried along; those that committed longest ago fall out, and are then
looked for in the history itself."""

_TRIES: Final = 1000


@dataclass(frozen=True, slots=True)
class JobId:
    """Which commit this is: version ``version`` of an application's commits."""

    application: str
    version: int = 0


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit that is in the history.

    Parameters
    ----------
    snapshot_id
        Its snapshot; None if it is known to have been there and has expired since.
    is_new
        Whether it was made now, rather than found.
    """

    snapshot_id: str | None
    is_new: bool


def find_committed(repository: Repository, branch: str, job: JobId) -> Committed | None:
    """Look whether a branch has a commit already, or one of a later version.

    Ends at the first record that can tell; only if many applications committed, and not this one
    of late, the whole history is gone through.
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
            is_known = True  # somewhere below; only for its id
        elif last is not None or len(applications) < _MAX_APPLICATIONS:
            return None  # nothing fell out of this record: what it does not tell is not there
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
    repository, session
        The session's branch gets the commit; what others committed since is rebased over.
    message, metadata
        As for every commit.
    job
        Which commit it is. Without it a commit whose answer is lost cannot be recognised.
    about
        What the pipeline says of it: the kind of job, its sources, what was left out.
    solver
        Who decides about conflicts; any conflict fails if not given.

    Raises
    ------
    RebaseFailedError
        If others changed the same chunks or nodes. Nothing was committed.
    """
    branch = session.branch
    if branch is None:
        raise SessionStateError(
            "only a writable session commits: take repository.writable_session(branch)",
            kind=ErrorKind.READ_ONLY_SESSION,
        )
    for attempt in range(_TRIES):
        if job is not None:
            found = find_committed(repository, branch, job)
            if found is not None:
                return found
        record = {**(about or {}), **_carried(repository, session.snapshot_id, job)}
        try:
            recorded = {**(metadata or {}), METADATA_KEY: record}
            made = session.commit(message, recorded, policy=policy)
        except RebaseFailedError:
            raise
        except ConflictError:
            if attempt + 1 == _TRIES:
                raise
        else:
            return Committed(made, is_new=True)
        if attempt:
            time.sleep(backoff_delay_s(attempt, 0.05, 5.0))
        try:
            session.rebase(solver or ConflictDetector(), policy=policy)
        except ConflictError:
            # Perhaps with the same commit, made by another attempt: then all is well.
            found = None if job is None else find_committed(repository, branch, job)
            if found is None:
                raise
            return found
    raise AssertionError("the last try raises or returns")


def _carried(repository: Repository, base: str, job: JobId | None) -> dict[str, Any]:
    """Tell what a commit records of its own job and of those before it."""
    told = (_applications(_record(info.metadata)) for info in repository.ancestry(snapshot_id=base))
    applications = dict(next((one for one in told if one is not None), {}))
    own: dict[str, Any] = {}
    if job is not None:
        own = {"application": job.application, "version": job.version}
        applications.pop(job.application, None)  # the last to commit goes to the end
        applications[job.application] = job.version
    kept = list(applications.items())[-_MAX_APPLICATIONS:]
    return {**own, "applications": dict(kept)}


def _record(metadata: Mapping[str, Any]) -> dict[str, Any]:
    record = metadata.get(METADATA_KEY)
    return record if isinstance(record, dict) else {}


def _applications(record: Mapping[str, Any]) -> dict[str, int] | None:
    """Return the last version of each application that a record carries; None if it has no such."""
    applications = record.get("applications")
    if not isinstance(applications, dict):
        return None
    is_ours = all(type(version) is int for version in applications.values())
    return applications if is_ours else None
