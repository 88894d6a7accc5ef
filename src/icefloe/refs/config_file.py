"""The configuration in a file of its own, ``config.yaml``: all generations but v2."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from icefloe.assets import fetch_file
from icefloe.errors import (
    AbsentOrDeniedError,
    ErrorKind,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
)
from icefloe.format.keys import CONFIG
from icefloe.refs import ref_errors
from icefloe.refs.repeated_creation import create_or_compare
from icefloe.storage.interface import Create, UpdateIfMatch

if TYPE_CHECKING:
    from icefloe.model.config import RepositoryConfig
    from icefloe.storage.interface import Storage, Version


def create_config(storage: Storage, config: RepositoryConfig | None) -> None:
    """Write the configuration of a new repository, if it has one and the file is absent."""
    if config is not None:
        with contextlib.suppress(PreconditionFailedError):
            storage.put(CONFIG, encode_config(config), Create())


def restore_config(storage: Storage, config: RepositoryConfig | None) -> None:
    """Write the configuration of a new repository, also if an interrupted attempt wrote it."""
    if config is not None:
        create_or_compare(storage, CONFIG, encode_config(config))


def fetch_config(storage: Storage) -> RepositoryConfig | None:
    """Fetch the configuration, or None; one request."""
    try:
        return _fetch(storage)[0]
    # Without permission to list, S3 returns "access denied" for absent objects.
    except (ObjectNotFoundError, AbsentOrDeniedError):
        return None


def save_config(
    storage: Storage, config: RepositoryConfig, *, expected: RepositoryConfig | None
) -> None:
    """Replace the configuration if it still equals ``expected``.

    The first configuration is created if absent. Only to change it must the storage support
    conditional updates.
    """
    try:
        fetched, version = _fetch(storage)
        current: RepositoryConfig | None = fetched
        mode: Create | UpdateIfMatch = UpdateIfMatch(version)
    except ObjectNotFoundError:
        current, mode = None, Create()
    if current != expected:
        raise ref_errors.config_conflict_error()
    try:
        storage.put(CONFIG, encode_config(config), mode)
    except PreconditionFailedError as error:
        raise ref_errors.config_conflict_error() from error
    except StorageError as error:
        if isinstance(mode, Create) or error.kind is not ErrorKind.OBJECT_STORE:
            raise
        raise StorageError(
            f"{CONFIG} in {storage.url} was not changed: this needs conditional updates, which the "
            f"storage may not support, although it can create the first {CONFIG}: {error.message}",
            kind=error.kind,
        ) from error


# The codec is imported here, because PyYAML is slow to import and opening v2 does not need it.
def encode_config(config: RepositoryConfig) -> bytes:
    """Return the content of the file."""
    from icefloe.format import config_yaml  # noqa: PLC0415

    return config_yaml.dumps(config)


def _fetch(storage: Storage) -> tuple[RepositoryConfig, Version]:
    from icefloe.format import config_yaml  # noqa: PLC0415

    fetched = fetch_file(storage, CONFIG, max_bytes=config_yaml.MAX_SIZE_BYTES)
    return config_yaml.loads(fetched.data, file=CONFIG), fetched.info.version
