"""Creation of a repository (Icechunk spec, "Initialize New Repository")."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from icefloe.assets import Assets
from icefloe.errors import (
    AlreadyExistsError,
    ErrorKind,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
)
from icefloe.format.generation import GENERATIONS
from icefloe.format.keys import CONFIG, CREATION
from icefloe.model.config import RepositoryConfig
from icefloe.model.snapshot import INITIAL_MESSAGE, INITIAL_METADATA, Snapshot
from icefloe.refs.creation_claim import hold_claim
from icefloe.refs.opening import REF_STORES, is_repository, open_refs
from icefloe.refs.store_root import require_no_store_root
from icefloe.storage.clock import require_no_lead

if TYPE_CHECKING:
    from icefloe.format.generation import Generation
    from icefloe.refs.interface import Refs
    from icefloe.storage.interface import Storage


def create_refs(
    storage: Storage, *, generation: Generation, config: RepositoryConfig | None = None
) -> Refs:
    """Create an empty repository; exactly one of several concurrent creators succeeds.

    The first snapshot has the same id in every repository and is written only if absent, so an
    interrupted creation can be repeated. The reference store comes last and publishes the
    repository.
    """
    require_no_store_root(storage, generation)
    require_no_repository(storage)  # so that nothing is written into a repository
    with hold_claim(storage, generation, config) as claim:
        require_no_repository(storage)
        # The first snapshot has a time, which later ones inherit if it is in the future.
        with contextlib.suppress(ObjectNotFoundError):  # a creator with the same claim released it
            require_no_lead(storage, CREATION if claim.is_own else None)
        initial = _write_initial_snapshot(storage, generation)
        claim.require()
        try:
            REF_STORES[generation.name].create(storage, initial, config)
        except PreconditionFailedError as error:
            raise _existing_repository_error(storage) from error
    # Icechunk takes no claim. Readers look for generations in a fixed order, so the first of it
    # wins, and the other creator detects that here.
    opened = open_refs(storage)
    if opened.refs.generation is not generation:
        raise _existing_repository_error(storage)
    # An interrupted creator may have left another configuration.
    if opened.config != config:
        opened.refs.save_config(config or RepositoryConfig(), expected=opened.config)
    return opened.refs


def require_no_repository(storage: Storage) -> None:
    """Raise if a storage contains a repository of any generation."""
    if is_repository(storage):
        raise _existing_repository_error(storage)


def require_clean_root(storage: Storage) -> None:
    """Raise if a storage contains files other than those of an interrupted creation."""
    leftovers = {
        CONFIG,
        CREATION,
        *(
            files.format_key(generation.initial_snapshot_id)
            for generation in GENERATIONS.values()
            for files in (generation.layout.snapshots, generation.layout.transaction_logs)
            if files is not None
        ),
    }
    try:
        other = next((info.key for info in storage.list() if info.key not in leftovers), None)
    except StorageError:
        return  # the credentials may not allow listing, and creation is safe without this check
    if other is not None:
        raise AlreadyExistsError(
            f"{storage.url} is not empty (it contains {other!r}): choose another location, open "
            "the repository if it is one, or pass check_clean_root=False",
            kind=ErrorKind.PARENT_DIRECTORY_NOT_CLEAN,
        )


def _existing_repository_error(storage: Storage) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"a repository already exists at {storage.url}: open it instead",
        kind=ErrorKind.PARENT_DIRECTORY_NOT_CLEAN,
    )


def _write_initial_snapshot(storage: Storage, generation: Generation) -> Snapshot:
    snapshot = Snapshot(
        generation.initial_snapshot_id,
        None,
        datetime.now(UTC),
        INITIAL_MESSAGE,
        INITIAL_METADATA,
        (),
        (),
    )
    assets = Assets(storage, generation)
    with contextlib.suppress(PreconditionFailedError):
        assets.publish(assets.encode_snapshot(snapshot).file)
        return snapshot
    return assets.fetch_snapshot(snapshot.id)
