"""The error hierarchy: a class for each way to handle an error, an `ErrorKind` for each cause.

::

    IcefloeError                    .message .kind
    ├── ConflictError               another writer committed first; rebase or start again
    │   └── RebaseFailedError       both sides changed the same things: .conflicts
    ├── NotFoundError (KeyError)    the named thing does not exist
    │   ├── NodeNotFoundError       no group, array or chunk at this path
    │   ├── SnapshotNotFoundError   no snapshot with this id, or at this time
    │   ├── RefNotFoundError        no branch or tag with this name
    │   └── RepositoryNotFoundError no repository at this location
    ├── AlreadyExistsError          the named thing already exists
    ├── ReadOnlyError               the storage or session is read-only
    ├── InvalidInputError (ValueError)   the caller's argument is wrong
    │   ├── InvalidTypeError (TypeError)  its type is wrong
    │   └── FilesDisagreeError      files that do not match: .disagreements
    ├── SessionStateError           the state of the session does not allow the call
    ├── StorageError                the storage failed
    │   ├── ObjectNotFoundError     no object at this key
    │   ├── PermissionDeniedError   the credentials do not allow the request
    │   │   └── AbsentOrDeniedError     or the object is missing
    │   ├── PreconditionFailedError the condition of a put did not hold
    │   └── OutcomeUnknownError     whether a write succeeded is unknown
    ├── FormatError                 a file is damaged or not in the format
    └── InternalError               a bug in icefloe

Every error can be pickled, and its message says what was wrong, where, and what to do next.
Secrets in URLs are masked.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from icefloe.url_secrets import mask_urls

if TYPE_CHECKING:
    from collections.abc import Iterable


class ErrorKind(StrEnum):
    """What happened, as a stable code; codes are never removed."""

    # conflicts
    COMMIT_CONFLICT = "commit-conflict"
    BRANCH_UPDATE_CONFLICT = "branch-update-conflict"
    REBASE_FAILED = "rebase-failed"
    CONFIG_UPDATED = "config-updated"
    REPO_INFO_UPDATED = "repo-info-updated"
    UPDATE_ATTEMPTS_EXHAUSTED = "update-attempts-exhausted"
    GC_DELETES_FAILING = "gc-deletes-failing"
    COLLECTION_RUNNING = "collection-running"
    COLLECTED_BEFORE_COMMIT = "collected-before-commit"
    # not found
    NODE_NOT_FOUND = "node-not-found"
    ANCESTOR_NODE_NOT_FOUND = "ancestor-node-not-found"
    CHUNK_NOT_FOUND = "chunk-not-found"
    KEY_NOT_FOUND = "key-not-found"
    SNAPSHOT_NOT_FOUND = "snapshot-not-found"
    NO_SNAPSHOT_AT_TIME = "no-snapshot-at-time"
    REF_NOT_FOUND = "ref-not-found"
    BRANCH_NOT_FOUND = "branch-not-found"
    TAG_NOT_FOUND = "tag-not-found"
    REPOSITORY_NOT_FOUND = "repository-not-found"
    MANIFEST_INFO_NOT_FOUND = "manifest-info-not-found"
    # already exists
    NODE_ALREADY_EXISTS = "node-already-exists"
    BRANCH_ALREADY_EXISTS = "branch-already-exists"
    TAG_ALREADY_EXISTS = "tag-already-exists"
    TAG_PREVIOUSLY_DELETED = "tag-previously-deleted"
    MOVE_WONT_OVERWRITE = "move-wont-overwrite"
    # read only
    READ_ONLY_SESSION = "read-only-session"
    READ_ONLY_STORE = "read-only-store"
    READ_ONLY_STORAGE = "read-only-storage"
    READ_ONLY_REPOSITORY = "read-only-repository"
    # invalid input
    INVALID_KEY = "invalid-key"
    INVALID_CHUNK_INDEX = "invalid-chunk-index"
    ZERO_LENGTH_CHUNK = "zero-length-chunk"
    INVALID_MANIFEST_SPLIT_INDEX = "invalid-manifest-split-index"
    INVALID_REF_TYPE = "invalid-ref-type"
    INVALID_REF_NAME = "invalid-ref-name"
    INVALID_SNAPSHOT_ID = "invalid-snapshot-id"
    INVALID_PATH = "invalid-path"
    BAD_KEY_PREFIX = "bad-key-prefix"
    BAD_METADATA = "bad-metadata"
    BAD_PREFIX = "bad-prefix"
    NOT_AN_ARRAY = "not-an-array"
    NOT_A_GROUP = "not-a-group"
    INVALID_BYTE_RANGE = "invalid-byte-range"
    INVALID_COMMIT_CONFIGURATION = "invalid-commit-configuration"
    INVALID_ARRAY_METADATA = "invalid-array-metadata"
    INVALID_FEATURE_FLAG = "invalid-feature-flag"
    INVALID_VIRTUAL_REF = "invalid-virtual-ref"
    INVALID_CREDENTIALS = "invalid-credentials"
    NO_CONTAINER_FOR_VIRTUAL_CHUNK = "no-container-for-virtual-chunk"
    UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER = "unauthorized-virtual-chunk-container"
    UNSUPPORTED_VARIABLE = "unsupported-variable"
    FILES_DISAGREE = "files-disagree"
    MISSING_DEPENDENCY = "missing-dependency"
    EMPTY_PREFIX_CREATION = "empty-prefix-creation"
    PARENT_DIRECTORY_NOT_CLEAN = "parent-directory-not-clean"
    BAD_SNAPSHOT_CHAIN_FOR_DIFF = "bad-snapshot-chain-for-diff"
    # state of a session or a repository
    COMMIT_NOT_ALLOWED = "commit-not-allowed"
    MERGE_NOT_ALLOWED = "merge-not-allowed"
    CANNOT_FORK_READ_ONLY_SESSION = "cannot-fork-read-only-session"
    REARRANGE_SESSION_ONLY = "rearrange-session-only"
    NON_REARRANGE_SESSION = "non-rearrange-session"
    MOVE_INTO_SELF_OR_DESCENDANT = "move-into-self-or-descendant"
    MOVE_DESTINATION_PARENT_MISSING = "move-destination-parent-missing"
    MOVE_DESTINATION_PARENT_NOT_GROUP = "move-destination-parent-not-group"
    NO_CHANGES_TO_COMMIT = "no-changes-to-commit"
    NO_AMEND_FOR_INITIAL_COMMIT = "no-amend-for-initial-commit"
    NOT_ON_BRANCH = "not-on-branch"
    NO_SNAPSHOT = "no-snapshot"
    CANNOT_DELETE_MAIN = "cannot-delete-main"
    UNCOMMITTED_CHANGES = "uncommitted-changes"
    MERGE_FAILED = "merge-failed"
    NOT_ALLOWED = "not-allowed"
    UNIMPLEMENTED = "unimplemented"
    REBASE_TX_LOG_PRUNED = "rebase-tx-log-pruned"
    FEATURE_FLAG_DISABLED = "feature-flag-disabled"
    TAG_ERROR = "tag-error"
    INVALID_REPOSITORY_MIGRATION = "invalid-repository-migration"
    # storage
    OBJECT_NOT_FOUND = "object-not-found"
    OBJECT_STORE = "object-store"
    IO = "io"
    STORAGE_CONFIG = "storage-config"
    CANNOT_PARSE_URL = "cannot-parse-url"
    BAD_REDIRECT = "bad-redirect"
    SEMAPHORE_ACQUIRE = "semaphore-acquire"
    THROTTLED = "throttled"
    STORAGE_OTHER = "storage-other"
    VIRTUAL_CHUNK_FETCH = "virtual-chunk-fetch"
    VIRTUAL_CHUNK_MODIFIED = "virtual-chunk-modified"
    INVALID_OBJECT_SIZE = "invalid-object-size"
    PRECONDITION_FAILED = "precondition-failed"
    PERMISSION_DENIED = "permission-denied"
    DISK_FULL = "disk-full"
    OUTCOME_UNKNOWN = "outcome-unknown"
    # format
    SERIALIZATION = "serialization"
    DESERIALIZATION = "deserialization"
    CONFIG_DESERIALIZATION = "config-deserialization"
    INVALID_FILE_FORMAT = "invalid-file-format"
    UNSUPPORTED_SPEC_VERSION = "unsupported-spec-version"
    UNSUPPORTED_OPERATION_FOR_VERSION = "unsupported-operation-for-version"
    SNAPSHOT_TIMESTAMP = "snapshot-timestamp"
    DUPLICATE_SNAPSHOT_ID = "duplicate-snapshot-id"
    # internal
    CONCURRENCY = "concurrency"
    FLUSH = "flush"
    PARTIAL_VALUES_PANIC = "partial-values-panic"
    CONFLICTING_PATH_NOT_FOUND = "conflicting-path-not-found"
    INCONSISTENT_MANIFESTS = "inconsistent-manifests"
    POISON_LOCK = "poison-lock"
    PICKLE = "pickle"
    UNKNOWN = "unknown"


class IcefloeError(Exception):
    """Base class of all errors of icefloe.

    Parameters
    ----------
    message
        What was wrong, where, and what to do next.
    kind
        What happened, as a code; each class has a default.
    """

    default_kind: ErrorKind = ErrorKind.UNKNOWN
    message: str
    kind: ErrorKind

    def __init_subclass__(cls, *, kind: ErrorKind | None = None) -> None:
        if kind is not None:
            cls.default_kind = kind

    def __init__(self, message: str, kind: ErrorKind | None = None) -> None:
        message = mask_urls(message)
        super().__init__(message)
        self.message = message
        self.kind = self.default_kind if kind is None else kind

    def __reduce__(self) -> tuple[object, ...]:
        # Exception.__reduce__ would call the class with the message alone, but some classes require
        # more arguments. The instance dictionary has all attributes and the notes. Classes of this
        # module are pickled by name: their `__module__` depends on `install_as_icechunk`, which
        # the process that unpickles may not have called.
        cls = type(self)
        name = cls.__name__
        return _rebuild, (name if globals().get(name) is cls else cls, self.message), self.__dict__

    def __str__(self) -> str:
        # NotFoundError is a KeyError, whose __str__ would be the repr of the message.
        return self.message


def _rebuild(cls: type[IcefloeError] | str, message: str) -> IcefloeError:
    kind: type[IcefloeError] = globals()[cls] if isinstance(cls, str) else cls
    return kind.__new__(kind, message)


IcechunkError = IcefloeError
"""The name of the same class in Icechunk."""


class ConflictError(IcefloeError, kind=ErrorKind.COMMIT_CONFLICT):
    """Another writer changed the same thing first.

    ``expected_parent`` and ``actual_parent`` are the expected and the actual tip of a branch.
    """

    expected_parent: str | None
    actual_parent: str | None

    def __init__(
        self,
        message: str | None = None,
        *,
        expected_parent: str | None = None,
        actual_parent: str | None = None,
        kind: ErrorKind | None = None,
    ) -> None:
        if message is None:
            message = (
                f"the branch points at {actual_parent}, not at {expected_parent}: another writer "
                "committed first; rebase, or start again from the new tip"
            )
        super().__init__(message, kind=kind)
        self.expected_parent = expected_parent
        self.actual_parent = actual_parent


class RebaseFailedError(ConflictError, kind=ErrorKind.REBASE_FAILED):
    """Changes conflict with a newer commit of the branch; nothing was changed.

    ``snapshot`` is the id of that commit, ``conflicts`` has all conflicts.
    """

    snapshot: str
    conflicts: list[Any]

    def __init__(
        self,
        message: str | None = None,
        *,
        snapshot: str,
        conflicts: Iterable[Any],
        kind: ErrorKind | None = None,
    ) -> None:
        self.snapshot = snapshot
        self.conflicts = list(conflicts)
        if message is None:
            message = (
                f"rebase failed on snapshot {snapshot}: {len(self.conflicts)} conflicts; see "
                "`conflicts`, and rebase with a solver for them"
            )
        super().__init__(message, kind=kind)


class NotFoundError(IcefloeError, KeyError, kind=ErrorKind.KEY_NOT_FOUND):
    """The named node, chunk, ref, snapshot or repository does not exist."""


class NodeNotFoundError(NotFoundError, kind=ErrorKind.NODE_NOT_FOUND):
    """There is no group, array or chunk at this path."""


class SnapshotNotFoundError(NotFoundError, kind=ErrorKind.SNAPSHOT_NOT_FOUND):
    """There is no snapshot with this id, or none at this time."""


class RefNotFoundError(NotFoundError, kind=ErrorKind.REF_NOT_FOUND):
    """There is no branch or tag with this name."""


class RepositoryNotFoundError(NotFoundError, kind=ErrorKind.REPOSITORY_NOT_FOUND):
    """There is no repository at this location."""


class AlreadyExistsError(IcefloeError, kind=ErrorKind.NODE_ALREADY_EXISTS):
    """The named node, ref or repository already exists."""


class ReadOnlyError(IcefloeError, kind=ErrorKind.READ_ONLY_STORAGE):
    """The session, store, storage or repository is read-only."""


class InvalidInputError(IcefloeError, ValueError, kind=ErrorKind.INVALID_KEY):
    """An argument is wrong; nothing was written."""


class InvalidTypeError(InvalidInputError, TypeError, kind=ErrorKind.BAD_METADATA):
    """An argument, or a value in it, has a type that cannot be stored; nothing was written."""


class FilesDisagreeError(InvalidInputError, kind=ErrorKind.FILES_DISAGREE):
    """Files do not match each other or the repository; nothing was written.

    ``disagreements`` has an entry for each difference.
    """

    disagreements: list[Any]

    def __init__(
        self, message: str, *, disagreements: Iterable[Any] = (), kind: ErrorKind | None = None
    ) -> None:
        super().__init__(message, kind=kind)
        self.disagreements = list(disagreements)


class SessionStateError(IcefloeError, kind=ErrorKind.NOT_ALLOWED):
    """The state of the session or repository does not allow the call."""


class StorageError(IcefloeError, kind=ErrorKind.STORAGE_OTHER):
    """The storage failed or refused a request."""


class ObjectNotFoundError(StorageError, kind=ErrorKind.OBJECT_NOT_FOUND):
    """There is no object at this key."""


class PermissionDeniedError(StorageError, kind=ErrorKind.PERMISSION_DENIED):
    """The credentials, or the permissions of a file, do not allow the request."""


class AbsentOrDeniedError(PermissionDeniedError, kind=ErrorKind.PERMISSION_DENIED):
    """The object is missing, or the credentials do not allow the request.

    S3 does not tell which if the credentials do not allow listing.
    """


class PreconditionFailedError(StorageError, kind=ErrorKind.PRECONDITION_FAILED):
    """The condition of a conditional request did not hold; the request had no effect."""


class OutcomeUnknownError(StorageError, kind=ErrorKind.OUTCOME_UNKNOWN):
    """Whether a write succeeded is unknown; do not delete files that it refers to."""


class FormatError(IcefloeError, kind=ErrorKind.DESERIALIZATION):
    """A file is damaged or not in the format.

    ``file``, a key, path or URL, is prepended to the message; ``reason`` is the message without it.
    ``problem`` is the reason without advice, for lists of problems; by default it is the reason.
    """

    def __init__(
        self,
        message: str,
        kind: ErrorKind | None = None,
        *,
        file: str | None = None,
        problem: str | None = None,
    ) -> None:
        super().__init__(message if file is None else f"{file}: {message}", kind=kind)
        self.file = file
        self.reason = message
        self.problem = message if problem is None else problem


class InternalError(IcefloeError):
    """A bug in icefloe: please report it."""
