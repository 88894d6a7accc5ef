"""The spec version of new repositories where the caller names none.

A value of the process: version 1, which every release of Icechunk opens, until
`install_as_icechunk` sets the default of the Icechunk release that it stands in for.
"""

from __future__ import annotations

from icefloe.types import SpecVersion

_default = SpecVersion.v1


def get_default_spec_version() -> SpecVersion:
    """Return the spec version that `Repository.create` uses by default."""
    return _default


def set_default_spec_version(version: SpecVersion) -> None:
    """Set the spec version that `Repository.create` uses by default."""
    global _default  # noqa: PLW0603 - the one place that holds it
    _default = version
