"""icefloe: a transactional, versioned store for Zarr arrays, in the format of Icechunk.

Exports every public name of Icechunk. The first use of a name imports all of them; ``import
icefloe`` alone imports neither zarr nor numpy, so that the command line starts quickly.
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
    exports = vars(import_module("icefloe._exports"))
    if name == "__all__":
        return [*(export for export in exports if not export.startswith("_")), "__version__"]
    if name.startswith("_") or name not in exports:
        raise AttributeError(f"module 'icefloe' has no attribute {name!r}")
    return globals().setdefault(name, exports[name])


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__"), "virtual"})
