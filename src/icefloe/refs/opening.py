"""Opens the refs of a repository and detects its generation.

Opening reads the tip of main and the configuration: one request in generation v2, and three in v1,
two of them concurrent. Older generations are looked for only if both are absent: ``sequence`` takes
two requests more, one of them a listing of one page. Otherwise nothing is listed.
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
from icefloe.format.generation import SEQUENCE, V1, V2
from icefloe.format.keys import REPO, format_branch_key
from icefloe.refs import change_counter, ref_errors
from icefloe.refs.branch_sequences import BranchSequences, MainAtOpening, find_main, has_main
from icefloe.refs.config_file import fetch_config
from icefloe.refs.names import MAIN
from icefloe.refs.ref_files import RefFiles, StateAtOpening
from icefloe.refs.repo_file import RepoFile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.format.generation import Generation
    from icefloe.model.config import RepositoryConfig
    from icefloe.refs.interface import Refs
    from icefloe.storage.interface import Storage


@dataclass(frozen=True, slots=True)
class OpenedRefs:
    """The refs of a repository, and the state that was read to open it.

    ``refs`` reads the storage on each call. ``opening_refs`` returns the state at opening: all of
    it in generation v2, and the tip of main and the configuration in v1 and ``sequence``.
    """

    refs: Refs
    config: RepositoryConfig | None
    opening_refs: Refs


class RefsAtOpening:
    """The refs at opening, reused by the first read if it follows within 10 ms.

    ``Repository.open(storage).readonly_session("main")`` then sends no second request for refs. A
    commit of another process within these 10 ms counts as concurrent. A commit of this process
    invalidates the refs immediately, so that a process always reads its own writes:
    `change_counter` counts changes for the whole process, because repositories that are opened
    separately share no object.
    """

    _VALID_S: Final = 0.01

    def __init__(self, refs: Refs) -> None:
        self._refs: Refs | None = refs
        self._opened_at = time.monotonic()
        self._num_changes = change_counter.get_count()

    def take(self) -> Refs | None:
        """Return the refs if they are still valid, and None on every later call."""
        refs, self._refs = self._refs, None
        is_recent = time.monotonic() - self._opened_at < self._VALID_S
        return refs if is_recent and change_counter.get_count() == self._num_changes else None


REF_STORES: Final[Mapping[str, type[Refs]]] = {
    store.generation.name: store for store in (BranchSequences, RefFiles, RepoFile)
}
"""The reference store of each generation."""


def make_refs(storage: Storage, generation: Generation) -> Refs:
    """Return the refs of a repository of a known generation; no request."""
    return REF_STORES[generation.name](storage)


def open_refs(storage: Storage) -> OpenedRefs:
    """Open the refs of the repository at the root of ``storage``.

    A file ``repo`` means generation v2, even if v1 files of an upgraded repository remain. The v1
    files are read only if ``repo`` is absent: after any other error they could be stale.
    """
    try:
        opening_refs: RepoFile | None = RepoFile(storage).pin()
    except RepositoryNotFoundError:
        opening_refs = None
    except PermissionDeniedError as denied:
        # Without permission to list, S3 returns this for absent objects too. Credentials that can
        # read a v1 branch can also read `repo`, so if the branch is readable, `repo` is absent.
        try:
            return _open_separate_files(storage)
        except (RepositoryNotFoundError, PermissionDeniedError):
            raise denied from None
    if opening_refs is None:
        return _open_separate_files(storage)
    return OpenedRefs(RepoFile(storage), opening_refs.fetch_config(), opening_refs)


def _open_separate_files(storage: Storage) -> OpenedRefs:
    """Open a repository of a generation that has a file ``config.yaml``."""
    with ThreadPoolExecutor(1, "icefloe-opening") as pool:
        config = pool.submit(fetch_config, storage)
        refs = RefFiles(storage)
        try:
            state = StateAtOpening(refs.fetch_branch(MAIN), config.result())
        except RefNotFoundError:
            return _open_branch_sequences(storage, config.result())
    return OpenedRefs(refs, state.config, RefFiles(storage, at_opening=state))


def _open_branch_sequences(storage: Storage, config: RepositoryConfig | None) -> OpenedRefs:
    main = find_main(storage)
    if main is None:
        raise ref_errors.missing_repository_error(storage.url)
    refs = BranchSequences(storage, at_opening=MainAtOpening(main, config))
    return OpenedRefs(BranchSequences(storage), config, refs)


def is_repository(storage: Storage) -> bool:
    """Whether a repository of any generation exists; at most three requests."""
    return fetch_generation(storage) is not None


def fetch_spec_version(storage: Storage) -> int | None:
    """Fetch the spec version of a repository, or None if none exists; at most three requests."""
    generation = fetch_generation(storage)
    return None if generation is None else generation.spec_version


def fetch_generation(storage: Storage) -> Generation | None:
    """Fetch the generation of a repository, or None if none exists; at most three requests."""
    for key, generation in ((REPO, V2), (format_branch_key(MAIN), V1)):
        try:
            storage.head(key)
        except (ObjectNotFoundError, PermissionDeniedError):
            continue
        return generation
    return SEQUENCE if has_main(storage) else None
