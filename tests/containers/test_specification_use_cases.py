"""Use cases and requirements of virtual chunks, each under the heading of its proposal.

The servers are real: SeaweedFS as S3, with one identity that writes and one that only reads, a
server of the part of Google's protocol that reads, Azurite, a web server, and the local disk.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest

import icefloe
from containers.conftest import FILE, TOKENS
from icefloe.errors import ErrorKind, InvalidInputError, StorageError
from icefloe.storage import (
    AnyCredential,
    AzureCredentials,
    AzureStaticCredentials,
    Credentials,
    GcsBearerCredential,
    GcsCredentials,
    GcsStaticCredentials,
    S3Credentials,
    azure_storage,
    azure_store,
    gcs_refreshable_credentials,
    gcs_store,
    http_store,
    in_memory_storage,
    local_filesystem_storage,
    local_filesystem_store,
    s3_refreshable_credentials,
    s3_static_credentials,
    s3_storage,
    s3_store,
)
from icefloe.virtual import VirtualChunkContainer
from support.servers import S3Server
from support.virtual_array import (
    as_reader,
    containers_of,
    home_in_s3,
    read,
    reader_keys,
    refusal,
    write_refs,
)
from support.web_servers import web_server

if TYPE_CHECKING:
    from pathlib import Path

    from icefloe.storage import ObjectStorage, S3StaticCredentials
    from support.conditional_web_server import WebFiles
    from support.servers import AzureServer

BAR = "s3://floes/folder/bar.nc"
PART = FILE[5:15]


def bearer(token: str) -> AnyCredential:
    return Credentials.Gcs(GcsCredentials.Static(GcsStaticCredentials.BearerToken(token)))


def gcs_at(server: WebFiles, **options: str) -> icefloe.ObjectStoreConfig.Gcs:
    return gcs_store({"base_url": server.url, "allow_http": "true", **options})


def failure(repository: icefloe.Repository, name: str) -> StorageError:
    with pytest.raises(StorageError) as raised:
        read(repository, name)
    return raised.value


# ### Credentials


def test_credentials(s3_server: S3Server, gcs_server: WebFiles) -> None:
    """Given by the names of containers, not for all of them; others may fail, and say why."""
    config = icefloe.RepositoryConfig()
    minio = s3_store(endpoint_url=s3_server.endpoint_url, s3_compatible=True, allow_http=True)
    config.set_virtual_chunk_container(VirtualChunkContainer("s3", minio, "data"))
    config.set_virtual_chunk_container(VirtualChunkContainer("gcs", gcs_at(gcs_server), "more"))
    repository = icefloe.Repository.create(
        in_memory_storage(), config, {"data": as_reader(s3_server)}
    )
    write_refs(repository, "given", [BAR])
    write_refs(repository, "missing", ["gcs://some-bucket/virtual-a"])
    assert read(repository, "given") == PART
    assert "container gcs:// (more)" in refusal(repository, "missing")


# #### Basic usage


def test_basic_usage_in_one_place(aws: S3Server) -> None:
    """Repository and chunks in us-east-1 with the same credentials: nothing is configured."""
    storage = home_in_s3(aws, region="us-east-1")
    write_refs(icefloe.Repository.create(storage), "a", [BAR, BAR])
    repository = icefloe.Repository.open(storage)
    assert read(repository, "a") == PART * 2
    assert containers_of(icefloe.Repository.fetch_config(storage)) is None
    s3 = next(c for c in repository.list_virtual_chunk_containers() if c.container.name == "s3")
    assert (s3.is_authorized, s3.uses_repository_credentials) == (True, True)
    # Who opens repositories of others can forbid even that.
    careful = icefloe.Repository.open(storage, authorize_virtual_chunk_access={})
    assert "s3://" in refusal(careful, "a")


_fresh: list[str] = []


def fresh_reader_keys() -> S3StaticCredentials:
    """Answer the reader's keys; a function that pickles, as refreshable credentials need."""
    _fresh.append("asked")
    return reader_keys(S3Server(""))


@pytest.mark.parametrize("kind", ["static", "environment", "refreshable"])
def test_basic_usage_with_credentials_for_s3(
    aws: S3Server, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Credentials for the container "s3", the default container, given at run time."""
    storage = in_memory_storage()
    repository = write_refs(icefloe.Repository.create(storage), "a", [BAR])
    assert "authorize_virtual_chunk_access={'s3://': Credentials.S3(" in refusal(repository, "a")
    keys = reader_keys(aws)
    match kind:
        case "static":
            credential = as_reader(aws)
        case "environment":
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", keys.access_key_id)
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", keys.secret_access_key)
            credential = Credentials.S3(S3Credentials.FromEnv())
        case _:
            _fresh.clear()
            credential = Credentials.S3(s3_refreshable_credentials(fresh_reader_keys))
    repository = icefloe.Repository.open(storage, authorize_virtual_chunk_access={"s3": credential})
    assert read(repository, "a") == PART
    assert len(_fresh) == (kind == "refreshable")
    assert repository.authorized_virtual_container_prefixes == {"s3://"}


def test_basic_usage_without_credentials_in_a_private_bucket(aws: S3Server) -> None:
    """Anonymous requests are anonymous: the server refuses them, whatever the environment has."""
    repository = icefloe.Repository.create(
        in_memory_storage(), None, {"s3": Credentials.S3(S3Credentials.Anonymous())}
    )
    error = failure(write_refs(repository, "a", [BAR]), "a")
    assert error.kind is ErrorKind.VIRTUAL_CHUNK_FETCH
    assert BAR in error.message


# #### Non default region


def test_non_default_region(aws: S3Server) -> None:
    """A container with prefix ``s3://`` and the region, saved once, overrides the default one."""
    storage = home_in_s3(aws, region="sa-east-1")
    config = icefloe.RepositoryConfig()
    config.set_virtual_chunk_container(
        VirtualChunkContainer("s3://", s3_store(region="sa-east-1"), "s3")
    )
    repository = icefloe.Repository.create(storage, config)
    write_refs(repository, "a", [BAR])
    # The repository's own credentials, in the same place; or those that are given.
    for access in (None, {"s3://": as_reader(aws)}, {"s3": as_reader(aws)}):
        again = icefloe.Repository.open(storage, authorize_virtual_chunk_access=access)
        (listed,) = (c for c in again.list_virtual_chunk_containers() if not c.is_default)
        assert listed.uses_repository_credentials == (access is None)
        assert read(again, "a") == PART
    # Alternatively at run time, by every reader.
    unsaved = in_memory_storage()
    write_refs(icefloe.Repository.create(unsaved), "a", [BAR])
    again = icefloe.Repository.open(unsaved, config, {"s3://": as_reader(aws)})
    assert read(again, "a") == PART
    assert containers_of(icefloe.Repository.fetch_config(unsaved)) is None


# #### Repo on s3 virtual chunks on gcs


def fresh_token() -> GcsBearerCredential:
    return GcsBearerCredential(TOKENS["some-bucket"])


def test_repo_on_s3_virtual_chunks_on_gcs(aws: S3Server, gcs_server: WebFiles) -> None:
    """A saved container named gcs, with its region; credentials must be set at run time."""
    storage = home_in_s3(aws, region="us-east-1")
    config = icefloe.RepositoryConfig()
    config.set_virtual_chunk_container(
        VirtualChunkContainer("gcs", gcs_at(gcs_server, region="africa-south1"), "gcs")
    )
    repository = icefloe.Repository.create(storage, config)
    write_refs(repository, "a", ["gcs://some-bucket/virtual-a"])
    before = len(gcs_server.asked)
    assert "gcs:// (gcs)" in refusal(repository, "a")
    assert len(gcs_server.asked) == before  # no request was sent
    for credential in (
        bearer(TOKENS["some-bucket"]),
        Credentials.Gcs(gcs_refreshable_credentials(fresh_token)),
    ):
        opened = icefloe.Repository.open(
            storage, authorize_virtual_chunk_access={"gcs": credential}
        )
        assert read(opened, "a") == PART
    wrong = icefloe.Repository.open(storage, None, {"gcs": bearer(TOKENS["some-other-bucket"])})
    error = failure(wrong, "a")
    assert error.kind is ErrorKind.VIRTUAL_CHUNK_FETCH
    assert TOKENS["some-other-bucket"] not in error.message


# #### Go to local MinIO for testing


def test_go_to_local_minio_for_testing(s3_server: S3Server, tmp_path: Path) -> None:
    """Chunks of ``s3://bucket/prefix/array`` come from a local copy, for this instance alone."""
    server = s3_storage(
        bucket=s3_server.bucket,
        prefix=None,
        endpoint_url=s3_server.endpoint_url,
        allow_http=True,
        access_key_id=s3_server.access_key_id,
        secret_access_key=s3_server.secret_access_key,
    )
    server.put("prefix/array/c/0", FILE)
    storage = local_filesystem_storage(tmp_path)
    locations = [f"s3://{s3_server.bucket}/prefix/array/c/0"]
    write_refs(icefloe.Repository.create(storage), "a", locations)

    config = icefloe.Repository.fetch_config(storage) or icefloe.RepositoryConfig()
    endpoint = s3_server.endpoint_url.removeprefix("http://")
    config.set_virtual_chunk_container(
        VirtualChunkContainer(
            f"s3://{s3_server.bucket}/prefix/array",
            s3_store(endpoint_url=endpoint, s3_compatible=True, allow_http=True),
            name="minio-override",
        )
    )
    unnamed = icefloe.Repository.open(storage, config)
    assert f"S3Compatible at {endpoint}" in refusal(unnamed, "a")
    access: Any = {"minio-override": as_reader(s3_server)}
    repository = icefloe.Repository.open(storage, config, access)
    assert read(repository, "a") == PART
    # Nothing was saved.
    assert containers_of(icefloe.Repository.fetch_config(storage)) is None
    names = [
        c.container.name for c in icefloe.Repository.open(storage).list_virtual_chunk_containers()
    ]
    assert "minio-override" not in names
    assert "s3" in names


# #### Multiple clouds and credential sets


@pytest.mark.parametrize("containers_first", [True, False], ids=["before", "after"])
def test_multiple_clouds_and_credential_sets(
    aws: S3Server, gcs_server: WebFiles, *, containers_first: bool
) -> None:
    """Three arrays by protocols of their own, on two clouds, each with its own credentials."""
    storage = home_in_s3(aws, region="us-east-1")
    config = icefloe.RepositoryConfig()
    for container in (
        VirtualChunkContainer("modela", gcs_at(gcs_server), "modela"),
        VirtualChunkContainer("modelb", gcs_at(gcs_server), "modelb"),
        VirtualChunkContainer("modelc", s3_store(), "modelc"),
    ):
        config.set_virtual_chunk_container(container)
    repository = icefloe.Repository.create(storage, config if containers_first else None)
    arrays = {
        "A": "modela://some-bucket/virtual-a",
        "B": "modelb://some-other-bucket/virtual-b",
        "C": f"modelc://{aws.bucket}/folder/bar.nc",
    }
    for name, location in arrays.items():
        write_refs(repository, name, [location], validate_container=containers_first)
    if not containers_first:
        repository.reopen(config).save_config()

    listed = icefloe.Repository.open(storage).list_virtual_chunk_containers()
    names = {c.container.name for c in listed if not c.is_default}
    assert names == {"modela", "modelb", "modelc"}  # what to pass credentials for
    access: dict[str, AnyCredential | None] = {
        "modela": bearer(TOKENS["some-bucket"]),
        "modelb": bearer(TOKENS["some-other-bucket"]),
        "modelc": as_reader(aws),
    }
    opened = icefloe.Repository.open(storage, None, access)
    expected = {"A": PART, "B": FILE[::-1][5:15], "C": PART}
    assert {name: read(opened, name) for name in arrays} == expected
    # No set opens another's bucket.
    secret = s3_static_credentials(access_key_id=aws.access_key_id, secret_access_key="not it")
    for name, array, other in (
        ("modela", "A", access["modelb"]),
        ("modelb", "B", access["modela"]),
        ("modelc", "C", Credentials.S3(secret)),
    ):
        swapped = icefloe.Repository.open(storage, None, {**access, name: other})
        assert failure(swapped, array).kind is ErrorKind.VIRTUAL_CHUNK_FETCH


# ### New functions


def test_new_functions(aws: S3Server) -> None:
    """Containers and locations are listed, which tells what a repository needs."""
    storage = home_in_s3(aws)
    config = icefloe.RepositoryConfig()
    config.set_virtual_chunk_container(VirtualChunkContainer("modelc", s3_store(), "modelc"))
    config.set_virtual_chunk_container(VirtualChunkContainer("gcs", gcs_store(), "gcs"))
    repository = icefloe.Repository.create(storage, config)
    write_refs(repository, "a", ["modelc://x/y", "gcs://x/y"])
    assert {
        c.container.name: c.is_authorized
        for c in repository.list_virtual_chunk_containers()
        if not c.is_default
    } == {"modelc": True, "gcs": False}
    session = repository.readonly_session("main")
    assert sorted(session.all_virtual_chunk_locations()) == ["gcs://x/y", "modelc://x/y"]


# ## Check requirements are satisfied


def test_requirement_1_all_stores_in_one_repository(
    s3_server: S3Server, gcs_server: WebFiles, tmp_path: Path
) -> None:
    """Virtual chunks of one array, hosted in different stores."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "bar.nc").write_bytes(FILE)
    with web_server(tmp_path) as web:
        config = icefloe.RepositoryConfig()
        here = f"{(tmp_path / 'data').as_uri()}/"
        minio = s3_store(endpoint_url=s3_server.endpoint_url, s3_compatible=True, allow_http=True)
        for container in (
            VirtualChunkContainer("s3", minio, "s3"),
            VirtualChunkContainer("gcs", gcs_at(gcs_server), "gcs"),
            VirtualChunkContainer(f"{web}/data/", http_store(), "web"),
            VirtualChunkContainer(here, local_filesystem_store(tmp_path), "disk"),
        ):
            config.set_virtual_chunk_container(container)
        access: Any = {
            "s3": as_reader(s3_server),
            "gcs": bearer(TOKENS["some-bucket"]),
            "web": Credentials.HttpAccess(),
            "disk": Credentials.LocalFileSystemAccess(),
        }
        repository = icefloe.Repository.create(in_memory_storage(), config, access)
        locations = [
            BAR,
            "gcs://some-bucket/virtual-a",
            f"{web}/data/bar.nc",
            f"{here}bar.nc",
            "vcc://s3/floes/folder/bar.nc",
            "vcc://disk/bar.nc",
        ]
        write_refs(repository, "a", locations)
        assert read(repository, "a") == PART * 6


@pytest.fixture
def blobs(azure_server: AzureServer) -> ObjectStorage:
    storage = azure_storage(
        account=azure_server.account,
        container=azure_server.container,
        prefix=f"virtual/{uuid.uuid4()}",
        access_key=azure_server.access_key,
        config={"endpoint": azure_server.endpoint_url, "allow_http": "true"},
    )
    storage.put("bar.nc", FILE)
    return storage


def test_requirement_1_on_azure(azure_server: AzureServer, blobs: ObjectStorage) -> None:
    """With an account's key from elsewhere, and by default where the repository is there too."""
    options = {"endpoint": azure_server.endpoint_url, "allow_http": "true"}
    location = f"{blobs.url}/bar.nc".replace("az://", "azure://")
    config = icefloe.RepositoryConfig()
    store = azure_store(account=azure_server.account, config=options)
    config.set_virtual_chunk_container(VirtualChunkContainer("azure", store, "azure"))
    elsewhere = icefloe.Repository.create(in_memory_storage(), config)
    assert "Credentials.Azure(" in refusal(write_refs(elsewhere, "a", [location]), "a")
    key = AzureCredentials.Static(AzureStaticCredentials.AccessKey(azure_server.access_key))
    opened = elsewhere.reopen(authorize_virtual_chunk_access={"azure": Credentials.Azure(key)})
    assert read(opened, "a") == PART
    beside = icefloe.Repository.create(
        azure_storage(
            account=azure_server.account,
            container=azure_server.container,
            prefix=f"repositories/{uuid.uuid4()}",
            access_key=azure_server.access_key,
            config=options,
        )
    )
    assert read(write_refs(beside, "a", [location]), "a") == PART


def test_requirement_2_the_repositorys_credentials_on_its_platform(s3_server: S3Server) -> None:
    """Of two servers that speak one protocol only the repository's own gets its credentials."""
    how: Any = {"endpoint_url": s3_server.endpoint_url, "allow_http": True}
    storage = home_in_s3(s3_server, **how)
    repository = icefloe.Repository.create(storage)
    write_refs(repository, "a", [BAR])
    assert read(repository, "a") == PART  # the default container follows the repository
    config = icefloe.RepositoryConfig()
    other = s3_store(endpoint_url="http://127.0.0.1:9", allow_http=True)
    config.set_virtual_chunk_container(VirtualChunkContainer("s3", other, "s3"))
    assert "http://127.0.0.1:9" in refusal(repository.reopen(config), "a")


def test_requirement_3_the_dependencies_of_a_repository() -> None:
    """They are in the configuration; in more detail in the list of locations."""
    storage = in_memory_storage()
    config = icefloe.RepositoryConfig()
    config.set_virtual_chunk_container(VirtualChunkContainer("s3://foo/", s3_store(), "foo"))
    write_refs(icefloe.Repository.create(storage, config), "a", ["s3://foo/1.nc", "s3://foo/2.nc"])
    opened = icefloe.Repository.open(storage)
    containers = [c for c in opened.list_virtual_chunk_containers() if not c.is_default]
    assert [c.container.url_prefix for c in containers] == ["s3://foo/"]
    found = opened.readonly_session("main").all_virtual_chunk_locations()
    assert sorted(found) == ["s3://foo/1.nc", "s3://foo/2.nc"]


def test_requirement_4_a_modified_file_fails(aws: S3Server) -> None:
    """With the exception that names the file, and not with the wrong bytes."""
    storage = home_in_s3(aws, region="us-east-1")
    name = f"{uuid.uuid4()}.nc"
    folder = s3_storage(
        bucket=aws.bucket,
        prefix="changing",
        access_key_id=aws.access_key_id,
        secret_access_key=aws.secret_access_key,
    )
    folder.put(name, FILE)
    etag = str(folder.head(name).version.etag)
    location = f"s3://{aws.bucket}/changing/{name}"
    repository = write_refs(icefloe.Repository.create(storage), "a", [location], checksum=etag)
    assert read(repository, "a") == PART
    folder.put(name, FILE[::-1])
    error = failure(repository, "a")
    assert error.kind is ErrorKind.VIRTUAL_CHUNK_MODIFIED
    assert location in error.message


def test_a_repository_cannot_open_its_readers_files(tmp_path: Path, aws: S3Server) -> None:
    """Default containers are for remote platforms: local files always need authorization."""
    (tmp_path / "secret").write_bytes(FILE)
    config = icefloe.RepositoryConfig()
    config.set_virtual_chunk_container(
        VirtualChunkContainer(f"{tmp_path.as_uri()}/", local_filesystem_store(tmp_path), "s3")
    )
    for storage in (home_in_s3(aws), local_filesystem_storage(tmp_path / "repository")):
        repository = icefloe.Repository.create(storage, config)
        write_refs(repository, "a", [f"{tmp_path.as_uri()}/secret"])
        assert "LocalFileSystemAccess()" in refusal(repository, "a")
        # Nor does a credential for something else open it, though the container is named "s3".
        with pytest.raises(InvalidInputError, match="needs one such as"):
            repository.reopen(authorize_virtual_chunk_access={"s3": as_reader(aws)})
