"""Icechunk's logging functions, which configure the logger ``icefloe`` of the standard library.

Modules log to ``icefloe.<module>``. The library is silent by default; ``import icefloe``
calls `initialize_logs` if ``ICEFLOE_LOG`` or ``ICECHUNK_LOG`` is set. Messages contain no
secrets: the URL of a storage has no credentials.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Final, TextIO

_OFF: Final = logging.CRITICAL + 1
_LEVELS: Final = {
    "0": _OFF,
    "1": logging.ERROR,
    "2": logging.WARNING,
    "3": logging.INFO,
    "4": logging.DEBUG,
    "5": logging.DEBUG,
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "off": _OFF,
}
_LOGGER: Final = logging.getLogger("icefloe")
_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_TARGETS: Final = frozenset({"icechunk", "icefloe"})


class _OutputHandler(logging.StreamHandler[TextIO]):
    """Writes to the present ``sys.stderr`` or, if ``ICECHUNK_LOG_TO_STDOUT`` is set, stdout."""

    @property
    def stream(self) -> TextIO:
        """The stream at the time of the message."""
        return sys.stdout if os.environ.get("ICECHUNK_LOG_TO_STDOUT") else sys.stderr

    @stream.setter
    def stream(self, value: TextIO) -> None:
        """Ignore the stream that the base class sets."""


def initialize_logs() -> None:
    """Write log messages to stderr, or to stdout if ``ICECHUNK_LOG_TO_STDOUT`` is set.

    The filter is the value of ``ICEFLOE_LOG``, else of ``ICECHUNK_LOG``; see `set_logs_filter`.
    """
    set_logs_filter(None)


def set_logs_filter(log_filter_directive: str | None) -> None:
    """Set the level of the ``icefloe`` logger, and write its messages like `initialize_logs`.

    Parameters
    ----------
    log_filter_directive
        A level such as ``debug`` or ``4``, or a list such as ``warn,icechunk=debug,other=off``.
        Entries for ``icechunk`` and ``icefloe`` take precedence over a level without a target; a
        target without a level means all messages; other targets and unknown levels are ignored.
        None means ``ICEFLOE_LOG``, else ``ICECHUNK_LOG``, else ``warn``.
    """
    if log_filter_directive is None:
        log_filter_directive = os.environ.get("ICEFLOE_LOG") or os.environ.get("ICECHUNK_LOG")
    default_level, own_level = logging.WARNING, None
    for directive in (log_filter_directive or "").split(","):
        _warn_of_misspelling(directive.strip())
        target, separator, level_name = directive.strip().rpartition("=")
        level = _LEVELS.get(level_name.lower())
        if level is None:
            if separator:
                continue  # an unknown level
            target, level = level_name, logging.DEBUG
        elif not separator:
            default_level = level
        if target.partition("::")[0] in _TARGETS:
            own_level = level
    if not any(isinstance(handler, _OutputHandler) for handler in _LOGGER.handlers):
        handler = _OutputHandler()
        handler.setFormatter(logging.Formatter(_FORMAT))
        _LOGGER.addHandler(handler)
    _LOGGER.setLevel(default_level if own_level is None else own_level)


def shutdown_telemetry() -> None:
    """Do nothing: in Icechunk this function stops the export of traces; icefloe exports none."""


def _warn_of_misspelling(directive: str) -> None:
    """Print a warning, as Icechunk does, if a target looks like a misspelt ``icechunk``."""
    target = directive.replace("=", ":").partition(":")[0]
    if len(target) >= 6 and 0 < _count_edits("icechunk", target) <= 2:
        printable = "".join(filter(str.isprintable, target))
        sys.stderr.write(
            f"WARNING: Did you mean 'icechunk' instead of '{printable}' in log filter?\n"
        )


def _count_edits(first: str, second: str) -> int:
    """Return the number of insertions, deletions and replacements between two texts."""
    row = list(range(len(second) + 1))
    for i, left in enumerate(first, 1):
        above = row
        row = [i]
        for j, right in enumerate(second, 1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (left != right)))
    return row[-1]
