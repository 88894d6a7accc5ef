"""Translation of obstore's errors, with secrets removed."""

from __future__ import annotations

import re
from typing import Final

from obstore import exceptions

from icefloe.errors import (
    AbsentOrDeniedError,
    ErrorKind,
    IcefloeError,
    ObjectNotFoundError,
    PermissionDeniedError,
    PreconditionFailedError,
    StorageError,
)
from icefloe.storage.conditional_put import (
    ConditionRejectedError,
    RequestNotProcessedError,
    ResponseLostError,
)
from icefloe.storage.urls import redact_urls

_STATUS: Final = re.compile(r"status code: (\d{3})")

_WRONG_CREDENTIALS: Final = re.compile(
    "InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|InvalidToken|RequestTimeTooSkewed"
)
"""Codes of responses that say nothing about the object."""

_OBSTORE_ERRORS: Final = (exceptions.BaseError, OSError, ValueError, TypeError)
"""Everything that obstore raises; a missing object is a `FileNotFoundError`."""

_PANICS: Final = frozenset({"PanicException", "RustPanic"})
"""Classes of panics in functions and coroutines, which cannot be imported."""


class RangeUnsatisfiableError(StorageError):
    """The range starts at or after the end of the object."""


class RangeIgnoredError(StorageError):
    """The server returned the whole object instead of the range."""


def is_obstore_failure(error: BaseException) -> bool:
    """Whether obstore raised an error or a panic, which is not an `Exception`."""
    if isinstance(error, IcefloeError):  # some are a `ValueError` too
        return False
    return isinstance(error, _OBSTORE_ERRORS) or _is_panic(error)


def _is_panic(error: BaseException) -> bool:
    return type(error).__name__ in _PANICS


def _find_status(error: BaseException) -> int | None:
    match = _STATUS.search(str(error))
    return None if match is None else int(match.group(1))


def format_error(error: BaseException) -> str:
    """Return the message of an obstore error, without debug output or secrets in URLs."""
    return redact_urls(str(error).partition("\n\nDebug source")[0])


def redact_error(error: BaseException) -> BaseException:
    """Copy an obstore error without secrets, for use as the cause of the translated error."""
    kind = type(error) if isinstance(error, exceptions.BaseError) else exceptions.BaseError
    return kind(format_error(error))


def translate_error(error: BaseException, operation: str, where: str) -> IcefloeError:
    """Translate an obstore error.

    ``operation`` is a verb such as 'read', ``where`` is the URL of the object.
    """
    text, status = format_error(error), _find_status(error)
    match error:
        case _ if _is_panic(error):
            return StorageError(
                f"{where}: {operation} failed in the client library, which does not accept the "
                f"bucket, endpoint, region, account or credentials: {text}",
                kind=ErrorKind.OBJECT_STORE,
            )
        case FileNotFoundError() if "NoSuchBucket" in text or "ContainerNotFound" in text:
            return StorageError(
                f"{where}: no such bucket or container", kind=ErrorKind.STORAGE_CONFIG
            )
        case FileNotFoundError():
            return ObjectNotFoundError(f"object not found: {where}")
        case exceptions.PreconditionError():
            return PreconditionFailedError(f"{where}: the precondition does not hold: {text}")
        case exceptions.PermissionDeniedError() | exceptions.UnauthenticatedError():
            return _make_denied_error(text, status, operation, where)
        case _ if status in {401, 403}:  # of listings
            return _make_denied_error(text, status, operation, where)
        case exceptions.NotSupportedError() if "Range request not supported" in text:
            return RangeIgnoredError(f"{where}: {text}")
        case _ if status == 416 or "Wanted range starting at" in text:
            return RangeUnsatisfiableError(f"{where}: {text}")
        case _:
            return StorageError(f"{where}: {operation} failed: {text}", kind=ErrorKind.OBJECT_STORE)


def _make_denied_error(
    text: str, status: int | None, operation: str, where: str
) -> PermissionDeniedError:
    is_absence_possible = status == 403 and not _WRONG_CREDENTIALS.search(text)
    kind = AbsentOrDeniedError if is_absence_possible else PermissionDeniedError
    return kind(
        f"{where}: no permission to {operation} it; check the credentials and their permissions: "
        f"{text}"
    )


def classify_put_failure(error: BaseException, where: str) -> Exception:
    """Translate the error of a conditional put.

    The result says whether the put may have taken effect.
    """
    text, status = format_error(error), _find_status(error)
    is_rejected = isinstance(error, exceptions.AlreadyExistsError | exceptions.PreconditionError)
    if is_rejected or status in {409, 412}:
        return ConditionRejectedError(text)
    is_denied = isinstance(
        error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError
    )
    if is_denied or isinstance(error, FileNotFoundError):
        return translate_error(error, "write", where)
    if status is not None:
        # 429 means not processed. 501 means that the service does not support the condition. Other
        # 5xx can come from a gateway that lost the response.
        if status == 429:
            return RequestNotProcessedError(text)
        if status >= 500 and status != 501:
            return ResponseLostError(text)
        return translate_error(error, "write", where)
    # Only the debug output, which `text` omits, shows that the connection failed.
    if "kind: Connect," in str(error):
        return RequestNotProcessedError(text)
    # A builder error is raised before anything is sent; other HTTP errors may come after sending.
    if "HTTP error" in text and "builder error" not in text:
        return ResponseLostError(text)
    return translate_error(error, "write", where)
