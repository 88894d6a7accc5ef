"""`SourceFile`: the version of a file that chunk references are checked against."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from icefloe.model.chunk_payload import MAX_U32, Checksum, ETag, LastModified

if TYPE_CHECKING:
    from datetime import datetime

ChecksumChoice: TypeAlias = Literal["auto", "etag", "last-modified"] | None
"""Checksum stored with each reference, so that a modified file is detected on read."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A parsed file, with its size and version at parse time."""

    url: str
    size_bytes: int | None = None
    etag: str | None = None
    last_modified: datetime | None = None

    def checksum(self, choice: ChecksumChoice = "auto") -> Checksum | None:
        """Return the checksum for references to this file.

        ``auto`` is the ETag for objects and the modification time for local files, whose ETags
        differ between readers.
        """
        is_local = self.url.startswith("file:")
        is_strong = self.etag is not None and not self.etag.startswith("W/")
        if self.etag is not None and (
            choice == "etag" or (choice == "auto" and is_strong and not is_local)
        ):
            return ETag(self.etag)
        if choice is None or self.last_modified is None:
            return None
        # Rounded up: Icechunk compares with the file's full-precision modification time.
        seconds = math.ceil(self.last_modified.timestamp())
        # obstore reports 1970 for web servers that send no Last-Modified header.
        return LastModified(seconds) if 0 < seconds <= MAX_U32 else None
