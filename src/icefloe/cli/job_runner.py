"""Running a job from a command: Spark session, progress bar, report and failures."""

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

from icefloe.cli.output import escape_unsafe, print_error, print_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from icefloe.pipeline import JobFailedError, Plan, Report
    from icefloe.spark.engine.progress import Progress as Listener


@dataclass(frozen=True, slots=True)
class Engine:
    """Where a job runs: a Spark session, or this process."""

    master: str | None
    remote: str | None
    spark: bool

    @contextmanager
    def session(self) -> Iterator[SparkSession | None]:
        """Start Spark, or use the running session; only a session started here is stopped."""
        if not self.spark:
            yield None
            return
        from icefloe.spark.engine.local_session import is_running, spark_session  # noqa: PLC0415 - slow

        before = is_running()
        session = spark_session(self.master, self.remote)
        try:
            yield session
        finally:
            if not before:
                session.stop()


def run_job(
    engine: Engine, job: Callable[[SparkSession | None, Listener], Plan | Report], *, as_json: bool
) -> None:
    """Run a job and print its report or plan; list all failures and exit with code 1."""
    from icefloe.pipeline import JobFailedError  # noqa: PLC0415 - brings zarr along

    # Codecs outside the Zarr specification cannot be avoided in source files.
    warnings.filterwarnings("ignore", message="Numcodecs codecs are not in the Zarr version 3")
    try:
        with show_progress() as listener, engine.session() as spark:
            listener(0, 0)  # Spark has started; the number of tasks is unknown
            done = job(spark, listener)
    except JobFailedError as error:
        _list_failures(error, as_json=as_json)
        raise typer.Exit(1) from error
    if as_json:
        print_json(done.to_json())
        return
    for line in str(done).split("\n"):
        sys.stdout.write(escape_unsafe(line) + "\n")


@contextmanager
def show_progress() -> Iterator[Listener]:
    """Show a progress bar on a terminal."""
    # Only on a terminal: Spark writes its own log.
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[tasks]}"),
        TimeElapsedColumn(),
    )
    hidden = not console.is_terminal or "CI" in os.environ
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("starting Spark", total=None, tasks="")

        def listen(done: int, total: int) -> None:
            tasks = f"{done}/{total} tasks" if total else ""
            bar.update(
                task, description="working", completed=done, total=total or None, tasks=tasks
            )

        yield listen


def _list_failures(error: JobFailedError, *, as_json: bool) -> None:
    print_error(error.in_full())
    if as_json:
        failures = [{"source": item.source, "reason": item.reason} for item in error.failures]
        print_json({"job": error.job, "snapshot_id": None, "failures": failures})
