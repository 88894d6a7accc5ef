"""Hooks with which a job changes how its commit is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.model.tree import Tree
    from icefloe.transaction.adopted import LogWriter
    from icefloe.transaction.array_manifests import ManifestMerger


@dataclass(frozen=True, slots=True)
class CommitPolicy:
    """Hooks of a commit; the default has none.

    Parameters
    ----------
    merge_manifests
        Merges manifests before they are written.
    write_log
        Writes the transaction log of a commit with adopted manifests; default is this process.
    has_work
        Called with the base; returns whether to commit even if the session has no changes.
    check_rebased
        Called with the new base after a rebase; raises if the changes must not be committed on it.
    """

    merge_manifests: ManifestMerger | None = None
    write_log: LogWriter | None = None
    has_work: Callable[[Tree], bool] | None = None
    check_rebased: Callable[[Tree], None] | None = None


NO_POLICY: Final = CommitPolicy()
