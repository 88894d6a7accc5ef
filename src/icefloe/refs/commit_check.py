"""Makes a commit fail if garbage collection deleted files that its session wrote.

Until the commit, nothing refers to these files, so a collection whose cutoff is after the start of
the session deletes them. Generation v2 records collections in ``repo``, which the commit reads in
any case: only if there is one that the session has not seen, the files are looked up. The other
generations record nothing, and the files of sessions older than `MAX_UNCHECKED_AGE_S` are looked
up.

A collection that still deletes files refuses the commit (`icefloe.refs.collection_mark`). In
generations v1 and sequence, whose collections do not conflict with commits, the files are looked up
again after the commit, which is undone if one is missing. Not detected is, in generations other
than v2, a collection with a cutoff within the last `MAX_UNCHECKED_AGE_S`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from icefloe.errors import ConflictError, SessionStateError
from icefloe.model.repo_info import GCRan
from icefloe.refs.collection_mark import require_no_collection

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from icefloe.model.repo_info import RepoInfo
    from icefloe.storage.interface import Storage

MAX_UNCHECKED_AGE_S: Final = 600.0
"""Garbage collection should not have a cutoff within the last ten minutes."""


@dataclass(frozen=True, slots=True)
class SessionStart:
    """The start of a session: its time, and the last entry of the ops log, if there was one."""

    time_s: float = field(default_factory=time.time)
    last_update: datetime | None = None

    def combine(self, other: SessionStart) -> SessionStart:
        """Return the earlier start, for the files of both sessions."""
        updates = (self.last_update, other.last_update)
        known = [update for update in updates if update is not None]
        return SessionStart(
            min(self.time_s, other.time_s), min(known) if len(known) == len(updates) else None
        )


UNKNOWN_START: Final = SessionStart(time_s=0)
"""The start of a session with changes of unknown age: all its files are looked up."""


@dataclass(frozen=True, slots=True)
class CommitCheck:
    """Calls ``require_files`` if a collection may have run; it raises if a file is missing."""

    storage: Storage
    start: SessionStart
    require_files: Callable[[], None]

    def check_log(self, info: RepoInfo) -> None:
        """Look the files up if the ops log has a collection since the start of the session."""
        seen = self.start.last_update
        for entry in info.latest_updates:
            if seen is not None and entry.updated_at <= seen:
                return
            if isinstance(entry.kind, GCRan):
                break
        else:
            if info.repo_before_updates is None:
                return
        self._look_up()

    def check_age(self) -> None:
        """Look the files up if the session is old."""
        if time.time() - self.start.time_s > MAX_UNCHECKED_AGE_S:
            self._look_up()

    def confirm(self, undo: Callable[[], None]) -> None:
        """Look again after a commit, and undo it if files may be missing.

        Needed where a collection does not conflict with a commit: one that began after the first
        look may not have seen the commit.
        """
        try:
            self.check_age()
        except SessionStateError as error:
            try:
                undo()
            except ConflictError:
                error.add_note("The commit stays in the history: another writer committed on top.")
            raise

    def _look_up(self) -> None:
        require_no_collection(self.storage, self.start.time_s)
        self.require_files()
