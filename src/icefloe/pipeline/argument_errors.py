"""Makes the `InvalidInputError` that jobs raise for their arguments."""

from __future__ import annotations

from icefloe.errors import ErrorKind, InvalidInputError


def array_error(message: str) -> InvalidInputError:
    """Make an error about array metadata, or an argument that does not fit the array."""
    return InvalidInputError(message, kind=ErrorKind.INVALID_ARRAY_METADATA)


def argument_error(message: str) -> InvalidInputError:
    """Make an error about an argument of a job."""
    return InvalidInputError(message, kind=ErrorKind.NOT_ALLOWED)


def setting_error(message: str) -> InvalidInputError:
    """Make an error about an option of a run, or about a target."""
    return InvalidInputError(message, kind=ErrorKind.STORAGE_CONFIG)
