"""Looks after a repository with the real Icechunk, 1.1 or 2.x, and prints what it says, as JSON.

``python icechunk_maintenance.py REPOSITORY OPERATIONS``, where OPERATIONS are a JSON list of pairs:
the name of an operation and its keywords. Times are in ISO format. Prints one answer for each.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

icechunk: Any = import_module("icechunk")

TIMES = ("older_than", "delete_object_older_than")


def run(root: str, operation: str, arguments: dict[str, Any]) -> Any:
    """Carry out one operation, on a repository that is opened for it."""
    if operation == "read":
        sys.path.insert(0, str(Path(__file__).parent))
        return import_module("icechunk_reader").read(root, None)
    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(root))
    if operation == "upgrade":
        icechunk.upgrade_icechunk_repository(repository, **arguments)
        return None
    for name in TIMES:
        if name in arguments:
            arguments[name] = datetime.fromisoformat(arguments[name])
    answer = getattr(repository, operation)(**arguments)
    if isinstance(answer, set):
        return sorted(answer)
    names = [name for name in dir(answer) if not name.startswith("_")]
    fields = {name: getattr(answer, name) for name in names}
    return {name: value() if callable(value) else value for name, value in fields.items()}


if __name__ == "__main__":
    if hasattr(icechunk, "set_logs_filter"):
        icechunk.set_logs_filter("error")
    print(json.dumps([run(sys.argv[1], *task) for task in json.loads(sys.argv[2])]))  # noqa: T201
