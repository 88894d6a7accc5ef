"""Typed, cached access to the immutable files of a repository."""

from icefloe.assets.assets import Assets, EncodedFile, fetch_file, fetch_file_if_changed

__all__ = ["Assets", "EncodedFile", "fetch_file", "fetch_file_if_changed"]
