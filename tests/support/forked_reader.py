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


def outcome(request: Callable[[], object]) -> str:
    try:
        request()
    except StorageError as error:
        return str(error)
    return "fine"


if __name__ == "__main__":
    storage = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the test itself
    storage.get("repo")
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        # Should the child wait forever after all, it must not outlive the test.
        signal.alarm(20)
    else:
        os.waitpid(child, 0)
    who = "parent" if child else "child"
    for request in (
        lambda: storage.get("repo"),
        lambda: storage.get_bytes("repo", 0, 1),
        lambda: asyncio.run(storage.get_bytes_async("repo", 0, 1)),
        lambda: asyncio.run(storage.put_async("chunks/A", b"x")),
    ):
        sys.stdout.write(f"{who}: {outcome(request)}\n")
    sys.stdout.flush()
    if child == 0:
        os._exit(0)
