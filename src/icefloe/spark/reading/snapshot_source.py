"""The repository and snapshot that the tasks of a read use, resolved at planning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from icefloe.repository import Repository
    from icefloe.session import Session
    from icefloe.spark.reading.read_options import ReadOptions


@dataclass(frozen=True, slots=True)
class SnapshotSource:
    """A repository at one snapshot. The pickle contains the repository's credentials.

    It is never part of options or of other text that Spark displays.
    """

    repository: Repository
    snapshot_id: str

    @classmethod
    def resolve(cls, repository: Repository, options: ReadOptions) -> SnapshotSource:
        """Resolve the branch, tag, snapshot or time of a read to a snapshot."""
        if options.tag is not None:
            return cls(repository, repository.lookup_tag(options.tag))
        if options.snapshot is not None:
            return cls(repository, repository.lookup_snapshot(options.snapshot).id)
        branch = options.branch or "main"
        if options.as_of is not None:
            session = repository.readonly_session(branch, as_of=options.as_of)
            return cls(repository, session.snapshot_id)
        return cls(repository, repository.lookup_branch(branch))

    def open_session(self) -> Session:
        """Open a read-only session; its metadata is cached per process."""
        return self.repository.readonly_session(snapshot_id=self.snapshot_id)
