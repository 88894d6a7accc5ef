"""Options in the query of a storage URL."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from icefloe.errors import InvalidInputError
from icefloe.storage import AzurePlace, GcsPlace, ObjectStorage, S3Place, storage_from_url
from icefloe.storage.url_options import UrlOptions, split_options


@pytest.mark.parametrize(
    "url, expected",
    [
        ("s3://b/p", UrlOptions()),
        ("s3://b/p?region=eu-west-1", UrlOptions(region="eu-west-1")),
        (
            "s3://b/p?endpoint=http://localhost:9000&anonymous=true&allow_http=false",
            UrlOptions(endpoint="http://localhost:9000", anonymous=True, allow_http=False),
        ),
        ("gs://b?anonymous=false", UrlOptions(anonymous=False)),
        ("az://c/p?account=a", UrlOptions(account="a")),
        ("file:///d?durable=false", UrlOptions(durable=False)),
    ],
)
def test_options_are_split_off(url: str, expected: UrlOptions) -> None:
    """Each scheme has its options, and the rest of the URL stays."""
    parts, options = split_options(urlsplit(url))
    assert options == expected
    assert parts.geturl() == url.partition("?")[0]


@pytest.mark.parametrize(
    "url, problem",
    [
        ("s3://b/p?secret_key=S3CR3T", "the options of s3:// are endpoint"),
        ("s3://b/p?S3CR3T", "the options of s3://"),
        ("s3://b/p?region=a&region=S3CR3T", "at most once"),
        ("s3://b/p?region=&endpoint=S3CR3T", "at most once"),
        ("s3://b/p?anonymous=S3CR3T", "anonymous is true or false"),
        ("s3://b/p?endpoint=S3CR3T", "starts with https://"),
        ("s3://b/p?endpoint=https://u:S3CR3T@host", "user or password"),
        ("gs://b/p?region=S3CR3T", "the options of gs:// are anonymous"),
    ],
)
def test_anything_else_is_refused_without_being_shown(url: str, problem: str) -> None:
    """The query may contain a secret, so that the message does not contain it."""
    with pytest.raises(InvalidInputError, match=problem) as raised:
        storage_from_url(url)
    assert "S3CR3T" not in str(raised.value)


def test_storages_have_the_options() -> None:
    """The options reach the place of the storage, and its URL stays free of them."""
    storage = storage_from_url("s3://b/p?endpoint=http://localhost:9000&region=r1&anonymous=true")
    assert isinstance(storage, ObjectStorage)
    assert isinstance(storage.place, S3Place)
    assert storage.place.endpoint_url == "http://localhost:9000"
    assert storage.place.region == "r1"
    assert storage.url == "s3://b/p"
    storage = storage_from_url("az://c/p?account=acc&anonymous=true")
    assert isinstance(storage, ObjectStorage)
    assert isinstance(storage.place, AzurePlace)
    assert storage.place.account == "acc"
    storage = storage_from_url("gs://b/p?anonymous=true")
    assert isinstance(storage, ObjectStorage)
    assert isinstance(storage.place, GcsPlace)
