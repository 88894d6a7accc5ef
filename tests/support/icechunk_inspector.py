"""Says on stdout what Icechunk's ``inspect_*`` tell of a repository; runs in its own Python."""

from __future__ import annotations

import json
import sys
from typing import Any

import icechunk


def inspected(root: str) -> dict[str, Any]:
    # Of a release that has more than the one that types are checked with.
    repository: Any = icechunk.Repository.open(icechunk.local_filesystem_storage(root))
    version_2 = "v2" in str(repository.spec_version)
    found: dict[str, Any] = {"snapshots": {}, "logs": {}, "manifests": {}}
    for info in repository.ancestry(branch="main"):
        found["snapshots"][info.id] = repository.inspect_snapshot(info.id)
        if info.parent_id is not None:
            found["logs"][info.id] = repository.inspect_transaction_log(info.id)
        for file in repository.list_manifest_files(info.id):
            found["manifests"][file.id] = repository.inspect_manifest(file.id)
    found["repo_info"] = repository.inspect_repo_info() if version_2 else None
    found["ops"] = [shown(update) for update in repository.ops_log()] if version_2 else None
    found["graph"] = str(repository.ancestry_graph(plain=True))
    return found


def shown(update: Any) -> list[Any]:
    kind = update.kind
    values = {name: str(getattr(kind, name)) for name in kind.__match_args__ if name != "status"}
    return [type(kind).__name__, values, update.updated_at.isoformat(), update.backup_path]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(inspected(sys.argv[1])))
