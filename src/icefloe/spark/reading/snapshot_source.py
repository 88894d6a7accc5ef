"""What tasks read from: a repository and the snapshot that was current when the read was made."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from icefloe.errors import RepositoryNotFoundError
from icefloe.repository import Repository
from icefloe.spark.reading.read_options import invalid_input, parse_flag
from icefloe.storage import azure_storage, gcs_storage, s3_storage, storage_from_url
from icefloe.storage.credentials import (
    AzureCredentials,
    GcsCredentials,
    S3Credentials,
    containers_credentials,
)
from icefloe.storage.urls import redact_url, require_no_secrets, split_url

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.session import Session
    from icefloe.spark.reading.read_options import ReadOptions
    from icefloe.storage import Storage

_KINDS: dict[str, Any] = {
    "s3": S3Credentials,
    "gs": GcsCredentials,
    "gcs": GcsCredentials,
    "az": AzureCredentials,
    "azure": AzureCredentials,
    "abfs": AzureCredentials,
    "abfss": AzureCredentials,
}


@dataclass(frozen=True, slots=True)
class SnapshotSource:
    """A repository at one snapshot; pickles, with the repository's credentials inside.

    Nothing of it is in the options of a read, nor in any text that Spark shows.
    """

    repository: Repository
    snapshot_id: str

    @classmethod
    def resolve(cls, repository: Repository, options: ReadOptions) -> SnapshotSource:
        """Find the snapshot that the options name, once and for all."""
        if options.tag is not None:
            return cls(repository, repository.lookup_tag(options.tag))
        if options.snapshot is not None:
            return cls(repository, repository.lookup_snapshot(options.snapshot).id)
        branch = options.branch or "main"
        if options.as_of is not None:
            session = repository.readonly_session(branch, as_of=options.as_of)
            return cls(repository, session.snapshot_id)
        return cls(repository, repository.lookup_branch(branch))

    def session(self) -> Session:
        """Open the snapshot; in one process, what it fetched before is still there."""
        return self.repository.readonly_session(snapshot_id=self.snapshot_id)


def open_from_options(
    place: Mapping[str, str], *, example: str = 'spark.read.format("icefloe").load({path})'
) -> Repository:
    """Open the repository that options name, with credentials of the environment or none.

    ``example`` shows whoever named none how to, with ``{path}`` for the place.

    Raises
    ------
    RepositoryNotFoundError
        If there is none.
    InvalidInputError
        If the options do not say where it is, or do not fit together.
    """
    if not place.get("path"):
        raise invalid_input(
            "no repository was named: give a path or URL, such as "
            + example.format(path='"s3://bucket/weather"')
        )
    storage = _storage(place)
    try:
        return Repository.open(
            storage,
            authorize_virtual_chunk_access=_containers(
                place.get("authorize_virtual_chunk_access", "{}")
            ),
        )
    except RepositoryNotFoundError as error:
        raise RepositoryNotFoundError(
            f"there is no repository at {storage.url}: check the path, and that the machines "
            "where Spark runs can see it"
        ) from error


def repository_of(session: Session) -> Repository:
    """Open the repository that a session reads."""
    connection = session.connection
    return Repository.open(connection.storage, connection.config, connection.credentials)


def _storage(place: Mapping[str, str]) -> Storage:
    url = place["path"]
    asked = {name: value for name, value in place.items() if name in _PLACE_ARGUMENTS}
    if not asked:
        return storage_from_url(url)
    parts = split_url(url)
    kinds = [
        name for name in ("anonymous", "from_env") if parse_flag(name, asked.pop(name, "false"))
    ]
    credentials: dict[str, Any] = dict.fromkeys(kinds or ["from_env"], True)
    prefix = parts.path.strip("/")
    if parts.scheme == "s3":
        require_no_secrets(parts, "set the environment's variables")
        return s3_storage(
            bucket=parts.netloc,
            prefix=prefix,
            region=asked.get("region"),
            endpoint_url=asked.get("endpoint_url"),
            allow_http=parse_flag("allow_http", asked.get("allow_http", "false")),
            **credentials,
        )
    if asked:
        raise invalid_input(
            f"option {next(iter(asked))!r} is for s3:// URLs, and this is {redact_url(url)!r}"
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
                f"options 'anonymous' and 'from_env' are for s3://, gs:// and az:// URLs, and this "
                f"is {redact_url(url)!r}"
            )


_PLACE_ARGUMENTS = frozenset({"region", "endpoint_url", "allow_http", "anonymous", "from_env"})


def _containers(text: str) -> dict[str, Any]:
    """Read which virtual chunk containers may be read: by URL prefix, and with which kind."""
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise invalid_input(
            "option 'authorize_virtual_chunk_access' is a JSON object such as "
            '{"s3://bucket/": "anonymous", "file:///data/": null}'
        )
    return containers_credentials(
        {prefix: _container(prefix, kind) for prefix, kind in given.items()}
    )


def _container(prefix: str, kind: object) -> Any:
    if kind is None:
        return None
    kinds = _KINDS.get(prefix.partition("://")[0])
    match kind:
        case "anonymous" if kinds is not None:
            return kinds.Anonymous()
        case "from_env" if kinds is not None:
            return kinds.FromEnv()
        case _:
            # Not shown: it may be a secret that somebody tried to pass this way.
            raise invalid_input(
                f"option 'authorize_virtual_chunk_access': {redact_url(prefix)!r} is opened "
                "with null, or on s3://, gs:// and az:// with 'anonymous' or 'from_env'"
            )
