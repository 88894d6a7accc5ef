"""Pytest plugin that runs Icechunk's test suite with icefloe in Icechunk's place.

Icechunk's own test helpers, the package ``icechunk.testing``, come from the installed wheel.
"""

from __future__ import annotations

from importlib.metadata import distribution

from icefloe.compat.as_icechunk import install_as_icechunk

_wheel = str(distribution("icechunk").locate_file("icechunk"))
install_as_icechunk()

import icechunk  # noqa: E402 - icefloe

icechunk.__path__.append(_wheel)
