"""Opening the repository that options name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from icefloe.errors import RepositoryNotFoundError
from icefloe.repository import Repository
from icefloe.spark.option_parsing import invalid_input, load_object, parse_flag
from icefloe.storage import Storage, azure_storage, gcs_storage, s3_storage, storage_from_url
from icefloe.storage.credentials import (
    AzureCredentials,
    GcsCredentials,
    S3Credentials,
    containers_credentials,
)
from icefloe.storage.urls import redact_url, require_no_secrets, split_url

if TYPE_CHECKING:
    from collections.abc import Mapping


_CREDENTIALS: Final[dict[str, Any]] = {
    "s3": S3Credentials,
    "gs": GcsCredentials,
    "gcs": GcsCredentials,
    "az": AzureCredentials,
    "azure": AzureCredentials,
    "abfs": AzureCredentials,
    "abfss": AzureCredentials,
}
_STORAGE_OPTIONS: Final = frozenset(
    {"region", "endpoint_url", "allow_http", "anonymous", "from_env"}
)


def open_from_options(
    place: Mapping[str, str], *, example: str = 'spark.read.format("icefloe").load({path})'
) -> Repository:
    """Open the repository that options name, with credentials of the environment or none.

    ``example`` shows in the message how to name one, with ``{path}`` for its location.
    Raises if there is no repository, or if the options name no location or contradict each other.
    """
    if not place.get("path"):
        raise invalid_input(
            "no repository was named: give a path or URL, such as "
            + example.format(path='"s3://bucket/weather"')
        )
    storage = _make_storage(place)
    containers = _parse_containers(place.get("authorize_virtual_chunk_access", "{}"))
    try:
        return Repository.open(storage, authorize_virtual_chunk_access=containers)
    except RepositoryNotFoundError as error:
        raise RepositoryNotFoundError(
            f"there is no repository at {storage.url}: check the path, and that the machines "
            "where Spark runs can see it"
        ) from error


def require_visible(repository: Repository) -> None:
    """Raise if a repository is in the memory of this process."""
    if repository.storage.url.startswith("memory:"):
        raise invalid_input(
            "a repository in memory cannot be seen by Spark's processes: put it on disk"
        )


def _make_storage(place: Mapping[str, str]) -> Storage:
    url = place["path"]
    options = {name: value for name, value in place.items() if name in _STORAGE_OPTIONS}
    if not options:
        return storage_from_url(url)
    parts = split_url(url)
    kinds = [
        name for name in ("anonymous", "from_env") if parse_flag(name, options.pop(name, "false"))
    ]
    credentials: dict[str, Any] = dict.fromkeys(kinds or ["from_env"], True)
    prefix = parts.path.strip("/")
    if parts.scheme == "s3":
        require_no_secrets(parts, "set the environment's variables")
        return s3_storage(
            bucket=parts.netloc,
            prefix=prefix,
            region=options.get("region"),
            endpoint_url=options.get("endpoint_url"),
            allow_http=parse_flag("allow_http", options.get("allow_http", "false")),
            **credentials,
        )
    if options:
        raise invalid_input(
            f"option {next(iter(options))!r} is for s3:// URLs, and this is {redact_url(url)!r}"
        )
    match parts.scheme:
        case "gs" | "gcs":
            require_no_secrets(parts, "set the environment's variables")
            return gcs_storage(bucket=parts.netloc, prefix=prefix, **credentials)
        case "az" | "azure":
            require_no_secrets(parts, "set the environment's variables")
            return azure_storage(account=None, container=parts.netloc, prefix=prefix, **credentials)
        case _:
            raise invalid_input(
                "options 'anonymous' and 'from_env' are for s3://, gs:// and az:// URLs, and this "
                f"is {redact_url(url)!r}"
            )


def _parse_containers(text: str) -> dict[str, Any]:
    """Parse the virtual chunk containers that may be read, with the kind of their credentials."""
    given = load_object(text)
    if given is None:
        raise invalid_input(
            "option 'authorize_virtual_chunk_access' is a JSON object such as "
            '{"s3://bucket/": "anonymous", "file:///data/": null}'
        )
    return containers_credentials(
        {prefix: _make_credentials(prefix, kind) for prefix, kind in given.items()}
    )


def _make_credentials(prefix: str, kind: object) -> Any:
    if kind is None:
        return None
    credentials = _CREDENTIALS.get(prefix.partition("://")[0])
    match kind:
        case "anonymous" if credentials is not None:
            return credentials.Anonymous()
        case "from_env" if credentials is not None:
            return credentials.FromEnv()
        case _:
            # The value is not shown: it may be a secret.
            raise invalid_input(
                f"option 'authorize_virtual_chunk_access': {redact_url(prefix)!r} is opened "
                "with null, or on s3://, gs:// and az:// with 'anonymous' or 'from_env'"
            )
