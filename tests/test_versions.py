"""The environment of `make oldest` has the oldest versions that pyproject.toml allows."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import version

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from support import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RUN_TIME_EXTRAS = ("cli", "xarray", "dask", "virtual", "geotiff", "spark", "demo")
PINS = dict(
    re.findall(r"^([\w-]+)==([\w.]+)", (ROOT / "tests" / "oldest.txt").read_text(), re.MULTILINE)
)


def find_lower_bounds() -> dict[str, str]:
    """Return the lower bound of each package that users install."""
    extras = PROJECT["optional-dependencies"]
    lines = [*PROJECT["dependencies"], *(line for name in RUN_TIME_EXTRAS for line in extras[name])]
    requirements = [Requirement(line) for line in lines if not line.startswith("icefloe")]
    return {
        requirement.name: next(
            bound.version for bound in requirement.specifier if bound.operator == ">="
        )
        for requirement in requirements
    }


def test_pins_are_the_lower_bounds() -> None:
    """Each dependency is pinned to the first release that its lower bound allows."""
    pins = {canonicalize_name(name): pin for name, pin in PINS.items()}
    bounds = find_lower_bounds()
    for name, bound in bounds.items():
        pin = pins.pop(canonicalize_name(name))
        assert Version(pin).release[: len(Version(bound).release)] == Version(bound).release
    assert set(pins) == {"distributed", "icechunk"}


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="not the oldest Python")
def test_the_oldest_versions_are_installed() -> None:
    """The environment of `make oldest` has the pinned versions."""
    if ".venv-oldest" not in sys.prefix:
        pytest.skip("not the environment of make oldest")
    assert {name: version(name) for name in PINS} == PINS
