"""Overwrites one large object over and over until it is killed; run by `test_local_crashes`."""

from __future__ import annotations

import sys
from itertools import cycle

from icefloe.storage import LocalStorage

if __name__ == "__main__":
    storage = LocalStorage(sys.argv[1])
    for letter in cycle(b"abcd"):
        storage.put("repo", bytes([letter]) * 2_000_000)
        sys.stdout.write(".")
        sys.stdout.flush()
