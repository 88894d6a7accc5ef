"""What a commit of a job does differently from other commits, as a value given to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.model.tree import Tree
    from icefloe.transaction.adopted import LogWriter
    from icefloe.transaction.array_manifests import MergeManifests


@dataclass(frozen=True, slots=True)
class CommitPolicy:
    """What a commit does besides; the default is nothing.

    Parameters
    ----------
    merge_manifests
        Merges manifests before they are written.
    write_log
        Writes the transaction log of a commit with adopted manifests, instead of this process.
    has_work
        Whether there is something to commit although the session has no changes, given its base.
    check_rebased
        Called with the new base after a rebase; raises if the changes must not be committed on it.
    """

    merge_manifests: MergeManifests | None = None
    write_log: LogWriter | None = None
    has_work: Callable[[Tree], bool] | None = None
    check_rebased: Callable[[Tree], None] | None = None


NO_POLICY: Final = CommitPolicy()
