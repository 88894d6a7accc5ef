"""Storages and store configs by the names and signatures of Icechunk."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import pytest

from icefloe.errors import InvalidInputError
from icefloe.model.containers import ObjectStoreConfig, S3Options
from icefloe.storage import (
    AzureCredentials,
    AzurePlace,
    AzureStaticCredentials,
    ChecksumAlgorithm,
    GcsCredentials,
    GcsPlace,
    HttpStorage,
    LocalStorage,
    MemoryStorage,
    S3Credentials,
    S3Place,
    azure_storage,
    azure_store,
    factories,
    gcs_storage,
    gcs_store,
    http_storage,
    http_store,
    local_filesystem_store,
    r2_storage,
    s3_object_store_storage,
    s3_storage,
    s3_store,
    tigris_storage,
)

if TYPE_CHECKING:
    from pathlib import Path

OPTIONS = S3Options(
    region="eu-west-1",
    endpoint_url="https://example.org",
    force_path_style=True,
    network_stream_timeout_seconds=7,
    requester_pays=True,
    checksum_algorithm=ChecksumAlgorithm.Sha256,
)
ANONYMOUS = S3Credentials.Anonymous()


def test_memory_and_local_storages(tmp_path: Path) -> None:
    """Memory and directories have no options."""
    assert isinstance(factories.new_in_memory(), MemoryStorage)
    local = factories.new_local_filesystem(str(tmp_path))
    assert isinstance(local, LocalStorage)
    assert local.url == tmp_path.as_uri()


def test_s3_from_options() -> None:
    """Options and credentials have the same effect as the arguments of the constructor."""
    made = factories.new_s3(OPTIONS, "b", "p", ANONYMOUS, headers={"a": "1"}).place
    assert made == (
        s3_storage(
            bucket="b",
            prefix="p",
            region="eu-west-1",
            endpoint_url="https://example.org",
            force_path_style=True,
            network_stream_timeout_seconds=7,
            requester_pays=True,
            checksum_algorithm=ChecksumAlgorithm.Sha256,
            anonymous=True,
            headers={"a": "1"},
        ).place
    )
    other = factories.new_s3_object_store(OPTIONS, "b", "p", ANONYMOUS, headers={"a": "1"})
    assert other.place == made
    plain = factories.new_s3(S3Options(anonymous=True), "b", None).place
    assert isinstance(plain, S3Place)
    assert plain.credentials == ANONYMOUS
    assert plain.network_stream_timeout_seconds == 60
    with pytest.raises(InvalidInputError):
        factories.new_s3(OPTIONS, "b", "p", None, legacy_rooted_keys=True)


def test_tigris_and_r2_from_options() -> None:
    """Tigris and R2 storages are equal to those of their constructors."""
    region = S3Options(region="fra")
    tigris = factories.new_tigris(region, "b", "p", False, ANONYMOUS)
    expected = tigris_storage(bucket="b", prefix="p", region="fra", anonymous=True)
    assert tigris.place == expected.place
    assert factories.new_tigris(S3Options(), "b", "p", True, ANONYMOUS).read_only
    r2 = factories.new_r2(S3Options(), "b", "p", "acc", ANONYMOUS)
    assert r2.place == r2_storage(bucket="b", prefix="p", account_id="acc", anonymous=True).place


def test_other_clouds_from_options() -> None:
    """GCS, Azure and web servers take credentials and options as values."""
    gcs = factories.new_gcs("b", "p", GcsCredentials.Anonymous(), config={"a": "1"}).place
    assert gcs == gcs_storage(bucket="b", prefix="p", anonymous=True, config={"a": "1"}).place
    assert isinstance(factories.new_gcs("b", None).place, GcsPlace)
    key = AzureCredentials.Static(AzureStaticCredentials.AccessKey("k"))
    azure = factories.new_azure_blob("a", "c", "p", key).place
    assert azure == azure_storage(account="a", container="c", prefix="p", access_key="k").place
    assert isinstance(factories.new_azure_blob("a", "c", "p").place, AzurePlace)
    web = factories.new_http("https://example.org/r", {"timeout": "1s"}, {"a": "1"})
    assert isinstance(web, HttpStorage)
    assert web.place == http_storage("https://example.org/r", {"timeout": "1s"}, {"a": "1"}).place
    with pytest.raises(InvalidInputError, match="not an HTTP URL"):
        factories.new_redirect("s3://b/p")


def test_s3_object_store() -> None:
    """Icechunk's second S3 client is the same storage."""
    other = s3_object_store_storage(bucket="b", prefix="p", region="r", anonymous=True)
    assert other.place == s3_storage(bucket="b", prefix="p", region="r", anonymous=True).place
    unknown = set(inspect.signature(s3_object_store_storage).parameters) - set(
        inspect.signature(s3_storage).parameters
    )
    assert unknown == set()


def test_store_configs(tmp_path: Path) -> None:
    """Each function returns the config of its kind."""
    assert local_filesystem_store(tmp_path) == ObjectStoreConfig.LocalFileSystem(str(tmp_path))
    options = S3Options(region="r", anonymous=True, network_stream_timeout_seconds=60)
    assert s3_store("r", anonymous=True) == ObjectStoreConfig.S3(options)
    assert s3_store(region="r", anonymous=True, s3_compatible=True) == (
        ObjectStoreConfig.S3Compatible(options)
    )
    assert gcs_store({"a": "1"}) == ObjectStoreConfig.Gcs({"a": "1"})
    assert gcs_store() == ObjectStoreConfig.Gcs({})
    assert azure_store(account="a", config={"b": "1"}) == (
        ObjectStoreConfig.Azure({"account": "a", "b": "1"})
    )
    assert http_store({"timeout": "1s"}, {"a": "1"}) == (
        ObjectStoreConfig.Http({"timeout": "1s"}, {"a": "1"})
    )
