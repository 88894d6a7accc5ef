"""Credentials hide their secrets, and refreshable ones are renewed."""

from __future__ import annotations

import pickle
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from icefloe.errors import InvalidInputError, StorageError
from icefloe.storage import (
    AzureCredentials,
    AzureRefreshableCredential,
    AzureStaticCredentials,
    Credentials,
    GcsBearerCredential,
    GcsCredentials,
    GcsStaticCredentials,
    S3Credentials,
    S3StaticCredentials,
    azure_anonymous_credentials,
    azure_credentials,
    azure_from_env_credentials,
    azure_refreshable_credentials,
    azure_static_credentials,
    containers_credentials,
    gcs_anonymous_credentials,
    gcs_credentials,
    gcs_from_env_credentials,
    gcs_refreshable_credentials,
    gcs_static_credentials,
    s3_anonymous_credentials,
    s3_credentials,
    s3_from_env_credentials,
    s3_refreshable_credentials,
    s3_static_credentials,
)
from icefloe.storage.refreshing import RefreshingCredential

SECRET = "hush-hush"


class Issuer:
    """Returns numbered key pairs that expire; the class has the counter."""

    asked = 0
    lock = threading.Lock()

    def __init__(self, lifetime: timedelta | None) -> None:
        self.lifetime = lifetime

    def __call__(self) -> S3StaticCredentials:
        with Issuer.lock:
            Issuer.asked += 1
            number = Issuer.asked
        time.sleep(0.01)
        end = None if self.lifetime is None else datetime.now(UTC) + self.lifetime
        return S3StaticCredentials(f"key{number}", SECRET, None, end)


@pytest.fixture(autouse=True)
def _fresh_issuer() -> None:
    Issuer.asked = 0


def refreshing(
    lifetime: timedelta | None, current: S3StaticCredentials | None = None
) -> RefreshingCredential[S3StaticCredentials]:
    return RefreshingCredential(pickle.dumps(Issuer(lifetime)), current, (S3StaticCredentials,))


def answer_gcs() -> GcsBearerCredential:
    return GcsBearerCredential(SECRET)


def answer_azure() -> AzureRefreshableCredential.SasToken:
    return AzureRefreshableCredential.SasToken(SECRET)


def fail_with_a_secret() -> S3StaticCredentials:
    raise RuntimeError(SECRET)


def answer_nonsense() -> S3StaticCredentials:
    return SECRET  # type: ignore[return-value]


EVERY_KIND = [
    s3_static_credentials(access_key_id=SECRET, secret_access_key=SECRET, session_token=SECRET),
    s3_anonymous_credentials(),
    s3_from_env_credentials(),
    s3_refreshable_credentials(Issuer(None), scatter_initial_credentials=True),
    gcs_anonymous_credentials(),
    gcs_from_env_credentials(),
    gcs_credentials(service_account_key=SECRET),
    gcs_credentials(bearer_token=SECRET),
    gcs_refreshable_credentials(answer_gcs, scatter_initial_credentials=True),
    azure_anonymous_credentials(),
    azure_from_env_credentials(),
    azure_credentials(access_key=SECRET),
    azure_credentials(sas_token=SECRET),
    azure_credentials(bearer_token=SECRET),
    azure_refreshable_credentials(answer_azure, scatter_initial_credentials=True),
]


@pytest.mark.parametrize("credential", EVERY_KIND, ids=lambda credential: type(credential).__name__)
def test_secrets_pickle_but_are_not_shown(credential: object) -> None:
    """A pickle contains the complete credential; its repr, and that of its wrapper, no secret."""
    assert pickle.loads(pickle.dumps(credential)) == credential  # noqa: S301
    assert SECRET not in f"{credential!r} {credential}"
    wrapped = containers_credentials({"s3://bucket/": credential})  # type: ignore[dict-item]
    assert SECRET not in repr(wrapped)
    assert pickle.loads(pickle.dumps(wrapped)) == wrapped  # noqa: S301


def test_kinds_of_credentials() -> None:
    """At most one kind is passed; the default is the environment."""
    assert s3_credentials() == S3Credentials.FromEnv() == s3_credentials(from_env=True)
    assert s3_credentials(anonymous=True) == S3Credentials.Anonymous()
    assert s3_credentials(access_key_id="a", secret_access_key="b") == S3Credentials.Static(
        S3StaticCredentials("a", "b")
    )
    assert gcs_credentials() == GcsCredentials.FromEnv()
    assert gcs_credentials(service_account_file="f") == GcsCredentials.Static(
        GcsStaticCredentials.ServiceAccount("f")
    )
    assert gcs_static_credentials(
        application_credentials="f"
    ) == GcsStaticCredentials.ApplicationCredentials("f")
    assert azure_credentials() == AzureCredentials.FromEnv()
    assert azure_credentials(sas_token="t") == AzureCredentials.Static(
        AzureStaticCredentials.SasToken("t")
    )
    assert azure_static_credentials(bearer_token="t") == AzureStaticCredentials.BearerToken("t")


def test_conflicting_kinds_raise() -> None:
    """The error names the conflicting arguments and contains no secret."""
    with pytest.raises(InvalidInputError, match="a key pair, anonymous") as raised:
        s3_credentials(access_key_id=SECRET, secret_access_key=SECRET, anonymous=True)
    assert SECRET not in str(raised.value)
    with pytest.raises(InvalidInputError, match="both access_key_id and secret_access_key"):
        s3_credentials(access_key_id=SECRET)
    with pytest.raises(InvalidInputError, match="only one kind"):
        s3_credentials(from_env=True, get_credentials=Issuer(None))
    with pytest.raises(InvalidInputError, match="only one kind"):
        gcs_credentials(service_account_key="a", bearer_token="b")
    with pytest.raises(InvalidInputError, match="only one kind"):
        azure_credentials(access_key="a", anonymous=True)
    with pytest.raises(InvalidInputError, match="need access_key"):
        azure_static_credentials()
    with pytest.raises(InvalidInputError, match="need service_account_file"):
        gcs_static_credentials()
    with pytest.raises(InvalidInputError, match="time zone"):
        S3StaticCredentials("a", "b", None, datetime(2030, 1, 1))  # noqa: DTZ001
    with pytest.raises(InvalidInputError, match="top level of a module"):
        s3_refreshable_credentials(lambda: S3StaticCredentials("a", "b"))


def test_containers_credentials() -> None:
    """Every credential is wrapped for its platform; other values raise."""
    made = containers_credentials(
        {
            "s3://a/": s3_anonymous_credentials(),
            "gs://b/": gcs_anonymous_credentials(),
            "az://c/": azure_anonymous_credentials(),
            "file:///d/": Credentials.LocalFileSystemAccess(),
            "https://e/": Credentials.HttpAccess(),
            "s3://f/": None,
        }
    )
    assert made == {
        "s3://a/": Credentials.S3(S3Credentials.Anonymous()),
        "gs://b/": Credentials.Gcs(GcsCredentials.Anonymous()),
        "az://c/": Credentials.Azure(AzureCredentials.Anonymous()),
        "file:///d/": Credentials.LocalFileSystemAccess(),
        "https://e/": Credentials.HttpAccess(),
        "s3://f/": None,
    }
    with pytest.raises(InvalidInputError, match="got str"):
        containers_credentials({"s3://a/": SECRET})  # type: ignore[dict-item]


def test_a_hundred_threads_share_one_refresh() -> None:
    """Concurrent callers share one renewal."""
    credential = refreshing(timedelta(hours=1))
    with ThreadPoolExecutor(32) as pool:
        answers = set(pool.map(lambda _: credential.get(), range(100)))
    assert len(answers) == 1
    assert Issuer.asked == 1


def test_renewal_before_expiration() -> None:
    """A credential is renewed five minutes before it expires, or after half of its lifetime."""
    assert refreshing(timedelta(hours=1)).get().access_key_id == "key1"
    almost_over = S3StaticCredentials("old", SECRET, None, datetime.now(UTC) + timedelta(seconds=1))
    credential = refreshing(timedelta(hours=1), almost_over)
    assert credential.get() == almost_over
    time.sleep(0.6)
    assert credential.get().access_key_id == "key2"
    assert datetime.now(UTC) < (almost_over.expires_after or datetime.now(UTC))


def test_expired_credentials_are_never_returned() -> None:
    """An initial credential that has expired is renewed immediately."""
    over = S3StaticCredentials("old", SECRET, None, datetime.now(UTC) - timedelta(seconds=1))
    assert refreshing(None, over).get().access_key_id == "key1"


def test_credentials_without_expiration_are_not_renewed() -> None:
    """A credential without an expiration time is not renewed."""
    credential = refreshing(None)
    assert {credential.get().access_key_id for _ in range(5)} == {"key1"}


def test_scattered_credentials_save_the_first_call() -> None:
    """Every copy uses the initial credential; without one, each copy calls the function."""
    scattered = s3_refreshable_credentials(
        Issuer(timedelta(hours=1)), scatter_initial_credentials=True
    )
    assert Issuer.asked == 1
    for _ in range(3):
        copy = pickle.loads(pickle.dumps(scattered))  # noqa: S301
        credential = RefreshingCredential(
            copy.pickled_function, copy.current, (S3StaticCredentials,)
        )
        assert credential.get().access_key_id == "key1"
    assert Issuer.asked == 1
    assert s3_refreshable_credentials(Issuer(None)).current is None
    assert Issuer.asked == 1


def fail_with_our_error() -> S3StaticCredentials:
    raise StorageError("no token today")


def test_errors_of_get_credentials_hide_the_message() -> None:
    """Only the type of the error, as its message may contain a secret; our errors have none."""
    failing = RefreshingCredential(pickle.dumps(fail_with_a_secret), None, (S3StaticCredentials,))
    with pytest.raises(StorageError, match="RuntimeError") as raised:
        failing.get()
    assert SECRET not in "".join(traceback.format_exception(raised.value))
    uncallable = RefreshingCredential(pickle.dumps(5), None, (S3StaticCredentials,))
    with pytest.raises(InvalidInputError, match="'int' object is not callable"):
        uncallable.get()
    ours = RefreshingCredential(pickle.dumps(fail_with_our_error), None, (S3StaticCredentials,))
    with pytest.raises(StorageError, match="raised StorageError: no token today"):
        ours.get()
    wrong = RefreshingCredential(pickle.dumps(answer_nonsense), None, (S3StaticCredentials,))
    with pytest.raises(InvalidInputError, match="to return S3StaticCredentials, got str"):
        wrong.get()


@pytest.mark.parametrize("character", ["\n", "\r", "\0", "\x7f"])
def test_control_characters_are_rejected(character: str) -> None:
    """A credential with a line break cannot be sent; the error shows only its name."""
    secret = f"{SECRET}{character}"
    for make in (
        lambda: S3StaticCredentials(secret, "key"),
        lambda: S3StaticCredentials("id", secret),
        lambda: S3StaticCredentials("id", "key", secret),
        lambda: GcsBearerCredential(secret),
        lambda: GcsStaticCredentials.BearerToken(secret),
        lambda: AzureStaticCredentials.AccessKey(secret),
        lambda: AzureStaticCredentials.SasToken(secret),
        lambda: AzureStaticCredentials.BearerToken(secret),
        lambda: AzureRefreshableCredential.AccessKey(secret),
        lambda: AzureRefreshableCredential.SasToken(secret),
        lambda: AzureRefreshableCredential.BearerToken(secret),
        lambda: s3_credentials(access_key_id="id", secret_access_key=secret),
        lambda: gcs_credentials(bearer_token=secret),
        lambda: azure_credentials(sas_token=secret),
    ):
        with pytest.raises(InvalidInputError, match="contains a control character") as raised:
            make()
        assert SECRET not in str(raised.value)
    key = '{"type": "service_account",\n"private_key": ""}'
    assert GcsStaticCredentials.ServiceAccountKey(key).key == key
