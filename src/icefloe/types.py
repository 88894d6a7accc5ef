"""Small public types: kinds of chunks, sessions and commits, and versions of the format."""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Literal, Never, TypeAlias

from icefloe.errors import ErrorKind, InvalidInputError

__all__ = ["ChunkType", "CommitMethod", "SessionMode", "SpecVersion"]

CommitMethod: TypeAlias = Literal["new_commit", "amend"]


class SpecVersion(IntEnum):
    """A version of the format on disk."""

    v1 = 1
    v2 = 2

    @staticmethod
    def current() -> SpecVersion:
        """Return the newest version."""
        return SpecVersion.v2

    @classmethod
    def _missing_(cls, value: object) -> Never:
        """Refuse what is no version."""
        known = " or ".join(str(int(one)) for one in cls)
        raise InvalidInputError(
            f"spec_version is {known}, not {value!r}", kind=ErrorKind.UNSUPPORTED_SPEC_VERSION
        )


class ChunkType(Enum):
    """Where the bytes of a chunk are."""

    uninitialized = 0
    native = 1
    virtual = 2
    inline = 3


class SessionMode(Enum):
    """What a session may do: nothing but read, write, or move nodes."""

    readonly = 0
    writable = 1
    rearrange = 2
