"""Processes that begin one thing at the same moment.

They are forked from one process that has imported everything and done nothing yet, so that eight
of them cost little more than one, and none is still importing while another races.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


# The system ends a process that hangs, which is a failure.
MAX_SECONDS = 180


def race(
    tasks: Iterable[Callable[[], None]],
    *,
    prepare: Callable[[], object] | None = None,
    start: Callable[[], object] | None = None,
) -> None:
    """Run each task in a process of its own.

    Parameters
    ----------
    prepare
        Called in each process before it stands ready, for what does not survive a fork.
    start
        Called when all processes stand ready. They run as soon as it returns, or at once.

    Raises
    ------
    SystemExit
        If a process failed; it has told why on standard error.
    """
    gate, opener = os.pipe()
    arrivals, arrival = os.pipe()
    racing = []
    for task in tasks:
        child = os.fork()
        if child == 0:
            os.close(opener)

            def run(task: Callable[[], None] = task) -> None:
                if prepare is not None:
                    prepare()
                os.write(arrival, b".")
                os.close(arrival)
                os.read(gate, 1)  # returns when the other end is closed everywhere
                task()

            _end_with(run)
        racing.append(child)
    os.close(arrival)
    # Ends when each is ready, or has ended before it was.
    while os.read(arrivals, len(racing)):
        pass
    if start is not None:
        start()
    os.close(opener)
    ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in racing]
    if any(ends):
        sys.exit(f"the racing processes ended with {ends}")


def _end_with(task: Callable[[], None]) -> None:
    """Run a task, and end this process before it goes on with what its parent does."""
    code = 1
    signal.alarm(MAX_SECONDS)
    try:
        task()
        sys.stdout.flush()
        code = 0
    except BaseException:  # noqa: BLE001 - the parent reports the exit code
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
