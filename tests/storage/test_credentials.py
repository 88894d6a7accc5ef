"""Credentials are values that keep their secrets, and refreshable ones stay fresh."""

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
    """Hands out numbered key pairs that live for a while; the count stands in the class."""

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
def test_secrets_travel_but_are_not_shown(credential: object) -> None:
    """A pickle holds all of a credential; its repr, and that of its wrapper, no secret."""
    assert pickle.loads(pickle.dumps(credential)) == credential  # noqa: S301
    assert SECRET not in f"{credential!r} {credential}"
    wrapped = containers_credentials({"s3://bucket/": credential})  # type: ignore[dict-item]
    assert SECRET not in repr(wrapped)
    assert pickle.loads(pickle.dumps(wrapped)) == wrapped  # noqa: S301


def test_the_one_kind_that_is_named_is_made() -> None:
    """Arguments name at most one kind; none means the environment."""
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


def test_kinds_that_do_not_fit_together_are_refused() -> None:
    """The error says which arguments exclude each other, and quotes no secret."""
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


def test_containers_get_credentials_by_kind_of_place() -> None:
    """Every credential is wrapped by the kind of place it is for; others are refused."""
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


def test_a_hundred_threads_ask_once() -> None:
    """Whoever asks while a credential is being renewed waits for that one answer."""
    credential = refreshing(timedelta(hours=1))
    with ThreadPoolExecutor(32) as pool:
        answers = set(pool.map(lambda _: credential.get(), range(100)))
    assert len(answers) == 1
    assert Issuer.asked == 1


def test_renewal_comes_before_the_end() -> None:
    """A credential is renewed five minutes before it ends, a short-lived one at half its life."""
    assert refreshing(timedelta(hours=1)).get().access_key_id == "key1"
    almost_over = S3StaticCredentials("old", SECRET, None, datetime.now(UTC) + timedelta(seconds=1))
    credential = refreshing(timedelta(hours=1), almost_over)
    assert credential.get() == almost_over
    time.sleep(0.6)
    assert credential.get().access_key_id == "key2"
    assert datetime.now(UTC) < (almost_over.expires_after or datetime.now(UTC))


def test_what_ended_is_never_handed_out() -> None:
    """An answer that was sent along and is over by now is replaced at once."""
    over = S3StaticCredentials("old", SECRET, None, datetime.now(UTC) - timedelta(seconds=1))
    assert refreshing(None, over).get().access_key_id == "key1"


def test_what_has_no_end_is_asked_for_once() -> None:
    """Without an end there is nothing to renew."""
    credential = refreshing(None)
    assert {credential.get().access_key_id for _ in range(5)} == {"key1"}


def test_scattered_credentials_spare_the_first_question() -> None:
    """An answer that is sent along is used by every copy; without it each asks for itself."""
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


def test_functions_that_fail_say_so_without_their_text() -> None:
    """The error names the type only, because the text may quote a secret."""
    failing = RefreshingCredential(pickle.dumps(fail_with_a_secret), None, (S3StaticCredentials,))
    with pytest.raises(StorageError, match="RuntimeError") as raised:
        failing.get()
    assert SECRET not in "".join(traceback.format_exception(raised.value))
    wrong = RefreshingCredential(pickle.dumps(answer_nonsense), None, (S3StaticCredentials,))
    with pytest.raises(InvalidInputError, match="to return S3StaticCredentials, got str"):
        wrong.get()
