"""Credentials of object stores, as plain values with Icechunk's names.

Secrets are included in comparisons and pickles (tasks on other machines need them), but never in a
repr or an error message. The module `refreshing` calls the functions of refreshable credentials.
"""

from __future__ import annotations

import pickle
from dataclasses import Field, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.storage.keys import CONTROL_CHARACTER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

__all__ = [
    "AnyAzureCredential",
    "AnyAzureRefreshableCredential",
    "AnyAzureStaticCredential",
    "AnyCredential",
    "AnyGcsCredential",
    "AnyGcsStaticCredential",
    "AnyS3Credential",
    "AzureCredentials",
    "AzureRefreshableCredential",
    "AzureStaticCredentials",
    "Credentials",
    "GcsBearerCredential",
    "GcsCredentials",
    "GcsStaticCredentials",
    "S3Credentials",
    "S3StaticCredentials",
    "azure_anonymous_credentials",
    "azure_credentials",
    "azure_from_env_credentials",
    "azure_refreshable_credentials",
    "azure_static_credentials",
    "containers_credentials",
    "gcs_anonymous_credentials",
    "gcs_credentials",
    "gcs_from_env_credentials",
    "gcs_refreshable_credentials",
    "gcs_static_credentials",
    "s3_anonymous_credentials",
    "s3_credentials",
    "s3_from_env_credentials",
    "s3_refreshable_credentials",
    "s3_static_credentials",
]


class _Secret:
    """Base class that rejects control characters, which requests cannot contain."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if isinstance(value, str) and CONTROL_CHARACTER.search(value):
                raise _credentials_error(
                    f"{name} contains a control character, such as a line break at its end"
                )


class _ExpiringCredential(_Secret):
    """Base class that requires a time zone in ``expires_after``."""

    __slots__ = ()
    expires_after: datetime | None

    def __post_init__(self) -> None:
        _Secret.__post_init__(self)
        if self.expires_after is not None and self.expires_after.tzinfo is None:
            raise _credentials_error("expires_after needs a time zone, for example UTC")


@dataclass(frozen=True, slots=True)
class S3StaticCredentials(_ExpiringCredential):
    """An S3 key pair, possibly temporary."""

    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)
    expires_after: datetime | None = None


class S3Credentials:
    """The kinds of S3 credentials."""

    @dataclass(frozen=True, slots=True)
    class FromEnv:
        """Credentials from the environment: variables, roles, instance metadata."""

    @dataclass(frozen=True, slots=True)
    class Anonymous:
        """Unsigned requests, for public buckets."""

    @dataclass(frozen=True, slots=True)
    class Static:
        """One key pair for the lifetime of the storage."""

        credentials: S3StaticCredentials

    @dataclass(frozen=True, slots=True)
    class Refreshable:
        """A pickled function that returns `S3StaticCredentials`, optionally with a first result."""

        pickled_function: bytes = field(repr=False)
        current: S3StaticCredentials | None = None


AnyS3Credential: TypeAlias = (
    S3Credentials.FromEnv
    | S3Credentials.Anonymous
    | S3Credentials.Static
    | S3Credentials.Refreshable
)


@dataclass(frozen=True, slots=True)
class GcsBearerCredential(_ExpiringCredential):
    """A Google Cloud OAuth token."""

    bearer: str = field(repr=False)
    expires_after: datetime | None = field(default=None, kw_only=True)


class GcsStaticCredentials:
    """The kinds of static GCS credentials."""

    @dataclass(frozen=True, slots=True)
    class ServiceAccount:
        """A file with a service account key."""

        path: str

    @dataclass(frozen=True, slots=True)
    class ServiceAccountKey:
        """A service account key, as JSON text."""

        key: str = field(repr=False)

    @dataclass(frozen=True, slots=True)
    class ApplicationCredentials:
        """A file of application default credentials."""

        path: str

    @dataclass(frozen=True, slots=True)
    class BearerToken(_Secret):
        """A static OAuth token."""

        token: str = field(repr=False)


AnyGcsStaticCredential: TypeAlias = (
    GcsStaticCredentials.ServiceAccount
    | GcsStaticCredentials.ServiceAccountKey
    | GcsStaticCredentials.ApplicationCredentials
    | GcsStaticCredentials.BearerToken
)


class GcsCredentials:
    """The kinds of GCS credentials."""

    @dataclass(frozen=True, slots=True)
    class FromEnv:
        """Credentials from the environment: variables, files, instance metadata."""

    @dataclass(frozen=True, slots=True)
    class Anonymous:
        """Unsigned requests, for public buckets."""

    @dataclass(frozen=True, slots=True)
    class Static:
        """One credential for the lifetime of the storage."""

        credentials: AnyGcsStaticCredential

    @dataclass(frozen=True, slots=True)
    class Refreshable:
        """A pickled function that returns `GcsBearerCredential`, optionally with a first result."""

        pickled_function: bytes = field(repr=False)
        current: GcsBearerCredential | None = None


AnyGcsCredential: TypeAlias = (
    GcsCredentials.FromEnv
    | GcsCredentials.Anonymous
    | GcsCredentials.Static
    | GcsCredentials.Refreshable
)


class AzureRefreshableCredential:
    """The kinds of refreshable Azure credentials."""

    @dataclass(frozen=True, slots=True)
    class AccessKey(_ExpiringCredential):
        """An account key that may be rotated."""

        key: str = field(repr=False)
        expires_after: datetime | None = field(default=None, kw_only=True)

    @dataclass(frozen=True, slots=True)
    class SasToken(_ExpiringCredential):
        """A shared access signature that expires."""

        token: str = field(repr=False)
        expires_after: datetime | None = field(default=None, kw_only=True)

    @dataclass(frozen=True, slots=True)
    class BearerToken(_ExpiringCredential):
        """An OAuth token that expires."""

        bearer: str = field(repr=False)
        expires_after: datetime | None = field(default=None, kw_only=True)


AnyAzureRefreshableCredential: TypeAlias = (
    AzureRefreshableCredential.AccessKey
    | AzureRefreshableCredential.SasToken
    | AzureRefreshableCredential.BearerToken
)


class AzureStaticCredentials:
    """The kinds of static Azure credentials."""

    @dataclass(frozen=True, slots=True)
    class AccessKey(_Secret):
        """The key of the storage account."""

        key: str = field(repr=False)

    @dataclass(frozen=True, slots=True)
    class SasToken(_Secret):
        """A shared access signature."""

        token: str = field(repr=False)

    @dataclass(frozen=True, slots=True)
    class BearerToken(_Secret):
        """A static OAuth token."""

        token: str = field(repr=False)


AnyAzureStaticCredential: TypeAlias = (
    AzureStaticCredentials.AccessKey
    | AzureStaticCredentials.SasToken
    | AzureStaticCredentials.BearerToken
)


class AzureCredentials:
    """The kinds of Azure credentials."""

    @dataclass(frozen=True, slots=True)
    class FromEnv:
        """Credentials from the environment: variables, managed identity, the Azure CLI."""

    @dataclass(frozen=True, slots=True)
    class Anonymous:
        """Unsigned requests, for public containers."""

    @dataclass(frozen=True, slots=True)
    class Static:
        """One credential for the lifetime of the storage."""

        credentials: AnyAzureStaticCredential

    @dataclass(frozen=True, slots=True)
    class Refreshable:
        """A pickled function that returns an Azure credential, optionally with a first result."""

        pickled_function: bytes = field(repr=False)
        current: AnyAzureRefreshableCredential | None = None


AnyAzureCredential: TypeAlias = (
    AzureCredentials.FromEnv
    | AzureCredentials.Anonymous
    | AzureCredentials.Static
    | AzureCredentials.Refreshable
)


class Credentials:
    """The kinds of credentials of a virtual chunk container, by platform."""

    @dataclass(frozen=True, slots=True)
    class S3:
        """Credentials for a container in S3."""

        credentials: AnyS3Credential

    @dataclass(frozen=True, slots=True)
    class Gcs:
        """Credentials for a container in GCS."""

        credentials: AnyGcsCredential

    @dataclass(frozen=True, slots=True)
    class Azure:
        """Credentials for a container in Azure."""

        credentials: AnyAzureCredential

    @dataclass(frozen=True, slots=True)
    class LocalFileSystemAccess:
        """Permission to read local files."""

    @dataclass(frozen=True, slots=True)
    class HttpAccess:
        """Permission to read from HTTP servers."""


AnyCredential: TypeAlias = (
    Credentials.S3
    | Credentials.Gcs
    | Credentials.Azure
    | Credentials.LocalFileSystemAccess
    | Credentials.HttpAccess
)


def s3_refreshable_credentials(
    get_credentials: Callable[[], S3StaticCredentials],
    scatter_initial_credentials: bool = False,  # noqa: FBT001, FBT002 - Icechunk's signature
) -> S3Credentials.Refreshable:
    """Make S3 credentials that a function renews.

    Parameters
    ----------
    get_credentials
        Function that returns a key pair. It must be picklable: every process that uses the
        storage calls it.
    scatter_initial_credentials
        Whether to call the function now and pickle its result too, so that tasks that start
        together do not all call it.
    """
    current = get_credentials() if scatter_initial_credentials else None
    return S3Credentials.Refreshable(_pickle_function(get_credentials), current)


def s3_static_credentials(
    *,
    access_key_id: str,
    secret_access_key: str,
    session_token: str | None = None,
    expires_after: datetime | None = None,
) -> S3Credentials.Static:
    """Make S3 credentials from a key pair."""
    return S3Credentials.Static(
        S3StaticCredentials(access_key_id, secret_access_key, session_token, expires_after)
    )


def s3_anonymous_credentials() -> S3Credentials.Anonymous:
    """Make S3 credentials for unsigned requests."""
    return S3Credentials.Anonymous()


def s3_from_env_credentials() -> S3Credentials.FromEnv:
    """Make S3 credentials from the environment."""
    return S3Credentials.FromEnv()


def s3_credentials(
    *,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
    expires_after: datetime | None = None,
    anonymous: bool | None = None,
    from_env: bool | None = None,
    get_credentials: Callable[[], S3StaticCredentials] | None = None,
    scatter_initial_credentials: bool = False,
) -> AnyS3Credential:
    """Make S3 credentials of the selected kind; the default is the environment.

    Raises `InvalidInputError` for more than one kind, or an incomplete key pair.
    """
    key_pair = (access_key_id, secret_access_key, session_token, expires_after)
    is_static = any(value is not None for value in key_pair)
    kinds = {"a key pair": is_static, "anonymous": anonymous, "from_env": from_env}
    _require_one_kind({**kinds, "get_credentials": get_credentials is not None})
    if anonymous:
        return S3Credentials.Anonymous()
    if get_credentials is not None:
        return s3_refreshable_credentials(
            get_credentials, scatter_initial_credentials=scatter_initial_credentials
        )
    if not is_static:
        return S3Credentials.FromEnv()
    if access_key_id is None or secret_access_key is None:
        raise _credentials_error(
            "a key pair needs both access_key_id and secret_access_key; session_token and "
            "expires_after are additional"
        )
    return s3_static_credentials(
        access_key_id=access_key_id,
        secret_access_key=secret_access_key,
        session_token=session_token,
        expires_after=expires_after,
    )


def gcs_static_credentials(
    *,
    service_account_file: str | None = None,
    service_account_key: str | None = None,
    application_credentials: str | None = None,
    bearer_token: str | None = None,
) -> AnyGcsStaticCredential:
    """Make static GCS credentials; exactly one argument must be given."""
    kinds = GcsStaticCredentials
    credential: AnyGcsStaticCredential = _make_static(
        "GCS",
        ("service_account_file", service_account_file, kinds.ServiceAccount),
        ("service_account_key", service_account_key, kinds.ServiceAccountKey),
        ("application_credentials", application_credentials, kinds.ApplicationCredentials),
        ("bearer_token", bearer_token, kinds.BearerToken),
    )
    return credential


def gcs_refreshable_credentials(
    get_credentials: Callable[[], GcsBearerCredential],
    scatter_initial_credentials: bool = False,  # noqa: FBT001, FBT002 - Icechunk's signature
) -> GcsCredentials.Refreshable:
    """Make GCS credentials that a function renews; see `s3_refreshable_credentials`."""
    current = get_credentials() if scatter_initial_credentials else None
    return GcsCredentials.Refreshable(_pickle_function(get_credentials), current)


def gcs_anonymous_credentials() -> GcsCredentials.Anonymous:
    """Make GCS credentials for unsigned requests."""
    return GcsCredentials.Anonymous()


def gcs_from_env_credentials() -> GcsCredentials.FromEnv:
    """Make GCS credentials from the environment."""
    return GcsCredentials.FromEnv()


def gcs_credentials(
    *,
    service_account_file: str | None = None,
    service_account_key: str | None = None,
    application_credentials: str | None = None,
    bearer_token: str | None = None,
    from_env: bool | None = None,
    anonymous: bool | None = None,
    get_credentials: Callable[[], GcsBearerCredential] | None = None,
    scatter_initial_credentials: bool = False,
) -> AnyGcsCredential:
    """Make GCS credentials of the selected kind; the default is the environment."""
    values = (service_account_file, service_account_key, application_credentials, bearer_token)
    is_static = any(value is not None for value in values)
    kinds = {"a static credential": is_static, "anonymous": anonymous, "from_env": from_env}
    _require_one_kind({**kinds, "get_credentials": get_credentials is not None})
    if anonymous:
        return GcsCredentials.Anonymous()
    if get_credentials is not None:
        return gcs_refreshable_credentials(
            get_credentials, scatter_initial_credentials=scatter_initial_credentials
        )
    if not is_static:
        return GcsCredentials.FromEnv()
    return GcsCredentials.Static(
        gcs_static_credentials(
            service_account_file=service_account_file,
            service_account_key=service_account_key,
            application_credentials=application_credentials,
            bearer_token=bearer_token,
        )
    )


def azure_static_credentials(
    *, access_key: str | None = None, sas_token: str | None = None, bearer_token: str | None = None
) -> AnyAzureStaticCredential:
    """Make static Azure credentials; exactly one argument must be given."""
    credential: AnyAzureStaticCredential = _make_static(
        "Azure",
        ("access_key", access_key, AzureStaticCredentials.AccessKey),
        ("sas_token", sas_token, AzureStaticCredentials.SasToken),
        ("bearer_token", bearer_token, AzureStaticCredentials.BearerToken),
    )
    return credential


def azure_refreshable_credentials(
    get_credentials: Callable[[], AnyAzureRefreshableCredential],
    scatter_initial_credentials: bool = False,  # noqa: FBT001, FBT002 - Icechunk's signature
) -> AzureCredentials.Refreshable:
    """Make Azure credentials that a function renews; see `s3_refreshable_credentials`."""
    current = get_credentials() if scatter_initial_credentials else None
    return AzureCredentials.Refreshable(_pickle_function(get_credentials), current)


def azure_from_env_credentials() -> AzureCredentials.FromEnv:
    """Make Azure credentials from the environment."""
    return AzureCredentials.FromEnv()


def azure_anonymous_credentials() -> AzureCredentials.Anonymous:
    """Make Azure credentials for unsigned requests."""
    return AzureCredentials.Anonymous()


def azure_credentials(
    *,
    access_key: str | None = None,
    sas_token: str | None = None,
    bearer_token: str | None = None,
    from_env: bool | None = None,
    anonymous: bool | None = None,
    get_credentials: Callable[[], AnyAzureRefreshableCredential] | None = None,
    scatter_initial_credentials: bool = False,
) -> AnyAzureCredential:
    """Make Azure credentials of the selected kind; the default is the environment."""
    is_static = any(value is not None for value in (access_key, sas_token, bearer_token))
    kinds = {"a static credential": is_static, "anonymous": anonymous, "from_env": from_env}
    _require_one_kind({**kinds, "get_credentials": get_credentials is not None})
    if anonymous:
        return AzureCredentials.Anonymous()
    if get_credentials is not None:
        return azure_refreshable_credentials(
            get_credentials, scatter_initial_credentials=scatter_initial_credentials
        )
    if not is_static:
        return AzureCredentials.FromEnv()
    return AzureCredentials.Static(
        azure_static_credentials(
            access_key=access_key, sas_token=sas_token, bearer_token=bearer_token
        )
    )


def containers_credentials(
    m: Mapping[
        str,
        AnyS3Credential
        | AnyGcsCredential
        | AnyAzureCredential
        | Credentials.LocalFileSystemAccess
        | Credentials.HttpAccess
        | None,
    ],
) -> dict[str, AnyCredential | None]:
    """Wrap the credentials of virtual chunk containers, by URL prefix or name.

    None, which is deprecated, authorizes a container without credentials.
    """
    return {key: _wrap_credential(key, credential) for key, credential in m.items()}


def _wrap_credential(key: str, credential: object) -> AnyCredential | None:
    if credential is None:
        return None
    if isinstance(credential, Credentials.LocalFileSystemAccess | Credentials.HttpAccess):
        return credential
    if isinstance(credential, AnyS3Credential):
        return Credentials.S3(credential)
    if isinstance(credential, AnyGcsCredential):
        return Credentials.Gcs(credential)
    if isinstance(credential, AnyAzureCredential):
        return Credentials.Azure(credential)
    raise _credentials_error(
        f"{key!r}: expected a credential from s3_credentials, gcs_credentials or "
        f"azure_credentials, got {type(credential).__name__}"
    )


def _pickle_function(function: Callable[[], object]) -> bytes:
    try:
        return pickle.dumps(function)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise _credentials_error(
            "get_credentials cannot be pickled for other processes: define it at the top level "
            "of a module"
        ) from error


def _make_static(platform: str, *choices: tuple[str, str | None, Callable[[str], object]]) -> Any:
    names = [name for name, _, _ in choices]
    _require_one_kind({name: value is not None for name, value, _ in choices})
    for _, value, kind in choices:
        if value is not None:
            return kind(value)
    expected = f"{', '.join(names[:-1])} or {names[-1]}"
    raise _credentials_error(f"static {platform} credentials need {expected}")


def _require_one_kind(kinds: Mapping[str, bool | None]) -> None:
    names = [name for name, is_used in kinds.items() if is_used]
    if len(names) > 1:
        raise _credentials_error(f"pass only one kind of credentials, not {', '.join(names)}")


def _credentials_error(message: str) -> InvalidInputError:
    return InvalidInputError(message, kind=ErrorKind.INVALID_CREDENTIALS)
