"""What tasks read from: a repository at one snapshot, found when the read is planned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from icefloe.repository import Repository
    from icefloe.session import Session
    from icefloe.spark.reading.read_options import ReadOptions


@dataclass(frozen=True, slots=True)
class SnapshotSource:
    """A repository at one snapshot; pickles, with the repository's credentials inside.

    It is not part of options, nor of any text that Spark shows.
    """

    repository: Repository
    snapshot_id: str

    @classmethod
    def resolve(cls, repository: Repository, options: ReadOptions) -> SnapshotSource:
        """Resolve the ref that options name to a snapshot."""
        if options.tag is not None:
            return cls(repository, repository.lookup_tag(options.tag))
        if options.snapshot is not None:
            return cls(repository, repository.lookup_snapshot(options.snapshot).id)
        branch = options.branch or "main"
        if options.as_of is not None:
            session = repository.readonly_session(branch, as_of=options.as_of)
            return cls(repository, session.snapshot_id)
        return cls(repository, repository.lookup_branch(branch))

    def session(self) -> Session:
        """Open the snapshot; within a process its metadata is cached."""
        return self.repository.readonly_session(snapshot_id=self.snapshot_id)
