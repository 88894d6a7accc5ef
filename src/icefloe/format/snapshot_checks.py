"""Checks of snapshots before they are encoded, for all generations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.errors import ErrorKind, FormatError

if TYPE_CHECKING:
    from icefloe.model.snapshot import Snapshot


def require_distinct(snapshot: Snapshot) -> None:
    """Raise for duplicates, which a reader would reject."""
    values: dict[str, list[object]] = {
        "paths": [node.path for node in snapshot.nodes],
        "node ids": [node.id for node in snapshot.nodes],
        "manifest files": [info.id for info in snapshot.manifest_files],
    }
    for name, items in values.items():
        if len(set(items)) < len(items):
            message = f"snapshot {snapshot.id} has duplicate {name}"
            raise FormatError(message, kind=ErrorKind.SERIALIZATION)
