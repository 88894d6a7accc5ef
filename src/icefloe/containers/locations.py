"""Parsing of virtual chunk locations, which are untrusted URLs.

A location is split once and percent-decoded once. The parsed result is both matched with containers
and fetched, so that no second parser can interpret the text differently. Pure, no I/O.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.model import containers
from icefloe.storage.keys import MAX_KEY_BYTES
from icefloe.storage.urls import redact_url

RELATIVE_SCHEME: Final = f"{containers.RELATIVE_SCHEME}://"
"""``vcc://name/path`` is a path below the URL prefix of the named container."""

# As in Icechunk, a query or fragment is stored with a location but is not part of the key.
_URL: Final = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<path>[^?#]*)(?:[?#].*)?",
    re.DOTALL,
)
_SCHEMES_WITH_FOLDERS: Final = frozenset({"file", "http", "https"})
"""Schemes whose servers and file systems resolve ``.``, ``..`` and ``//`` in a path.

The path of all others is the key of an object, in which they are ordinary characters.
"""
_FILE_WITHOUT_AUTHORITY: Final = re.compile(r"file:/(?!/)", re.IGNORECASE)
_CONTROL_CHARACTER: Final = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Location:
    """An absolute location, percent-decoded, with a lower-case scheme.

    ``authority`` is a bucket, container, or host with port; empty for local files. ``path`` starts
    with ``/``. Both are empty in the prefix of all buckets.
    """

    scheme: str
    authority: str
    path: str

    @property
    def text(self) -> str:
        """The location as one string; ambiguous if a host contains an encoded slash."""
        return f"{self.scheme}://{self.authority}{self.path}"

    @property
    def key(self) -> str:
        """Key of the object in its bucket."""
        return self.path[1:]


def is_relative(location: str) -> bool:
    """Return whether a location has the form ``vcc://name/path``."""
    return location[: len(RELATIVE_SCHEME)].lower() == RELATIVE_SCHEME


def split_relative(location: str) -> tuple[str, str]:
    """Split a relative location into the name of its container and the path below its prefix."""
    name, _, path = location[len(RELATIVE_SCHEME) :].partition("/")
    return name, path


def parse_location(url: str) -> Location:
    """Parse an absolute location; raises `InvalidInputError` if it cannot name an object."""
    location = _parse(url)
    if not location.authority and location.scheme != "file":
        raise malformed_error(url, "it names no bucket or host")
    require_object(location, url)
    return location


def require_object(location: Location, url: str) -> None:
    """Raise `InvalidInputError` if a location cannot name an object; the error shows ``url``."""
    problem = _find_path_problem(location)
    if problem is not None:
        raise malformed_error(url, problem)


def parse_prefix(url_prefix: str) -> Location:
    """Parse the URL prefix of a container: a URL, or only a scheme for all of its buckets."""
    return _parse(containers.normalize_prefix(url_prefix))


def _parse(url: str) -> Location:
    if _FILE_WITHOUT_AUTHORITY.match(url):
        url = f"file://{url[len('file:') :]}"
    parts = _URL.fullmatch(url)
    if parts is None:
        raise malformed_error(url, "it has no scheme, such as s3://")
    scheme, authority, path = parts["scheme"].lower(), parts["authority"], parts["path"]
    if scheme == "file":
        if authority.lower() not in {"", "localhost"}:
            raise malformed_error(url, "a file URL has three slashes, as in file:///data/a.nc")
        authority, path = "", _resolve_dot_segments(path)
    elif not authority and path:
        raise malformed_error(url, "it names no bucket or host")
    try:
        return Location(scheme, unquote(authority, errors="strict"), unquote(path, errors="strict"))
    except UnicodeDecodeError as error:
        raise malformed_error(url, "its percent-encoding is not UTF-8") from error


def malformed_error(url: str, problem: str) -> InvalidInputError:
    """Return the error for a malformed location."""
    return InvalidInputError(
        f"error parsing virtual ref URL {redact_url(url)!r}: {problem}",
        kind=ErrorKind.INVALID_VIRTUAL_REF,
    )


def _resolve_dot_segments(path: str) -> str:
    """Resolve ``.`` and ``..`` in the path of a file URL, also encoded, or with backslashes."""
    resolved: list[str] = []
    segments = path.replace("\\", "/").split("/")
    for number, segment in enumerate(segments):
        dots = segment.lower().replace("%2e", ".")
        if dots not in {".", ".."}:
            resolved.append(segment)
            continue
        if dots == ".." and len(resolved) > 1:
            resolved.pop()
        if number == len(segments) - 1:
            resolved.append("")  # a path that ends in a dot segment is a directory
    return "/".join(resolved)


def _find_path_problem(location: Location) -> str | None:
    # Checked after decoding: an encoded slash could hide '..' from `_resolve_dot_segments`.
    path = location.path
    if _CONTROL_CHARACTER.search(path):
        return "it contains a control character"
    segments = path.split("/")[1:]
    if not path or segments == [""]:
        return "it names no object"
    has_folders = location.scheme in _SCHEMES_WITH_FOLDERS
    if has_folders and any(segment in {"", ".", ".."} for segment in segments):
        return "it has an empty segment (//), '.' or '..'"
    # The path length of local files is limited by the file system.
    if location.scheme != "file" and len(path.encode()) - 1 > MAX_KEY_BYTES:
        return f"its path has more than {MAX_KEY_BYTES} bytes"
    return None
