"""Opening a repository from options: its path, storage settings and kind of credentials."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from icefloe.errors import RepositoryNotFoundError
from icefloe.repository import Repository
from icefloe.spark.option_parsing import input_error, parse_flag, parse_json_object
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
    options: Mapping[str, str], *, example: str = 'spark.read.format("icefloe").load({path})'
) -> Repository:
    """Open a repository, with credentials from the environment or anonymously.

    ``example`` is a call for the error message, with a placeholder ``{path}``. Raises if there is
    no repository at the path, or if options are missing or contradict each other.
    """
    if not options.get("path"):
        raise input_error(
            "option 'path' is missing: pass a path or URL, such as "
            + example.format(path='"s3://bucket/weather"')
        )
    storage = _make_storage(options)
    containers = _parse_containers(options.get("authorize_virtual_chunk_access", "{}"))
    try:
        return Repository.open(storage, authorize_virtual_chunk_access=containers)
    except RepositoryNotFoundError as error:
        raise RepositoryNotFoundError(
            f"there is no repository at {storage.url}: check the path, and that the machines "
            "where Spark runs have access to it"
        ) from error


def require_shared_storage(repository: Repository) -> None:
    """Raise if a repository is in the memory of this process."""
    if repository.storage.url.startswith("memory:"):
        raise input_error("Spark's processes cannot read a repository in memory: write it to disk")


def _make_storage(options: Mapping[str, str]) -> Storage:
    url = options["path"]
    settings = {name: value for name, value in options.items() if name in _STORAGE_OPTIONS}
    if not settings:
        return storage_from_url(url)
    parts = split_url(url)
    kinds = [
        name for name in ("anonymous", "from_env") if parse_flag(name, settings.pop(name, "false"))
    ]
    credentials: dict[str, Any] = dict.fromkeys(kinds or ["from_env"], True)
    prefix = parts.path.strip("/")
    if parts.scheme == "s3":
        require_no_secrets(parts, "set environment variables")
        return s3_storage(
            bucket=parts.netloc,
            prefix=prefix,
            region=settings.get("region"),
            endpoint_url=settings.get("endpoint_url"),
            allow_http=parse_flag("allow_http", settings.get("allow_http", "false")),
            **credentials,
        )
    if settings:
        raise input_error(
            f"option {next(iter(settings))!r} is only for s3:// URLs, got {redact_url(url)!r}"
        )
    match parts.scheme:
        case "gs" | "gcs":
            require_no_secrets(parts, "set environment variables")
            return gcs_storage(bucket=parts.netloc, prefix=prefix, **credentials)
        case "az" | "azure":
            require_no_secrets(parts, "set environment variables")
            return azure_storage(account=None, container=parts.netloc, prefix=prefix, **credentials)
        case _:
            raise input_error(
                "options 'anonymous' and 'from_env' are only for s3://, gs:// and az:// URLs, got "
                f"{redact_url(url)!r}"
            )


def _parse_containers(text: str) -> dict[str, Any]:
    """Parse the authorized virtual chunk containers and their kinds of credentials."""
    kinds = parse_json_object(text)
    if kinds is None:
        raise input_error(
            "option 'authorize_virtual_chunk_access': expected a JSON object such as "
            '{"s3://bucket/": "anonymous", "file:///data/": null}'
        )
    return containers_credentials(
        {prefix: _make_credentials(prefix, kind) for prefix, kind in kinds.items()}
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
            # The message omits the value, which may be a secret.
            raise input_error(
                f"option 'authorize_virtual_chunk_access', {redact_url(prefix)!r}: expected null, "
                "or 'anonymous' or 'from_env' for s3://, gs:// and az:// URLs"
            )
