"""The Zarr store of a session."""

from icefloe.store.zarr_store import IcechunkStore

__all__ = ["IcechunkStore"]
