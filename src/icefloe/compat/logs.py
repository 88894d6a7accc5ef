"""Icechunk's logging functions, which configure the logger ``icefloe`` of the standard library.

Modules log to ``icefloe.<module>``. The library is silent by default; ``import icefloe``
calls `initialize_logs` if ``ICEFLOE_LOG`` or ``ICECHUNK_LOG`` is set. Messages contain no
secrets: the URL of a storage has no credentials.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
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
_DEFAULT_LEVEL: Final = "warn"
_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def initialize_logs() -> None:
    """Write log messages to stderr, or to stdout if ``ICECHUNK_LOG_TO_STDOUT`` is set.

    The filter is the value of ``ICEFLOE_LOG``, else of ``ICECHUNK_LOG``; see `set_logs_filter`. An
    invalid filter is ignored with a warning.
    """
    if not any(isinstance(handler, logging.StreamHandler) for handler in _LOGGER.handlers):
        handler = logging.StreamHandler(
            sys.stdout if os.environ.get("ICECHUNK_LOG_TO_STDOUT") else sys.stderr
        )
        handler.setFormatter(logging.Formatter(_FORMAT))
        _LOGGER.addHandler(handler)
    try:
        set_logs_filter(os.environ.get("ICEFLOE_LOG") or os.environ.get("ICECHUNK_LOG"))
    except InvalidInputError as error:
        warnings.warn(error.message, RuntimeWarning, stacklevel=2)
        set_logs_filter(None)


def set_logs_filter(log_filter_directive: str | None) -> None:
    """Set the level of the ``icefloe`` logger.

    Parameters
    ----------
    log_filter_directive
        A level such as ``debug``, or a list such as ``warn,icechunk=debug,other=off``. Entries for
        ``icechunk`` and ``icefloe`` take precedence over a level without a target; other targets
        are ignored. None sets the default, ``warn``.
    """
    default_level, own_level = _LEVELS[_DEFAULT_LEVEL], None
    for directive in filter(None, (log_filter_directive or _DEFAULT_LEVEL).split(",")):
        target, separator, level_name = directive.strip().rpartition("=")
        level = _LEVELS.get(level_name.lower())
        if level is None:
            raise InvalidInputError(
                f"invalid log filter {directive!r}: expected LEVEL or icechunk=LEVEL; levels: "
                f"{', '.join(_LEVELS)}",
                kind=ErrorKind.STORAGE_CONFIG,
            )
        if not separator:
            default_level = level
        elif target.partition("::")[0] in {"icechunk", "icefloe"}:
            own_level = level
    _LOGGER.setLevel(default_level if own_level is None else own_level)


def shutdown_telemetry() -> None:
    """Do nothing: in Icechunk this function stops the export of traces; icefloe exports none."""
