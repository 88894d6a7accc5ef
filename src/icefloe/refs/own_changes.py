"""How often this process changed references: what it read before may be old news to itself."""

from __future__ import annotations

_count = 0


def note() -> None:
    """Say that references of some repository changed, or may have."""
    global _count  # noqa: PLW0603 - one number for the whole process
    _count += 1


def count() -> int:
    """Return a number that differs from all earlier answers if something was noted since."""
    return _count
