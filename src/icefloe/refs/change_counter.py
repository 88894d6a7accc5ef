"""Process-wide counter of ref changes, which invalidates cached refs."""

from __future__ import annotations

_count = 0


def increment() -> None:
    """Count a change, or a possible change, of the refs of any repository."""
    global _count  # noqa: PLW0603 - one counter per process
    _count += 1


def get_count() -> int:
    """Return the number of changes so far."""
    return _count
