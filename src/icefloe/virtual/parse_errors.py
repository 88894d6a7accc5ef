"""Errors that parsers raise: damaged files, unsupported variables, missing packages."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from icefloe.errors import ErrorKind, FormatError, InvalidInputError

if TYPE_CHECKING:
    from types import ModuleType


def file_format_error(url: str, reason: str) -> FormatError:
    """Return the error for a file that is not in the expected format."""
    return FormatError(reason, file=url, kind=ErrorKind.INVALID_FILE_FORMAT)


def damaged_error(url: str, problem: str) -> FormatError:
    """Return the error for a file with invalid content."""
    return file_format_error(url, f"is damaged: {problem}")


def unsupported_error(url: str, variable: str, problem: str, hint: str = "") -> InvalidInputError:
    """Return the error for a variable that cannot be referenced; the message says how to skip it.

    ``hint`` is an alternative that precedes this advice, and ends with a separator.
    """
    return InvalidInputError(
        f"{url}: {variable}: {problem}; {hint}skip it with drop_variables=[{variable!r}]",
        kind=ErrorKind.UNSUPPORTED_VARIABLE,
    )


def import_optional(module: str, package: str | None = None) -> ModuleType:
    """Import a module of an optional package, or a module of icefloe that needs one.

    Raises `InvalidInputError` of kind ``MISSING_DEPENDENCY`` if the package is not installed; the
    message names ``package``, by default the module that was not found.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = package or error.name or module
        extra = "geotiff" if package == "virtual-tiff" else "virtual"
        raise InvalidInputError(
            f"parsing this file needs the package {package}: pip install 'icefloe[{extra}]'",
            kind=ErrorKind.MISSING_DEPENDENCY,
        ) from error
