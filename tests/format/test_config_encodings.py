"""The repository configuration in YAML (v1) and FlexBuffers (v2), as Icechunk has it."""

from __future__ import annotations

import base64
import dataclasses
import shutil
import struct
import time
import typing
import zlib
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import icechunk
import pytest
import yaml
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icefloe.errors import ErrorKind, FormatError, IcefloeError, InvalidInputError
from icefloe.format import config_flexbuffers, config_tree, config_yaml, flexbuffers
from icefloe.format.config_tree import Tree, Variant
from icefloe.format.repo_info import decode_repo_info, encode_repo_info
from icefloe.model import manifest_config as manifest
from icefloe.model.config import (
    CachingConfig,
    CompressionAlgorithm,
    CompressionConfig,
    PackingConfig,
    RepositoryConfig,
    RepoUpdateRetryConfig,
)
from icefloe.model.config_section import (
    Bounds,
    Persisted,
    get_field_types,
    is_optional,
    remove_none,
)
from icefloe.model.containers import (
    ChecksumAlgorithm,
    ObjectStoreConfig,
    S3Options,
    VirtualChunkContainer,
    find_duplicate,
)
from icefloe.model.manifest_config import (
    ManifestConfig,
    ManifestPreloadCondition,
    ManifestPreloadConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    ManifestVirtualChunkLocationCompressionConfig,
)
from icefloe.model.storage_settings import (
    StorageConcurrencySettings,
    StorageRetriesSettings,
    StorageSettings,
    StorageTimeoutSettings,
)
from support import SUPPORT, warm_python
from support.hypothesis_examples import examples

GOLDEN = Path(__file__).parents[1] / "golden"
COMMITTER = SUPPORT / "icechunk_committer.py"

P, S, D = ManifestPreloadCondition, ManifestSplitCondition, ManifestSplitDimCondition


def containers(*items: VirtualChunkContainer) -> dict[str, VirtualChunkContainer]:
    return {item.url_prefix: item for item in items}


FULL = RepositoryConfig(
    inline_chunk_threshold_bytes=64,
    get_partial_values_concurrency=4,
    compression=CompressionConfig(algorithm=CompressionAlgorithm.Zstd, level=7),
    max_concurrent_requests=9,
    caching=CachingConfig(1, 2, 3, 2**40, 2**64 - 1),
    storage=StorageSettings(
        concurrency=StorageConcurrencySettings(3, 2**33),
        retries=StorageRetriesSettings(3, 4, 5),
        timeouts=StorageTimeoutSettings(1, 2, 3, 4),
        unsafe_use_conditional_update=False,
        unsafe_use_metadata=False,
        chunks_storage_class="a b: c",
        minimum_size_for_multipart_upload=6,
    ),
    virtual_chunk_containers=containers(
        VirtualChunkContainer(
            "s3://b/p/",
            ObjectStoreConfig.S3Compatible(
                S3Options(
                    region="us-east-1",
                    endpoint_url="http://minio:9000",
                    allow_http=True,
                    anonymous=True,
                    force_path_style=True,
                    network_stream_timeout_seconds=60,
                )
            ),
        ),
        VirtualChunkContainer(
            "s3://b2/", ObjectStoreConfig.S3(S3Options(network_stream_timeout_seconds=60)), "n1"
        ),
        VirtualChunkContainer(
            "gs://g/", ObjectStoreConfig.Gcs({"a": "b", "google_skip_signature": "true"})
        ),
        VirtualChunkContainer("gcs://g2/", ObjectStoreConfig.Gcs(), "n3"),
        VirtualChunkContainer("tigris://t/", ObjectStoreConfig.Tigris(S3Options(region="r"))),
        VirtualChunkContainer("https://h/", ObjectStoreConfig.Http({"timeout": "5s"}), "n5"),
        VirtualChunkContainer("file:///data/", ObjectStoreConfig.LocalFileSystem("/data")),
        VirtualChunkContainer("az://c/", ObjectStoreConfig.Azure({"account": "acc"}), "n7"),
        VirtualChunkContainer("http://h2/", ObjectStoreConfig.Http({"timeout": "5s"}, {"x": "y"})),
        VirtualChunkContainer(
            "s3://ck/",
            ObjectStoreConfig.S3(
                S3Options(
                    network_stream_timeout_seconds=60,
                    checksum_algorithm=ChecksumAlgorithm.Crc64Nvme,
                )
            ),
            "n9",
        ),
        VirtualChunkContainer(
            "s3://ck2/",
            ObjectStoreConfig.S3(
                S3Options(
                    network_stream_timeout_seconds=60, checksum_algorithm=ChecksumAlgorithm.Sha256
                )
            ),
        ),
    ),
    manifest=ManifestConfig(
        preload=ManifestPreloadConfig(
            max_total_refs=1,
            preload_if=P.or_conditions(
                [
                    P.and_conditions([P.true(), P.false()]),
                    P.name_matches("^a: [x]$"),
                    P.path_matches("#foo\n'bar\""),
                    P.num_refs(None, 5),
                    P.num_refs(3, None),
                    P.num_refs(1, 7),
                ]
            ),
            max_arrays_to_scan=5,
        ),
        splitting=ManifestSplittingConfig.from_dict(
            {
                S.or_conditions(
                    [
                        S.name_matches("a"),
                        S.and_conditions([S.path_matches("yes"), S.AnyArray()]),
                    ]
                ): {D.Axis(0): 3, D.DimensionName("12"): 4, D.DimensionName("true"): 5, D.Any(): 7},
                S.AnyArray(): {},
            }
        ),
        virtual_chunk_location_compression=ManifestVirtualChunkLocationCompressionConfig(
            5,
            dictionary_max_training_samples=6,
            dictionary_max_size_bytes=7,
            compression_level=-3,
        ),
        max_concurrent_manifest_fetches_during_commit=4,
    ),
    repo_update_retries=RepoUpdateRetryConfig(StorageRetriesSettings(8, 1, 2)),
    num_updates_per_repo_info_file=77,
)
"""Every field and every case, as the two samples below hold them."""

# Written by icechunk 2.3.0 into the `repo` object of a v2 repository; compressed for this file.
FULL_FLEXBUFFER = zlib.decompress(
    base64.b64decode(
        "eNp1Vl2MJFUVPudWd09V9+wM49TsbvyBZbbGaVaWnt11WHbAxF12WY2wAoHVqHi9XXW7q5j66a26NUyPxhgMURI3gcRI"
        "YnggxISoiUowJvpiQOJPIi+EfTJEfSDxzRcTjULg3FvVMz2L1CTT955zz3fP/z1RGkep5H5YpptchbkswiwOeH+sZAFD"
        "qfhI5CoSMd8ScSkL7mepX+a5TP0x+FkyIoEiylIQ8TDLIxUm0NgpVACx3JIxsEM2Q7Yw49qJ2N6TVTyXVwhNFXAdPZB+"
        "FtDNvvDDKB1CWia8SMWItFI8NSxNqtTN5aDaqlykhfAVKUIskQ7rY8YKLpTKo36p9hENQgHN1cX7g7sBwIbqw/q3CVMf"
        "Ed+tP3bdOav+7eivUFkuhhKmnfQBhvNBlvOs/6j0FUSBJAe//xAvoh0J7Ka7p/SZ3Mum1GP79MglmSsrz1arKI1MCPvC"
        "38wGA55UzKmtdXShZ6HVaFq2basokVlJsSGNUtKP1wR9MJcimN5nI5kL4/f/SyTXy2S0D6Fx+ab1expIfxajy+ySIjeQ"
        "vCyk9kAQaTnStRwFQkn4AK5PeuznJlIJkhBQx4D7sSjIzprM95Or6F9HbIkj/Y0jPiTkr0TnHXnfhCkpYxXpOiCt4kwE"
        "AG04B2/hI/AJSPEKnMAX4A9wFVyKRBvuge9TkFpwH/1/q46Ku4qOhx5G0VaUq1JbYDKYbFKC6i8vQEXDPCo2ej3Vg1Qk"
        "ZFwecyqvQbQNnWmmVlrWxykeQ119mINMg1EWUfKQHIg0S8dJVhZUl3H2GA+VGgGZ4kuqZxWS4eNYQirVY1m+STtyZ7Ib"
        "pEJqV2tsk4UyJ5mx9pn0Nwvyy16p21+NDm5/4eITx2ys6+e7EIYAIbghPo+IS57151/8iTIL2r8Dzy1OkQn+5skeOHvL"
        "4hS0ilCcXL8d7J/9evDHF565tmPwlgDuIqzQhdCGELsVHnwMGX4UW8yCuQsTzD7hsPQE2Ls7G/4LLfwlHMJ/wz9gFV+D"
        "G1ilo8GECvMbNeYVvIwjjXl+7pzruUNf+3poQE+Bs7ellalBdEiw6VHV/RSfwp9oyVvmV91dC7XgmVobvWv7uX/7J3m6"
        "RXG1KT+ew0v4Ij6Nj+PLOESj2fI+a+mOw8gYHtZ3zLN/4RyjOx6af1BrZ7TpwcxkIQD7MMyyYSx5sRmNKHOHqVAlpUlD"
        "5SW1kOUbqQ17s66Lr5DiDlnss8+wPjNevLjrxd5oEhmzLE5x3eKplPuULU5ZHJeiUMdPwILOJzqlKyXbOLO2tkZWPcq2"
        "mMe+w4bsi+wZ9ilGViHCMbzrDu1vN7QpJx6s/f139nv2t+r2jG4fRLEkuJ6u1B4c2L+NM5/qRdN4MaZ0TKBpOIAfJrSO"
        "a0HPcq3bLIN2J6HVyoUUr/bU2tRAnePA1gsIqZfpytsGHAO2CGzGZUvL5Cn7Rs/FtdpTV63c+l6FfonQxY6OqQ7waZiZ"
        "bMSOdrbw/axMFVi0AJzT8i5+ROPqKF6zfmO9oXHOzJ92Ky11/EINtV5pOtmTcpRUiLaLvzLiFiw2/mN9qEHSt84dI2no"
        "wJNwGn/MDrB/wufgtzhjfZ1x60LjIPWgDvjQwafZX/Al6IGP19gZdtz6tuXtfYlIowEVN1CHMS3NvBaZIk+bV7Um82gA"
        "WU7tJKgzqTkQcUEJdcCmXDqkLezqZsUToag/mH4kt6kviI0jX95+xANcoDNzLq4YM0zvmRxtHx1kWXu1L/JlwDuIf4OL"
        "N5tj+pU2WgzyLAHn4bRPbg1kACqDC9t+XOo1tnUJ2sxbooAddVwPT5uAfTadPmDZU+Ls/rN0dnGBguubs3gctZfxYX2t"
        "zbKvEXve8TyqS81uvfnS1Qc+blceo4ps64p0u9pVIs+pJ5LHeOGLlKK7BOdwXfeBJi7btleM4kgpPcGYlXlLKKiUtHBU"
        "ozgurTb0qu1ZY82CO/Wuo+mrFd0R6bi6CNjcrKc5T2rObJetN0hJ+KGR6O4+jHB2m54Ek8lg745JBZX/AW235dnnKf1T"
        "Pa9d0i8MO3EScNHkGbuwpvO+4dlVnPEYkdsu+8pFTW56tnU2JTU2L9O2TeNc49KtB41j2LfaXndKU2CzzO2yg61uF/9n"
        "8mP/i6eruZrTpoZH6iN8St8gMqOcyMe8GmLoiSRX8kIko1i+j2/e6WpgnQLl1QTaWLzt85yGjXdmWs0GjRvXjWOTOuAD"
        "abKSB2WuryKgJFLQgDVYtl7DV6m/Mdo14K/4OtwLlCMeXbQV0RNrWhMl/iirhxY+mcACORA0OlB2PO5ccZ5yKDvQzDxV"
        "5zJ5XokUnEYmbjCidJBVkDALM52g80TnR52fW93Ouc4aKHoZZPu8fZi0mYVn21/qNODT8AN6kxy4j/4/BN+037ZWPcdZ"
        "QcdBb2XFW8H3AJbRFEo="
    )
)

# Written by icechunk 2.3.0 as the config.yaml of a v1 repository. Note the unquoted `yes`.
FULL_YAML = r"""
inline_chunk_threshold_bytes: 64
get_partial_values_concurrency: 4
compression:
  algorithm: zstd
  level: 7
max_concurrent_requests: 9
max_concurrent_decodes: null
caching:
  num_snapshot_nodes: 1
  num_chunk_refs: 2
  num_transaction_changes: 3
  num_bytes_attributes: 1099511627776
  num_bytes_chunks: 18446744073709551615
storage:
  concurrency:
    max_concurrent_requests_for_object: 3
    ideal_concurrent_request_size: 8589934592
  retries:
    max_tries: 3
    initial_backoff_ms: 4
    max_backoff_ms: 5
  timeouts:
    connect_timeout_ms: 1
    read_timeout_ms: 2
    operation_timeout_ms: 3
    operation_attempt_timeout_ms: 4
  unsafe_use_conditional_update: false
  unsafe_use_conditional_create: null
  unsafe_use_metadata: false
  storage_class: null
  metadata_storage_class: null
  chunks_storage_class: 'a b: c'
  minimum_size_for_multipart_upload: 6
virtual_chunk_containers:
  s3://b2/:
    name: n1
    url_prefix: s3://b2/
    store: !s3
      region: null
      endpoint_url: null
      anonymous: false
      allow_http: false
      force_path_style: false
      network_stream_timeout_seconds: 60
      requester_pays: false
      checksum_algorithm: null
  az://c/:
    name: n7
    url_prefix: az://c/
    store: !azure
      account: acc
  file:///data/:
    name: null
    url_prefix: file:///data/
    store: !local_file_system /data
  tigris://t/:
    name: null
    url_prefix: tigris://t/
    store: !tigris
      region: r
      endpoint_url: null
      anonymous: false
      allow_http: false
      force_path_style: false
      network_stream_timeout_seconds: null
      requester_pays: false
      checksum_algorithm: null
  https://h/:
    name: n5
    url_prefix: https://h/
    store: !http
      timeout: 5s
  s3://ck2/:
    name: null
    url_prefix: s3://ck2/
    store: !s3
      region: null
      endpoint_url: null
      anonymous: false
      allow_http: false
      force_path_style: false
      network_stream_timeout_seconds: 60
      requester_pays: false
      checksum_algorithm: sha256
  s3://ck/:
    name: n9
    url_prefix: s3://ck/
    store: !s3
      region: null
      endpoint_url: null
      anonymous: false
      allow_http: false
      force_path_style: false
      network_stream_timeout_seconds: 60
      requester_pays: false
      checksum_algorithm: crc64_nvme
  http://h2/:
    name: null
    url_prefix: http://h2/
    store: !http
      timeout: 5s
      headers:
        x: y
  gs://g/:
    name: null
    url_prefix: gs://g/
    store: !gcs
      a: b
      google_skip_signature: 'true'
  s3://b/p/:
    name: null
    url_prefix: s3://b/p/
    store: !s3_compatible
      region: us-east-1
      endpoint_url: http://minio:9000
      anonymous: true
      allow_http: true
      force_path_style: true
      network_stream_timeout_seconds: 60
      requester_pays: false
      checksum_algorithm: null
  gcs://g2/:
    name: n3
    url_prefix: gcs://g2/
    store: !gcs {}
manifest:
  preload:
    max_total_refs: 1
    preload_if: !or
    - !and
      - 'true'
      - 'false'
    - !name_matches
      regex: '^a: [x]$'
    - !path_matches
      regex: |-
        #foo
        'bar"
    - !num_refs
      from: Unbounded
      to: !Excluded 5
    - !num_refs
      from: !Included 3
      to: Unbounded
    - !num_refs
      from: !Included 1
      to: !Excluded 7
    max_arrays_to_scan: 5
  splitting:
    split_sizes:
    - - !or
        - !name_matches
          regex: a
        - !and
          - !path_matches
            regex: yes
          - any_array
      - - condition: !Axis 0
          num_chunks: 3
        - condition: !DimensionName '12'
          num_chunks: 4
        - condition: !DimensionName 'true'
          num_chunks: 5
        - condition: Any
          num_chunks: 7
    - - any_array
      - []
  virtual_chunk_location_compression:
    min_num_chunks: 5
    dictionary_max_training_samples: 6
    dictionary_max_size_bytes: 7
    compression_level: -3
  max_concurrent_manifest_fetches_during_commit: 4
previous_file: null
repo_update_retries:
  default:
    max_tries: 8
    initial_backoff_ms: 1
    max_backoff_ms: 2
num_updates_per_repo_info_file: 77
"""

DEFAULT_BY_2_3 = RepositoryConfig(
    storage=StorageSettings(
        concurrency=StorageConcurrencySettings(5, 4096),
        retries=StorageRetriesSettings(1, 0, 0),
        unsafe_use_conditional_update=False,
        unsafe_use_metadata=False,
    )
)

# Written by icechunk 2.3.0 for a v2 repository with a configuration in which nothing was set.
DEFAULT_FLEXBUFFER = zlib.decompress(
    base64.b64decode(
        "eNp1UrtuFEEQrJmVpbNlySARWCQEnBMSnJIgJBI+wIhwNDfbe9t4Z2Y9jxNGBAR8Bzk/QcKH8Cvu27V1xyFvsNqp7q6t"
        "qh4OAwcyrq/h2pQ+Ue7j0JrVbaGMNRUz2lTYDmZjh0rZuBhcTYmCu4WLfpSBzDHA2y+7WjGJbqS75EO8JRdbYXbW9RzW"
        "yCUmuybs0z5CZbqYTFx9JlfALYmk/5tM5q8E/eI9Giho4MkRjo8TlcQ0a5m/OPBkamXddew64+fi3rF5+fR1oxpALRaL"
        "wp5iFTc1ZNuRqZm2P2+FJAahqWNrCz1WdYkOqp6KlQn7YN+4wWaRcA+bf+FpN/kA9GLBVz8ZnpLxdSi8XZaoGaJtcYI3"
        "+KSu8Eo89PiDn/iNH3gmqZwAeK7khb/YPepCqaVSinnDqdSt8OlSiJVi5Y6kbUaBO4kZsvYNxyo74YGQaIz3GZiHrINo"
        "m6FsRkpm6uHQxXkEp2j0O231d/0RS/1WX+IKH3Cmv+Fcn+5E/doTeIHzpboDupXjgg=="
    )
)


# Strategies, from the same annotations that the encodings follow.

TEXTS = st.text(max_size=12)
KEYS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
PLAIN_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=5,
)
UNKNOWN = st.dictionaries(st.sampled_from(["not_yet", "später", "yes", "1", "", "~"]), PLAIN_VALUES)

PREFIXES = {
    ObjectStoreConfig.LocalFileSystem: ["file:///data/", "file://host/a/b/"],
    ObjectStoreConfig.Http: ["http://h/", "https://h/a b/"],
    ObjectStoreConfig.S3Compatible: ["s3://b/", "s3://b/p/"],
    ObjectStoreConfig.S3: ["s3://b/", "s3://b/é/"],
    ObjectStoreConfig.Gcs: ["gs://b/", "gcs://b/"],
    ObjectStoreConfig.Azure: ["az://c/", "azure://c/", "abfs://c/"],
    ObjectStoreConfig.Tigris: ["tigris://b/", "s3://b/"],
}


class Configs:
    """Strategies for the types of the configuration."""

    def __init__(self, *, unknown: st.SearchStrategy[dict[str, Any]], headers: bool) -> None:
        self.unknown = unknown
        self.headers = headers

    def of(self, hint: Any) -> st.SearchStrategy[Any]:
        if is_optional(hint):
            return st.none() | self.of(remove_none(hint))
        if hint in (ManifestPreloadCondition, ManifestSplitCondition):
            return self.conditions(hint)
        if hint in config_tree._SUM_TYPES:
            return st.one_of(*(self.section(case.cls) for case in config_tree._SUM_TYPES[hint]))
        args = typing.get_args(hint)
        match typing.get_origin(hint):
            case typing.Annotated:
                bounds: Bounds = args[1]
                return st.integers(bounds.minimum, bounds.maximum)
            case origin if origin is tuple and args[-1] is Ellipsis:
                return st.lists(self.of(args[0]), max_size=3).map(tuple)
            case origin if origin is tuple:
                return st.tuples(*(self.of(arg) for arg in args))
            case origin if origin is Mapping and args[1] is VirtualChunkContainer:
                found = st.dictionaries(KEYS, self.container(), max_size=3)
                return found.filter(lambda items: find_duplicate(items.values()) is None)
            case origin if origin is Mapping:
                keys = KEYS.filter(lambda key: key != "headers")
                return st.dictionaries(keys, self.of(args[1]), max_size=3)
        if issubclass(hint, Persisted):
            return self.section(hint)
        if issubclass(hint, Enum):
            return st.sampled_from(hint)
        return {bool: st.booleans(), str: TEXTS}[hint]

    def section(self, section: type[Persisted]) -> st.SearchStrategy[Any]:
        case = config_tree._VARIANTS_BY_TYPE.get(section)
        keeps_unknown = case is None or case.content_kind is config_tree._ContentKind.ALL_FIELDS
        values = {name: self.of(hint) for name, hint in get_field_types(section).items()}
        if section is ObjectStoreConfig.Http and not self.headers:
            values["headers"] = st.just({})
        return st.builds(section, **values, unknown=self.unknown if keeps_unknown else st.just({}))

    def conditions(self, hint: Any) -> st.SearchStrategy[Any]:
        either, both, *simple = [case.cls for case in config_tree._SUM_TYPES[hint]]
        leaves = st.one_of(*(self.section(leaf) for leaf in simple))
        return st.recursive(
            leaves,
            lambda inner: (
                st.builds(either, st.lists(inner, max_size=3).map(tuple))
                | st.builds(both, st.lists(inner, max_size=3).map(tuple))
            ),
            max_leaves=6,
        )

    def container(self) -> st.SearchStrategy[VirtualChunkContainer]:
        names = st.none() | st.text(
            st.characters(codec="utf-8", exclude_characters="/"), min_size=1
        )
        return st.one_of(
            *(
                st.builds(
                    VirtualChunkContainer,
                    st.sampled_from(prefixes),
                    self.section(store),
                    names,
                    unknown=self.unknown,
                )
                for store, prefixes in PREFIXES.items()
            )
        )


CONFIGS = Configs(unknown=UNKNOWN, headers=True).section(RepositoryConfig)

slowly = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))


# Round trips


@given(CONFIGS)
@settings(parent=slowly, max_examples=examples(120, thorough=600))
def test_every_configuration_comes_back(config: RepositoryConfig) -> None:
    """From FlexBuffers and from YAML, whichever parser of PyYAML reads it.

    One test, because a configuration takes longer to draw than to be written in all these ways.
    """
    assert config_flexbuffers.loads(config_flexbuffers.dumps(config)) == config
    data = config_yaml.dumps(config)
    assert config_yaml.loads(data) == config
    events = yaml.parse(data.decode(), Loader=yaml.SafeLoader)
    tree = config_yaml._Builder("f").build(events)
    assert config_tree.from_tree(tree, file="f") == config


@pytest.mark.parametrize(
    "text",
    ["yes", "No", "on", "null", "~", "", "true", "1", "1_000", "0o7", "0x1f", "012", "1e3", ".5",
     ".inf", ".NaN", "1:30", "2001-01-01", "=", "<<", "a: b", "a #b", "- a", "!x", "&x", "*x", "|",
     "é", "\u2028", "\x85", "\ufeff", "\U0001f9ca", "\x00", "\n", " a ", "a:", "@", "%x", "`", "-"],
)  # fmt: skip
def test_strings_stay_strings(text: str) -> None:
    config = RepositoryConfig(
        previous_file=text,
        virtual_chunk_containers={
            text.replace("\0", "0"): VirtualChunkContainer(
                "gs://b/", ObjectStoreConfig.Gcs({"k": text})
            )
        },
        manifest=ManifestConfig(
            splitting=ManifestSplittingConfig.from_dict({S.AnyArray(): {D.DimensionName(text): 1}})
        ),
    )
    assert config_yaml.loads(config_yaml.dumps(config)) == config
    assert config_flexbuffers.loads(config_flexbuffers.dumps(config)) == config


# What Icechunk writes


def test_the_full_yaml_of_icechunk_is_read() -> None:
    assert config_yaml.loads(FULL_YAML.encode()) == FULL


def test_the_full_flexbuffer_of_icechunk_is_read() -> None:
    assert config_flexbuffers.loads(FULL_FLEXBUFFER) == FULL
    assert config_flexbuffers.loads(DEFAULT_FLEXBUFFER) == DEFAULT_BY_2_3


def test_the_tree_that_is_written_as_flexbuffers_is_the_one_of_icechunk() -> None:
    """Names, nesting and nulls are the same, whatever the order and the widths."""
    ours = flexbuffers.loads(config_flexbuffers.dumps(FULL), file="ours")
    assert ours == flexbuffers.loads(FULL_FLEXBUFFER, file="theirs")


GOLDEN_CONFIG = RepositoryConfig(
    inline_chunk_threshold_bytes=64,
    virtual_chunk_containers=containers(
        VirtualChunkContainer(
            "s3://example-bucket/",
            ObjectStoreConfig.S3(
                S3Options(region="eu-west-1", anonymous=True, network_stream_timeout_seconds=60)
            ),
        )
    ),
    manifest=ManifestConfig(
        splitting=ManifestSplittingConfig.from_dict(
            {
                S.name_matches("^split.*"): {D.Axis(0): 3, D.DimensionName("x"): 4},
                S.AnyArray(): {D.Any(): 1000},
            }
        )
    ),
)


def test_the_golden_yaml_of_icechunk_1_is_read() -> None:
    data = (GOLDEN / "v1-by-1.1.21" / "repo" / "config.yaml").read_bytes()
    assert config_yaml.loads(data) == GOLDEN_CONFIG


def test_the_golden_yaml_of_icechunk_2_is_read() -> None:
    data = (GOLDEN / "v1-by-2.3.0" / "repo" / "config.yaml").read_bytes()
    assert config_yaml.loads(data) == DEFAULT_BY_2_3.merge(GOLDEN_CONFIG)


def test_the_golden_repo_object_of_icechunk_2_is_read() -> None:
    data = config_of_repo_object((GOLDEN / "v2-by-2.3.0" / "repo" / "repo").read_bytes())
    assert config_flexbuffers.loads(data) == DEFAULT_BY_2_3.merge(GOLDEN_CONFIG)


def config_of_repo_object(data: bytes) -> bytes:
    """Take field 9 out of the flatbuffer of a ``repo`` object."""
    table = zstandard.ZstdDecompressor().decompressobj().decompress(data[39:])
    (root,) = struct.unpack_from("<I", table)
    vtable = root - struct.unpack_from("<i", table, root)[0]
    field = root + struct.unpack_from("<H", table, vtable + 4 + 2 * 9)[0]
    vector = field + struct.unpack_from("<I", table, field)[0]
    (size,) = struct.unpack_from("<I", table, vector)
    return table[vector + 4 : vector + 4 + size]


# What Icechunk reads

REFERENCE_IS_1 = icechunk.__version__.startswith("1.")


def reference_repository(path: Path) -> icechunk.Storage:
    """Make a v1 repository with the installed icechunk."""
    storage = icechunk.local_filesystem_storage(str(path))
    version: Any = {} if REFERENCE_IS_1 else {"spec_version": 1}
    icechunk.Repository.create(storage, **version)
    return storage


def through_the_reference(storage: icechunk.Storage, path: Path, data: bytes) -> RepositoryConfig:
    """Let icechunk read these bytes as ``config.yaml`` and write the file again."""
    file = path / "config.yaml"
    file.write_bytes(data)
    icechunk.Repository.open(storage).save_config()
    assert file.read_bytes() != data
    return config_yaml.loads(file.read_bytes())


def drop_unknown(config: RepositoryConfig) -> RepositoryConfig:
    """Leave out what the installed icechunk has no field for; add what it writes by itself."""
    if not REFERENCE_IS_1:
        known = dataclasses.replace(config, packing=None, default_virtual_chunk_containers=None)
        return DEFAULT_BY_2_3.merge(known)
    replace = dataclasses.replace
    if config.storage is not None:
        config = replace(config, storage=replace(config.storage, timeouts=None))
    if config.manifest is not None:
        preload = config.manifest.preload
        if preload is not None:
            preload = replace(preload, max_arrays_to_scan=None)
        config = replace(
            config,
            manifest=ManifestConfig(preload=preload, splitting=config.manifest.splitting),
        )
    kept = {
        key: without_checksum(container)
        for key, container in (config.virtual_chunk_containers or {}).items()
    }
    return replace(
        config,
        packing=None,
        default_virtual_chunk_containers=None,
        virtual_chunk_containers=None if config.virtual_chunk_containers is None else kept,
        repo_update_retries=None,
        num_updates_per_repo_info_file=None,
        max_concurrent_decodes=None,
        previous_file=None,
    )


def without_checksum(container: VirtualChunkContainer) -> VirtualChunkContainer:
    match container.store:
        case ObjectStoreConfig.S3(options) | ObjectStoreConfig.S3Compatible(options):
            pass
        case ObjectStoreConfig.Tigris(options):
            pass
        case _:
            return container
    plain = dataclasses.replace(options, checksum_algorithm=None)
    return dataclasses.replace(container, store=type(container.store)(plain))


def readable_by_reference(config: RepositoryConfig) -> RepositoryConfig:
    """Leave out the headers of web servers, which make icechunk 1 refuse the whole file."""
    kept = dict(config.virtual_chunk_containers or {})
    if REFERENCE_IS_1:
        kept.pop("http://h2/", None)
    return dataclasses.replace(config, virtual_chunk_containers=kept)


def test_icechunk_reads_every_field_that_is_written(tmp_path: Path) -> None:
    storage = reference_repository(tmp_path)
    config = readable_by_reference(FULL)
    back = through_the_reference(storage, tmp_path, config_yaml.dumps(config))
    assert back == drop_unknown(config)


REFERENCE_CONFIGS = (
    Configs(unknown=st.just({}), headers=False)
    .section(RepositoryConfig)
    # Settings of a real object store make icechunk's local file system refuse every write, and
    # with zero concurrent requests it blocks forever.
    .map(
        lambda config: dataclasses.replace(
            config,
            storage=None,
            max_concurrent_requests=config.max_concurrent_requests or None,
        )
    )
)


def test_icechunk_reads_any_configuration_that_is_written(tmp_path: Path) -> None:
    storage = reference_repository(tmp_path)

    @given(REFERENCE_CONFIGS)
    @settings(parent=slowly, max_examples=60)
    def check(config: RepositoryConfig) -> None:
        back = through_the_reference(storage, tmp_path, config_yaml.dumps(config))
        assert back == drop_unknown(config)

    check()


def test_icechunk_sees_no_difference_after_a_rewrite(tmp_path: Path) -> None:
    storage = reference_repository(tmp_path)
    file = tmp_path / "config.yaml"
    headers = "      headers:\n        x: y\n"
    assert headers in FULL_YAML
    full = FULL_YAML.replace(headers, "") if REFERENCE_IS_1 else FULL_YAML
    for text in (full, (GOLDEN / "v1-by-1.1.21" / "repo" / "config.yaml").read_text()):
        file.write_text(text)
        before = icechunk.Repository.fetch_config(storage)
        file.write_bytes(config_yaml.dumps(config_yaml.loads(file.read_bytes())))
        assert icechunk.Repository.fetch_config(storage) == before


# Packing, which is ours alone

PACKING = RepositoryConfig(packing=PackingConfig(max_chunk_bytes=1000, target_object_bytes=2**33))

SAVE = """
import sys, icechunk
repository = icechunk.Repository.open(
    icechunk.local_filesystem_storage(sys.argv[1]),
    config=icechunk.RepositoryConfig(inline_chunk_threshold_bytes=7),
)
repository.save_config()
"""


def run(python: Path, *arguments: str | Path) -> None:
    done = warm_python.run(python, *arguments)
    assert done.returncode == 0, done.stderr[-3000:]


def golden_with_packing(name: str, path: Path) -> Path:
    """Copy a golden repository, and have it persist a packing section beside its configuration."""
    repository = path / "repo"
    shutil.copytree(GOLDEN / name / "repo", repository)
    persist(repository, config_in(repository).merge(PACKING))
    return repository


def config_in(repository: Path) -> RepositoryConfig:
    if (repository / "repo").exists():
        info = decode_repo_info((repository / "repo").read_bytes(), "repo")
        assert info.config is not None
        return info.config
    return config_yaml.loads((repository / "config.yaml").read_bytes())


def persist(repository: Path, config: RepositoryConfig) -> None:
    if (repository / "repo").exists():
        info = decode_repo_info((repository / "repo").read_bytes(), "repo")
        encoded = encode_repo_info(dataclasses.replace(info, config=config))
        (repository / "repo").write_bytes(encoded)
    else:
        (repository / "config.yaml").write_bytes(config_yaml.dumps(config))


def test_packing_is_persisted_only_where_it_is_set() -> None:
    """Files without it have the keys that Icechunk writes and no other."""
    assert "packing" not in config_tree.to_tree(RepositoryConfig())
    assert b"packing" not in config_yaml.dumps(FULL)
    assert b"packing" not in config_flexbuffers.dumps(FULL)
    written = config_tree.to_tree(RepositoryConfig(packing=PackingConfig()))
    assert written["packing"] == {"max_chunk_bytes": None, "target_object_bytes": None}
    assert config_yaml.loads(config_yaml.dumps(PACKING)) == PACKING
    assert config_flexbuffers.loads(config_flexbuffers.dumps(PACKING)) == PACKING


@pytest.mark.parametrize("name", ["v1-by-1.1.21", "v1-by-2.3.0"])
def test_icechunk_1_works_where_packing_is_persisted(
    name: str, tmp_path: Path, icechunk1: Path
) -> None:
    """It opens, commits and tags; the section stays until it saves the configuration."""
    check_icechunk_beside_packing(icechunk1, golden_with_packing(name, tmp_path))


@pytest.mark.parametrize("name", ["v1-by-1.1.21", "v1-by-2.3.0", "v2-by-2.3.0"])
def test_icechunk_2_works_where_packing_is_persisted(
    name: str, tmp_path: Path, icechunk2: Path
) -> None:
    """The same for Icechunk 2.x, which reads both generations."""
    check_icechunk_beside_packing(icechunk2, golden_with_packing(name, tmp_path))


def check_icechunk_beside_packing(python: Path, repository: Path) -> None:
    before = config_in(repository)
    assert before.packing == PACKING.packing
    run(python, COMMITTER, repository, "theirs")
    assert config_in(repository) == before
    run(python, "-c", SAVE, repository)
    saved = config_in(repository)
    assert saved.inline_chunk_threshold_bytes == 7
    assert (saved.manifest, saved.packing) == (before.manifest, None)
    run(python, COMMITTER, repository, "theirs-again")


# Unknown fields and bad containers


def test_fields_of_a_newer_version_survive_a_rewrite() -> None:
    text = """
max_quiet_seconds: 5
storage:
  mirror: !s3 {region: x, deep: [1, null, 2.5, "5", !Axis 0]}
manifest:
  preload:
    preload_if: !path_matches {regex: a, flags: i}
virtual_chunk_containers:
  s3://b/:
    url_prefix: s3://b/
    store: !s3 {color: red}
    weight: 3
"""
    config = config_yaml.loads(text.encode())
    assert config.unknown == {"max_quiet_seconds": 5}
    assert config.storage is not None
    deep: list[Tree] = [1, None, 2.5, "5", Variant("Axis", 0)]
    assert config.storage.unknown == {"mirror": Variant("s3", {"region": "x", "deep": deep})}
    assert config_yaml.loads(config_yaml.dumps(config)) == config
    migrated = flexbuffers.loads(config_flexbuffers.dumps(config), file="f")
    assert migrated["storage"]["mirror"]["s3"]["deep"][-1] == {"Axis": 0}
    condition = migrated["manifest"]["preload"]["preload_if"]["path_matches"]
    assert condition == {"regex": "a", "flags": "i"}
    container = migrated["virtual_chunk_containers"]["s3://b/"]
    assert (container["weight"], container["store"]["s3"]["color"]) == (3, "red")


def test_a_bad_container_is_kept_but_not_used() -> None:
    text = b"""
virtual_chunk_containers:
  s3://b: {url_prefix: "s3:///b", store: !s3 {}}
  gs://b/: {name: "a/b", url_prefix: gs://b/, store: !gcs {}}
  gs://c/: {name: c, url_prefix: gs://c/, store: !gcs {}}
"""
    config = config_yaml.loads(text)
    assert config.virtual_chunk_containers is not None
    assert list(config.virtual_chunk_containers) == ["s3://b", "gs://b/", "gs://c/"]
    assert [c.url_prefix for c in config.usable_containers()] == ["gs://c/"]
    assert config_yaml.loads(config_yaml.dumps(config)) == config
    assert config_flexbuffers.loads(config_flexbuffers.dumps(config)) == config


# Bad bytes


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "expected one document, got 0"),
        ("a: 1\n---\nb: 2\n", "expected one document, got 2"),
        ("- 1", "expected a map, got a list"),
        ("!x {}", "expected a map, got the variant 'x'"),
        ("a: [", "not YAML at line"),
        ("a: &x 1", "line 1, column 4: anchors and aliases"),
        ("a: *x", "line 1, column 4: anchors and aliases"),
        ("? [a]\n: 1", "a key must be a string"),
        ("a: 1\na: 2", "a key must be a unique"),
        ("a: !!python/object:os.system {}", "unknown tag"),
        ("inline_chunk_threshold_bytes: 65536", "not between 0 and 65535"),
        ("inline_chunk_threshold_bytes: true", "expected an integer"),
        ("inline_chunk_threshold_bytes: '1'", "expected an integer, got a str"),
        ("storage: {retries: {max_tries: 0}}", "storage.retries.max_tries: 0 is not between 1"),
        ("storage: {storage_class: []}", "storage.storage_class: expected str, got a list"),
        ("compression: {algorithm: lz4}", "compression.algorithm: expected one of: zstd; got"),
        ("manifest: {preload: {preload_if: !no x}}", "preload_if: expected one of: or, and,"),
        ("manifest: {preload: {preload_if: !or x}}", "preload_if.or: expected a list"),
        ("manifest: {preload: {preload_if: !or {}}}", "preload_if.or: expected a list"),
        ("manifest: {preload: {preload_if: [1]}}", "preload_if: expected one of: or,.*got a list"),
        ("manifest: {preload: {preload_if: !true 5}}", "true: expected no value, got 5"),
        ("manifest: {preload: {preload_if: !name_matches {}}}", "name_matches: regex is missing"),
        ("manifest: {preload: {preload_if: !num_refs {to: Unbounded}}}", "from is missing"),
        ("manifest: {splitting: {split_sizes: [[any_array]]}}", r"\[0\]: expected 2 items"),
        (
            "manifest: {splitting: {split_sizes: [[any_array, [{condition: Any, num_chunks: -1}]]]}}",  # noqa: E501
            r"config.yaml: manifest.splitting.split_sizes\[0\]\[1\]\[0\].num_chunks: -1 is not",
        ),
        (
            "virtual_chunk_containers: {a/: {url_prefix: a/, store: !http {k: 5}}}",
            r"virtual_chunk_containers\['a/'\].store.http\['k'\]: expected str, got 5",
        ),
        ("virtual_chunk_containers: {a/: {store: in_memory}}", "url_prefix is missing"),
    ],
)  # fmt: skip
def test_bad_yaml_names_the_file_and_the_field(text: str, reason: str) -> None:
    with pytest.raises(FormatError, match=reason) as error:
        config_yaml.loads(text.encode())
    assert error.value.kind is ErrorKind.CONFIG_DESERIALIZATION
    assert str(error.value).startswith("config.yaml: ")


def test_bad_flexbuffers_name_the_file_and_the_field() -> None:
    for data, reason in (
        (b"", "three bytes"),
        (flexbuffers.dumps([]), "expected a map, got a list"),
        (flexbuffers.dumps({"caching": {"num_chunk_refs": -1}}), "caching.num_chunk_refs: -1"),
        (
            flexbuffers.dumps({"storage": {"storage_class": 1}}),
            "storage.storage_class: expected str",
        ),
    ):
        with pytest.raises(FormatError, match=f"repo: .*{reason}") as error:
            config_flexbuffers.loads(data)
        assert error.value.kind is ErrorKind.CONFIG_DESERIALIZATION


def loads_or_format_error(loads: Any, data: bytes) -> None:
    begun = time.perf_counter()
    try:
        config = loads(data)
    except FormatError as e:
        assert e.kind is ErrorKind.CONFIG_DESERIALIZATION  # noqa: PT017 - any value is fine too
    else:
        assert isinstance(config, RepositoryConfig)
    assert time.perf_counter() - begun < 10


BOTH = pytest.mark.parametrize(
    "loads, sample",
    [(config_yaml.loads, FULL_YAML.encode()), (config_flexbuffers.loads, FULL_FLEXBUFFER)],
    ids=["yaml", "flexbuffers"],
)


@BOTH
@given(st.binary(max_size=300))
@slowly
def test_arbitrary_bytes_are_a_configuration_or_a_format_error(
    loads: Any, sample: bytes, data: bytes
) -> None:
    loads_or_format_error(loads, data)


@BOTH
@given(st.data())
@slowly
def test_mutated_configurations_are_a_configuration_or_a_format_error(
    loads: Any, sample: bytes, data: st.DataObject
) -> None:
    mutated = bytearray(sample)
    for _ in range(data.draw(st.integers(1, 5))):
        begin = data.draw(st.integers(0, len(mutated)))
        end = begin + data.draw(st.integers(0, 3))
        mutated[begin:end] = data.draw(
            st.binary(max_size=3) | st.sampled_from([b"!", b": ", b"- "])
        )
    loads_or_format_error(loads, bytes(mutated))


@given(st.text(st.sampled_from("ab:-[]{},!?|>'\"\\&*%#@ \n\t01.~"), max_size=80))
@settings(parent=slowly, max_examples=500)
def test_arbitrary_yaml_is_a_configuration_or_a_format_error(text: str) -> None:
    loads_or_format_error(config_yaml.loads, text.encode())


@given(PLAIN_VALUES, st.sampled_from(sorted(get_field_types(RepositoryConfig))))
@slowly
def test_arbitrary_values_in_a_field_are_a_configuration_or_a_format_error(
    value: Any, name: str
) -> None:
    loads_or_format_error(config_flexbuffers.loads, flexbuffers.dumps({name: value}))


@pytest.mark.parametrize(
    "data",
    [
        b"a: " + b"[" * 100_000,
        b"a: " + b"{a: " * 100_000,
        b"- " * 100_000,
        b"? " * 100_000,
        b"a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n",
        b"x" * (config_yaml.MAX_SIZE_BYTES + 1),
        b"a: " + b"9" * 1_000_000,
        b"a: " + b"0x" + b"f" * 1_000_000,
        b'a: "' + b"\\UFFFFFFFF" + b'"',
        b"%YAML " + b"9" * 10_000 + b".1\n---\na: 1\n",
        b"\xff\xfea\x00",
        b"a: \x00",
        b"a: !" + b"x" * 100_000 + b" 1",
    ],
    ids=lambda data: repr(data[:12]),
)
def test_hostile_yaml_is_bounded(data: bytes) -> None:
    loads_or_format_error(config_yaml.loads, data)


def test_a_configuration_too_deep_to_be_read_is_not_written() -> None:
    condition: ManifestPreloadCondition = P.true()
    for _ in range(200):
        condition = manifest.PreloadOr((condition,))
    config = RepositoryConfig(
        manifest=ManifestConfig(preload=ManifestPreloadConfig(preload_if=condition))
    )
    for dumps in (config_yaml.dumps, config_flexbuffers.dumps):
        with pytest.raises(InvalidInputError, match="nested more than"):
            dumps(config)


def test_a_long_chain_of_conditions_is_written_and_read() -> None:
    condition: ManifestPreloadCondition = P.name_matches("0")
    for i in range(1000):
        condition |= P.name_matches(str(i))
    config = RepositoryConfig(
        manifest=ManifestConfig(preload=ManifestPreloadConfig(preload_if=condition))
    )
    assert config_yaml.loads(config_yaml.dumps(config)) == config
    assert config_flexbuffers.loads(config_flexbuffers.dumps(config)) == config


@pytest.mark.parametrize(
    "unknown", [{"a": object()}, {"a": {1: 2}}, {"a": "\ud800"}, {"a": b"x"}, {"a": {"\ud800": 1}}]
)
def test_unknown_fields_that_are_not_plain_values_are_not_written(unknown: Any) -> None:
    config = RepositoryConfig(unknown=unknown)
    for dumps in (config_yaml.dumps, config_flexbuffers.dumps):
        with pytest.raises(IcefloeError):
            dumps(config)
