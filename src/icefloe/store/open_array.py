"""Opens the Zarr arrays of a store by node path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import zarr

if TYPE_CHECKING:
    from icefloe.store.zarr_store import IcechunkStore


def open_array(
    store: IcechunkStore, path: str, *, mode: Literal["r", "r+"] = "r"
) -> zarr.Array[Any]:
    """Open an existing array; ``path`` may start with a slash, as paths of nodes do."""
    return zarr.open_array(store, path=path.strip("/"), mode=mode, zarr_format=3)


class OpenArrays:
    """Writable arrays of a store, each opened once."""

    def __init__(self, store: IcechunkStore) -> None:
        self._store = store
        self._arrays: dict[str, zarr.Array[Any]] = {}

    def __call__(self, path: str) -> zarr.Array[Any]:
        """Return the array at a path."""
        if path not in self._arrays:
            self._arrays[path] = open_array(self._store, path, mode="r+")
        return self._arrays[path]
