"""Icechunk's functions for logs set the level of Python's logger."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

import icefloe

if TYPE_CHECKING:
    from collections.abc import Iterator

LOGGER = logging.getLogger("icefloe")


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    level, handlers = LOGGER.level, list(LOGGER.handlers)
    yield
    LOGGER.setLevel(level)
    LOGGER.handlers[:] = handlers


@pytest.mark.parametrize(
    "directive, level",
    [
        (None, logging.WARNING),
        ("debug", logging.DEBUG),
        ("icechunk=debug,info", logging.DEBUG),
        ("info,icechunk::store=error,hyper=off", logging.ERROR),
        ("hyper=debug", logging.WARNING),
        ("off", logging.CRITICAL + 1),
    ],
)
def test_a_filter_sets_the_level(directive: str | None, level: int) -> None:
    """What names Icechunk counts for icefloe, what names others does not."""
    icefloe.set_logs_filter(directive)
    assert LOGGER.level == level


def test_a_filter_that_is_none_is_refused() -> None:
    """With the levels that there are."""
    with pytest.raises(icefloe.InvalidInputError, match="one of trace, debug"):
        icefloe.set_logs_filter("loud")


def test_initialize_logs_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing configured nothing; this does, once."""
    assert LOGGER.handlers == []
    monkeypatch.setenv("ICECHUNK_LOG", "error")
    icefloe.initialize_logs()
    icefloe.initialize_logs()
    assert LOGGER.level == logging.ERROR
    assert len(LOGGER.handlers) == 1
    icefloe.shutdown_telemetry()
