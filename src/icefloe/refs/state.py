"""The state of refs as a value, to write a repository with a history at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.model.config import RepositoryConfig
    from icefloe.model.ids import SnapshotId
    from icefloe.model.snapshot import SnapshotInfo


@dataclass(frozen=True, slots=True)
class RefsState:
    """Branches, tags, history and configuration; ``snapshots`` are ordered, parents first.

    Every branch and tag points at one of the snapshots, and there is a branch main.
    """

    branches: Mapping[str, SnapshotId] = field(hash=False)
    tags: Mapping[str, SnapshotId] = field(hash=False)
    deleted_tags: frozenset[str]
    snapshots: tuple[SnapshotInfo, ...]
    config: RepositoryConfig | None
