"""What every test needs, and the loud word where something could not be tested."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from later_python import NoLaterPythonError, icechunk2_python

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def icechunk2() -> Path:
    """Return an interpreter that has Icechunk 2.x."""
    try:
        return icechunk2_python()
    except NoLaterPythonError as error:
        pytest.skip(f"ICECHUNK 2.x IS NOT TESTED ON THIS MACHINE: {error}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Repeat at the very end what the machine could not test."""
    reasons = {
        str(report.longrepr[2])
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple)
    }
    for reason in sorted(reason for reason in reasons if "NOT TESTED" in reason):
        terminalreporter.write_line(f"!!! {reason}", red=True, bold=True)
