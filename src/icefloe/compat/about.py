"""Versions of the library and of the format."""

from __future__ import annotations

import platform
import sys
from importlib import metadata

from icefloe import __version__
from icefloe.types import SpecVersion

_PACKAGES = ("zarr", "numcodecs", "obstore", "numpy", "xarray", "dask", "virtualizarr")


def spec_version() -> SpecVersion:
    """Return the newest spec version."""
    return SpecVersion.current()


def supported_spec_versions() -> list[SpecVersion]:
    """Return the supported spec versions, newest first."""
    return sorted(SpecVersion, reverse=True)


def user_agent() -> str:
    """Return the name and version that icefloe writes to file headers; not the HTTP User-Agent."""
    return f"icefloe-{__version__}"


def print_debug_info() -> None:
    """Print the versions that a bug report should contain."""
    lines = [
        f"platform:  {platform.platform()}",
        f"python:  {platform.python_version()}",
        f"icefloe:  {__version__}",
    ]
    for package in _PACKAGES:
        try:
            lines.append(f"{package}:  {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    sys.stdout.write("\n".join(lines) + "\n")
