"""Sessions: transactions on a repository."""

from icefloe.session.session import ForkSession, Session
from icefloe.types import SessionMode

__all__ = ["ForkSession", "Session", "SessionMode"]
