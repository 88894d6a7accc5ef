"""Opening the refs of a repository: detects the generation and keeps what was read.

Nothing is listed. Opening, with the tip of main and the configuration, takes one request in
generation v2, and three in v1, two of them concurrent.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from icefloe.errors import (
    ObjectNotFoundError,
    PermissionDeniedError,
    RefNotFoundError,
    RepositoryNotFoundError,
)
from icefloe.format.keys import REPO, branch_key
from icefloe.refs import own_changes, problems
from icefloe.refs.problems import MAIN
from icefloe.refs.ref_files import RefFiles, StateAtOpening
from icefloe.refs.repo_file import RepoFile

if TYPE_CHECKING:
    from icefloe.model.config import RepositoryConfig
    from icefloe.refs.interface import Refs
    from icefloe.storage.interface import Storage


@dataclass(frozen=True, slots=True)
class OpenedRefs:
    """The refs of a repository, with the state that opening read.

    ``refs`` reads from the storage each time. ``at_opening`` reads from the state at opening:
    everything in generation v2; the tip of main and the configuration in v1.
    """

    refs: Refs
    config: RepositoryConfig | None
    at_opening: Refs


class RefsAtOpening:
    """The references as opening read them, for the first read right after it.

    ``Repository.open(storage).readonly_session("main")`` needs no second request for references.
    They are valid for 10 ms: enough for the next statement of a program, and too short to miss a
    commit of which the program could know. A commit of this process ends it at once, so that a
    process always reads its own writes; `own_changes` counts these for the process, because
    repositories that are opened apart share no object.
    """

    _VALID_S: Final = 0.01

    def __init__(self, refs: Refs) -> None:
        self._refs: Refs | None = refs
        self._opened_at = time.monotonic()
        self._num_changes = own_changes.count()

    def take(self) -> Refs | None:
        """Return the references if they are still valid; only once."""
        refs, self._refs = self._refs, None
        is_recent = time.monotonic() - self._opened_at < self._VALID_S
        return refs if is_recent and own_changes.count() == self._num_changes else None


def open_refs(storage: Storage) -> OpenedRefs:
    """Open the refs of the repository at the root of ``storage``.

    A file ``repo`` means generation v2, even beside the v1 files that a migration leaves behind.
    Only its proven absence leads to v1: falling back after any other error could read stale refs.
    """
    try:
        at_opening: RepoFile | None = RepoFile(storage).pin()
    except RepositoryNotFoundError:
        at_opening = None
    except PermissionDeniedError as denied:
        # S3 answers this for an absent object too, without permission to list. Credentials that
        # read a v1 branch could also read `repo`, so if the branch is readable, `repo` is absent.
        try:
            return _open_ref_files(storage)
        except (RepositoryNotFoundError, PermissionDeniedError):
            raise denied from None
    if at_opening is None:
        return _open_ref_files(storage)
    return OpenedRefs(RepoFile(storage), at_opening.fetch_config(), at_opening)


def _open_ref_files(storage: Storage) -> OpenedRefs:
    refs = RefFiles(storage)
    with ThreadPoolExecutor(1, "icefloe-opening") as pool:
        config = pool.submit(refs.fetch_config)
        try:
            main = refs.fetch_branch(MAIN)
        except RefNotFoundError as error:
            raise problems.no_repository(storage.url) from error
        state = StateAtOpening(main, config.result())
    return OpenedRefs(refs, state.config, RefFiles(storage, at_opening=state))


def is_repository(storage: Storage) -> bool:
    """Whether a repository of any generation exists; at most two requests."""
    return fetch_spec_version(storage) is not None


def fetch_spec_version(storage: Storage) -> int | None:
    """Fetch the spec version of a repository, None if there is none; at most two requests."""
    for key, spec_version in ((REPO, 2), (branch_key(MAIN), 1)):
        try:
            storage.head(key)
        except (ObjectNotFoundError, PermissionDeniedError):
            continue
        return spec_version
    return None
