"""icefloe: a transactional, versioned store for Zarr arrays, in the format of Icechunk.

Exports every public name of Icechunk. The first use of a name imports all of them, but not zarr,
which the first store imports. ``import icefloe`` alone does not import numpy either, so that the
command line starts quickly.
"""

from __future__ import annotations

import logging
import os
from importlib import import_module
from importlib.util import find_spec

__version__ = "0.1.0.dev0"

TYPE_CHECKING = False  # as in typing, which is slower to import than this module
if TYPE_CHECKING:
    from typing import Any

    from icefloe._exports import *  # noqa: F403
    from icefloe.compat.about import print_debug_info as print_debug_info
    from icefloe.compat.about import spec_version as spec_version
    from icefloe.compat.about import supported_spec_versions as supported_spec_versions
    from icefloe.compat.about import user_agent as user_agent
    from icefloe.compat.as_icechunk import install_as_icechunk as install_as_icechunk
    from icefloe.store import IcechunkStore as IcechunkStore

# Names that are imported one by one: their modules import zarr or `importlib.metadata`, which take
# as long as all others.
_SEPARATE = {
    "IcechunkStore": "icefloe.store",
    "install_as_icechunk": "icefloe.compat.as_icechunk",
    "print_debug_info": "icefloe.compat.about",
    "spec_version": "icefloe.compat.about",
    "supported_spec_versions": "icefloe.compat.about",
    "user_agent": "icefloe.compat.about",
}

# Silent unless the application, ICEFLOE_LOG or ICECHUNK_LOG configures logging.
logging.getLogger(__name__).addHandler(logging.NullHandler())
if os.environ.get("ICEFLOE_LOG") or os.environ.get("ICECHUNK_LOG"):
    from icefloe.compat.logs import initialize_logs

    initialize_logs()


def __getattr__(name: str) -> Any:
    # Submodules come first: ``from icefloe import display`` inside the package also calls this
    # function, and loading the exports would import the calling module again.
    if not name.startswith("_") and find_spec(f"{__name__}.{name}") is not None:
        try:
            return import_module(f"{__name__}.{name}")
        except ImportError as error:
            if name not in {"dask", "xarray"}:
                raise
            raise AttributeError(f"{error}: pip install 'icefloe[{name}]'") from error
    if name in _SEPARATE:
        return globals().setdefault(name, getattr(import_module(_SEPARATE[name]), name))
    exports = vars(import_module("icefloe._exports"))
    if name == "__all__":
        names = (export for export in exports if not export.startswith("_"))
        return [*names, *_SEPARATE, "__version__"]
    if name.startswith("_") or name not in exports:
        raise AttributeError(f"module 'icefloe' has no attribute {name!r}")
    return globals().setdefault(name, exports[name])


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__"), "virtual"})
