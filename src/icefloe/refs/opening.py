"""Opens the refs of a repository and detects its generation.

Opening reads ``repo`` (v2), or the file of the branch main and the configuration (v1): three
concurrent requests, one after another where requests take no time. Older generations are looked
for only if both are absent: ``draft`` takes one request more, and ``sequence`` three, one of them a
listing of one page. Otherwise nothing is listed.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from icefloe.errors import (
    AbsentOrDeniedError,
    ErrorKind,
    InvalidInputError,
    ObjectNotFoundError,
    RefNotFoundError,
    RepositoryNotFoundError,
    StorageError,
)
from icefloe.format.envelope import HEADER_SIZE, read_header
from icefloe.format.generation import DRAFT, SEQUENCE, V1, V2
from icefloe.format.keys import CONVERSION, REPO, STATE, format_branch_key
from icefloe.model.byte_range import Bounded
from icefloe.refs import change_counter, ref_errors
from icefloe.refs.branch_sequences import BranchSequences, MainAtOpening, find_main, has_main
from icefloe.refs.config_file import fetch_config
from icefloe.refs.names import MAIN
from icefloe.refs.ref_files import RefFiles, StateAtOpening
from icefloe.refs.repo_file import RepoFile
from icefloe.refs.state_file import ConfigAtOpening, StateFile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from icefloe.format.envelope import Header
    from icefloe.format.generation import Generation
    from icefloe.model.config import RepositoryConfig
    from icefloe.model.ids import SnapshotId
    from icefloe.refs.interface import Refs
    from icefloe.storage.interface import Storage


@dataclass(frozen=True, slots=True)
class OpenedRefs:
    """The refs of a repository, and the state that was read to open it.

    ``refs`` reads the storage on each call. ``opening_refs`` returns the state at opening: all of
    it in generations v2 and draft, and the tip of main and the configuration in v1 and sequence.
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
    store.generation.name: store for store in (StateFile, BranchSequences, RefFiles, RepoFile)
}
"""The reference store of each generation."""


def make_refs(storage: Storage, generation: Generation) -> Refs:
    """Return the refs of a repository of a known generation; no request."""
    return REF_STORES[generation.name](storage)


def open_refs(storage: Storage) -> OpenedRefs:
    """Open the refs of the repository at the root of ``storage``.

    A file ``repo`` means generation v2, even if v1 files of an upgraded repository remain. The
    files of another generation are used only if those of the generations before it are absent:
    after any other error they could be stale.
    """
    pool = None if storage.is_low_latency else ThreadPoolExecutor(2, "icefloe-opening")
    with pool or nullcontext():
        return _open_refs(storage, _V1Files.start(storage, pool))


def _open_refs(storage: Storage, files: _V1Files) -> OpenedRefs:
    denied: AbsentOrDeniedError | None = None
    if _can_have(storage, V2):
        refs = RepoFile(storage)
        try:
            opening_refs = refs.pin()
        except RepositoryNotFoundError:
            pass
        except AbsentOrDeniedError as error:
            # Without permission to list, S3 returns this for absent objects too. Credentials that
            # can read files of another generation can also read `repo`, so if those are readable,
            # `repo` is absent.
            denied = error
        else:
            return OpenedRefs(refs, opening_refs.fetch_config(), opening_refs)
    for generation, open_generation in _OPENERS.items():
        if not _can_have(storage, generation):
            continue
        try:
            return open_generation(storage, files)
        except RepositoryNotFoundError:
            pass
        except AbsentOrDeniedError as error:
            denied = denied or error
    raise denied or _make_missing_error(storage)


@dataclass(frozen=True, slots=True)
class _V1Files:
    """The files of generation v1 that opening reads: each function waits for one, or reads it."""

    get_main: Callable[[], SnapshotId]
    get_config: Callable[[], RepositoryConfig | None]

    @classmethod
    def start(cls, storage: Storage, pool: ThreadPoolExecutor | None) -> _V1Files:
        """Request both in threads, or, without a pool, when they are needed."""
        get_main: Callable[[], SnapshotId] = partial(RefFiles(storage).fetch_branch, MAIN)
        get_config: Callable[[], RepositoryConfig | None] = partial(fetch_config, storage)
        if pool is not None:
            get_config = pool.submit(get_config).result
            if _can_have(storage, V1):
                get_main = pool.submit(get_main).result
        return cls(get_main, get_config)


def _make_missing_error(storage: Storage) -> RepositoryNotFoundError:
    """Return the error of a root without repository; a request for the record of a conversion."""
    try:
        storage.head(CONVERSION)
    except StorageError:
        return ref_errors.missing_repository_error(storage.url)
    return ref_errors.unfinished_conversion_error(storage.url)


def _open_ref_files(storage: Storage, files: _V1Files) -> OpenedRefs:
    try:
        main = files.get_main()
    except RefNotFoundError as error:
        raise ref_errors.missing_repository_error(storage.url) from error
    state = StateAtOpening(main, files.get_config())
    return OpenedRefs(RefFiles(storage), state.config, RefFiles(storage, at_opening=state))


def _open_state_file(storage: Storage, files: _V1Files) -> OpenedRefs:
    info = StateFile(storage).fetch()
    state = ConfigAtOpening(files.get_config())
    return OpenedRefs(StateFile(storage), state.config, StateFile(storage, info, state))


def _open_branch_sequences(storage: Storage, files: _V1Files) -> OpenedRefs:
    main = find_main(storage)
    if main is None:
        raise ref_errors.missing_repository_error(storage.url)
    state = MainAtOpening(main, files.get_config())
    refs = BranchSequences(storage)
    return OpenedRefs(refs, state.config, BranchSequences(storage, at_opening=state))


# Generations with a file `config.yaml`, in the order in which they are tried.
_OPENERS: Final[Mapping[Generation, Callable[[Storage, _V1Files], OpenedRefs]]] = {
    V1: _open_ref_files,
    DRAFT: _open_state_file,
    SEQUENCE: _open_branch_sequences,
}
_MARKERS: Final[Mapping[Generation, str]] = {
    V2: REPO,
    V1: format_branch_key(MAIN),
    DRAFT: STATE,
}
"""A file that every repository of a generation has, in the same order."""


def _can_have(storage: Storage, generation: Generation) -> bool:
    """Whether a storage can have a repository of a generation: only draft has two roots."""
    return storage.store_root_url is None or generation is DRAFT


def is_repository(storage: Storage) -> bool:
    """Whether a repository of any generation exists; a request for each generation."""
    return fetch_generation(storage) is not None


def fetch_generation(storage: Storage) -> Generation | None:
    """Fetch the generation of a repository, or None if none exists; at most four requests."""
    for generation, key in _MARKERS.items():
        if not _can_have(storage, generation):
            continue
        try:
            storage.head(key)
        except (ObjectNotFoundError, AbsentOrDeniedError):
            continue
        return generation
    if _can_have(storage, SEQUENCE) and has_main(storage):
        return SEQUENCE
    return None


def fetch_spec_version(storage: Storage) -> int | None:
    """Fetch the spec version of a repository, 0 for older generations; None if none exists.

    Raises
    ------
    PermissionDeniedError
        If no repository was found, and the storage did not allow to read where one may be.
    FormatError
        If the file ``repo`` is no metadata file, or of an unknown version.
    """
    denied: AbsentOrDeniedError | None = None
    for generation, key in _MARKERS.items():
        if not _can_have(storage, generation):
            continue
        try:
            if generation is V2:
                return _fetch_header(storage, key).spec_version
            storage.head(key)
        except ObjectNotFoundError:
            continue
        except AbsentOrDeniedError as error:
            denied = denied or error
            continue
        return generation.spec_version
    if _can_have(storage, SEQUENCE) and has_main(storage):
        return SEQUENCE.spec_version
    if denied is not None and _may_list(storage):  # so files that are absent would be not found
        raise denied
    return None


def _may_list(storage: Storage) -> bool:
    try:
        storage.list_first("", 1)
    except AbsentOrDeniedError:
        return False
    except StorageError as error:
        return error.kind is ErrorKind.UNIMPLEMENTED  # on web servers
    return True


def _fetch_header(storage: Storage, key: str) -> Header:
    try:
        head = storage.get(key, Bounded(0, HEADER_SIZE)).data
    except InvalidInputError:  # the file is shorter
        head = storage.get(key).data
    return read_header(head, key)
