"""What starts Python for Spark on this machine: Spark's own daemon, less one complaint.

A query that needs only some rows closes the pipe on workers that still have more to send, and Spark
prints their traceback after an answer that is right. A package of its own, which imports nothing:
workers are forked from this process, and libraries that have threads do not survive that.
"""

from __future__ import annotations

import sys
import traceback


def silence_broken_pipes() -> None:
    """Let nobody print a traceback that says only that the reader had enough."""
    print_exc = traceback.print_exc

    def print_others(*args: object, **options: object) -> None:
        if not isinstance(sys.exc_info()[1], BrokenPipeError):
            print_exc(*args, **options)  # type: ignore[arg-type]

    traceback.print_exc = print_others
