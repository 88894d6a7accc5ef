"""The Zarr store of a session; its first use imports zarr, which is slow."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from icefloe.store.zarr_store import IcechunkStore

__all__ = ["IcechunkStore"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("icefloe.store.zarr_store"), name)
