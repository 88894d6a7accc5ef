"""Uses an object store, forks, and uses it again in the child; run by `test_object_store`."""

from __future__ import annotations

import os
import pickle
import signal
import sys

from icefloe.errors import StorageError

if __name__ == "__main__":
    storage = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the test itself
    storage.get("repo")
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        # Should the child wait forever after all, it must not outlive the test.
        signal.alarm(20)
    try:
        storage.get("repo")
        told = "fine"
    except StorageError as error:
        told = str(error)
    if child == 0:
        sys.stdout.write(f"child: {told}\n")
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
    sys.stdout.write(f"parent: {told}\n")
