"""The immutable files of a repository: fetched, decoded, cached, encoded, written."""

from icefloe.assets.assets import Assets, EncodedFile, fetch_file

__all__ = ["Assets", "EncodedFile", "fetch_file"]
