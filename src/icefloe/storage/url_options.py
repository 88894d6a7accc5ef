"""Options in the query of a storage URL, such as ``s3://bucket/prefix?region=eu-west-1``.

Options say where a storage is, and never contain secrets. Pure, no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.storage.urls import redact_url, require_no_secrets, split_url

if TYPE_CHECKING:
    from urllib.parse import SplitResult

_S3: Final = ("endpoint", "region", "anonymous", "allow_http")
_AZURE: Final = ("account", "anonymous")
_NAMES: Final = {
    "file": ("durable",),
    "s3": _S3,
    "gs": ("anonymous",),
    "gcs": ("anonymous",),
    "az": _AZURE,
    "azure": _AZURE,
    "abfs": _AZURE,
    "abfss": _AZURE,
}
_BOOLEANS: Final = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class UrlOptions:
    """The options of a URL; those that it does not have are None."""

    endpoint: str | None = None
    region: str | None = None
    account: str | None = None
    anonymous: bool | None = None
    allow_http: bool | None = None
    durable: bool | None = None


def split_options(parts: SplitResult) -> tuple[SplitResult, UrlOptions]:
    """Return a URL without its query, and the options in the query.

    Raises
    ------
    InvalidInputError
        If the query has anything else. The message does not contain it.
    """
    names = _NAMES.get(parts.scheme, ())
    if not parts.query or not names:
        return parts, UrlOptions()
    values: dict[str, str | bool] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in names or name in values or not value:
            raise _query_error(
                parts, f"the options of {parts.scheme}:// are {', '.join(names)}, each at most once"
            )
        values[name] = value
        if name in {"anonymous", "allow_http", "durable"}:
            if value not in _BOOLEANS:
                raise _query_error(parts, f"{name} is true or false")
            values[name] = _BOOLEANS[value]
    endpoint = values.get("endpoint")
    if isinstance(endpoint, str):
        if not endpoint.startswith(("http://", "https://")):
            raise _query_error(parts, "endpoint is a URL that starts with https:// or http://")
        require_no_secrets(split_url(endpoint), "pass credentials through the environment")
    return parts._replace(query=""), UrlOptions(**values)  # type: ignore[arg-type]


def _query_error(parts: SplitResult, problem: str) -> InvalidInputError:
    return InvalidInputError(
        f"{redact_url(parts.geturl())}: in the query, {problem}; pass credentials through "
        "environment variables, or use the constructor of this kind of storage",
        kind=ErrorKind.STORAGE_CONFIG,
    )
