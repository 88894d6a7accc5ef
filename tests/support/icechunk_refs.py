"""The real Icechunk 2.x beside icefloe: ``python icechunk_refs.py REPOSITORY [change]``.

With ``change`` it first commits, amends, flushes, and sets flags, metadata and the status. Prints
what it then finds in the mutable part of the repository, as JSON.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any

import zarr

icechunk: Any = import_module("icechunk")


def change(repository: Any) -> None:
    """Make each kind of change that only version 2 knows."""
    session = repository.writable_session("main")
    zarr.open_group(session.store, mode="a").attrs["by"] = "icechunk"
    session.commit("theirs")
    session = repository.writable_session("main")
    zarr.open_group(session.store, mode="a").attrs["by"] = "icechunk, amended"
    session.amend("theirs, amended")
    session = repository.writable_session("main")
    zarr.open_group(session.store, mode="a").attrs["by"] = "nobody"
    session.flush("theirs, detached")
    repository.set_feature_flag("delete_tag", False)
    repository.set_feature_flag("create_tag", True)
    repository.set_feature_flag("create_tag", None)
    repository.set_metadata({"theirs": [1, None, "x"], "both": {"a": 1}})
    repository.update_metadata({"both": {"b": 2.5}})
    read_only = icechunk.RepoAvailability.read_only
    repository.set_status(
        icechunk.RepoStatus(read_only, limited_availability_reason="theirs to move")
    )


def describe(repository: Any) -> dict[str, Any]:
    """Tell what is there, in the words of the model of icefloe."""
    status = repository.get_status()
    return {
        "branches": {name: repository.lookup_branch(name) for name in repository.list_branches()},
        "tags": {name: repository.lookup_tag(name) for name in repository.list_tags()},
        "ancestry": [describe_info(info) for info in repository.ancestry(branch="main")],
        "snapshots": sorted(
            (
                describe_info(repository.lookup_snapshot(info["id"]))
                for info in repository.inspect_repo_info()["snapshots"]
            ),
            key=lambda info: str(info["id"]),
        ),
        "ops_log": [describe_update(update) for update in repository.ops_log()],
        "feature_flags": sorted(
            [flag.id, flag.name, flag.default_enabled, flag.setting, flag.enabled]
            for flag in repository.feature_flags()
        ),
        "metadata": repository.get_metadata(),
        "status": [
            str(status.availability).rpartition(".")[2],
            status.set_at.isoformat(),
            status.limited_availability_reason,
        ],
    }


def describe_info(info: Any) -> dict[str, Any]:
    """Tell what history says of a snapshot."""
    return {
        "id": info.id,
        "parent_id": info.parent_id,
        "written_at": info.written_at.isoformat(),
        "message": info.message,
    }


def describe_update(update: Any) -> dict[str, Any]:
    """Tell one entry of the ops log, with the fields that its kind has."""
    names = ("name", "branch", "previous_snap_id", "new_snap_id", "id", "new_value")
    fields = {name: getattr(update.kind, name) for name in names if hasattr(update.kind, name)}
    return {
        "kind": type(update.kind).__name__,
        "fields": fields,
        "updated_at": update.updated_at.isoformat(),
        "backup_path": update.backup_path,
    }


if __name__ == "__main__":
    icechunk.set_logs_filter("error")
    opened = icechunk.Repository.open(icechunk.local_filesystem_storage(sys.argv[1]))
    if sys.argv[2:] == ["change"]:
        change(opened)
    print(json.dumps(describe(opened)))  # noqa: T201
