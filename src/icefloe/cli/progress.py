"""Progress of operations that work in phases, on stderr."""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.maintenance.progress import Progress as ProgressCallback
    from icefloe.maintenance.progress import Step

QUIET_S: Final = 1.0
"""Operations that take less time show nothing."""


@contextmanager
def show_phases(*, quiet_s: float = QUIET_S) -> Iterator[ProgressCallback]:
    """Show a bar for the current phase on a terminal, and otherwise a line for each phase.

    The lines of phases that ended within ``quiet_s`` of the start are omitted.
    """
    console = Console(stderr=True)
    if console.is_terminal and "CI" not in os.environ:
        with _show_bar(console, quiet_s) as progress:
            yield progress
        return
    starts_at = time.monotonic() + quiet_s
    last: Step | None = None

    def print_last() -> None:
        if last is not None and time.monotonic() >= starts_at:
            console.print(f"{last.phase}: {last.done:,} of {last.total:,}", soft_wrap=True)

    def report_step(step: Step) -> None:
        nonlocal last
        if last is not None and step.phase is not last.phase:
            print_last()
        last = step

    yield report_step
    print_last()


@contextmanager
def _show_bar(console: Console, quiet_s: float) -> Iterator[ProgressCallback]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,}/{task.total:,}"),
        TimeElapsedColumn(),
    )
    bar = Progress(*columns, console=console, transient=True)
    bar_id = bar.add_task("starting", total=0)
    timer = threading.Timer(quiet_s, bar.start)
    timer.daemon = True
    timer.start()

    def report_step(step: Step) -> None:
        bar.update(bar_id, description=str(step.phase), completed=step.done, total=step.total)

    try:
        yield report_step
    finally:
        timer.cancel()
        timer.join()
        bar.stop()
