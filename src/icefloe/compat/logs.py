"""Icechunk's functions for its logs, as far as they mean something for Python's own.

Nothing is logged through Rust here: the logger is ``icefloe`` of the standard `logging`, and its
warnings are `warnings`. Importing icefloe configures neither.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Final

from icefloe.errors import ErrorKind, InvalidInputError

_LEVELS: Final = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL + 1,
}
_LOGGER: Final = logging.getLogger("icefloe")
_DEFAULT: Final = "warn"


def initialize_logs() -> None:
    """Print what the library logs, from the level that ``ICECHUNK_LOG`` names, to stderr.

    Where ``ICECHUNK_LOG_TO_STDOUT`` is set, to stdout.
    """
    stream = sys.stdout if os.environ.get("ICECHUNK_LOG_TO_STDOUT") else sys.stderr
    if not _LOGGER.handlers:
        _LOGGER.addHandler(logging.StreamHandler(stream))
    set_logs_filter(os.environ.get("ICECHUNK_LOG"))


def set_logs_filter(log_filter_directive: str | None) -> None:
    """Set from which level on something is logged.

    Parameters
    ----------
    log_filter_directive
        A level such as ``debug``, or Icechunk's ``icechunk=debug,other=off``, of which only what
        names ``icechunk`` or ``icefloe`` has a meaning here. None sets the default, ``warn``.
    """
    everywhere, ours = _LEVELS[_DEFAULT], None
    for directive in filter(None, (log_filter_directive or _DEFAULT).split(",")):
        target, has_target, name = directive.strip().rpartition("=")
        level = _LEVELS.get(name.lower())
        if level is None:
            raise InvalidInputError(
                f"{directive!r} is no filter of logs: write a level, one of {', '.join(_LEVELS)}, "
                "or icechunk=LEVEL",
                kind=ErrorKind.STORAGE_CONFIG,
            )
        if not has_target:
            everywhere = level
        elif target.partition("::")[0] in {"icechunk", "icefloe"}:
            ours = level
    _LOGGER.setLevel(everywhere if ours is None else ours)


def shutdown_telemetry() -> None:
    """Do nothing: nothing is sent anywhere. Icechunk ends its export of traces here."""
