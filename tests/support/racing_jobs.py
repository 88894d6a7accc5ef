"""Processes that try one commit at the same moment: ``python racing_jobs.py REPOSITORY``.

Each prints the snapshot that it made or found, and whether it made it.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import zarr

import icefloe
from icefloe.session.exactly_once import JobId, commit_once

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.racers import race


def commit(path: str, number: int) -> None:
    repository = icefloe.Repository.open(icefloe.local_filesystem_storage(path))
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="a")[number] = 1
    made = commit_once(repository, session, "work", JobId("race"))
    sys.stdout.write(json.dumps([made.snapshot_id, made.is_new]) + "\n")


if __name__ == "__main__":
    race([partial(commit, sys.argv[1], number) for number in range(4)])
