"""Process-wide count of ref changes, by which a process notices that its cached refs are stale."""

from __future__ import annotations

_count = 0


def note() -> None:
    """Record that refs of some repository changed, or may have changed."""
    global _count  # noqa: PLW0603 - one number for the whole process
    _count += 1


def count() -> int:
    """Return the number of changes recorded so far."""
    return _count
