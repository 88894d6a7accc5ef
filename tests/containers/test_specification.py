"""The design of virtual chunks: each claim and example under the heading of its proposal."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
import zarr

import icefloe
from containers.conftest import FILE
from icefloe.containers.stores import open_store
from icefloe.errors import ConflictError, ErrorKind, InvalidInputError, StorageError
from icefloe.model.chunk_payload import VirtualChunkRef
from icefloe.storage import Credentials, gcs_store, in_memory_storage, s3_store
from icefloe.virtual import VirtualChunkContainer, VirtualChunks
from support.conditional_web_server import CHANGED_AT_SECONDS, conditional_web_server, etag_of
from support.virtual_array import containers_of, read, refusal, write_refs

if TYPE_CHECKING:
    from pathlib import Path

    from icefloe.storage import AnyObjectStoreConfig


def config_of(*containers: VirtualChunkContainer) -> icefloe.RepositoryConfig:
    config = icefloe.RepositoryConfig()
    config.clear_virtual_chunk_containers()
    for container in containers:
        config.set_virtual_chunk_container(container)
    return config


def writable_array(config: icefloe.RepositoryConfig | None) -> Any:
    session = icefloe.Repository.create(in_memory_storage(), config).writable_session("main")
    zarr.create_array(session.store, name="a", shape=(10,), chunks=(10,), dtype="u1")
    return session.store


# ## Design, ### Checksum


@pytest.mark.parametrize(
    "good,bad",
    [
        (etag_of(FILE).strip('"'), "another"),
        (CHANGED_AT_SECONDS, CHANGED_AT_SECONDS - 1),
        (
            datetime.fromtimestamp(CHANGED_AT_SECONDS, UTC),
            datetime.fromtimestamp(CHANGED_AT_SECONDS - 1, UTC),
        ),
        (datetime.now(UTC), datetime.fromtimestamp(1, UTC)),
        (None, None),
    ],
    ids=["ETag", "seconds", "datetime", "datetime.now()", "none"],
)
def test_checksum(good: Any, bad: Any) -> None:
    """A file that is newer than the reference, or another one, fails with an exception."""
    with conditional_web_server({"/data/bar.nc": FILE}) as web:
        config = config_of(VirtualChunkContainer(f"{web.url}/data/", icefloe.http_store()))
        access: Any = {f"{web.url}/data/": Credentials.HttpAccess()}
        repository = icefloe.Repository.create(in_memory_storage(), config, access)
        write_refs(repository, "good", [f"{web.url}/data/bar.nc"], checksum=good)
        assert read(repository, "good") == FILE[5:15]
        write_refs(repository, "bad", [f"{web.url}/data/bar.nc"], checksum=bad)
        if bad is None:  # without a checksum there is always an attempt
            assert read(repository, "bad") == FILE[5:15]
            return
        with pytest.raises(StorageError, match=r"bar\.nc.*has changed") as raised:
            read(repository, "bad")
        assert raised.value.kind is ErrorKind.VIRTUAL_CHUNK_MODIFIED


# ### Virtual chunk containers


def test_virtual_chunk_containers() -> None:
    """They are global, persisted, listed and edited; names and prefixes are unique."""
    storage = in_memory_storage()
    repository = icefloe.Repository.create(
        storage,
        config_of(
            VirtualChunkContainer("s3://one/", s3_store(region="sa-east-1"), "one"),
            VirtualChunkContainer("gcs://two/", gcs_store(), "two"),
        ),
    )
    config = repository.config
    config.set_virtual_chunk_container(VirtualChunkContainer("gcs://three/", gcs_store(), "two"))
    config.set_virtual_chunk_container(VirtualChunkContainer("s3://one/", s3_store(), "first"))
    repository.reopen(config).save_config()
    listed = icefloe.Repository.open(storage).list_virtual_chunk_containers()
    assert [(access.container.name, access.container.url_prefix) for access in listed] == [
        ("two", "gcs://three/"),
        ("first", "s3://one/"),
    ]
    assert not any(access.is_authorized or access.is_default for access in listed)


# ### Global config


def test_global_config(generation: str) -> None:
    """Saved unless another writer did meanwhile; overridden at run time without saving."""
    storage = in_memory_storage()
    repository = icefloe.Repository.create(storage, generation=generation)
    first, second = (icefloe.Repository.open(storage) for _ in range(2))
    s3 = VirtualChunkContainer("s3", s3_store(), "s3")
    first.reopen(config_of(s3)).save_config()
    with pytest.raises(ConflictError):
        second.reopen(config_of(VirtualChunkContainer("gcs", gcs_store(), "gcs"))).save_config()
    tweaked = icefloe.Repository.open(storage, config_of())
    assert tweaked.list_virtual_chunk_containers() == []
    assert containers_of(icefloe.Repository.fetch_config(storage)) == {"s3://": s3}
    assert repository.config.virtual_chunk_containers is None  # opened before


# ### Setting virtual references


@pytest.mark.parametrize(
    "location,prefix,store",
    [
        ("s3://foo/bar.nc", "s3", s3_store()),
        ("s3://foo/bar.nc", "s3://", s3_store()),
        ("s3://foo/bar.nc", "s3://foo", s3_store()),
        ("s3://foo/bar.nc", "s3://foo/bar.nc", s3_store()),
        (
            "tigris://foo/bar.nc",
            "tigris",
            icefloe.ObjectStoreConfig.Tigris(icefloe.S3Options()),
        ),
        ("models://foo/bar.nc", "models", gcs_store()),
    ],
)
def test_setting_virtual_references_that_work(
    location: str, prefix: str, store: AnyObjectStoreConfig
) -> None:
    """The six examples of the proposal work; a name with a common beginning does not match."""
    array = writable_array(config_of(VirtualChunkContainer(prefix, store)))
    array.set_virtual_ref("a/c/0", location, offset=0, length=10, validate_container=True)
    assert array.session.all_virtual_chunk_locations() == [location]
    beyond = {"s3://foo": "s3://foobar/bar.nc", "s3://foo/bar.nc": "s3://foo/bar.nc4"}.get(
        prefix, "s3s://foo/bar.nc"
    )
    with pytest.raises(InvalidInputError, match="no virtual chunk container matches"):
        array.set_virtual_ref("a/c/0", beyond, offset=0, length=10, validate_container=True)


@pytest.mark.parametrize(
    "location,prefixes", [("s3://foo/bar.nc", []), ("gcs://foo/bar.nc", ["s3"])]
)
def test_setting_virtual_references_that_do_not_work(location: str, prefixes: list[str]) -> None:
    """The two that do not, and are not stored; without validation they are."""
    containers = [VirtualChunkContainer(prefix, s3_store()) for prefix in prefixes]
    array = writable_array(config_of(*containers))
    with pytest.raises(InvalidInputError) as raised:
        array.set_virtual_ref("a/c/0", location, offset=0, length=10, validate_container=True)
    assert raised.value.kind is ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK
    assert array.session.all_virtual_chunk_locations() == []
    array.set_virtual_ref("a/c/0", location, offset=0, length=10, validate_container=False)
    assert array.session.all_virtual_chunk_locations() == [location]


# ### New virtual chunk datastructures


def test_locations_are_stored_as_given_and_resolved_when_read(tmp_path: Path) -> None:
    """Containers can be made after the writes, and changed while running."""
    for folder, data in (("real", FILE), ("test", FILE[::-1])):
        (tmp_path / folder / "2024").mkdir(parents=True)
        (tmp_path / folder / "2024" / "bar.nc").write_bytes(data)
    storage = in_memory_storage()
    repository = icefloe.Repository.create(storage, config_of())
    write_refs(repository, "a", ["models://2024/bar.nc"], validate_container=False)
    with pytest.raises(InvalidInputError, match="set_virtual_chunk_container"):
        read(repository, "a")
    for folder, data in (("real", FILE), ("test", FILE[::-1])):
        models = VirtualChunkContainer(
            "models",
            icefloe.local_filesystem_store(tmp_path),
            target_prefix=f"{(tmp_path / folder).as_uri()}/",
        )
        access: Any = {"models": Credentials.LocalFileSystemAccess()}
        opened = icefloe.Repository.open(storage, config_of(models), access)
        assert read(opened, "a") == data[5:15]
        session = opened.readonly_session("main")
        assert session.all_virtual_chunk_locations() == ["models://2024/bar.nc"]


# ### Reading virtual chunks


def test_reading_virtual_chunks(tmp_path: Path) -> None:
    """The longest prefix wins: three containers coexist, on different platforms."""
    (tmp_path / "dev.nc").write_bytes(b"d" * 20)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "o.nc").write_bytes(b"o" * 20)
    with conditional_web_server({"/p/x.nc": b"p" * 20}) as web:
        gcs = gcs_store({"base_url": web.url, "allow_http": "true"})
        local = icefloe.local_filesystem_store(tmp_path)
        here = f"{tmp_path.as_uri()}/"
        containers = [
            VirtualChunkContainer("models", local, "models", target_prefix=here),
            VirtualChunkContainer("models/dev", local, "dev", target_prefix=here),
            VirtualChunkContainer("models/prod", gcs, "prod", target_prefix="gs://p"),
        ]
        for ordered in (containers, containers[::-1]):
            repository = icefloe.Repository.create(
                in_memory_storage(),
                config_of(*ordered),
                {
                    "models": Credentials.LocalFileSystemAccess(),
                    "dev": Credentials.LocalFileSystemAccess(),
                    "prod": Credentials.Gcs(icefloe.gcs_credentials(anonymous=True)),
                },
            )
            locations = ["models://dev/dev.nc", "models://prod/x.nc", "models://other/o.nc"]
            write_refs(repository, "a", locations)
            assert read(repository, "a") == b"d" * 10 + b"p" * 10 + b"o" * 10
        array = writable_array(config_of(*containers))
        with pytest.raises(InvalidInputError, match="available: models://prod/ \\(prod\\), models"):
            array.set_virtual_ref("a/c/0", "others://x/y", offset=0, length=10)


# ### Default `VirtualChunkContainers`


def test_default_virtual_chunk_containers(generation: str) -> None:
    """Every repository has them until its configuration overrides them or clears the list."""
    storage = in_memory_storage()
    repository = icefloe.Repository.create(storage, generation=generation)
    defaults = repository.list_virtual_chunk_containers()
    assert all(access.is_default and not access.is_authorized for access in defaults)
    found = {access.container.name: access.container.url_prefix for access in defaults}
    assert (
        found.items()
        >= {
            "s3": "s3://",
            "gcs": "gcs://",
            "azure": "azure://",
            "tigris": "tigris://",
        }.items()
    )
    for access in defaults:
        options: Any = getattr(access.container.store, "options", None)
        assert options is None or options.region is None
    write_refs(repository, "a", ["gcs://foo/bar.nc", "s3://foo/bar.nc", "azure://foo/bar.nc"])
    assert "authorize_virtual_chunk_access={'gcs://': Credentials.Gcs(" in refusal(repository, "a")

    # Never persisted by themselves, whatever else is saved.
    setting = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=7)
    repository.reopen(setting).save_config()
    assert containers_of(icefloe.Repository.fetch_config(storage)) is None
    assert icefloe.Repository.open(storage).list_virtual_chunk_containers() == defaults

    # Gone when the list is cleared, also if containers are added afterwards.
    repository = icefloe.Repository.open(storage)
    for names in (["only"], []):
        containers = [VirtualChunkContainer("s3://only/", s3_store(), name) for name in names]
        repository = repository.reopen(config_of(*containers))
        repository.save_config()
        again = icefloe.Repository.open(storage)
        listed = [access.container.name for access in again.list_virtual_chunk_containers()]
        assert listed == names
        assert containers_of(icefloe.Repository.fetch_config(storage)) is not None
        with pytest.raises(InvalidInputError, match="no virtual chunk container matches"):
            read(again, "a")


# ### Object store client infrastructure


def test_clients_are_made_once_whoever_asks_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many chunks at the same moment make one client, not a herd."""
    made = []

    def count_call(*args: Any, **kwargs: Any) -> Any:
        made.append(args)
        started.wait(0.05)  # long enough for others to come too
        return open_store(*args, **kwargs)

    started = threading.Event()
    monkeypatch.setattr("icefloe.containers.virtual_chunks.open_store", count_call)
    with conditional_web_server({"/data/x": FILE}) as web:
        chunks = VirtualChunks(
            [VirtualChunkContainer(f"{web.url}/", icefloe.http_store(), "web")],
            {"web": Credentials.HttpAccess()},
            in_memory_storage(),
        )
        ref, found = VirtualChunkRef(f"{web.url}/data/x", 0, 10), []
        threads = [
            threading.Thread(target=lambda: found.append(bytes(chunks.fetch(ref, 0, 10))))
            for _ in range(16)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [FILE[:10]] * 16
    assert len(made) == 1
