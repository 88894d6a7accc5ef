"""The configuration as a value: defaults, layering, checks and containers."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, fields
from typing import TYPE_CHECKING, Any

import pytest

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.model.config import (
    IN_MEMORY_DEFAULTS,
    LOCAL_FILE_SYSTEM_DEFAULTS,
    AnySplitDimCondition,
    CachingConfig,
    CompressionAlgorithm,
    CompressionConfig,
    ManifestConfig,
    ManifestPreloadCondition,
    ManifestPreloadConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    ManifestVirtualChunkLocationCompressionConfig,
    ObjectStoreConfig,
    RepositoryConfig,
    RepoUpdateRetryConfig,
    S3Options,
    StorageConcurrencySettings,
    StorageRetriesSettings,
    StorageSettings,
    VirtualChunkContainer,
)
from icefloe.model.manifest_config import Excluded, Included, PreloadNumRefs, Unbounded

if TYPE_CHECKING:
    from collections.abc import Callable

S3 = ObjectStoreConfig.S3(S3Options(region="eu-west-1"))


def test_nothing_is_set_by_default_and_the_effective_values_are_those_of_icechunk() -> None:
    config = RepositoryConfig.default()
    assert all(getattr(config, f.name) is None for f in fields(config) if f.name != "unknown")
    assert config.effective_inline_chunk_threshold_bytes == 512
    assert config.effective_get_partial_values_concurrency == 10
    assert config.effective_max_concurrent_requests == 256
    assert config.effective_num_updates_per_repo_info_file == 1000
    assert config.effective_compression.effective_level == 3
    assert config.effective_compression.effective_algorithm is CompressionAlgorithm.Zstd
    caching = config.effective_caching
    assert caching.effective_num_snapshot_nodes == 500_000
    assert caching.effective_num_chunk_refs == 15_000_000
    assert caching.effective_num_bytes_chunks == 0
    retries = config.effective_repo_update_retries.effective_default
    assert (retries.max_tries, retries.initial_backoff_ms) == (100, 50)
    assert retries.max_backoff_ms == 30_000
    manifest = config.effective_manifest
    assert manifest.effective_max_concurrent_manifest_fetches_during_commit == 1
    assert manifest.effective_preload.effective_max_total_refs == 10_000
    assert manifest.effective_preload.effective_max_arrays_to_scan == 50
    ((condition, dims),) = manifest.effective_splitting.effective_split_sizes
    assert condition == ManifestSplitCondition.path_matches(".*")
    assert [tuple(dim) for dim in dims] == [(ManifestSplitDimCondition.Any(), 2**32 - 1)]
    locations = manifest.effective_virtual_chunk_location_compression
    assert locations.effective_min_num_chunks == 1000
    assert locations.effective_dictionary_max_size_bytes == 2048


def test_effective_storage_settings() -> None:
    settings = RepositoryConfig().effective_storage
    assert settings.effective_concurrency.effective_max_concurrent_requests_for_object == 18
    assert settings.effective_retries.effective_max_backoff_ms == 180_000
    assert settings.effective_minimum_size_for_multipart_upload == 100 * 1024 * 1024
    assert settings.effective_unsafe_use_conditional_update
    assert not LOCAL_FILE_SYSTEM_DEFAULTS.effective_unsafe_use_conditional_update
    assert IN_MEMORY_DEFAULTS.effective_retries.effective_max_tries == 1


def test_storage_classes_fall_back_to_the_general_one() -> None:
    settings = StorageSettings(storage_class="GENERAL", chunks_storage_class="CHUNKS")
    assert settings.effective_chunks_storage_class == "CHUNKS"
    assert settings.effective_metadata_storage_class == "GENERAL"


def test_an_effective_limit_of_zero_is_one_where_zero_would_wait_for_ever() -> None:
    assert RepositoryConfig(max_concurrent_requests=0).effective_max_concurrent_requests == 1
    config = ManifestConfig(max_concurrent_manifest_fetches_during_commit=0)
    assert config.effective_max_concurrent_manifest_fetches_during_commit == 1
    assert (
        RepositoryConfig(inline_chunk_threshold_bytes=0).effective_inline_chunk_threshold_bytes == 0
    )


def test_merge_takes_the_other_leaf_by_leaf() -> None:
    persisted = RepositoryConfig(
        inline_chunk_threshold_bytes=1,
        caching=CachingConfig(num_chunk_refs=1, num_snapshot_nodes=2),
        storage=LOCAL_FILE_SYSTEM_DEFAULTS,
        compression=CompressionConfig(level=9),
    )
    user = RepositoryConfig(
        inline_chunk_threshold_bytes=0,
        caching=CachingConfig(num_chunk_refs=5),
        storage=StorageSettings(
            unsafe_use_metadata=True, retries=StorageRetriesSettings(max_tries=7)
        ),
        repo_update_retries=RepoUpdateRetryConfig(),
    )
    assert persisted.merge(user) == RepositoryConfig(
        inline_chunk_threshold_bytes=0,
        caching=CachingConfig(num_chunk_refs=5, num_snapshot_nodes=2),
        storage=StorageSettings(
            concurrency=StorageConcurrencySettings(5, 4096),
            retries=StorageRetriesSettings(7, 0, 0),
            unsafe_use_conditional_update=False,
            unsafe_use_metadata=True,
        ),
        compression=CompressionConfig(level=9),
        repo_update_retries=RepoUpdateRetryConfig(),
    )


def test_merge_replaces_containers_preload_and_splitting_as_wholes() -> None:
    mine = RepositoryConfig(
        virtual_chunk_containers={"s3://a/": VirtualChunkContainer("s3://a/", S3)},
        manifest=ManifestConfig(
            preload=ManifestPreloadConfig(max_total_refs=1, max_arrays_to_scan=2),
            splitting=ManifestSplittingConfig.from_dict({ManifestSplitCondition.AnyArray(): {}}),
            virtual_chunk_location_compression=ManifestVirtualChunkLocationCompressionConfig(1),
        ),
    )
    theirs = RepositoryConfig(
        virtual_chunk_containers={},
        manifest=ManifestConfig(
            preload=ManifestPreloadConfig(max_total_refs=3),
            splitting=ManifestSplittingConfig(),
            virtual_chunk_location_compression=ManifestVirtualChunkLocationCompressionConfig(
                compression_level=5
            ),
        ),
    )
    merged = mine.merge(theirs)
    assert merged.virtual_chunk_containers == {}
    assert merged.manifest == ManifestConfig(
        preload=ManifestPreloadConfig(max_total_refs=3),
        splitting=ManifestSplittingConfig(),
        virtual_chunk_location_compression=ManifestVirtualChunkLocationCompressionConfig(
            1, compression_level=5
        ),
    )
    assert mine.merge(RepositoryConfig()) == mine


def test_merge_keeps_unknown_fields_of_both() -> None:
    mine = RepositoryConfig(unknown={"a": 1, "b": 2})
    assert mine.merge(RepositoryConfig(unknown={"b": 3, "a": None, "c": None})).unknown == {
        "a": 1,
        "b": 3,
        "c": None,
    }


@pytest.mark.parametrize(
    "make",
    [
        lambda: RepositoryConfig(inline_chunk_threshold_bytes=2**16),
        lambda: RepositoryConfig(inline_chunk_threshold_bytes=-1),
        lambda: RepositoryConfig(inline_chunk_threshold_bytes=True),
        lambda: RepositoryConfig(caching=StorageSettings()),  # type: ignore[arg-type]
        lambda: RepositoryConfig(virtual_chunk_containers=[]),  # type: ignore[arg-type]
        lambda: RepositoryConfig(virtual_chunk_containers={"a/": S3}),  # type: ignore[dict-item]
        lambda: StorageRetriesSettings(max_tries=0),
        lambda: StorageSettings(storage_class=3),  # type: ignore[arg-type]
        lambda: StorageSettings(unsafe_use_metadata=1),  # type: ignore[arg-type]
        lambda: ManifestSplitDimCondition.Axis(-1),
        lambda: ManifestPreloadCondition.num_refs(2**32),
        lambda: ManifestPreloadCondition.or_conditions(["a"]),  # type: ignore[list-item]
        lambda: ManifestSplittingConfig(((1, 2),)),  # type: ignore[arg-type]
        lambda: ManifestSplittingConfig(((ManifestSplitCondition.AnyArray(),),)),  # type: ignore[arg-type]
        lambda: ObjectStoreConfig.Gcs({"a": 1}),  # type: ignore[dict-item]
    ],
)
def test_what_no_reader_could_take_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(InvalidInputError):
        make()


def test_an_error_does_not_show_a_string() -> None:
    with pytest.raises(InvalidInputError) as error:
        StorageRetriesSettings(max_tries="secret")  # type: ignore[arg-type]
    assert str(error.value) == ("StorageRetriesSettings.max_tries: an integer is needed, not a str")


def test_a_repr_does_not_show_options_or_headers() -> None:
    stores = [
        ObjectStoreConfig.Gcs({"service_account_key": "secret"}),
        ObjectStoreConfig.Azure({"account": "a", "access_key": "secret"}),
        ObjectStoreConfig.Http({"proxy": "secret"}, {"authorization": "secret"}),
    ]
    assert "secret" not in repr(stores)


def test_configurations_are_values() -> None:
    config = RepositoryConfig(
        manifest=ManifestConfig(
            splitting=ManifestSplittingConfig.from_dict(
                {ManifestSplitCondition.AnyArray(): {ManifestSplitDimCondition.Any(): 3}}
            )
        ),
        storage=LOCAL_FILE_SYSTEM_DEFAULTS,
    ).with_virtual_chunk_container(VirtualChunkContainer("s3://a/", S3))
    assert pickle.loads(pickle.dumps(config)) == config  # noqa: S301
    with pytest.raises(FrozenInstanceError):
        config.previous_file = "x"  # type: ignore[misc]


def test_conditions_join_flat_and_are_keys() -> None:
    a, b, c = (ManifestSplitCondition.name_matches(name) for name in "abc")
    assert a | b | c == ManifestSplitCondition.or_conditions([a, b, c])
    assert a & b & c == ManifestSplitCondition.and_conditions([a, b, c])
    assert a & (b | c) == ManifestSplitCondition.and_conditions(
        [a, ManifestSplitCondition.or_conditions([b, c])]
    )
    rules: dict[ManifestSplitCondition, dict[AnySplitDimCondition, int]] = {
        a | b: {ManifestSplitDimCondition.Axis(0): 1},
        c: {ManifestSplitDimCondition.Any(): 2},
    }
    assert ManifestSplittingConfig.from_dict(rules).to_dict() == rules
    true, false = ManifestPreloadCondition.true(), ManifestPreloadCondition.false()
    assert true | false | true == ManifestPreloadCondition.or_conditions([true, false, true])
    assert true & false & true == ManifestPreloadCondition.and_conditions([true, false, true])


def test_a_range_of_chunk_references_excludes_its_end() -> None:
    assert ManifestPreloadCondition.num_refs(3, 5) == PreloadNumRefs(Included(3), Excluded(5))
    assert ManifestPreloadCondition.num_refs() == PreloadNumRefs(Unbounded(), Unbounded())


@pytest.mark.parametrize(
    "url_prefix, store",
    [
        ("s3://b/", S3),
        ("S3://b/", S3),
        ("s3://b/a/", ObjectStoreConfig.S3Compatible(S3Options())),
        ("s3://b/", ObjectStoreConfig.Tigris(S3Options())),
        ("tigris://b/", ObjectStoreConfig.Tigris(S3Options())),
        ("gs://b/", ObjectStoreConfig.Gcs()),
        ("gcs://b/", ObjectStoreConfig.Gcs()),
        ("az://c/", ObjectStoreConfig.Azure()),
        ("azure://c/", ObjectStoreConfig.Azure()),
        ("abfs://c/", ObjectStoreConfig.Azure()),
        ("http://h:80/", ObjectStoreConfig.Http()),
        ("https://h/a/", ObjectStoreConfig.Http()),
        ("file:///a/", ObjectStoreConfig.LocalFileSystem("/a")),
    ],
)
def test_a_container_whose_prefix_fits_its_store(url_prefix: str, store: Any) -> None:
    assert VirtualChunkContainer(url_prefix, store).problem is None


@pytest.mark.parametrize(
    "url_prefix, store, name, reason",
    [
        ("s3://b", S3, None, "ends in '/'"),
        ("/a/", S3, None, "looks like"),
        ("s3:b/", S3, None, "looks like"),
        ("s3:///a/", S3, None, "includes a host"),
        ("s3://b/", ObjectStoreConfig.InMemory(), None, "does not fit a store of kind InMemory"),
        ("s3://b/", ObjectStoreConfig.Gcs(), None, "does not fit"),
        ("tigris://b/", S3, None, "does not fit"),
        ("ftp://h/", ObjectStoreConfig.Http(), None, "does not fit"),
        ("file:///", ObjectStoreConfig.LocalFileSystem("/"), None, "includes a path"),
        ("file:///a/../b/", ObjectStoreConfig.LocalFileSystem("/b"), None, "has no '.'"),
        ("file:///a/%2E%2e/", ObjectStoreConfig.LocalFileSystem("/b"), None, "has no '.'"),
        ("s3://b/", S3, "", "not empty"),
        ("s3://b/", S3, "a/b", "has no '/'"),
    ],
)
def test_a_container_that_breaks_a_rule_is_refused(
    url_prefix: str, store: Any, name: str | None, reason: str
) -> None:
    with pytest.raises(InvalidInputError, match=reason) as error:
        VirtualChunkContainer(url_prefix, store, name)
    assert error.value.kind is ErrorKind.BAD_PREFIX


def test_a_container_replaces_the_ones_with_its_prefix_or_its_name() -> None:
    config = RepositoryConfig()
    for container in (
        VirtualChunkContainer("s3://a/", S3, "x"),
        VirtualChunkContainer("s3://b/", S3),
        VirtualChunkContainer("s3://b/", S3, "y"),
        VirtualChunkContainer("s3://c/", S3, "x"),
    ):
        config = config.with_virtual_chunk_container(container)
    assert config.virtual_chunk_containers is not None
    assert list(config.virtual_chunk_containers) == ["s3://b/", "s3://c/"]
    found = config.get_virtual_chunk_container("s3://b/")
    assert found is not None
    assert found.name == "y"
    assert config.without_virtual_chunk_containers().virtual_chunk_containers == {}


def test_the_longest_prefix_comes_first() -> None:
    config = RepositoryConfig()
    for prefix in ("s3://a/", "s3://a/b/c/", "s3://a/b/"):
        config = config.with_virtual_chunk_container(VirtualChunkContainer(prefix, S3))
    bad = VirtualChunkContainer.from_persisted("s3://a/b/c/d", S3, unknown={})
    config = config.with_virtual_chunk_container(bad)
    prefixes = [container.url_prefix for container in config.usable_containers()]
    assert prefixes == ["s3://a/b/c/", "s3://a/b/", "s3://a/"]
