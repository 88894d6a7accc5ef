"""The repository configuration as FlexBuffers: the ``config`` field of v2's ``repo`` object.

The reference implementation's layout: a section is a map with all its fields, unset ones null; a
case without content is a string, any other a map of one entry; pairs are vectors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.errors import ErrorKind, FormatError
from icefloe.format import flexbuffers
from icefloe.format.config_tree import from_tree, to_tree, without_variants

if TYPE_CHECKING:
    from icefloe.model.config import RepositoryConfig


def loads(data: bytes | memoryview, *, file: str = "repo") -> RepositoryConfig:
    """Decode the configuration in a ``repo`` object.

    Raises
    ------
    FormatError
        If the bytes are not a FlexBuffer within its bounds, or not a configuration.
    """
    try:
        tree = flexbuffers.loads(data, file=file)
    except FormatError as e:
        raise FormatError(e.reason, file=file, kind=ErrorKind.CONFIG_DESERIALIZATION) from e
    return from_tree(tree, file=file)


def dumps(config: RepositoryConfig) -> bytes:
    """Encode a configuration for a ``repo`` object.

    Raises
    ------
    InvalidInputError
        If it is too deep to be read again, or its unknown fields are not plain values.
    """
    return flexbuffers.dumps(without_variants(to_tree(config)))
