"""Compatibility with Icechunk's Python package: its import name, logs, versions, async methods."""
