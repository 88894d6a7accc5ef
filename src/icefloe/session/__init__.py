"""Sessions: one snapshot to read, or a transaction that becomes a commit."""

from icefloe.session.session import ForkSession, Session

__all__ = ["ForkSession", "Session"]
