"""Paths of nodes.

A path is absolute and normalized: ``/`` or ``/a/b``, without empty, ``.`` or ``..`` segments and
without a trailing slash. Paths are ordered like Python strings, which is the order of their UTF-8.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from icefloe.errors import ErrorKind, InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, order=True, slots=True)
class Path:
    """The absolute, normalized path of a group or array."""

    value: str

    def __post_init__(self) -> None:
        value = self.value
        # Accepts most valid paths quickly; others, such as "/.hidden", need the full check.
        looks_plain = value.isascii() and value[:1] == "/" and value[-1] != "/"
        if looks_plain and "/." not in value and "//" not in value:
            return
        problem = _find_problem(value)
        if problem is not None:
            raise InvalidInputError(
                f"{value!r} is not a valid path, such as '/group/array': {problem}",
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
        """The path of the parent group, or None for the root."""
        if self.is_root:
            return None
        return Path(self.value.rpartition("/")[0] or "/")

    @property
    def segments(self) -> tuple[str, ...]:
        """The names from the root to this node; empty for the root."""
        return () if self.is_root else tuple(self.value[1:].split("/"))

    def ancestors(self) -> Iterator[Path]:
        """Yield the paths of all ancestors, from the parent to the root."""
        ancestor = self.parent
        while ancestor is not None:
            yield ancestor
            ancestor = ancestor.parent

    def child(self, name: str) -> Path:
        """Return the path of a child."""
        return Path(f"/{name}" if self.is_root else f"{self.value}/{name}")

    def is_below(self, other: Path) -> bool:
        """Whether ``other`` is an ancestor of this path."""
        prefix = "/" if other.is_root else other.value + "/"
        return self != other and self.value.startswith(prefix)

    def __str__(self) -> str:
        return self.value


def _find_problem(value: str) -> str | None:
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
        return "it has an empty segment or a trailing slash"
    if "." in segments or ".." in segments:
        return "it has a '.' or '..' segment"
    return None


ROOT = Path("/")
