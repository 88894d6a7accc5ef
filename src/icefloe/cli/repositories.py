"""Opens what a command names: the repository, its refs and snapshots."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from icefloe.assets import Assets
from icefloe.cli.alternatives import describe_alternatives
from icefloe.errors import RepositoryNotFoundError
from icefloe.inspection.repository import resolve_ref
from icefloe.refs import open_refs
from icefloe.repository import Repository
from icefloe.storage import storage_from_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.model.ids import SnapshotId
    from icefloe.model.tree import Tree
    from icefloe.refs import Refs


@dataclass(frozen=True, slots=True)
class OpenedFiles:
    """The refs and metadata files of a repository, for commands that read nothing else."""

    refs: Refs
    assets: Assets

    def resolve(self, name: str) -> SnapshotId:
        """Return the snapshot of a branch, tag or snapshot id."""
        return resolve_ref(self.refs, name)

    def fetch_tree(self, name: str) -> Tree:
        """Fetch the nodes of a branch, tag or snapshot id."""
        return self.assets.require_tree(self.resolve(name))


def open_files(repository: str) -> OpenedFiles:
    """Open the refs of a repository, with as few requests as possible."""
    storage = storage_from_url(repository)
    with _alternatives(repository):
        refs = open_refs(storage).opening_refs
    assets = Assets(storage, refs.generation)
    return OpenedFiles(refs.with_assets(assets), assets)


def open_repository(repository: str) -> Repository:
    """Open a repository."""
    storage = storage_from_url(repository)
    with _alternatives(repository):
        return Repository.open(storage)


@contextmanager
def _alternatives(repository: str) -> Iterator[None]:
    """Extend the error for a missing repository by what is there instead."""
    try:
        yield
    except RepositoryNotFoundError as error:
        alternatives = describe_alternatives(repository)
        if not alternatives:
            raise
        raise RepositoryNotFoundError(f"{error.message}; {alternatives}") from error


def resolve_snapshot_id(repository: Repository, ref: str) -> str:
    """Return the id of the snapshot of a branch, tag or snapshot id."""
    return str(resolve_ref(repository._connection.refs, ref))  # noqa: SLF001 - same package
