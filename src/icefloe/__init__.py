"""icefloe: a transactional, versioned store for Zarr arrays, in the format of Icechunk."""

__version__ = "0.1.0.dev0"
