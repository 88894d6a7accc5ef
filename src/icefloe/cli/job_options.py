"""Options common to all job commands, declared once and added to each command.

A command declares its own options and a parameter ``job``; `job_command` adds the fields of
`JobOptions` to its signature, where Typer finds them, and passes their values as ``job``.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from functools import partial, wraps
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from icefloe.cli.arguments import AsJson, Master, Remote, execution_option
from icefloe.cli.job_runner import Engine, PhaseDisplay, run_job

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from icefloe.pipeline import Plan, Report
    from icefloe.repository import Repository
    from icefloe.spark.engine.deferred_session import DeferredSession

commands = typer.Typer(rich_markup_mode="rich")

_UNITS: Final = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}


def parse_size(text: str) -> int:
    """Return the number of bytes of a size such as ``256MB``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?I?)B?", text.strip().upper())
    if match is None or match[2] not in _UNITS:
        raise typer.BadParameter(f"expected a size such as 256MB, got {text!r}")
    return int(float(match[1]) * _UNITS[match[2]])


_commit_option = partial(typer.Option, rich_help_panel="Commit")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """Execution and commit options of a job; Typer reads the annotations."""

    branch: Annotated[
        str, _commit_option("--branch", "-b", metavar="NAME", help="Branch to commit to.")
    ] = "main"
    task_bytes: Annotated[
        Any, execution_option(parser=parse_size, metavar="SIZE", help="Memory limit of a task.")
    ] = "256MB"
    max_chunks: Annotated[
        int,
        execution_option(
            min=1,
            help="Fail if the job has more chunks than this: the driver holds a reference to each "
            "in memory.",
        ),
    ] = 10_000_000
    transaction_id: Annotated[
        str | None,
        _commit_option(
            metavar="ID", help="Idempotency key: the job does nothing if a commit has this id."
        ),
    ] = None
    message: Annotated[
        str | None, _commit_option("--message", "-m", metavar="TEXT", help="Commit message.")
    ] = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and write nothing.")
    ] = False
    as_json: AsJson = False
    master: Master = None
    remote: Remote = None
    spark: Annotated[
        bool,
        execution_option(
            help="Run on Spark; --no-spark runs in this process, which is faster for small jobs."
        ),
    ] = True

    def open(self, url: str, containers: Sequence[str] | None = None, **options: Any) -> Repository:
        """Open or create the repository and save missing containers; a dry run saves nothing."""
        from icefloe.pipeline import open_repository  # noqa: PLC0415 - imports zarr

        return open_repository(url, containers=containers or (), dry_run=self.dry_run, **options)

    def run(self, job_name: str, *arguments: Any, **options: Any) -> None:
        """Run a job of `icefloe.pipeline` that commits, and print its report."""
        from icefloe.pipeline import CommitOptions  # noqa: PLC0415 - imports zarr

        commit = CommitOptions(
            branch=self.branch, transaction_id=self.transaction_id, message=self.message
        )
        repository: Repository = arguments[0]
        tip = repository.lookup_branch(self.branch)

        def describe_interruption() -> str:
            if repository.lookup_branch(self.branch) == tip:
                return (
                    f"{job_name}: interrupted, nothing was committed: run the same command again "
                    "to start over"
                )
            return (
                f"{job_name}: interrupted, but {self.branch} has a new commit: check with icefloe "
                f"history {repository.storage.url} whether this job made it"
            )

        self._run(
            job_name, *arguments, describe=describe_interruption, commit_options=commit, **options
        )

    def run_export(self, job_name: str, *arguments: Any, **options: Any) -> None:
        """Run a job that does not commit, and print its report."""
        text = f"{job_name}: interrupted: run the same command again, with an empty target"
        self._run(job_name, *arguments, describe=lambda: text, **options)

    def _run(
        self, job_name: str, *arguments: Any, describe: Callable[[], str], **options: Any
    ) -> None:
        """Run a job and print its report, or its plan if this is a dry run."""
        from icefloe import pipeline  # noqa: PLC0415 - imports zarr

        task_bytes = parse_size(str(self.task_bytes))

        def start(spark: DeferredSession | None, display: PhaseDisplay) -> Plan | Report:
            run = pipeline.RunOptions(
                task_bytes=task_bytes,
                dry_run=self.dry_run,
                progress=display,
                on_phase=display.enter_phase,
            )
            function: Callable[..., Plan | Report] = getattr(pipeline, job_name)
            return function(spark, *arguments, run_options=run, **options)

        run_job(
            Engine(self.master, self.remote, use_spark=self.spark),
            start,
            as_json=self.as_json,
            describe_interruption=describe,
        )


def _list_parameters(
    function: Callable[..., Any], *, omit: tuple[str, ...]
) -> list[inspect.Parameter]:
    parameters = inspect.signature(function, eval_str=True).parameters
    return [parameter for name, parameter in parameters.items() if name not in omit]


def job_command(
    epilog: str, *, omit: tuple[str, ...] = ("max_chunks",)
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command with the shared options, except those in ``omit``."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        own_parameters = _list_parameters(function, omit=("job",))
        shared_parameters = _list_parameters(JobOptions, omit=omit)

        @wraps(function)
        def command(**arguments: Any) -> None:
            values = {
                parameter.name: arguments.pop(parameter.name) for parameter in shared_parameters
            }
            function(**arguments, job=JobOptions(**values))

        parameters = [*own_parameters, *shared_parameters]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return commands.command(epilog=epilog, rich_help_panel="Jobs on Spark")(command)

    return register
