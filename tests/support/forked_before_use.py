"""Forks before an object store is used, then uses it in both; run by `test_shared_clients`."""

from __future__ import annotations

import os
import pickle
import signal
import sys

if __name__ == "__main__":
    storage = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the test itself
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends the child if a request hangs
    else:
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
    process = "parent" if child else "child"
    sys.stdout.write(f"{process}: {bytes(storage.get('repo').data)!r}\n")
    sys.stdout.flush()
    os._exit(0)  # see forked_reader
