"""Repositories as commands open them: by a URL, with containers for the files that jobs read.

A container says how to reach the files behind a URL prefix; here it is made from the prefix and
the environment. Who names files to be copied may read them, so containers for those are made for
the one process, and never saved; those that virtual chunks will need are named, and saved.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from icefloe.containers.container_table import ContainerTable
from icefloe.errors import ErrorKind, InvalidInputError, RepositoryNotFoundError
from icefloe.model.config import RepositoryConfig
from icefloe.model.containers import ObjectStoreConfig, S3Options, VirtualChunkContainer
from icefloe.repository import Repository
from icefloe.storage import (
    AzureCredentials,
    Credentials,
    GcsCredentials,
    S3Credentials,
    in_memory_storage,
    storage_from_url,
)
from icefloe.storage.forwarding import ForwardingStorage
from icefloe.storage.urls import redact_url, require_no_secrets, require_shareable, split_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from icefloe.model.containers import AnyObjectStoreConfig
    from icefloe.storage import AnyCredential

_PATTERN: Final = re.compile(r"[*?\[]")
_REFERENCES: Final = (".json", ".parquet", ".parq")


def open_repository(
    place: str | os.PathLike[str],
    *,
    create: bool = False,
    spec_version: int | None = None,
    containers: Iterable[str | os.PathLike[str]] = (),
    sources: Iterable[str | os.PathLike[str]] = (),
    referred: Iterable[str | os.PathLike[str]] = (),
    dry_run: bool = False,
) -> Repository:
    """Open a repository for a job, with credentials of the environment.

    Parameters
    ----------
    place
        A directory, or a URL such as ``s3://bucket/prefix``.
    create
        Whether to create one where there is none.
    spec_version
        The version of the format of one that is created: 1 (the default) or 2.
    containers
        URL prefixes, or folders, whose files may be read. Those that the repository has no
        container for get one, which is saved: whoever opens it next finds it there.
    sources
        Files, or patterns of them, that are going to be copied; containers for them are not saved.
    referred
        Files, or patterns of them, that virtual chunks are going to be in: containers must cover
        them.
    dry_run
        Whether nothing may be written: a repository that is to be created is then one in memory.

    Raises
    ------
    RepositoryNotFoundError
        If there is none, and none is to be created.
    InvalidInputError
        If no container covers files that are referred to; says which to add. Or if a password or
        a signature is in the URL of a file or a container.
    """
    sources, referred = list(sources), list(referred)
    for one in (*sources, *referred):
        require_shareable(os.fspath(one))
    storage = storage_from_url(os.fspath(place))
    is_new = not Repository.exists(storage)
    if is_new and not create:
        raise RepositoryNotFoundError(
            f"there is no repository at {os.fspath(place)}: see whether that is right; ingest and "
            "virtualize make one with --create (create=True)",
            kind=ErrorKind.REPOSITORY_NOT_FOUND,
        )
    config = (None if is_new else Repository.fetch_config(storage)) or RepositoryConfig.default()
    prefixes = [container_prefix(one) for one in containers]
    added = [one for one in prefixes if _add(config, one)]
    _require_covered(config, referred)
    access = _access(config, prefixes)
    if is_new:
        place_now = _PlannedStorage(storage.url) if dry_run else storage
        repository = Repository.create(place_now, config, access, spec_version=spec_version)
    else:
        repository = Repository.open(storage, config, access)
        if added and not dry_run:
            repository.save_config()
    folders = list(dict.fromkeys(map(source_prefix, sources)))
    if config.virtual_chunk_containers is None and not any(map(_is_local, folders)):
        return repository  # the default containers reach them
    for folder in folders:
        _add(config, folder)
    return repository.reopen(config, {**_access(config, folders), **access})


class _PlannedStorage(ForwardingStorage):
    """What stands in memory for a repository that is yet to be created, under its name."""

    def __init__(self, url: str) -> None:
        super().__init__(in_memory_storage())
        self._url = url

    @property
    def url(self) -> str:
        """Where the repository will be."""
        return self._url


def container_prefix(place: str | os.PathLike[str]) -> str:
    """Return the URL prefix of a container, for a prefix or a folder of this machine."""
    named = os.fspath(place)
    if "://" in named:
        return named
    return f"{Path(named).absolute().as_uri().rstrip('/')}/"


def source_prefix(source: str | os.PathLike[str]) -> str:
    """Return the URL prefix of the folder that a file, or all that a pattern finds, is in."""
    named = os.fspath(source)
    if "://" not in named:
        named = os.path.abspath(named)  # noqa: PTH100 - Path would resolve nothing else, and quotes
    found = _PATTERN.search(named)
    folder = (named if found is None else named[: found.start()]).rpartition("/")[0]
    if "://" not in named:
        return container_prefix(folder or "/")
    scheme, _, rest = folder.partition("://")
    # All of a bucket or server: patterns are found by listing, from wherever they begin.
    return f"{folder}/" if scheme == "file" else f"{scheme}://{rest.partition('/')[0]}/"


def create_container(prefix: str) -> VirtualChunkContainer:
    """Make a container for a URL prefix; endpoints and accounts are those of the environment."""
    return VirtualChunkContainer(prefix, _store_for(prefix))


def _store_for(prefix: str) -> AnyObjectStoreConfig:
    environment = os.environ
    match prefix.partition("://")[0]:
        case "file":
            return ObjectStoreConfig.LocalFileSystem(prefix.removeprefix("file://"))
        case "s3":
            endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
            if endpoint:  # it is saved with the container
                require_no_secrets(split_url(endpoint), "set AWS_ACCESS_KEY_ID and its neighbours")
            options = S3Options(
                region=environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION"),
                endpoint_url=endpoint,
                allow_http=bool(endpoint and endpoint.startswith("http://")),
                force_path_style=endpoint is not None,
            )
            if endpoint is None:
                return ObjectStoreConfig.S3(options)
            return ObjectStoreConfig.S3Compatible(options)
        case "gs" | "gcs":
            return ObjectStoreConfig.Gcs()
        case "az" | "azure" | "abfs":
            account = environment.get("AZURE_STORAGE_ACCOUNT_NAME")
            return ObjectStoreConfig.Azure({"account": account} if account else {})
        case "http" | "https":
            return ObjectStoreConfig.Http()
        case scheme:
            raise InvalidInputError(
                f"{redact_url(prefix)!r}: no container is made for the scheme {scheme!r}; use "
                "file, s3, gs, az or https, or add a VirtualChunkContainer to the repository's "
                "configuration",
                kind=ErrorKind.CANNOT_PARSE_URL,
            )


def _is_local(prefix: str) -> bool:
    return prefix.startswith("file://")


def _require_covered(config: RepositoryConfig, sources: Iterable[str | os.PathLike[str]]) -> None:
    # Not files of references: what those refer to lies elsewhere.
    named = [one for one in sources if not os.fspath(one).endswith(_REFERENCES)]
    folders = dict.fromkeys(map(source_prefix, named))
    if config.virtual_chunk_containers is None:  # the default containers reach all others
        folders = {one: None for one in folders if _is_local(one)}
    missing = [one for one in folders if _find_container(config, one) is None]
    if missing:
        raise InvalidInputError(
            "no virtual chunk container of the repository covers the files in "
            f"{', '.join(missing)}: if whoever reads the repository is to read them, add one with "
            + " ".join(f"--container {one}" for one in missing),
            kind=ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK,
        )


def _add(config: RepositoryConfig, prefix: str) -> bool:
    """Add a container, unless one covers the prefix; tells whether it did."""
    if _find_container(config, prefix) is not None:
        return False
    config.set_virtual_chunk_container(create_container(prefix))
    return True


def _find_container(config: RepositoryConfig, prefix: str) -> VirtualChunkContainer | None:
    table = ContainerTable((config.virtual_chunk_containers or {}).values())
    try:
        return table.find(f"{prefix.rstrip('/')}/any").known.container
    except InvalidInputError:
        return None


def _access(config: RepositoryConfig, prefixes: Sequence[str]) -> dict[str, AnyCredential]:
    found = [_find_container(config, one) for one in prefixes]
    return {one.url_prefix: _credential(one.store) for one in found if one is not None}


def _credential(store: AnyObjectStoreConfig) -> AnyCredential:
    match store:
        case ObjectStoreConfig.LocalFileSystem():
            return Credentials.LocalFileSystemAccess()
        case ObjectStoreConfig.Gcs():
            return Credentials.Gcs(GcsCredentials.FromEnv())
        case ObjectStoreConfig.Azure():
            return Credentials.Azure(AzureCredentials.FromEnv())
        case ObjectStoreConfig.Http():
            return Credentials.HttpAccess()
        case _:
            return Credentials.S3(S3Credentials.FromEnv())
