"""Runs a job for a command: Spark session, progress bar, report and failures."""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from icefloe.cli.output import print_error, print_json
from icefloe.display import escape_unsafe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from icefloe.pipeline import JobFailedError, Plan, Report
    from icefloe.spark.engine.deferred_session import DeferredSession


_INTERRUPTED: Final = 130
"""Exit code after Ctrl-C, as in shells: 128 and the number of the signal."""


@dataclass(frozen=True, slots=True)
class Engine:
    """Where a job runs: a Spark session, or this process."""

    master: str | None
    remote: str | None
    use_spark: bool

    @contextmanager
    def open_session(
        self, on_phase: Callable[[str], None] | None = None
    ) -> Iterator[DeferredSession | None]:
        """Yield a Spark session that starts when it is needed, or None to run in this process.

        A session that was already running is left running.
        """
        if not self.use_spark:
            yield None
            return
        from icefloe.spark.engine.deferred_session import DeferredSession  # noqa: PLC0415 - slow

        session = DeferredSession(self.master, self.remote, on_start=on_phase)
        try:
            yield session
        finally:
            session.stop()


def run_job(
    engine: Engine,
    job: Callable[[DeferredSession | None, PhaseDisplay], Plan | Report],
    *,
    as_json: bool,
    describe_interruption: Callable[[], str],
) -> None:
    """Run a job and print its report or plan.

    If it fails, print all failures and exit with code 1; after Ctrl-C, print what it committed.
    """
    from icefloe.pipeline import JobFailedError  # noqa: PLC0415 - imports zarr

    # The codecs come from the source files, so users cannot act on this warning.
    warnings.filterwarnings("ignore", message="Numcodecs codecs are not in the Zarr version 3")
    try:
        with show_progress() as display, engine.open_session(display.enter_phase) as spark:
            result = job(spark, display)
    except JobFailedError as error:
        _print_failures(error, as_json=as_json)
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        print_error(describe_interruption())
        raise typer.Exit(_INTERRUPTED) from None
    if as_json:
        print_json(result.to_json())
        return
    for line in str(result).split("\n"):
        sys.stdout.write(escape_unsafe(line) + "\n")


class PhaseDisplay:
    """Shows the phase of a job, and its tasks if there is a bar."""

    def __init__(self, bar: Progress, bar_id: TaskID) -> None:
        self._bar, self._id, self._phase = bar, bar_id, ""

    def __call__(self, done: int, total: int) -> None:
        """Show how many tasks of the phase are done."""
        counter = f"{done}/{total} tasks" if total else ""
        self._bar.update(self._id, completed=done, total=total or None, counter=counter)

    def enter_phase(self, name: str) -> None:
        """Show the name of a phase that starts, once if it consists of several stages."""
        if self._bar.disable and name != self._phase:
            self._bar.console.print(name, style="dim", highlight=False)
        self._phase = name
        self._bar.reset(self._id, description=name, total=None, counter="")


@contextmanager
def show_progress() -> Iterator[PhaseDisplay]:
    """Show a progress bar on stderr; a line per phase if it is no terminal, or in CI."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[counter]}"),
        TimeElapsedColumn(),
    )
    is_hidden = not console.is_terminal or "CI" in os.environ
    with Progress(*columns, console=console, transient=True, disable=is_hidden) as bar:
        yield PhaseDisplay(bar, bar.add_task("starting", total=None, counter=""))


def _print_failures(error: JobFailedError, *, as_json: bool) -> None:
    print_error(error.in_full())
    if as_json:
        failures = [{"source": item.source, "reason": item.reason} for item in error.failures]
        print_json({"job": error.job, "snapshot_id": None, "failures": failures})
