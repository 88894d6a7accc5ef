"""Runs a job for a command: Spark session, progress bar, report and failures."""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from icefloe.cli.output import escape_unprintable, print_error, print_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from icefloe.pipeline import JobFailedError, Plan, Report
    from icefloe.spark.engine.progress import Progress as Callback


@dataclass(frozen=True, slots=True)
class Engine:
    """Where a job runs: a Spark session, or this process."""

    master: str | None
    remote: str | None
    spark: bool

    @contextmanager
    def open_session(self) -> Iterator[SparkSession | None]:
        """Start Spark, or use the running session, which is not stopped at the end."""
        if not self.spark:
            yield None
            return
        from icefloe.spark.engine.local_session import is_running, spark_session  # noqa: PLC0415 - slow

        was_running = is_running()
        session = spark_session(self.master, self.remote)
        try:
            yield session
        finally:
            if not was_running:
                session.stop()


def run_job(
    engine: Engine, job: Callable[[SparkSession | None, Callback], Plan | Report], *, as_json: bool
) -> None:
    """Run a job and print its report or plan; list all failures and exit with code 1."""
    from icefloe.pipeline import JobFailedError  # noqa: PLC0415 - imports zarr

    # Source files determine their codecs: users cannot avoid this warning.
    warnings.filterwarnings("ignore", message="Numcodecs codecs are not in the Zarr version 3")
    try:
        with show_progress() as report_progress, engine.open_session() as spark:
            report_progress(0, 0)  # Spark has started; the number of tasks is unknown
            result = job(spark, report_progress)
    except JobFailedError as error:
        _print_failures(error, as_json=as_json)
        raise typer.Exit(1) from error
    if as_json:
        print_json(result.to_json())
        return
    for line in str(result).split("\n"):
        sys.stdout.write(escape_unprintable(line) + "\n")


@contextmanager
def show_progress() -> Iterator[Callback]:
    """Show a progress bar if stderr is a terminal; elsewhere Spark logs its progress."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[tasks]}"),
        TimeElapsedColumn(),
    )
    is_hidden = not console.is_terminal or "CI" in os.environ
    with Progress(*columns, console=console, transient=True, disable=is_hidden) as bar:
        task = bar.add_task("starting", total=None, tasks="")

        def report_progress(done: int, total: int) -> None:
            tasks = f"{done}/{total} tasks" if total else ""
            bar.update(
                task, description="working", completed=done, total=total or None, tasks=tasks
            )

        yield report_progress


def _print_failures(error: JobFailedError, *, as_json: bool) -> None:
    print_error(error.in_full())
    if as_json:
        failures = [{"source": item.source, "reason": item.reason} for item in error.failures]
        print_json({"job": error.job, "snapshot_id": None, "failures": failures})
