"""The locations of virtual chunks, as URLs that somebody else wrote (seed `002`).

A location comes from a repository, so it is not trusted: it is taken apart once, percent-encoding
is undone once, and what remains is what containers are compared with *and* what is fetched. There
is no second reading of a location that could disagree with the first. Pure, no I/O.
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
"""``vcc://name/path`` is the path below the URL prefix of the container with that name."""

# A query or fragment is stored with a location but is not part of the object's key, as in Icechunk.
_URL: Final = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<path>[^?#]*)(?:[?#].*)?",
    re.DOTALL,
)
_FILE_WITHOUT_AUTHORITY: Final = re.compile(r"file:/(?!/)", re.IGNORECASE)
_UNUSABLE_CHARACTER: Final = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Location:
    """An absolute location, percent-decoded.

    Attributes
    ----------
    scheme
        In lower case.
    authority
        A bucket, container or host, with its port; empty for files of this machine, and in the
        prefix of all buckets.
    path
        With a ``/`` at the start; empty in the prefix of all buckets.
    """

    scheme: str
    authority: str
    path: str

    @property
    def text(self) -> str:
        """The location in one piece; ambiguous where a host holds an encoded slash."""
        return f"{self.scheme}://{self.authority}{self.path}"

    @property
    def key(self) -> str:
        """The name of the object in its bucket."""
        return self.path[1:]


def is_relative(location: str) -> bool:
    """Whether a location names its container instead of a store."""
    return location[: len(RELATIVE_SCHEME)].lower() == RELATIVE_SCHEME


def split_relative(location: str) -> tuple[str, str]:
    """Take a relative location apart: the name of the container, the path below its prefix."""
    name, _, path = location[len(RELATIVE_SCHEME) :].partition("/")
    return name, path


def parse_location(url: str) -> Location:
    """Read an absolute location; raises `InvalidInputError` where it cannot name an object."""
    location = _parse(url)
    if not location.authority and location.scheme != "file":
        raise malformed_error(url, "it names no bucket or host")
    require_object(location, url)
    return location


def require_object(location: Location, url: str) -> None:
    """Raise `InvalidInputError` where a location, written as ``url``, cannot name an object."""
    problem = _problem_with_path(location)
    if problem is not None:
        raise malformed_error(url, problem)


def parse_prefix(url_prefix: str) -> Location:
    """Read the URL prefix of a container, which names a place, or all places of a scheme."""
    return _parse(containers.normalize_prefix(url_prefix))


def _parse(url: str) -> Location:
    if _FILE_WITHOUT_AUTHORITY.match(url):
        url = f"file://{url[len('file:') :]}"
    parts = _URL.fullmatch(url)
    if parts is None:
        raise malformed_error(url, "it has no scheme, as s3:// is one")
    scheme, authority, path = parts["scheme"].lower(), parts["authority"], parts["path"]
    if scheme == "file":
        if authority.lower() not in {"", "localhost"}:
            raise malformed_error(url, "a file URL has three slashes, as in file:///data/a.nc")
        authority, path = "", _without_dot_segments(path)
    elif not authority and path:
        raise malformed_error(url, "it names no bucket or host")
    try:
        return Location(scheme, unquote(authority, errors="strict"), unquote(path, errors="strict"))
    except UnicodeDecodeError as error:
        raise malformed_error(url, "its percent-encoding is no UTF-8") from error


def malformed_error(url: str, problem: str) -> InvalidInputError:
    """Say what is wrong with a location."""
    return InvalidInputError(
        f"error parsing virtual ref URL {redact_url(url)!r}: {problem}",
        kind=ErrorKind.INVALID_VIRTUAL_REF,
    )


def _without_dot_segments(path: str) -> str:
    """Resolve ``.`` and ``..`` as URLs of files do, encoded ones and backslashes too.

    Only for files: the keys of an object store are no directories, and ``..`` is refused there.
    """
    kept: list[str] = []
    segments = path.replace("\\", "/").split("/")
    for number, segment in enumerate(segments):
        dots = segment.lower().replace("%2e", ".")
        if dots not in {".", ".."}:
            kept.append(segment)
            continue
        if dots == ".." and len(kept) > 1:
            kept.pop()
        if number == len(segments) - 1:
            kept.append("")  # what ends in a dot segment is a directory
    return "/".join(kept)


def _problem_with_path(location: Location) -> str | None:
    # Looked at after decoding: an encoded slash could have hidden a '..' from `_without_dot_…`.
    path = location.path
    if _UNUSABLE_CHARACTER.search(path):
        return "it holds a control character"
    segments = path.split("/")[1:]
    if not path or segments == [""]:
        return "it names no object"
    if any(segment in {"", ".", ".."} for segment in segments):
        return "an empty segment (//), '.' and '..' are no names of objects"
    # Files of this machine have the limits of the machine.
    if location.scheme != "file" and len(path.encode()) - 1 > MAX_KEY_BYTES:
        return f"its path has more than {MAX_KEY_BYTES} bytes"
    return None
