"""Compatibility with Icechunk's Python API: import name, logs, versions, ``*_async`` methods."""
