"""Commits to a repository with the real Icechunk: ``python icechunk_committer.py REPOSITORY NAME``.

Adds a group of that name on main, tags it, and prints the snapshot's id.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import zarr

icechunk: Any = import_module("icechunk")

if __name__ == "__main__":
    if hasattr(icechunk, "set_logs_filter"):
        icechunk.set_logs_filter("error")
    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(sys.argv[1]))
    session = repository.writable_session("main")
    zarr.open_group(session.store, mode="a").require_group(sys.argv[2])
    snapshot_id = session.commit(sys.argv[2])
    repository.create_tag(f"by-{sys.argv[2]}", snapshot_id)
    print(snapshot_id)  # noqa: T201
