"""One of several processes that race for an object; run as a program by `test_races`.

Prints a line when it is ready, reads a pickled `(storage, command, number)` from standard input
and prints what it achieved.
"""

from __future__ import annotations

import pickle
import sys

from icefloe.errors import PreconditionFailedError
from icefloe.storage import Create, Storage, Update


def increment(storage: Storage, times: int) -> int:
    """Count up a counter object by compare-and-swap; answer how often others were faster."""
    refused = 0
    for _ in range(times):
        while True:
            fetched = storage.get("counter")
            following = str(int(bytes(fetched.data)) + 1).encode()
            try:
                storage.put("counter", following, Update(fetched.info.version))
                break
            except PreconditionFailedError:
                refused += 1
    return refused


def create(storage: Storage, number: int) -> int:
    """Create a tag that all processes want; answer 1 for the winner."""
    try:
        storage.put("refs/tag.v1/ref.json", str(number).encode(), Create())
    except PreconditionFailedError:
        return 0
    return 1


if __name__ == "__main__":
    print("ready", flush=True)  # noqa: T201
    storage, command, number = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the test itself
    sys.stdout.write(str({"increment": increment, "create": create}[command](storage, number)))
