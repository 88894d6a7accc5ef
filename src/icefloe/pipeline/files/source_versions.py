"""Versions of source files: what tells whether a file changed since it was added to a group.

A version is the size of a file with its ETag, or with its modification time if it is local or its
server sends no ETag. The version of a directory, such as a Zarr store, covers all files in it.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from icefloe.virtual.sources import Sources

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.session import Session
    from icefloe.storage.interface import ObjectInfo
    from icefloe.virtual.sources import OpenSource, SourceFile

_REQUESTS: Final = 32
"""Concurrent requests for versions."""

_DIGEST_BYTES: Final = 4
"""ETags do not compress: a group with 100,000 files would store megabytes of them."""


@dataclass(frozen=True, slots=True)
class SourceVersion:
    """The size of a file, and a tag that changes with its content.

    The tag is a modification time in microseconds, a digest that begins with ``#``, or empty if
    the server sends neither an ETag nor a modification time.
    """

    size_bytes: int
    tag: str

    @classmethod
    def of_file(cls, file: SourceFile) -> SourceVersion:
        """Return the version of a file."""
        return cls(file.size_bytes or 0, _make_tag(file.etag, file.last_modified))

    @classmethod
    def of_object(cls, info: ObjectInfo) -> SourceVersion:
        """Return the version of an object in a listing of an object store."""
        return cls(info.size_bytes, _make_tag(info.version.etag, info.last_modified))

    @classmethod
    def of_directory(cls, versions: Mapping[str, SourceVersion]) -> SourceVersion:
        """Return the version of a directory from the versions of its files by relative name."""
        lines = [
            f"{name}\t{version.size_bytes}\t{version.tag}" for name, version in versions.items()
        ]
        size = sum(version.size_bytes for version in versions.values())
        return cls(size, _compute_digest("\n".join(sorted(lines))))

    def describe_change(self, new: SourceVersion) -> str:
        """Describe how ``new`` differs, for messages."""
        old_time, new_time = _parse_time(self.tag), _parse_time(new.tag)
        if self.size_bytes != new.size_bytes:
            return f"had {self.size_bytes:,} bytes, now has {new.size_bytes:,}"
        if old_time is not None and new_time is not None:
            return f"was modified at {_format_time(new_time)}, before at {_format_time(old_time)}"
        return "has another ETag, or another modification time"


def fetch_versions(
    known: Mapping[str, SourceVersion | None], session: Session
) -> dict[str, SourceVersion | None]:
    """Return the versions of all files; fetch those that are None.

    The result is None for a file that does not exist.
    """
    opener = Sources.of(session.connection.virtual)
    missing = [url for url, version in known.items() if version is None]
    with ThreadPoolExecutor(_REQUESTS) as pool:
        fetched = pool.map(lambda url: fetch_version(opener.open(url)), missing)
        return {**known, **dict(zip(missing, fetched, strict=True))}


def fetch_version(source: OpenSource) -> SourceVersion | None:
    """Fetch the version of a file or directory; None if it does not exist."""
    info = source.fetch_info()
    if info is not None:
        return SourceVersion.of_file(info)
    is_local = source.path is not None
    versions = {
        name: SourceVersion(item.size_bytes, _make_tag(None, item.last_modified))
        if is_local
        else SourceVersion.of_object(item)
        for name, item in source.list_tree()
    }
    return SourceVersion.of_directory(versions) if versions else None


def _make_tag(etag: str | None, last_modified: datetime | None) -> str:
    if etag is not None:
        # Listings and other requests may differ in the quotes.
        return _compute_digest(etag.removeprefix("W/").strip('"'))
    # obstore reports 1970 for web servers that send no Last-Modified header.
    seconds = 0.0 if last_modified is None else last_modified.timestamp()
    return str(round(seconds * 1e6)) if seconds > 0 else ""


def _compute_digest(text: str) -> str:
    return f"#{hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()}"


def _parse_time(tag: str) -> datetime | None:
    return datetime.fromtimestamp(int(tag) / 1e6, UTC) if tag.isdecimal() else None


def _format_time(time: datetime) -> str:
    return time.isoformat(" ", "milliseconds").removesuffix("+00:00")
