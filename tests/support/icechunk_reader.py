"""Reads a repository with the real Icechunk and prints what it sees, as ``expected.json`` has it.

Runs in whatever environment has an ``icechunk`` wheel, 1.1 or 2.x, without icefloe:
``python icechunk_reader.py REPOSITORY [VIRTUAL_PREFIX]``. Arrays whose virtual chunks nobody may
read are described without their data, which is what ``UNREADABLE`` names.
"""

from __future__ import annotations

import hashlib
import json
import sys
from importlib import import_module
from typing import Any

import numpy as np
import zarr

# Two versions with different types: whichever is there.
icechunk: Any = import_module("icechunk")

UNREADABLE = ("/virtual", "/many_virtual")


def read(path: str, virtual_prefix: str | None) -> dict[str, Any]:
    """Read everything that Icechunk tells of the repository."""
    if hasattr(icechunk, "set_logs_filter"):
        icechunk.set_logs_filter("error")
    allowed = getattr(icechunk.Credentials, "LocalFileSystemAccess", lambda: None)()
    access = {} if virtual_prefix is None else {virtual_prefix: allowed}
    repository = icechunk.Repository.open(
        icechunk.local_filesystem_storage(path), authorize_virtual_chunk_access=access
    )
    branches = {name: repository.lookup_branch(name) for name in repository.list_branches()}
    tags = {name: repository.lookup_tag(name) for name in repository.list_tags()}
    ancestry = {name: _ancestry(repository, name) for name in branches}
    found: dict[str, Any] = {"branches": branches, "tags": tags, "ancestry": ancestry}
    ids = {info["id"] for history in ancestry.values() for info in history}
    found["snapshots"] = {
        snapshot_id: _nodes(repository, snapshot_id) for snapshot_id in sorted(ids)
    }
    config = repository.config
    found["config"] = {
        "inline_chunk_threshold_bytes": config.inline_chunk_threshold_bytes,
        "containers": sorted(config.virtual_chunk_containers or {}),
    }
    if hasattr(repository, "ops_log") and repository.spec_version == icechunk.SpecVersion.v2:
        found["ops"] = [type(update.kind).__name__ for update in repository.ops_log()]
        found["repo_metadata"] = repository.metadata
    found["diffs"] = {
        name: _diff(repository, history[-1]["id"], history[0]["id"])
        for name, history in ancestry.items()
        if len(history) > 1
    }
    return found


def _ancestry(repository: Any, branch: str) -> list[dict[str, Any]]:
    return [
        {
            "id": info.id,
            "message": info.message,
            "metadata": info.metadata,
            "parent_id": info.parent_id,
            "written_at": info.written_at.isoformat(),
        }
        for info in repository.ancestry(branch=branch)
    ]


def _nodes(repository: Any, snapshot_id: str) -> dict[str, Any]:
    session = repository.readonly_session(snapshot_id=snapshot_id)
    try:
        root = zarr.open_group(session.store, mode="r")
    except FileNotFoundError:
        return {}
    nodes: dict[str, Any] = {"/": {"attributes": dict(root.attrs), "type": "group"}}
    locations = set(session.all_virtual_chunk_locations())
    for name, node in root.members(max_depth=None):
        nodes[f"/{name}"] = _node(node, readable=f"/{name}" not in UNREADABLE)
    return nodes | ({"(virtual locations)": sorted(locations)} if locations else {})


def _node(node: Any, *, readable: bool) -> dict[str, Any]:
    if isinstance(node, zarr.Group):
        return {"attributes": dict(node.attrs), "type": "group"}
    described = {
        "attributes": dict(node.attrs),
        "chunks": list(node.chunks),
        "dtype": str(node.dtype),
        "shape": list(node.shape),
        "type": "array",
    }
    if readable:
        data = np.ascontiguousarray(node[...])
        described["sha256"] = hashlib.sha256(data.tobytes()).hexdigest()
    return described


def _diff(repository: Any, first: str, last: str) -> dict[str, Any]:
    diff = repository.diff(from_snapshot_id=first, to_snapshot_id=last)
    names = ("groups", "arrays")
    return {
        **{
            f"{kind}_{name}": sorted(getattr(diff, f"{kind}_{name}"))
            for kind in ("new", "deleted", "updated")
            for name in names
        },
        "updated_chunks": {
            path: sorted(list(index) for index in chunks)
            for path, chunks in sorted(diff.updated_chunks.items())
        },
        "moved_nodes": sorted(list(move) for move in getattr(diff, "moved_nodes", [])),
    }


if __name__ == "__main__":
    json.dump(read(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None), sys.stdout)
