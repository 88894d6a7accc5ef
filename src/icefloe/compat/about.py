"""What this library is: its name towards servers, its versions, the formats that it knows."""

from __future__ import annotations

import platform
import sys
from importlib import metadata

from icefloe import __version__
from icefloe.types import SpecVersion

_PACKAGES = ("zarr", "numcodecs", "obstore", "numpy", "xarray", "dask", "virtualizarr")


def spec_version() -> SpecVersion:
    """Return the newest version of the format that can be written."""
    return SpecVersion.current()


def supported_spec_versions() -> list[SpecVersion]:
    """Return the versions of the format that can be read and written, newest first."""
    return sorted(SpecVersion, reverse=True)


def user_agent() -> str:
    """Return the name of this library and its version."""
    return f"icefloe-{__version__}"


def print_debug_info() -> None:
    """Print what a report of a bug should say of the machine and the packages."""
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
