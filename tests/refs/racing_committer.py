"""A process that commits to main again and again.

``python -m refs.racing_committer STORAGE NAME COUNT``, where STORAGE is a pickled storage in a
file. Prints the id of each commit that reported success.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

from icefloe.errors import ConflictError
from icefloe.refs import open_refs
from refs.snapshots import write_snapshot


def main() -> None:
    """Commit COUNT times, each on whatever is the tip by then."""
    storage = pickle.loads(Path(sys.argv[1]).read_bytes())  # noqa: S301
    refs = open_refs(storage).refs
    for number in range(int(sys.argv[3])):
        while True:
            parent = refs.fetch_branch("main")
            info = write_snapshot(storage, refs.spec_version, parent, f"{sys.argv[2]} {number}")
            try:
                refs.commit("main", parent, info)
            except ConflictError:
                continue
            print(info.id, flush=True)  # noqa: T201
            break


if __name__ == "__main__":
    main()
