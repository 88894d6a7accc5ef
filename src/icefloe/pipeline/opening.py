"""Opens the repositories that jobs are given, with containers for the files that they read.

A container describes how to reach the files below a URL prefix; here it is derived from the prefix
and the environment. Containers for files to copy are temporary. Containers for virtual chunks must
be passed explicitly, and are saved.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from icefloe.containers.container_table import ContainerTable
from icefloe.errors import (
    ErrorKind,
    IcefloeError,
    InvalidInputError,
    OutcomeUnknownError,
    RepositoryNotFoundError,
)
from icefloe.model.config import RepositoryConfig
from icefloe.model.containers import ObjectStoreConfig, S3Options, VirtualChunkContainer
from icefloe.pipeline.argument_errors import argument_error
from icefloe.repository import Repository
from icefloe.spark.engine.deferred_session import DeferredSession
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
    from collections.abc import Iterable, Iterator, Sequence

    from icefloe.model.containers import AnyObjectStoreConfig
    from icefloe.storage import AnyCredential, Storage

RepositoryOrPlace: TypeAlias = "Repository | str | os.PathLike[str]"
"""The repository of a job, or its directory or URL."""

_WILDCARD: Final = re.compile(r"[*?\[]")
_REFERENCE_SUFFIXES: Final = (".json", ".parquet", ".parq")


def open_repository(
    place: str | os.PathLike[str],
    *,
    create: bool = False,
    spec_version: int | None = None,
    generation: str | None = None,
    containers: Iterable[str | os.PathLike[str]] = (),
    sources: Iterable[str | os.PathLike[str]] = (),
    referred: Iterable[str | os.PathLike[str]] = (),
    dry_run: bool = False,
) -> Repository:
    """Open a repository for a job, with credentials from the environment.

    Parameters
    ----------
    place
        A directory, or a URL such as ``s3://bucket/prefix``.
    create
        Whether to create a missing repository.
    spec_version
        The spec version of a new repository: 1 (the default) or 2.
    generation
        The generation of a new repository, instead of ``spec_version``: ``draft``, ``sequence``,
        ``v1`` or ``v2``.
    containers
        URL prefixes, or directories, that may be read. Missing containers are added and saved.
    sources
        Files or patterns to copy; their containers are not saved.
    referred
        Files or patterns that virtual chunks will refer to; containers must cover them.
    dry_run
        Whether to write nothing; a new repository is then created in memory.

    Raises
    ------
    RepositoryNotFoundError
        If the repository does not exist, and ``create`` is False.
    InvalidInputError
        If no container covers ``referred`` files, or a URL contains a password or a signature.
    """
    sources, referred = list(sources), list(referred)
    for source in (*sources, *referred):
        require_shareable(os.fspath(source))
    storage = storage_from_url(os.fspath(place))
    is_new = not Repository.exists(storage)
    if is_new and not create:
        raise RepositoryNotFoundError(
            f"there is no repository at {os.fspath(place)}: check the path; ingest and virtualize "
            "create one with create=True",
            kind=ErrorKind.REPOSITORY_NOT_FOUND,
        )
    config = (None if is_new else Repository.fetch_config(storage)) or RepositoryConfig.default()
    prefixes = [make_container_prefix(container) for container in containers]
    added = [prefix for prefix in prefixes if _add_container(config, prefix)]
    _require_covered(config, referred)
    credentials = _get_credentials(config, prefixes)
    if is_new:
        target = _PlannedStorage(storage.url) if dry_run else storage
        repository = Repository.create(
            target, config, credentials, spec_version=spec_version, generation=generation
        )
    else:
        repository = Repository.open(storage, config, credentials)
        if added and not dry_run:
            repository.save_config()
    return cover_sources(repository, sources)


@contextmanager
def deleting_if_failed(place: str | os.PathLike[str]) -> Iterator[None]:
    """Delete the repository at a place again if it is created in this context, which then fails.

    Not if it has a commit, or if the outcome of a commit is unknown, because the commit may still
    become visible. For the same reason, not after Ctrl-C.
    """
    storage = storage_from_url(os.fspath(place))
    folder = storage.url.removeprefix("file://") if storage.url.startswith("file://") else None
    had_folder = folder is not None and os.path.isdir(folder)  # noqa: PTH112
    is_new = not Repository.exists(storage)
    try:
        yield
    except Exception as error:
        if is_new and not _is_outcome_unknown(error):
            with suppress(IcefloeError, OSError):
                _delete_unused(storage)
                if folder is not None:
                    _delete_empty_folders(folder, keep=had_folder)
        raise


def _is_outcome_unknown(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OutcomeUnknownError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _delete_unused(storage: Storage) -> None:
    """Delete a repository without commits, whose root was empty when it was created."""
    repository = Repository.open(storage)
    commits = list(islice(repository.ancestry(branch="main"), 2))
    if len(commits) == 1 and repository.list_branches() == {"main"} and not repository.list_tags():
        storage.delete_many([info.key for info in storage.list()])


def _delete_empty_folders(folder: str, *, keep: bool) -> None:
    for path, _, _ in os.walk(folder, topdown=False):
        if path != folder or not keep:
            with suppress(OSError):
                os.rmdir(path)  # noqa: PTH106 - removes only empty ones


def require_repository(spark: Any, repository: Any, sources: Any = None) -> Repository:
    """Return the repository that a job was given, opened if it is a directory or a URL.

    Raises `InvalidInputError` if arguments are swapped.
    """
    order = "(spark, repository, …)" if sources is None else "(spark, repository, sources, …)"
    expected = f"the arguments are {order}, where spark is a Spark session or None"
    is_session = isinstance(spark, DeferredSession) or hasattr(spark, "createDataFrame")
    if spark is not None and not is_session:
        raise argument_error(
            f"the first argument is {_describe(spark)}, not a Spark session: {expected}"
        )
    if isinstance(sources, Repository):
        raise argument_error(f"sources is a repository: {expected}")
    if isinstance(repository, Repository):
        return repository
    if not isinstance(repository, str | os.PathLike):
        raise argument_error(
            f"repository is {_describe(repository)}, not a repository, a directory or a URL: "
            f"{expected}"
        )
    try:
        return open_repository(repository)
    except RepositoryNotFoundError as error:
        if isinstance(sources, str | os.PathLike) and _is_repository(sources):
            raise argument_error(
                f"sources, {os.fspath(sources)}, is a repository, but {os.fspath(repository)} is "
                f"not: {expected}"
            ) from error
        raise RepositoryNotFoundError(
            f"there is no repository at {os.fspath(repository)}: check the path, or create one "
            "with icefloe.pipeline.open_repository(…, create=True)",
            kind=ErrorKind.REPOSITORY_NOT_FOUND,
        ) from error


def _describe(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _is_repository(place: str | os.PathLike[str]) -> bool:
    try:
        return Repository.exists(storage_from_url(os.fspath(place)))
    except IcefloeError:
        return False


def cover_sources(repository: Repository, sources: Iterable[str | os.PathLike[str]]) -> Repository:
    """Return a repository that may read files to copy; its containers for them are not saved.

    Naming a file authorizes a container that reads it from where its URL says. A container of the
    repository with another endpoint, which would receive requests signed by the user, still needs
    authorization.
    """
    config = repository.config
    folders = dict.fromkeys(map(make_source_prefix, sources))
    authorized = repository.authorized_virtual_container_prefixes
    containers = repository.list_virtual_chunk_containers()
    table = ContainerTable(access.container for access in containers)
    defaults = {access.container.url_prefix for access in containers if access.is_default}
    credentials: dict[str, AnyCredential] = {}
    for folder in folders:
        container = _find_in(table, folder)
        if container is not None and container.url_prefix in authorized:
            continue
        added = create_container(folder)
        if container is None or container.url_prefix in defaults:
            config.set_virtual_chunk_container(added)
            container = added
        if container.target_prefix is None and _get_endpoint(container) == _get_endpoint(added):
            credentials[container.url_prefix] = _make_credential(container.store)
    if not credentials:
        return repository
    known = repository._connection.credentials or {}  # noqa: SLF001 - same package
    return repository.reopen(config, {**credentials, **known})


def _get_endpoint(container: VirtualChunkContainer) -> str | None:
    options = getattr(container.store, "options", None)
    return options.endpoint_url if isinstance(options, S3Options) else None


class _PlannedStorage(ForwardingStorage):
    """In-memory storage of a repository to be created, with its future URL."""

    def __init__(self, url: str) -> None:
        super().__init__(in_memory_storage())
        self._url = url

    @property
    def url(self) -> str:
        """The future URL of the repository."""
        return self._url


def make_container_prefix(container: str | os.PathLike[str]) -> str:
    """Return the URL prefix of a container, given as a URL prefix or a local directory."""
    text = os.fspath(container)
    if "://" in text:
        return text
    return f"{Path(text).absolute().as_uri().rstrip('/')}/"


def make_source_prefix(source: str | os.PathLike[str]) -> str:
    """Return the prefix of a container for a file or pattern: the directory, bucket or server."""
    folder = _make_folder_prefix(source)
    scheme, _, path = folder.partition("://")
    # The whole bucket or server, because expanding a pattern lists it.
    return folder if scheme == "file" else f"{scheme}://{path.partition('/')[0]}/"


def _make_folder_prefix(source: str | os.PathLike[str]) -> str:
    """Return the URL prefix of the directory of a file or pattern."""
    url = os.fspath(source)
    if "://" not in url:
        url = os.path.abspath(url)  # noqa: PTH100 - Path normalizes differently
    wildcard = _WILDCARD.search(url)
    folder = (url if wildcard is None else url[: wildcard.start()]).rpartition("/")[0]
    return f"{folder}/" if "://" in url else make_container_prefix(folder or "/")


def create_container(prefix: str) -> VirtualChunkContainer:
    """Create a container for a URL prefix; endpoints and accounts come from the environment."""
    return VirtualChunkContainer(prefix, _make_store_config(prefix))


def _make_store_config(prefix: str) -> AnyObjectStoreConfig:
    environment = os.environ
    match prefix.partition("://")[0]:
        case "file":
            return ObjectStoreConfig.LocalFileSystem(prefix.removeprefix("file://"))
        case "s3":
            endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
            if endpoint:  # saved with the container
                require_no_secrets(
                    split_url(endpoint), "set AWS_ACCESS_KEY_ID and the related variables"
                )
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
                f"{redact_url(prefix)!r}: the scheme {scheme!r} is not supported; use file, "
                "s3, gs, az or https, or add a VirtualChunkContainer to the repository's "
                "configuration",
                kind=ErrorKind.CANNOT_PARSE_URL,
            )


def _require_covered(config: RepositoryConfig, sources: Iterable[str | os.PathLike[str]]) -> None:
    # Reference files refer to files in other directories.
    files = [source for source in sources if not os.fspath(source).endswith(_REFERENCE_SUFFIXES)]
    folders = dict.fromkeys(map(_make_folder_prefix, files))
    defaults = config.effective_default_virtual_chunk_containers
    missing = [
        folder
        for folder in folders
        if folder.partition("://")[0] not in defaults and _find_container(config, folder) is None
    ]
    if missing:
        raise InvalidInputError(
            "no virtual chunk container of the repository covers the files in "
            f"{', '.join(missing)}: to let readers of the repository read them, pass "
            f"containers={missing}",
            kind=ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK,
        )


def _add_container(config: RepositoryConfig, prefix: str) -> bool:
    """Add a container unless the prefix is covered; return whether it was added."""
    if _find_container(config, prefix) is not None:
        return False
    config.set_virtual_chunk_container(create_container(prefix))
    return True


def _find_container(config: RepositoryConfig, prefix: str) -> VirtualChunkContainer | None:
    return _find_in(ContainerTable((config.virtual_chunk_containers or {}).values()), prefix)


def _find_in(table: ContainerTable, prefix: str) -> VirtualChunkContainer | None:
    try:
        return table.find(f"{prefix.rstrip('/')}/any").container.config
    except InvalidInputError:
        return None


def _get_credentials(config: RepositoryConfig, prefixes: Sequence[str]) -> dict[str, AnyCredential]:
    matches = [_find_container(config, prefix) for prefix in prefixes]
    return {
        container.url_prefix: _make_credential(container.store)
        for container in matches
        if container is not None
    }


def _make_credential(store: AnyObjectStoreConfig) -> AnyCredential:
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
