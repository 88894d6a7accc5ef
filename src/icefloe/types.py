"""Public enumerations: kinds of chunks, sessions and commits, and spec versions."""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Literal, Never, TypeAlias

from icefloe.errors import ErrorKind, InvalidInputError

__all__ = ["ChunkType", "CommitMethod", "SessionMode", "SpecVersion"]

CommitMethod: TypeAlias = Literal["new_commit", "amend"]


class SpecVersion(IntEnum):
    """A spec version of the Icechunk format."""

    v1 = 1
    v2 = 2

    @staticmethod
    def current() -> SpecVersion:
        """Return the latest spec version."""
        return SpecVersion.v2

    @classmethod
    def _missing_(cls, value: object) -> Never:
        """Raise for an unknown spec version."""
        versions = " or ".join(str(int(version)) for version in cls)
        problem = (
            "Unsupported version" if isinstance(value, int) else "Couldn't parse a valid version:"
        )
        raise InvalidInputError(
            f"{problem} {value!r}: spec_version must be {versions}",
            kind=ErrorKind.UNSUPPORTED_SPEC_VERSION,
        )


class ChunkType(IntEnum):
    """Where a chunk is stored; ``uninitialized`` if it was never written."""

    uninitialized = 0
    native = 1
    virtual = 2
    inline = 3

    __str__ = Enum.__str__


class SessionMode(Enum):
    """What a session may do: read, read and write, or move nodes."""

    readonly = 0
    writable = 1
    rearrange = 2

    def __int__(self) -> int:
        return self.value
