"""The default spec version of new repositories.

Process-wide: 1, which every Icechunk release reads, until `install_as_icechunk` sets another.
"""

from __future__ import annotations

from icefloe.types import SpecVersion

_default = SpecVersion.v1


def get_default_spec_version() -> SpecVersion:
    """Return the spec version that `Repository.create` uses by default."""
    return _default


def set_default_spec_version(version: SpecVersion) -> None:
    """Set the spec version that `Repository.create` uses by default."""
    global _default  # noqa: PLW0603 - process-wide
    _default = version
