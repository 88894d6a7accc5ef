"""The error of a feature that the generation of a repository does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.errors import ErrorKind, FormatError
from icefloe.format.generation import V1, V2

if TYPE_CHECKING:
    from icefloe.format.generation import Generation


def unsupported_error(
    feature: str,
    generation: Generation,
    *,
    url: str = "this repository",
    alternative: str | None = None,
    needed: str = V2.name,
    file: str | None = None,
    kind: ErrorKind = ErrorKind.UNSUPPORTED_OPERATION_FOR_VERSION,
) -> FormatError:
    """Return the error of a feature that needs another generation.

    Parameters
    ----------
    feature
        The feature, the subject of the message.
    generation
        Generation of the repository.
    url
        The repository.
    alternative
        What the user can do instead, besides moving to generation v2.
    needed
        The generations that have the feature.
    file
        The file or Zarr key that needs the feature.
    kind
        Kind of the error for generation v1, where Icechunk distinguishes two.
    """
    problem = f"{feature} needs generation {needed}"
    instead = "" if alternative is None else f", or {alternative}"
    if generation is V1:
        return FormatError(
            f"{feature} needs a repository of version 2, but {url} has version 1: upgrade it with "
            f"icefloe.upgrade_icechunk_repository{instead}",
            file=file,
            kind=kind,
            problem=problem,
        )
    return FormatError(
        f"{feature} needs a repository of generation {needed}, but {url} has generation "
        f"{generation.name}: convert the repository with `icefloe convert SOURCE TARGET --to "
        f"{V2.name}`{instead}",
        file=file,
        kind=ErrorKind.UNSUPPORTED_OPERATION_FOR_VERSION,
        problem=problem,
    )
