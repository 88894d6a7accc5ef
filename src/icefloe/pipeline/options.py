"""Options that all jobs share, how to run and how to commit, and their merging with keywords.

A job takes `RunOptions` and `CommitOptions`, or their fields as keywords. `JobKeywords` lists these
for type checkers; `merge_options` is the one place that combines both forms.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, TypedDict

from icefloe.pipeline.argument_errors import invalid_argument, invalid_setting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.spark.engine.progress import Progress

TASK_BYTES: Final = 256_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How a job runs.

    Parameters
    ----------
    task_bytes
        Memory limit of the arrays that a task holds.
    dry_run
        Whether to return the plan and write nothing.
    progress
        Progress callback, called with (done, total) tasks.
    """

    task_bytes: int = TASK_BYTES
    dry_run: bool = False
    progress: Progress | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "task_bytes", int(self.task_bytes))  # such as 1e9
        if self.task_bytes < 1:
            raise invalid_setting(
                f"task_bytes is the memory of a task and must be positive, not {self.task_bytes}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOptions:
    """How a job commits.

    Parameters
    ----------
    branch
        The branch that is read and committed to.
    transaction_id
        Makes the job idempotent: if the branch has a commit with this id, nothing is done.
    message
        The commit message; a summary of the job if None.
    metadata
        Commit metadata, in addition to the record of the job.
    """

    branch: str = "main"
    transaction_id: str | None = None
    message: str | None = None
    metadata: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.transaction_id == "":
            raise invalid_setting(
                "transaction_id is empty, which would match every job with an empty one: give the "
                "job a name, or omit it"
            )


@dataclass(frozen=True, slots=True)
class JobOptions:
    """All options that jobs share."""

    run: RunOptions
    commit: CommitOptions


class RunKeywords(TypedDict, total=False):
    """The fields of `RunOptions`."""

    task_bytes: int
    dry_run: bool
    progress: Progress | None


class JobKeywords(RunKeywords, total=False):
    """The fields of `RunOptions` and `CommitOptions`."""

    branch: str
    transaction_id: str | None
    message: str | None
    metadata: Mapping[str, Any] | None


def merge_options(
    run: RunOptions | None, commit: CommitOptions | None, keywords: Mapping[str, Any]
) -> JobOptions:
    """Return the options of a job, given as values or as keywords.

    Raises `TypeError` if a keyword is unknown, and `InvalidInputError` if it is a field of a value
    that is given too.
    """
    known = {field.name for field in (*fields(RunOptions), *fields(CommitOptions))}
    unknown = sorted(keywords.keys() - known)
    if unknown:
        raise TypeError(f"unexpected keyword argument {unknown[0]!r}")
    return JobOptions(
        _merge("run_options", RunOptions, run, keywords),
        _merge("commit_options", CommitOptions, commit, keywords),
    )


def _merge(name: str, kind: Any, given: Any, keywords: Mapping[str, Any]) -> Any:
    own = {field.name: keywords[field.name] for field in fields(kind) if field.name in keywords}
    if given is None:
        return kind(**own)
    if own:
        raise invalid_argument(f"{', '.join(own)}: give it in {name} or as a keyword, not both")
    return given
