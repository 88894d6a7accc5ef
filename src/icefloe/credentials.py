"""Credentials, under Icechunk's name for the module; see `icefloe.storage.credentials`."""

from icefloe.storage import credentials
from icefloe.storage.credentials import *  # noqa: F403

HttpAccess = credentials.Credentials.HttpAccess()
LocalFileSystemAccess = credentials.Credentials.LocalFileSystemAccess()

__all__ = ["HttpAccess", "LocalFileSystemAccess"]
__all__ += credentials.__all__
