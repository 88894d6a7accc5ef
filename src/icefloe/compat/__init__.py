"""Compatibility with Icechunk's Python API. Imports nothing above `types` and `errors`."""
