"""A set of paths that finds the children and descendants of a path."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.model.path import Path


class PathSet:
    """A set of paths.

    Adding or removing a path takes constant time if its parent has other descendants; a query takes
    time in proportion to its result.
    """

    __slots__ = ("_children", "_paths")

    def __init__(self) -> None:
        self._paths: dict[str, Path] = {}
        # For each path with descendants (the root is ""), the names directly below it.
        self._children: dict[str, dict[str, None]] = {}

    def add(self, path: Path) -> None:
        """Add a path."""
        key = _to_key(path)
        self._paths[key] = path
        while key:
            parent, _, name = key.rpartition("/")
            names = self._children.setdefault(parent, {})
            if name in names:  # then the parent is listed, too
                break
            names[name] = None
            key = parent

    def discard(self, path: Path) -> None:
        """Remove a path, if present."""
        key = _to_key(path)
        if self._paths.pop(key, None) is None:
            return
        while key and key not in self._paths and key not in self._children:
            parent, _, name = key.rpartition("/")
            names = self._children[parent]
            del names[name]
            if not names:
                del self._children[parent]
            key = parent

    def has_from(self, path: Path) -> bool:
        """Whether a path or a descendant of it is in the set."""
        key = _to_key(path)
        return key in self._paths or key in self._children

    def list_children(self, path: Path) -> set[str]:
        """Return the names directly below a path, of paths in the set and their ancestors."""
        return set(self._children.get(_to_key(path), ()))

    def iter_below(self, path: Path) -> Iterator[Path]:
        """Yield the descendants of a path, in no particular order."""
        pending = [_to_key(path)]
        while pending:
            parent = pending.pop()
            for name in self._children.get(parent, ()):
                key = f"{parent}/{name}"
                if key in self._paths:
                    yield self._paths[key]
                if key in self._children:
                    pending.append(key)

    def copy(self) -> PathSet:
        """Return an independent copy."""
        other = PathSet()
        other._paths = dict(self._paths)
        other._children = {key: dict(names) for key, names in self._children.items()}
        return other


def _to_key(path: Path) -> str:
    return "" if path.value == "/" else path.value
