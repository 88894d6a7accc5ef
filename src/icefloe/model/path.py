"""The place of a node in the hierarchy (seed `000`, Path).

A path is absolute and normalised: ``/`` or ``/a/b``, no empty, ``.`` or ``..`` segments, no slash
at the end. Paths are ordered by their raw UTF-8 bytes, which is the order of Python's strings,
because UTF-8 keeps the order of code points.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from icefloe.errors import ErrorKind, InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, order=True, slots=True)
class Path:
    """The absolute, normalised path of a group or an array."""

    value: str

    def __post_init__(self) -> None:
        value = self.value
        # Nearly every path passes here; the rest may still be fine, such as "/.hidden".
        looks_plain = value.isascii() and value[:1] == "/" and value[-1] != "/"
        if looks_plain and "/." not in value and "//" not in value:
            return
        problem = _problem(value)
        if problem is not None:
            raise InvalidInputError(
                f"{self.value!r} is not a path of a node: {problem}; write it like '/group/array'",
                kind=ErrorKind.INVALID_PATH,
            )

    @property
    def is_root(self) -> bool:
        """Whether this is ``/``."""
        return self.value == "/"

    @property
    def name(self) -> str:
        """The last segment; empty for the root."""
        return self.value.rpartition("/")[2]

    @property
    def parent(self) -> Path | None:
        """The path of the group above, or None for the root."""
        if self.is_root:
            return None
        return Path(self.value.rpartition("/")[0] or "/")

    @property
    def segments(self) -> tuple[str, ...]:
        """The names from the root down; empty for the root."""
        return () if self.is_root else tuple(self.value[1:].split("/"))

    def ancestors(self) -> Iterator[Path]:
        """Yield the paths of all groups above, nearest first, the root last."""
        above = self.parent
        while above is not None:
            yield above
            above = above.parent

    def child(self, name: str) -> Path:
        """Return the path of the node called ``name`` below this one."""
        return Path(f"/{name}" if self.is_root else f"{self.value}/{name}")

    def is_below(self, other: Path) -> bool:
        """Whether ``other`` is an ancestor of this path."""
        prefix = "/" if other.is_root else other.value + "/"
        return self != other and self.value.startswith(prefix)

    def __str__(self) -> str:
        return self.value


def _problem(value: str) -> str | None:
    if not value.startswith("/"):
        return "it does not start with '/'"
    if value == "/":
        return None
    try:
        value.encode()
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    segments = value[1:].split("/")
    if "" in segments:
        return "it has an empty segment or a slash at the end"
    if "." in segments or ".." in segments:
        return "it has a '.' or '..' segment"
    return None


ROOT = Path("/")
