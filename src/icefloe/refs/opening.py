"""Finding out which generation a repository is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.errors import ErrorKind, NotFoundError, ObjectNotFoundError
from icefloe.format.keys import REPO, branch_key
from icefloe.refs.problems import MAIN
from icefloe.refs.ref_files import RefFiles
from icefloe.refs.repo_file import RepoFile

if TYPE_CHECKING:
    from icefloe.refs.interface import Refs
    from icefloe.storage.interface import Storage


def open_refs(storage: Storage) -> Refs:
    """Open the references of the repository at the root of ``storage``; at most two requests.

    A file ``repo`` means generation v2, even beside files of v1, which migration leaves behind.
    """
    refs = _find_refs(storage)
    if refs is None:
        raise NotFoundError(
            f"there is no repository at {storage.url}: neither '{REPO}' nor "
            f"'{branch_key(MAIN)}' is there; check the address, and that it is the "
            "repository's root",
            kind=ErrorKind.REPOSITORY_NOT_FOUND,
        )
    return refs


def is_repository(storage: Storage) -> bool:
    """Whether there is a repository of any generation; at most two requests."""
    return _find_refs(storage) is not None


def _find_refs(storage: Storage) -> Refs | None:
    for key, kind in ((REPO, RepoFile), (branch_key(MAIN), RefFiles)):
        try:
            storage.head(key)
        except ObjectNotFoundError:
            continue
        return kind(storage)
    return None
