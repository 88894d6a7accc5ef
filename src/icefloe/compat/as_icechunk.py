"""``import icechunk`` as icefloe, for programs that were written for Icechunk.

Both names refer to the same classes, so that ``isinstance`` and pickles work with either. Only the
import system of the process changes; no files do.
"""

from __future__ import annotations

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from typing import TYPE_CHECKING, Any, Final

from icefloe import errors
from icefloe.compat.default_version import set_default_spec_version
from icefloe.errors import ErrorKind, SessionStateError
from icefloe.types import SpecVersion

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from os import PathLike
    from types import ModuleType

__all__ = ["install_as_icechunk", "uninstall_as_icechunk"]

ICECHUNK_VERSION: Final = "2.3.0"
"""Icechunk release whose Python API icefloe implements; reported as the version of icechunk."""

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
"""Icechunk's compiled module, which programs import for classes that are not exported elsewhere."""


def install_as_icechunk(spec_version: SpecVersion | int = SpecVersion.v2) -> None:
    """Make ``import icechunk`` import icefloe in this process. Idempotent.

    Tracebacks show Icechunk's names of error classes.

    Call it before anything imports ``icechunk``, also in worker processes.

    Parameters
    ----------
    spec_version
        Default spec version of new repositories; that of Icechunk 2 is 2.

    Raises
    ------
    InvalidInputError
        If the version is not supported.
    SessionStateError
        If Icechunk itself is already imported.
    """
    version = SpecVersion(spec_version)
    imported = sys.modules.get("icechunk")
    if imported is not None and not isinstance(_get_loader(imported), _IcechunkFinder):
        raise SessionStateError(
            f"icechunk {getattr(imported, '__version__', '')} is already imported, from "
            f"{getattr(imported, '__file__', None)}: call install_as_icechunk() before anything "
            "imports icechunk",
            kind=ErrorKind.NOT_ALLOWED,
        )
    if not any(isinstance(finder, _IcechunkFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _IcechunkFinder())
        importlib.invalidate_caches()
    set_default_spec_version(version)
    _name_errors("icechunk", "IcechunkError")


def uninstall_as_icechunk() -> None:
    """Undo `install_as_icechunk`; modules that imported ``icechunk`` are unaffected."""
    finders = [finder for finder in sys.meta_path if isinstance(finder, _IcechunkFinder)]
    if not finders:
        return
    for finder in finders:
        sys.meta_path.remove(finder)
    for name in [name for name in sys.modules if name.split(".")[0] == "icechunk"]:
        del sys.modules[name]
    set_default_spec_version(SpecVersion.v1)
    _name_errors(errors.__name__, "IcefloeError")


def _name_errors(module: str, base_name: str) -> None:
    """Set the names of the public error classes that tracebacks show."""
    package = sys.modules["icefloe"]
    for name, value in vars(errors).items():
        is_error = isinstance(value, type) and issubclass(value, errors.IcefloeError)
        if is_error and hasattr(package, name):
            value.__module__ = module
    errors.IcefloeError.__name__ = errors.IcefloeError.__qualname__ = base_name


def _get_loader(module: ModuleType) -> object:
    return getattr(module.__spec__, "loader", None)


class _IcechunkDistribution(Distribution):
    """The metadata that ``importlib.metadata`` returns for ``icechunk``."""

    def read_text(self, filename: str) -> str | None:
        if filename != "METADATA":
            return None
        return f"Metadata-Version: 2.1\nName: icechunk\nVersion: {ICECHUNK_VERSION}\n"

    def locate_file(self, path: str | PathLike[str]) -> Any:
        raise FileNotFoundError(path)


class _IcechunkFinder(MetaPathFinder, Loader):
    """Finds ``icechunk`` and its modules ahead of the other finders."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 - required by the protocol
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
            module.__dict__.update(__getattr__=_get_public_name, __dir__=lambda: dir(icefloe))
        elif name:
            # The import system returns the module that is in `sys.modules` afterwards.
            sys.modules[module.__name__] = importlib.import_module(f"icefloe.{name}")
        else:
            icefloe = importlib.import_module("icefloe")
            module.__doc__ = icefloe.__doc__
            module.__dict__.update(
                __version__=ICECHUNK_VERSION,
                __all__=[*getattr(icefloe, "__all__", ())],
                __getattr__=_get_public_name,
                __dir__=lambda: dir(icefloe),
            )

    def find_distributions(
        self, context: DistributionFinder.Context
    ) -> Iterator[_IcechunkDistribution]:
        if context.name == "icechunk":
            yield _IcechunkDistribution()


def _get_public_name(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"icechunk.{name}")
    try:
        return getattr(importlib.import_module("icefloe"), name)
    except AttributeError:
        raise AttributeError(f"icefloe, imported as icechunk, has no {name!r}") from None
