"""Run and commit options, which all jobs share.

A job takes `RunOptions` and `CommitOptions`, or their fields as keywords. `JobKeywords` types the
keywords; `merge_options` turns either form into `JobOptions`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, TypedDict

from icefloe.pipeline.argument_errors import argument_error, setting_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from icefloe.spark.engine.progress import Progress

DEFAULT_TASK_BYTES: Final = 256_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options for running a job.

    Parameters
    ----------
    task_bytes
        Memory limit for the arrays in a task, in bytes.
    dry_run
        Whether to return the plan and write nothing.
    progress
        Called as ``progress(done, total)``, in tasks.
    on_phase
        Called with the name of each phase when it starts, such as ``"reading headers"``.
    """

    task_bytes: int = DEFAULT_TASK_BYTES
    dry_run: bool = False
    progress: Progress | None = None
    on_phase: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "task_bytes", int(self.task_bytes))  # accepts 1e9
        if self.task_bytes < 1:
            raise setting_error(
                f"task_bytes, the memory limit of a task, must be positive, not {self.task_bytes}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOptions:
    """Options for the commit of a job.

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
            raise setting_error(
                "transaction_id is empty: pass an id that is unique to this run, or omit it"
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
    on_phase: Callable[[str], None] | None


class JobKeywords(RunKeywords, total=False):
    """The fields of `RunOptions` and `CommitOptions`."""

    branch: str
    transaction_id: str | None
    message: str | None
    metadata: Mapping[str, Any] | None


def merge_options(
    run: RunOptions | None, commit: CommitOptions | None, keywords: Mapping[str, Any]
) -> JobOptions:
    """Merge option objects and keywords.

    Raises `TypeError` if a keyword is unknown, and `InvalidInputError` if a keyword is a field of
    `RunOptions` or `CommitOptions` and that object is also passed.
    """
    names = {field.name for field in (*fields(RunOptions), *fields(CommitOptions))}
    unknown = sorted(keywords.keys() - names)
    if unknown:
        raise TypeError(f"unexpected keyword argument {unknown[0]!r}")
    return JobOptions(
        _merge("run_options", RunOptions, run, keywords),
        _merge("commit_options", CommitOptions, commit, keywords),
    )


def _merge(name: str, kind: Any, options: Any, keywords: Mapping[str, Any]) -> Any:
    values = {field.name: keywords[field.name] for field in fields(kind) if field.name in keywords}
    if options is None:
        return kind(**values)
    if values:
        raise argument_error(f"{', '.join(values)}: pass {name} or keywords, not both")
    return options
