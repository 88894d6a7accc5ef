"""FlexBuffers codec of the configuration: the ``config`` field of the file ``repo`` (v2).

As in Icechunk, a section is a map of all its fields, with null for unset fields; a variant without
value is a string, any other variant a map of one entry; a pair is a vector.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.errors import ErrorKind, FormatError
from icefloe.format import flexbuffers
from icefloe.format.config_tree import flatten_variants, from_tree, to_tree

if TYPE_CHECKING:
    from icefloe.model.config import RepositoryConfig


def loads(data: bytes | memoryview, *, file: str = "repo") -> RepositoryConfig:
    """Decode a configuration; raise `FormatError` if it is invalid."""
    try:
        tree = flexbuffers.loads(data, file=file)
    except FormatError as error:
        kind = ErrorKind.CONFIG_DESERIALIZATION
        raise FormatError(error.reason, file=file, kind=kind) from error
    return from_tree(tree, file=file)


def dumps(config: RepositoryConfig) -> bytes:
    """Encode a configuration.

    Raises `InvalidInputError` if it is nested too deeply or has unknown fields that are not JSON.
    """
    return flexbuffers.dumps(flatten_variants(to_tree(config)))
