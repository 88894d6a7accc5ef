"""Writes chunks through forks that come pickled, in a process of its own, and sends them back.

``python fork_writer.py PICKLE_IN PICKLE_OUT KEY VALUE [KEY VALUE ...]``
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

from support.zarr_nodes import put

if __name__ == "__main__":
    source, target, *pairs = sys.argv[1:]
    fork = pickle.loads(Path(source).read_bytes())  # noqa: S301 - our own
    for key, value in zip(pairs[::2], pairs[1::2], strict=True):
        put(fork.store, key, value.encode())
    Path(target).write_bytes(pickle.dumps(fork))
