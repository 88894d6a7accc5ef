"""The daemon that forks Python workers for local Spark: Spark's own, without one traceback.

A query that needs only some rows closes the pipe of workers that still have rows to send, and Spark
prints their tracebacks although the result is correct. This package imports nothing, because
libraries with threads do not survive the fork.
"""

from __future__ import annotations

import sys
import traceback


def silence_broken_pipes() -> None:
    """Suppress tracebacks of broken pipes."""
    print_exc = traceback.print_exc

    def print_others(*args: object, **options: object) -> None:
        if not isinstance(sys.exc_info()[1], BrokenPipeError):
            print_exc(*args, **options)  # type: ignore[arg-type]

    traceback.print_exc = print_others
