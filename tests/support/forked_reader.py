"""Uses an object store, forks, and uses it again in the child; run by `test_object_store`."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sys
from typing import TYPE_CHECKING

from icefloe.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable


def run_request(request: Callable[[], object]) -> str:
    try:
        request()
    except StorageError as error:
        return str(error)
    return "succeeded"


if __name__ == "__main__":
    storage = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the test itself
    storage.get("repo")
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        # Ends the child if a request hangs.
        signal.alarm(20)
    else:
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
    process = "parent" if child else "child"
    for request in (
        lambda: storage.get("repo"),
        lambda: storage.get_bytes("repo", 0, 1),
        lambda: asyncio.run(storage.get_bytes_async("repo", 0, 1)),
        lambda: asyncio.run(storage.put_async("chunks/A", b"x")),
    ):
        sys.stdout.write(f"{process}: {run_request(request)}\n")
    sys.stdout.flush()
    # Skips the shutdown of Python, in the parent too. A thread of obstore may still complete an
    # async request. If it needs the GIL during the shutdown, Python before 3.14 ends the thread,
    # which unwinds through Rust frames and aborts the process.
    os._exit(0)
