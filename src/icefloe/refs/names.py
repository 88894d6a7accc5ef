"""Names that branches and tags may have."""

from __future__ import annotations

from icefloe.errors import ErrorKind, InvalidInputError


def require_ref_name(name: str, spec_version: int) -> None:
    """Refuse a name that the generation cannot store.

    Generation v1 makes a directory of it, so that it must not have a slash.
    """
    problem = None
    if not name:
        problem = "it is empty"
    elif spec_version == 1 and "/" in name:
        problem = "it has a slash, which repositories of version 1 do not allow"
    elif not name.isprintable():
        problem = "it has characters that cannot be printed"
    if problem is not None:
        raise InvalidInputError(
            f"{name!r} is no name for a branch or a tag: {problem}",
            kind=ErrorKind.INVALID_REF_NAME,
        )
