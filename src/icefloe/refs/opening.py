"""Finding out which generation a repository is, and what it is like at that moment.

Nothing is listed, and what was read on the way is kept: opening a repository and reading its main
branch and its configuration takes one request in generation v2, and three in v1, of which two are
sent together.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from icefloe.errors import (
    ObjectNotFoundError,
    PermissionDeniedError,
    RefNotFoundError,
    RepositoryNotFoundError,
)
from icefloe.format.keys import REPO, branch_key
from icefloe.refs import problems
from icefloe.refs.problems import MAIN
from icefloe.refs.ref_files import RefFiles, StateAtOpening
from icefloe.refs.repo_file import RepoFile

if TYPE_CHECKING:
    from icefloe.model.config import RepositoryConfig
    from icefloe.refs.interface import Refs
    from icefloe.storage.interface import Storage


@dataclass(frozen=True, slots=True)
class OpenedRefs:
    """The references of a repository, and what opening read of them.

    Parameters
    ----------
    refs
        Asks the storage, each time.
    config
        The persisted configuration as it was at opening; None where there is none.
    at_opening
        Answers from what opening read: everything in generation v2; in v1 where main pointed and
        the configuration, and for the rest it asks the storage.
    """

    refs: Refs
    config: RepositoryConfig | None
    at_opening: Refs


def open_refs(storage: Storage) -> OpenedRefs:
    """Open the references of the repository at the root of ``storage``.

    A file ``repo`` means generation v2, even beside files of v1, which migration leaves behind.
    So only its absence leads on: a storage that fails to say raises, lest what was left behind is
    taken for the present.
    """
    try:
        at_opening: RepoFile | None = RepoFile(storage).pin()
    except RepositoryNotFoundError:
        at_opening = None
    except PermissionDeniedError as denied:
        # This is also S3's answer for an object that is not there, to whoever may not list. Who can
        # read a branch of version 1 beside it could read `repo` too, if there were one.
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
        known = StateAtOpening(main, config.result())
    return OpenedRefs(refs, known.config, RefFiles(storage, at_opening=known))


def is_repository(storage: Storage) -> bool:
    """Whether there is a repository of any generation; at most two requests."""
    return fetch_spec_version(storage) is not None


def fetch_spec_version(storage: Storage) -> int | None:
    """Fetch which generation a repository is, None where there is none; at most two requests."""
    for key, spec_version in ((REPO, 2), (branch_key(MAIN), 1)):
        try:
            storage.head(key)
        except (ObjectNotFoundError, PermissionDeniedError):
            continue
        return spec_version
    return None
