"""Default containers stay beside configured ones, are visible, and can be edited."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

import icefloe
from icefloe import (
    InvalidInputError,
    Repository,
    RepositoryConfig,
    VirtualChunkContainer,
    gcs_store,
    in_memory_storage,
    s3_storage,
    s3_store,
)
from icefloe.containers.container_table import ContainerTable
from icefloe.containers.virtual_chunks import VirtualChunks
from icefloe.format import config_flexbuffers, config_yaml
from icefloe.model.containers import DEFAULT_CONTAINER_NAMES
from support.virtual_array import refusal, write_refs

ON_S3 = s3_storage(bucket="home", prefix=None, access_key_id="k", secret_access_key="s")
DEFAULTS = {"s3", "gcs", "gs", "azure", "az", "tigris"}


def names(repository: Repository, *, default: bool) -> set[str | None]:
    return {
        access.container.name
        for access in repository.list_virtual_chunk_containers()
        if access.is_default == default
    }


def test_a_container_overrides_the_default_of_its_prefix_alone(generation: str) -> None:
    """The others stay, and are not persisted."""
    storage = in_memory_storage()
    config = RepositoryConfig()
    own = VirtualChunkContainer("s3", s3_store(region="sa-east-1"), "mine")
    config.set_virtual_chunk_container(own)
    config.set_virtual_chunk_container(VirtualChunkContainer("gcs://one/", gcs_store(), "one"))
    repository = Repository.create(storage, config, generation=generation)
    assert names(repository, default=False) == {"mine", "one"}
    assert names(repository, default=True) == DEFAULTS - {"s3"}
    # Locations in other containers can be written, and are readable after consent.
    write_refs(repository, "a", ["gcs://two/x"])
    assert "authorize_virtual_chunk_access={'gcs://': Credentials.Gcs(" in refusal(repository, "a")
    saved = Repository.fetch_config(storage)
    assert saved is not None
    assert set(saved.virtual_chunk_containers or {}) == {"s3://", "gcs://one/"}
    again = Repository.open(storage)
    assert names(again, default=True) == DEFAULTS - {"s3"}
    virtual = again.readonly_session("main").connection.virtual
    assert pickle.loads(pickle.dumps(virtual)).containers() == virtual.containers()  # noqa: S301


def test_a_container_authorizes_no_default() -> None:
    """A default is read if the user authorizes it, or on the repository's own platform."""
    container = VirtualChunkContainer("gcs://one/", gcs_store(), "one")

    def authorized(credentials: dict[str, icefloe.AnyCredential | None] | None) -> set[str]:
        chunks = VirtualChunks([container], credentials, ON_S3, defaults=DEFAULT_CONTAINER_NAMES)
        return chunks.authorized_prefixes

    gcs = icefloe.Credentials.Gcs(icefloe.gcs_anonymous_credentials())
    assert authorized(None) == {"s3://"}
    assert authorized({"one": gcs}) == {"s3://", "gcs://one/"}
    assert authorized({"gcs": gcs}) == {"s3://", "gcs://"}
    assert authorized({}) == set()
    elsewhere = VirtualChunks(
        [container], {"one": gcs}, in_memory_storage(), defaults=DEFAULT_CONTAINER_NAMES
    )
    assert elsewhere.authorized_prefixes == {"gcs://one/"}


def test_an_invalid_container_overrides_its_default_too() -> None:
    """Chunks that its owner placed elsewhere are not read from the default place."""
    bad = VirtualChunkContainer.from_persisted("s3://", gcs_store(), unknown={})
    assert bad.problem is not None
    config = RepositoryConfig(virtual_chunk_containers={"s3://": bad})
    repository = Repository.create(in_memory_storage(), config)
    assert names(repository, default=True) == DEFAULTS - {"s3"}
    with pytest.raises(InvalidInputError, match="no virtual chunk container matches s3://b/x"):
        write_refs(repository, "a", ["s3://b/x"])


def test_a_default_without_its_name_is_found_by_its_prefix() -> None:
    """A configured container has the name; the default keeps its prefix."""
    config = RepositoryConfig()
    config.set_virtual_chunk_container(VirtualChunkContainer("s3://one/", s3_store(), "s3"))
    repository = Repository.create(in_memory_storage(), config)
    listed = {
        access.container.url_prefix: (access.container.name, access.is_default)
        for access in repository.list_virtual_chunk_containers()
    }
    assert (listed["s3://one/"], listed["s3://"]) == (("s3", False), (None, True))
    s3 = icefloe.Credentials.S3(icefloe.s3_anonymous_credentials())
    for key in ("s3", "s3://"):
        opened = repository.reopen(authorize_virtual_chunk_access={key: s3})
        expected = "s3://one/" if key == "s3" else "s3://"
        assert opened.authorized_virtual_container_prefixes == {expected}


def test_defaults_are_edited(generation: str) -> None:
    """A default is overridden, removed and restored; saving preserves this."""
    storage = in_memory_storage()
    repository = Repository.create(storage, generation=generation)
    s3 = next(
        access.container
        for access in repository.list_virtual_chunk_containers()
        if access.container.name == "s3"
    )
    config = repository.config
    config.set_virtual_chunk_container(replace(s3, store=s3_store(region="r")))
    config.remove_virtual_chunk_container("tigris")
    config.remove_virtual_chunk_container("az://")
    repository.reopen(config).save_config()
    again = Repository.open(storage)
    assert names(again, default=False) == {"s3"}
    assert names(again, default=True) == {"gcs", "gs", "azure"}
    config = again.config
    config.remove_virtual_chunk_container("s3")
    assert names(again.reopen(config), default=True) == {"s3", "gcs", "gs", "azure"}
    config.remove_virtual_chunk_container("s3")
    assert names(again.reopen(config), default=True) == {"gcs", "gs", "azure"}
    with pytest.raises(InvalidInputError, match=r"no virtual chunk container with .* 's3'"):
        config.remove_virtual_chunk_container("s3")


def test_a_cleared_list_has_no_defaults() -> None:
    """Saved, merged, and with containers that are added afterwards."""
    storage = in_memory_storage()
    config = RepositoryConfig()
    config.clear_virtual_chunk_containers()
    Repository.create(storage, config)
    assert Repository.open(storage).list_virtual_chunk_containers() == []
    assert Repository.open(storage, RepositoryConfig()).list_virtual_chunk_containers() == []
    only = VirtualChunkContainer("s3://only/", s3_store(), "only")
    for cleared in (config, RepositoryConfig(virtual_chunk_containers={})):
        cleared.set_virtual_chunk_container(only)
        repository = Repository.open(storage, cleared)
        assert [item.container for item in repository.list_virtual_chunk_containers()] == [only]


ONE = VirtualChunkContainer("s3://a/", s3_store(), "x")
SAME_NAME = VirtualChunkContainer("s3://b/", s3_store(), "x")
SAME_PREFIX = VirtualChunkContainer("S3://a", s3_store(region="r"), "y")


@pytest.mark.parametrize(
    "other, problem",
    [(SAME_NAME, "have the same name, 'x'"), (SAME_PREFIX, "two containers have .* 's3://a/'")],
)
def test_duplicates_are_refused(other: VirtualChunkContainer, problem: str) -> None:
    """By the constructor, by an assignment and by a merge."""
    doubled = {"first": ONE, "second": other}
    with pytest.raises(InvalidInputError, match=problem):
        RepositoryConfig(virtual_chunk_containers=doubled)
    config = RepositoryConfig()
    with pytest.raises(InvalidInputError, match=problem):
        config.virtual_chunk_containers = doubled
    assert config == RepositoryConfig()
    config.set_virtual_chunk_container(ONE)
    config.set_virtual_chunk_container(other)
    assert config.virtual_chunk_containers == {other.url_prefix: other}
    merged = RepositoryConfig(virtual_chunk_containers={"first": ONE}).merge(config)
    assert merged.virtual_chunk_containers == {other.url_prefix: other}


YAML = """
virtual_chunk_containers:
  s3://a/: {name: x, url_prefix: "s3://a/", store: !s3 {}}
  s3://b/: {name: x, url_prefix: "s3://b/", store: !s3 {}}
"""


def test_persisted_duplicates_can_be_read_and_repaired() -> None:
    """Icechunk saves them: the repository opens, their name means nothing, setting it repairs."""
    config = config_yaml.loads(YAML.encode())
    assert config_flexbuffers.loads(config_flexbuffers.dumps(config)) == config
    merged = RepositoryConfig().merge(config)
    repository = Repository.create(in_memory_storage(), merged)
    assert names(repository, default=False) == {"x"}
    with pytest.raises(InvalidInputError, match="no virtual chunk container is named 'x'"):
        write_refs(repository, "a", ["vcc://x/file"])
    table = ContainerTable((config.virtual_chunk_containers or {}).values())
    assert table.find("s3://b/file").container.config.url_prefix == "s3://b/"
    third = VirtualChunkContainer("s3://c/", s3_store(), "x")
    with pytest.raises(InvalidInputError, match="have the same name"):
        config.virtual_chunk_containers = {**(config.virtual_chunk_containers or {}), "c": third}
    config.set_virtual_chunk_container(ONE)
    assert config.virtual_chunk_containers == {"s3://a/": ONE}
