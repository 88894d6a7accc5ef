"""Several processes that race for an object; run as a program by `test_races`.

``python racing_process.py TASK``, where TASK is a file with `(storage, command, numbers)` pickled:
a process for each number. Each prints a line, its place among the numbers and what it achieved.
"""

from __future__ import annotations

import os
import pickle
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from icefloe.errors import PreconditionFailedError
from icefloe.storage import Create, Storage, UpdateIfMatch
from support.racers import race

if TYPE_CHECKING:
    from collections.abc import Callable


def increment(storage: Storage, times: int) -> int:
    """Count up a counter object by compare-and-swap; answer how often others were faster."""
    refused = 0
    for _ in range(times):
        while True:
            fetched = storage.get("counter")
            following = str(int(bytes(fetched.data)) + 1).encode()
            try:
                storage.put("counter", following, UpdateIfMatch(fetched.info.version))
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


def run(do: Callable[[Storage, int], int], storage: Storage, racer: int, number: int) -> None:
    """Race, and report in one write, which no other process can come between."""
    os.write(1, f"{racer} {do(storage, number)}\n".encode())


if __name__ == "__main__":
    storage, command, numbers = pickle.loads(Path(sys.argv[1]).read_bytes())  # noqa: S301
    do = {"increment": increment, "create": create}[command]
    race([partial(run, do, storage, *racer) for racer in enumerate(numbers)])
