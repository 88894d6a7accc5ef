"""`InvalidInputError` of the kinds that jobs raise for their arguments."""

from __future__ import annotations

from icefloe.errors import ErrorKind, InvalidInputError


def invalid_array(message: str) -> InvalidInputError:
    """Return an error about the metadata of an array, or a request that does not fit it."""
    return InvalidInputError(message, kind=ErrorKind.INVALID_ARRAY_METADATA)


def invalid_argument(message: str) -> InvalidInputError:
    """Return an error about an argument of a job."""
    return InvalidInputError(message, kind=ErrorKind.NOT_ALLOWED)


def invalid_setting(message: str) -> InvalidInputError:
    """Return an error about how or where a job runs or writes."""
    return InvalidInputError(message, kind=ErrorKind.STORAGE_CONFIG)
