"""Creation of a repository (Icechunk spec, "Initialize New Repository")."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from icefloe.assets import Assets
from icefloe.errors import (
    AlreadyExistsError,
    ErrorKind,
    InvalidInputError,
    PreconditionFailedError,
    StorageError,
)
from icefloe.format import config_yaml
from icefloe.format.envelope import SPEC_VERSIONS
from icefloe.format.keys import (
    CONFIG,
    REPO,
    format_branch_key,
    format_snapshot_key,
    format_transaction_log_key,
)
from icefloe.format.ref_json import encode_ref
from icefloe.format.repo_info import encode_repo_info
from icefloe.format.snapshot import encode_snapshot
from icefloe.format.transaction_log import encode_transaction_log
from icefloe.model.chunk_index_columns import ChunkIndexColumns
from icefloe.model.ids import INITIAL_SNAPSHOT_ID, NodeId
from icefloe.model.repo_info import (
    OpsLogEntry,
    RepoAvailability,
    RepoInfo,
    RepoInitialized,
    RepoStatus,
)
from icefloe.model.snapshot import INITIAL_MESSAGE, INITIAL_METADATA, Snapshot
from icefloe.model.transaction_log import TransactionLog
from icefloe.refs.names import MAIN
from icefloe.refs.opening import is_repository, open_refs
from icefloe.storage.interface import Create

if TYPE_CHECKING:
    from icefloe.model.config import RepositoryConfig
    from icefloe.refs.interface import Refs
    from icefloe.storage.interface import Storage


def create_refs(
    storage: Storage, *, spec_version: int, config: RepositoryConfig | None = None
) -> Refs:
    """Create an empty repository; exactly one of several concurrent creators succeeds.

    The first snapshot has the same id in every repository and is written only if absent, so an
    interrupted creation can be repeated. The configuration is written next. The conditional create
    of the branch main (v1) or of the file ``repo`` (v2) comes last and publishes the repository.
    """
    if spec_version not in SPEC_VERSIONS:
        raise InvalidInputError(
            f"spec_version must be 1 or 2, not {spec_version!r}",
            kind=ErrorKind.UNSUPPORTED_SPEC_VERSION,
        )
    if is_repository(storage):
        raise _existing_repository_error(storage)
    initial = _write_initial_snapshot(storage, spec_version)
    if spec_version == 1 and config is not None:
        with contextlib.suppress(PreconditionFailedError):
            storage.put(CONFIG, config_yaml.dumps(config), Create())
    try:
        if spec_version == 1:
            storage.put(format_branch_key(MAIN), encode_ref(initial.id), Create())
        else:
            storage.put(REPO, encode_repo_info(_build_initial_info(initial, config)), Create())
    except PreconditionFailedError as error:
        raise _existing_repository_error(storage) from error
    # Creators of different versions write different objects, so both can succeed. Readers look for
    # `repo` first, so version 2 wins, and the creator of version 1 detects that here.
    opened = open_refs(storage)
    if opened.refs.spec_version != spec_version:
        raise _existing_repository_error(storage)
    # An interrupted or concurrent creator may have written another configuration.
    if config is not None and opened.config != config:
        opened.refs.save_config(config, expected=opened.config)
    return opened.refs


def require_clean_root(storage: Storage) -> None:
    """Raise if a storage contains files other than those of an interrupted creation."""
    leftovers = {
        CONFIG,
        format_snapshot_key(INITIAL_SNAPSHOT_ID),
        format_transaction_log_key(INITIAL_SNAPSHOT_ID),
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


def _write_initial_snapshot(storage: Storage, spec_version: int) -> Snapshot:
    snapshot = Snapshot(
        INITIAL_SNAPSHOT_ID, None, datetime.now(UTC), INITIAL_MESSAGE, INITIAL_METADATA, (), ()
    )
    if spec_version > 1:
        none: frozenset[NodeId] = frozenset()
        log = TransactionLog(
            snapshot.id, none, none, none, none, none, none, ChunkIndexColumns.of({})
        )
        with contextlib.suppress(PreconditionFailedError):
            data = encode_transaction_log(log, spec_version=spec_version)
            storage.put(format_transaction_log_key(log.id), data, Create())
    with contextlib.suppress(PreconditionFailedError):
        data = encode_snapshot(snapshot, spec_version=spec_version)
        storage.put(format_snapshot_key(snapshot.id), data, Create())
        return snapshot
    return Assets(storage, spec_version).fetch_snapshot(snapshot.id)


def _build_initial_info(snapshot: Snapshot, config: RepositoryConfig | None) -> RepoInfo:
    return RepoInfo(
        spec_version=2,
        branches={MAIN: snapshot.id},
        tags={},
        deleted_tags=frozenset(),
        snapshots=(snapshot.get_info(),),
        status=RepoStatus(RepoAvailability.online, snapshot.flushed_at),
        latest_updates=(OpsLogEntry(RepoInitialized(), snapshot.flushed_at),),
        config=config,
    )
