"""The configuration: defaults, assignment, layering, checks and containers."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import FrozenInstanceError, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import icechunk
import numpy as np
import pytest

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.model import config as config_module
from icefloe.model import manifest_config, storage_settings
from icefloe.model.config import (
    CachingConfig,
    CompressionAlgorithm,
    CompressionConfig,
    PackingConfig,
    RepositoryConfig,
    RepoUpdateRetryConfig,
)
from icefloe.model.config_section import ConfigSection, get_field_types
from icefloe.model.containers import ObjectStoreConfig, S3Options, VirtualChunkContainer
from icefloe.model.manifest_config import (
    AnySplitDimCondition,
    Excluded,
    Included,
    ManifestConfig,
    ManifestPreloadCondition,
    ManifestPreloadConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    ManifestVirtualChunkLocationCompressionConfig,
    PreloadNumRefs,
    Unbounded,
)
from icefloe.model.storage_settings import (
    IN_MEMORY_DEFAULTS,
    LOCAL_FILE_SYSTEM_DEFAULTS,
    StorageConcurrencySettings,
    StorageRetriesSettings,
    StorageSettings,
    StorageTimeoutSettings,
)
from icefloe.model.virtual_chunk_spec import VirtualChunkSpec

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
    assert str(error.value) == ("StorageRetriesSettings.max_tries: expected an integer, got a str")


def test_a_repr_does_not_show_options_or_headers() -> None:
    stores = [
        ObjectStoreConfig.Gcs({"service_account_key": "secret"}),
        ObjectStoreConfig.Azure({"account": "a", "access_key": "secret"}),
        ObjectStoreConfig.Http({"proxy": "secret"}, {"authorization": "secret"}),
    ]
    assert "secret" not in repr(stores)


def full_config() -> RepositoryConfig:
    """Every kind of part: sections in sections, a container, a rule, unknown fields."""
    return RepositoryConfig(
        caching=CachingConfig(num_chunk_refs=1),
        manifest=ManifestConfig(
            splitting=ManifestSplittingConfig.from_dict(
                {ManifestSplitCondition.AnyArray(): {ManifestSplitDimCondition.Any(): 3}}
            )
        ),
        storage=StorageSettings(retries=StorageRetriesSettings(max_tries=2)),
        virtual_chunk_containers={"s3://a/": VirtualChunkContainer("s3://a/", S3)},
        packing=PackingConfig(max_chunk_bytes=1),
        unknown={"newer": {"deep": [1]}},
    )


def test_configurations_pickle() -> None:
    assert pickle.loads(pickle.dumps(full_config())) == full_config()  # noqa: S301


def test_fields_can_be_assigned_to() -> None:
    """As in Icechunk: also fields of a section that a configuration holds already."""
    config = RepositoryConfig()
    config.inline_chunk_threshold_bytes = 12
    config.caching = CachingConfig()
    config.caching.num_chunk_refs = 5
    config.storage = StorageSettings()
    config.storage.retries = StorageRetriesSettings()
    config.storage.retries.max_tries = 3
    assert config == RepositoryConfig(
        inline_chunk_threshold_bytes=12,
        caching=CachingConfig(num_chunk_refs=5),
        storage=StorageSettings(retries=StorageRetriesSettings(max_tries=3)),
    )
    config.caching = None
    assert config.caching is None


SECTIONS: list[type[ConfigSection]] = [
    value
    for module in (config_module, manifest_config, storage_settings)
    for value in vars(module).values()
    if isinstance(value, type)
    and issubclass(value, ConfigSection)
    and value.__module__ == module.__name__
]


@pytest.mark.parametrize("section", SECTIONS)
def test_an_assignment_is_checked_as_the_constructor_checks(section: Any) -> None:
    """Every field of every section refuses what it cannot hold, and keeps what it had."""
    for name in get_field_types(section):
        made = section()
        with pytest.raises(InvalidInputError) as by_constructor:
            section(**{name: object()})
        with pytest.raises(InvalidInputError) as by_assignment:
            setattr(made, name, object())
        assert str(by_assignment.value) == str(by_constructor.value)
        assert f"{section.__name__}.{name}: " in str(by_assignment.value)
        assert made == section()


def test_a_refused_assignment_leaves_the_value() -> None:
    config = RepositoryConfig(inline_chunk_threshold_bytes=12)
    with pytest.raises(InvalidInputError, match="65536 is not between 0 and 65535"):
        config.inline_chunk_threshold_bytes = 2**16
    assert config.inline_chunk_threshold_bytes == 12


@pytest.mark.parametrize(
    "name, nearest",
    [
        ("inline_chunk_treshold_bytes", "did you mean inline_chunk_threshold_bytes"),
        ("effective_caching", "did you mean caching"),
        ("x", "available: inline_chunk_threshold_bytes, get_partial_values_concurrency, "),
    ],
)
def test_a_field_that_does_not_exist_cannot_be_assigned(name: str, nearest: str) -> None:
    """A misspelled field raises, with similar fields in the error."""
    config = RepositoryConfig()
    with pytest.raises(AttributeError, match=f"no field '{name}': {nearest}"):
        setattr(config, name, CachingConfig())
    assert config == RepositoryConfig()


@pytest.mark.parametrize("section", SECTIONS)
def test_sections_are_no_keys(section: Any) -> None:
    """What can change has no hash, or a dictionary would lose it."""
    with pytest.raises(TypeError, match="unhashable"):
        hash(section())


@pytest.mark.parametrize(
    "value",
    [
        S3,
        S3Options(),
        ObjectStoreConfig.Gcs({"a": "b"}),
        VirtualChunkContainer("s3://a/", S3),
        ManifestPreloadCondition.num_refs(1),
        ManifestSplitCondition.AnyArray(),
        ManifestSplitDimCondition.Axis(1),
    ],
)
def test_what_is_used_as_a_key_stays_frozen(value: Any) -> None:
    assert {value: 1}[pickle.loads(pickle.dumps(value))] == 1  # noqa: S301
    with pytest.raises(FrozenInstanceError):
        value.unknown = {}


def change_everything(section: ConfigSection) -> None:
    """Change what can be changed inside a section, as deep as it goes."""
    for name in get_field_types(type(section)):
        value = getattr(section, name)
        if isinstance(value, ConfigSection):
            change_everything(value)
        elif isinstance(value, dict):
            value.clear()
        setattr(section, name, None)
    for value in section.unknown.values():
        value.clear()
    section.unknown = {"changed": {}}


def test_a_copy_shares_nothing_that_can_be_changed() -> None:
    config = full_config()
    change_everything(config.copy())
    assert config == full_config()


@pytest.mark.parametrize("over", [RepositoryConfig(), full_config()])
def test_a_merge_shares_nothing_that_can_be_changed(over: RepositoryConfig) -> None:
    for mine in (full_config(), RepositoryConfig()):
        before = (mine.copy(), over.copy())
        change_everything(mine.merge(over))
        assert (mine, over) == before


@pytest.mark.parametrize("section", SECTIONS)
def test_defaults_cannot_be_changed_through_an_effective_value(section: Any) -> None:
    """The default of one configuration is the default of all."""
    names = [name for name in dir(section) if name.startswith("effective_")]
    before = {name: copy.deepcopy(getattr(section(), name)) for name in names}
    for name in names:
        value = getattr(section(), name)
        if isinstance(value, ConfigSection):
            for inner in [f for f in dir(value) if f.startswith("effective_")]:
                if isinstance(getattr(value, inner), ConfigSection):
                    change_everything(getattr(value, inner))
            change_everything(value)
    assert {name: getattr(section(), name) for name in names} == before
    assert RepoUpdateRetryConfig().effective_default == StorageRetriesSettings(100, 50, 30_000)


def test_an_effective_value_that_is_set_is_the_one_that_is_set() -> None:
    config = RepositoryConfig(caching=CachingConfig())
    assert config.effective_caching is config.caching


def test_a_mapping_of_containers_is_not_shared_with_the_caller() -> None:
    """Or containers could get in behind the check."""
    containers: dict[str, Any] = {"s3://a/": VirtualChunkContainer("s3://a/", S3)}
    config = RepositoryConfig(virtual_chunk_containers=containers)
    containers["s3://b/"] = "anything"
    assert config.virtual_chunk_containers is not None
    assert list(config.virtual_chunk_containers) == ["s3://a/"]


def test_a_repr_shows_what_is_set() -> None:
    config = RepositoryConfig(
        inline_chunk_threshold_bytes=0, caching=CachingConfig(num_chunk_refs=5)
    )
    assert repr(config) == (
        "RepositoryConfig(inline_chunk_threshold_bytes=0, caching=CachingConfig(num_chunk_refs=5))"
    )
    assert repr(VirtualChunkContainer("s3://a/", S3)) == (
        "VirtualChunkContainer(url_prefix='s3://a/', "
        "store=ObjectStoreConfig.S3(options=S3Options(region='eu-west-1')))"
    )


def test_packing_is_off_unless_the_section_is_set() -> None:
    config = RepositoryConfig()
    assert config.packing is None
    config.packing = PackingConfig()
    assert config.packing.effective_max_chunk_bytes == 256 * 1024
    assert config.packing.effective_target_object_bytes == 8 * 1024 * 1024
    merged = config.merge(RepositoryConfig(packing=PackingConfig(max_chunk_bytes=0)))
    assert merged.packing is not None
    assert merged.packing.effective_max_chunk_bytes == 0


SIGNATURES: dict[Any, str] = {
    RepositoryConfig: (
        "inline_chunk_threshold_bytes, get_partial_values_concurrency, compression, "
        "max_concurrent_requests, caching, storage, virtual_chunk_containers, manifest, "
        "repo_update_retries, num_updates_per_repo_info_file, max_concurrent_decodes"
    ),
    CachingConfig: (
        "num_snapshot_nodes, num_chunk_refs, num_transaction_changes, num_bytes_attributes, "
        "num_bytes_chunks"
    ),
    CompressionConfig: "algorithm, level",
    ManifestConfig: (
        "preload, splitting, virtual_chunk_location_compression, "
        "max_concurrent_manifest_fetches_during_commit"
    ),
    ManifestPreloadConfig: "max_total_refs, preload_if, max_arrays_to_scan",
    ManifestSplittingConfig: "split_sizes",
    ManifestVirtualChunkLocationCompressionConfig: "min_num_chunks",
    StorageSettings: (
        "concurrency, retries, unsafe_use_conditional_create, unsafe_use_conditional_update, "
        "unsafe_use_metadata, storage_class, metadata_storage_class, chunks_storage_class, "
        "minimum_size_for_multipart_upload, timeouts"
    ),
    StorageConcurrencySettings: "max_concurrent_requests_for_object, ideal_concurrent_request_size",
    StorageRetriesSettings: "max_tries, initial_backoff_ms, max_backoff_ms",
    StorageTimeoutSettings: (
        "connect_timeout_ms, read_timeout_ms, operation_timeout_ms, operation_attempt_timeout_ms"
    ),
    RepoUpdateRetryConfig: "default",
    VirtualChunkContainer: "url_prefix, store, name",
    VirtualChunkSpec: ("index, location, offset, length, etag_checksum, last_updated_at_checksum"),
    S3Options: (
        "region, endpoint_url, allow_http, anonymous, force_path_style, "
        "network_stream_timeout_seconds, requester_pays, checksum_algorithm"
    ),
}
"""The positional parameters of icechunk 2.3.0; `unknown` and what is ours go by keyword only."""


@pytest.mark.parametrize("cls", SIGNATURES)
def test_positional_parameters_are_those_of_icechunk(cls: Any) -> None:
    """Code that passes arguments by position means the same fields here."""
    parameters = inspect.signature(cls).parameters.values()
    positional = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
    assert ", ".join(positional) == SIGNATURES[cls]


@pytest.mark.parametrize("cls", SIGNATURES)
def test_every_name_of_the_installed_icechunk_is_here(cls: Any) -> None:
    """Attributes and methods; and no parameter of Icechunk stands at another position here."""
    theirs = getattr(icechunk, cls.__name__, None)
    if theirs is None:
        pytest.skip("not in this version of Icechunk")
    names = {name for name in dir(theirs) if not name.startswith("_")}
    assert names <= set(dir(cls))
    signature = inspect.signature(theirs).parameters.values()
    their_positional = [p.name for p in signature if p.kind is not p.KEYWORD_ONLY]
    assert SIGNATURES[cls].split(", ")[: len(their_positional)] == their_positional


def test_what_icechunk_takes_as_nothing_is_taken() -> None:
    """Icechunk's stores need their arguments, and None is how to give none."""
    assert ObjectStoreConfig.Gcs(None) == ObjectStoreConfig.Gcs()
    assert ObjectStoreConfig.Azure(None) == ObjectStoreConfig.Azure({})
    assert ObjectStoreConfig.Http(None, None) == ObjectStoreConfig.Http({}, {})
    assert ObjectStoreConfig.Http({"a": "b"}, {"c": "d"}).headers == {"c": "d"}


def test_split_sizes_are_taken_as_icechunk_gives_them() -> None:
    """Icechunk shows lists of pairs, and documents tuples; both come back as one value."""
    any_array, axis = ManifestSplitCondition.AnyArray(), ManifestSplitDimCondition.Axis(0)
    expected = ManifestSplittingConfig.from_dict({any_array: {axis: 3}})
    assert ManifestSplittingConfig([(any_array, [(axis, 3)])]) == expected
    assert ManifestSplittingConfig(((any_array, ((axis, 3),)),)) == expected
    assigned = ManifestSplittingConfig()
    assigned.split_sizes = [(any_array, [(axis, 3)])]  # type: ignore[assignment]
    assert assigned == expected
    assert assigned.split_sizes is not None
    ((condition, dims),) = assigned.split_sizes
    assert (condition, [tuple(dim) for dim in dims]) == (any_array, [(axis, 3)])


def test_a_virtual_chunk_is_described_by_position() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    spec = VirtualChunkSpec([0, np.uint32(1)], "s3://b/k", np.int64(2), 3, "etag", moment)
    assert (spec.index, spec.location, spec.offset, spec.length) == ((0, 1), "s3://b/k", 2, 3)
    assert (spec.etag_checksum, spec.last_updated_at_checksum) == ("etag", moment)
    assert {spec: 1}[pickle.loads(pickle.dumps(spec))] == 1  # noqa: S301


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (([-1], "x", 0, 0), "index: -1 is not between"),
        (([2**32], "x", 0, 0), "index: 4294967296 is not between"),
        (([0], "x", -1, 0), "offset: -1"),
        (([0], "x", 0, 1.5), "length: expected an integer, got a float"),
        (([0], "x", 0, 0, None, datetime(2026, 1, 1)), "no time zone"),  # noqa: DTZ001
    ],
)
def test_a_virtual_chunk_that_no_manifest_can_hold_is_refused(arguments: Any, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason) as error:
        VirtualChunkSpec(*arguments)
    assert error.value.kind is ErrorKind.INVALID_VIRTUAL_REF


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
        ("s3://b/bar.nc", S3),
        ("s3://", S3),
        ("az://", ObjectStoreConfig.Azure()),
        ("modela://b/", ObjectStoreConfig.Gcs()),
        ("modela://", ObjectStoreConfig.S3Compatible(S3Options())),
    ],
)
def test_a_container_whose_prefix_fits_its_store(url_prefix: str, store: Any) -> None:
    assert VirtualChunkContainer(url_prefix, store).problem is None


@pytest.mark.parametrize(
    "url_prefix, store, name, reason",
    [
        ("vcc://b/", S3, None, "is reserved"),
        ("/a/", S3, None, "expected a URL prefix like"),
        ("s3:b/", S3, None, "expected a URL prefix like"),
        ("s3:///a/", S3, None, "must include a host"),
        ("s3://b/", ObjectStoreConfig.Gcs(), None, "does not match"),
        ("tigris://b/", S3, None, "does not match"),
        ("ftp://h/", ObjectStoreConfig.Http(), None, "does not match"),
        ("modela://h/", ObjectStoreConfig.LocalFileSystem("/b"), None, "does not match"),
        ("https://", ObjectStoreConfig.Http(), None, "must include a host"),
        ("file://", ObjectStoreConfig.LocalFileSystem("/"), None, "must include a path"),
        ("file:///", ObjectStoreConfig.LocalFileSystem("/"), None, "must include a path"),
        ("file:///a/../b/", ObjectStoreConfig.LocalFileSystem("/b"), None, "must not contain '.'"),
        (
            "file:///a/%2E%2e/",
            ObjectStoreConfig.LocalFileSystem("/b"),
            None,
            "must not contain '.'",
        ),
        ("s3://b/", S3, "", "must not be empty"),
        ("s3://b/", S3, "a/b", "must not be empty or contain"),
    ],
)
def test_a_container_that_breaks_a_rule_is_refused(
    url_prefix: str, store: Any, name: str | None, reason: str
) -> None:
    with pytest.raises(InvalidInputError, match=reason) as error:
        VirtualChunkContainer(url_prefix, store, name)
    assert error.value.kind is ErrorKind.BAD_PREFIX


def test_a_container_in_memory_can_be_made_but_not_configured() -> None:
    container = VirtualChunkContainer("memory://x/", ObjectStoreConfig.InMemory())
    with pytest.raises(InvalidInputError, match="InMemory") as error:
        RepositoryConfig().set_virtual_chunk_container(container)
    assert error.value.kind is ErrorKind.BAD_PREFIX


@pytest.mark.parametrize(
    "written, url_prefix",
    [
        ("s3", "s3://"),
        ("S3://", "s3://"),
        ("models", "models://"),
        ("models/dev", "models://dev/"),
        ("models/dev/a", "models://dev/a"),
        ("s3://foo", "s3://foo/"),
        ("S3://Foo", "s3://Foo/"),
        ("s3://foo/", "s3://foo/"),
        ("s3://foo/bar.nc", "s3://foo/bar.nc"),
    ],
)
def test_a_prefix_has_one_spelling(written: str, url_prefix: str) -> None:
    """Bare prefixes, and a bucket with or without its slash."""
    config = RepositoryConfig()
    store = ObjectStoreConfig.S3Compatible(S3Options()) if "models" in written else S3
    for name in ("one", "two"):
        config.set_virtual_chunk_container(VirtualChunkContainer(written, store, name))
    assert list(config.virtual_chunk_containers or {}) == [url_prefix]
    found = config.get_virtual_chunk_container(written)
    assert found is not None
    assert (found.url_prefix, found.name) == (url_prefix, "two")
    assert config.get_virtual_chunk_container("one") is None


@pytest.mark.parametrize(
    "target, reason",
    [
        ("gs://real/", "does not match"),
        ("s3://", "must include a host"),
        ("s3:///x", "must include a host"),
        ("no url", "expected a URL prefix like"),
        ("vcc://x/", "is reserved"),
    ],
)
def test_a_target_is_one_place_of_the_store(target: str, reason: str) -> None:
    good = VirtualChunkContainer("modela", S3, target_prefix="s3://real")
    assert good.target_prefix == "s3://real/"
    local = ObjectStoreConfig.LocalFileSystem("/data")
    assert VirtualChunkContainer("modela", local, target_prefix="file:///data/").problem is None
    with pytest.raises(InvalidInputError, match=reason):
        VirtualChunkContainer("modela", S3, target_prefix=target)


def test_a_container_replaces_the_ones_with_its_prefix_or_its_name() -> None:
    config = RepositoryConfig()
    for container in (
        VirtualChunkContainer("s3://a/", S3, "x"),
        VirtualChunkContainer("s3://b/", S3),
        VirtualChunkContainer("s3://b/", S3, "y"),
        VirtualChunkContainer("s3://c/", S3, "x"),
    ):
        config.set_virtual_chunk_container(container)
    assert config.virtual_chunk_containers is not None
    assert list(config.virtual_chunk_containers) == ["s3://b/", "s3://c/"]
    found = config.get_virtual_chunk_container("s3://b/")
    assert found is not None
    assert found.name == "y"
    assert config.get_virtual_chunk_container("y") is found
    assert config.get_virtual_chunk_container("z") is None
    with pytest.raises(InvalidInputError, match="expected a VirtualChunkContainer, got a str"):
        config.set_virtual_chunk_container("s3://d/")  # type: ignore[arg-type]
    config.clear_virtual_chunk_containers()
    assert config.virtual_chunk_containers == {}


def test_the_longest_prefix_comes_first() -> None:
    config = RepositoryConfig()
    for prefix in ("s3://a/", "s3://a/b/c/", "s3://a/b/"):
        config.set_virtual_chunk_container(VirtualChunkContainer(prefix, S3))
    bad = VirtualChunkContainer.from_persisted("s3:///a/b/c/d", S3, unknown={})
    config.set_virtual_chunk_container(bad)
    prefixes = [container.url_prefix for container in config.usable_containers()]
    assert prefixes == ["s3://a/b/c/", "s3://a/b/", "s3://a/"]
