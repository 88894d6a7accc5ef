"""Options that all commands of jobs share, declared once and added to each command.

A command declares its own options and a parameter ``job``; `job_command` adds the fields of
`JobOptions` to its signature, where Typer finds them, and passes their values as ``job``.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from icefloe.cli.arguments import WHERE_IT_RUNS, AsJson, Master, Remote
from icefloe.cli.job_runner import Engine, run_job

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from icefloe.pipeline import Plan, Report
    from icefloe.spark.engine.progress import Progress

commands = typer.Typer(rich_markup_mode="rich")

_PANEL: Final = "Jobs on Spark"
_COMMIT: Final = "The commit"
_UNITS: Final = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}


def parse_size(text: str) -> int:
    """Return the number of bytes of a size such as ``256MB``."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?I?)B?", text.strip().upper())
    if found is None or found[2] not in _UNITS:
        raise typer.BadParameter(f"{text!r} is not a size such as 256MB")
    return int(float(found[1]) * _UNITS[found[2]])


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """How a job runs and commits; Typer reads the annotations."""

    branch: Annotated[
        str,
        typer.Option(
            "--branch", "-b", metavar="NAME", rich_help_panel=_COMMIT, help="Branch to commit to."
        ),
    ] = "main"
    task_bytes: Annotated[
        Any,
        typer.Option(
            "--task-bytes",
            parser=parse_size,
            metavar="SIZE",
            rich_help_panel=WHERE_IT_RUNS,
            help="Memory limit of a task.",
        ),
    ] = "256MB"
    max_chunks: Annotated[
        int,
        typer.Option(
            "--max-chunks",
            min=1,
            rich_help_panel=WHERE_IT_RUNS,
            help="Maximum number of chunks: this process holds a reference to each.",
        ),
    ] = 10_000_000
    transaction_id: Annotated[
        str | None,
        typer.Option(
            "--transaction-id",
            metavar="ID",
            rich_help_panel=_COMMIT,
            help="Makes the job idempotent: a job with a committed id does nothing.",
        ),
    ] = None
    message: Annotated[
        str | None,
        typer.Option(
            "--message", "-m", metavar="TEXT", rich_help_panel=_COMMIT, help="Commit message."
        ),
    ] = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and write nothing.")
    ] = False
    as_json: AsJson = False
    master: Master = None
    remote: Remote = None
    spark: Annotated[
        bool,
        typer.Option(
            "--spark/--no-spark",
            rich_help_panel=WHERE_IT_RUNS,
            help="Run on Spark, or in this process, which is faster for small jobs.",
        ),
    ] = True

    def run(self, job: Callable[..., Plan | Report], *arguments: Any, **options: Any) -> None:
        """Run a job of `icefloe.pipeline` that commits, and print its report."""
        from icefloe.pipeline import CommitOptions  # noqa: PLC0415 - brings zarr along

        commit = CommitOptions(
            branch=self.branch, transaction_id=self.transaction_id, message=self.message
        )
        self.run_export(job, *arguments, commit_options=commit, **options)

    def run_export(
        self, job: Callable[..., Plan | Report], *arguments: Any, **options: Any
    ) -> None:
        """Run a job that makes no commit, and print its report."""
        from icefloe.pipeline import RunOptions  # noqa: PLC0415 - brings zarr along

        task_bytes = parse_size(str(self.task_bytes))

        def start(spark: SparkSession | None, progress: Progress) -> Plan | Report:
            run = RunOptions(task_bytes=task_bytes, dry_run=self.dry_run, progress=progress)
            return job(spark, *arguments, run_options=run, **options)

        run_job(Engine(self.master, self.remote, self.spark), start, as_json=self.as_json)


def job_command(
    epilog: str, *, omit: tuple[str, ...] = ("max_chunks",)
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command with the shared options, except those in ``omit``."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        own = [
            parameter
            for parameter in inspect.signature(function, eval_str=True).parameters.values()
            if parameter.name != "job"
        ]
        shared = [
            parameter
            for parameter in inspect.signature(JobOptions, eval_str=True).parameters.values()
            if parameter.name not in omit
        ]

        @wraps(function)
        def command(**arguments: Any) -> None:
            values = {parameter.name: arguments.pop(parameter.name) for parameter in shared}
            function(**arguments, job=JobOptions(**values))

        parameters = [*own, *shared]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return commands.command(epilog=epilog, rich_help_panel=_PANEL)(command)

    return register
