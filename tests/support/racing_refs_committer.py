"""Processes that commit to main again and again.

``python racing_committer.py STORAGE PROCESSES COUNT``, where STORAGE is a pickled storage in a
file. Prints the id of each commit that reported success.
"""

from __future__ import annotations

import os
import pickle
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from icefloe.errors import ConflictError
from icefloe.refs import open_refs
from support.racers import race
from support.ref_snapshots import write_snapshot

if TYPE_CHECKING:
    from icefloe.storage import Storage


def commit(storage: Storage, name: int, times: int) -> None:
    """Commit some times, each on whatever is the tip by then."""
    refs = open_refs(storage).refs
    for number in range(times):
        while True:
            parent = refs.fetch_branch("main")
            info = write_snapshot(storage, refs.generation, parent, f"{name} {number}")
            try:
                refs.commit("main", parent, info)
            except ConflictError:
                continue
            os.write(1, f"{info.id}\n".encode())  # atomic among writers
            break


def main() -> None:
    """Let all begin at once."""
    storage = pickle.loads(Path(sys.argv[1]).read_bytes())  # noqa: S301
    processes, times = map(int, sys.argv[2:])
    race([partial(commit, storage, name, times) for name in range(processes)])


if __name__ == "__main__":
    main()
