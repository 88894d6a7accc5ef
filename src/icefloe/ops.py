"""Public entries of the ops log, with Icechunk's names and fields, and ids as strings.

The stored form is `icefloe.model.repo_info.OpsLogEntry`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from icefloe.maintenance import GCSummary
from icefloe.model.ids import SnapshotId
from icefloe.model.repo_info import UpdateType

if TYPE_CHECKING:
    from datetime import datetime

    from icefloe.model.repo_info import OpsLogEntry

__all__ = ["GCSummary", "Update", "UpdateType"]


@dataclass(frozen=True, slots=True)
class Update:
    """An entry of the ops log.

    ``backup_path`` is the backup of the state after this entry; the newest entry has none.
    """

    kind: UpdateType
    updated_at: datetime
    backup_path: str | None = None

    @classmethod
    def of(cls, update: OpsLogEntry) -> Update:
        """Convert a stored entry."""
        values = {field.name: getattr(update.kind, field.name) for field in fields(update.kind)}
        ids = {name: str(value) for name, value in values.items() if isinstance(value, SnapshotId)}
        return cls(replace(update.kind, **ids), update.updated_at, update.backup_path)
