"""Programs that were written for Icechunk run on icefloe: ``import icechunk`` finds it here.

Classes are icefloe's own under both names, so that ``isinstance`` and pickles do not care which
one was used. Nothing is installed anywhere: what this does ends with the process.
"""

from __future__ import annotations

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from typing import TYPE_CHECKING, Any, Final

from icefloe import repository
from icefloe.errors import ErrorKind, SessionStateError
from icefloe.types import SpecVersion

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from os import PathLike
    from types import ModuleType

__all__ = ["install_as_icechunk", "uninstall_as_icechunk"]

ICECHUNK_VERSION: Final = "2.3.0"
"""The release of Icechunk whose Python API this is: what programs that ask are told."""

_MODULES: Final = frozenset(
    {
        "config",
        "conflicts",
        "credentials",
        "dask",
        "distributed",
        "ops",
        "repository",
        "session",
        "snapshots",
        "storage",
        "store",
        "types",
        "virtual",
        "xarray",
    }
)
_COMPILED: Final = "_icechunk_python"
"""Icechunk's module in Rust; some of its classes, programs can import from nowhere else."""


def install_as_icechunk(spec_version: SpecVersion | int = SpecVersion.v2) -> None:
    """Let ``import icechunk`` in this process find icefloe; a second time changes nothing.

    Call it before anything imports ``icechunk``, in worker processes as well if code there does.

    Parameters
    ----------
    spec_version
        The version of the format that `Repository.create` makes where none is given: 2, as
        Icechunk's present releases do.

    Raises
    ------
    InvalidInputError
        If there is no such version.
    SessionStateError
        If the real Icechunk is imported already.
    """
    version = SpecVersion(spec_version)
    present = sys.modules.get("icechunk")
    if present is not None and not isinstance(_loader(present), _IcechunkFinder):
        raise SessionStateError(
            f"icechunk {getattr(present, '__version__', '')} is imported already, from "
            f"{getattr(present, '__file__', None)}: call install_as_icechunk() before anything "
            "imports icechunk",
            kind=ErrorKind.NOT_ALLOWED,
        )
    if not any(isinstance(finder, _IcechunkFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _IcechunkFinder())
        importlib.invalidate_caches()
    repository.default_spec_version = version


def uninstall_as_icechunk() -> None:
    """Take `install_as_icechunk` back; what was imported by then stays with who imported it."""
    installed = [finder for finder in sys.meta_path if isinstance(finder, _IcechunkFinder)]
    if not installed:
        return
    for finder in installed:
        sys.meta_path.remove(finder)
    for name in [name for name in sys.modules if name.split(".")[0] == "icechunk"]:
        del sys.modules[name]
    repository.default_spec_version = SpecVersion.v1


def _loader(module: ModuleType) -> object:
    return getattr(module.__spec__, "loader", None)


class _IcechunkDistribution(Distribution):
    """What ``importlib.metadata`` tells of the package."""

    def read_text(self, filename: str) -> str | None:
        if filename != "METADATA":
            return None
        return f"Metadata-Version: 2.1\nName: icechunk\nVersion: {ICECHUNK_VERSION}\n"

    def locate_file(self, path: str | PathLike[str]) -> Any:
        raise FileNotFoundError(path)


class _IcechunkFinder(MetaPathFinder, Loader):
    """Finds ``icechunk`` and its modules before anybody who has the real ones."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 - of the protocol
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        if package != "icechunk" or (name and name not in {*_MODULES, _COMPILED}):
            return None
        return ModuleSpec(fullname, self, is_package=not name)

    def exec_module(self, module: ModuleType) -> None:
        _, _, name = module.__name__.partition(".")
        if name == _COMPILED:
            icefloe = importlib.import_module("icefloe")
            module.__dict__.update(__getattr__=_get_public, __dir__=lambda: dir(icefloe))
        elif name:
            # The import system takes what stands here afterwards, and leaves it as it is.
            sys.modules[module.__name__] = importlib.import_module(f"icefloe.{name}")
        else:
            icefloe = importlib.import_module("icefloe")
            module.__doc__ = icefloe.__doc__
            module.__dict__.update(
                __version__=ICECHUNK_VERSION,
                __all__=[*getattr(icefloe, "__all__", ())],
                __getattr__=_get_public,
                __dir__=lambda: dir(icefloe),
            )

    def find_distributions(
        self, context: DistributionFinder.Context
    ) -> Iterator[_IcechunkDistribution]:
        if context.name == "icechunk":
            yield _IcechunkDistribution()


def _get_public(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"icechunk.{name}")
    try:
        return getattr(importlib.import_module("icefloe"), name)
    except AttributeError:
        raise AttributeError(f"icefloe has no {name!r}, which was asked of icechunk") from None
