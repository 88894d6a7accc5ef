"""Each golden repository, every file of it decoded and encoded again, is the same to Icechunk."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from icefloe.format import config_yaml
from icefloe.format.envelope import read_header
from icefloe.format.location_compression import LocationCompression
from icefloe.format.manifest import decode_manifest, encode_manifest
from icefloe.format.ref_json import decode_ref, encode_ref
from icefloe.format.repo_info import decode_repo_info, encode_repo_info
from icefloe.format.snapshot import decode_snapshot, encode_snapshot
from icefloe.format.transaction_log import decode_transaction_log, encode_transaction_log
from support.golden_repositories import Golden, every_golden

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    Reader = Callable[[Path, str | None], dict[str, Any]]


def transcode(golden: Golden, target: Path) -> None:
    """Rewrite the repository with icefloe; chunks are copied unchanged."""
    sizes: dict[str, int] = {}
    for path in golden.files():  # manifests come before the snapshots that record their sizes
        key = path.relative_to(golden.repository).as_posix()
        written = _transcode_file(path.read_bytes(), key, sizes)
        (target / key).parent.mkdir(parents=True, exist_ok=True)
        (target / key).write_bytes(written)


def _transcode_file(data: bytes, key: str, sizes: dict[str, int]) -> bytes:
    folder, _, name = key.rpartition("/")
    match folder.partition("/")[0]:
        case "snapshots":
            snapshot = decode_snapshot(data, key)
            files = [
                replace(info, size_bytes=sizes[str(info.id)]) for info in snapshot.manifest_files
            ]
            snapshot = replace(snapshot, manifest_files=tuple(files))
            return encode_snapshot(snapshot, spec_version=read_header(data, key).spec_version)
        case "manifests":
            encoded = encode_manifest(
                decode_manifest(data, key),
                spec_version=read_header(data, key).spec_version,
                location_compression=LocationCompression(),
            )
            sizes[name] = len(encoded)
            return encoded
        case "transactions":
            log = decode_transaction_log(data, key)
            return encode_transaction_log(log, spec_version=read_header(data, key).spec_version)
        case "refs" if name == "ref.json":
            return encode_ref(decode_ref(data, key))
    if name.startswith("repo"):
        return encode_repo_info(decode_repo_info(data, key))
    if name.startswith("config.yaml"):
        return config_yaml.dumps(config_yaml.loads(data, file=key))
    return data


@every_golden
def test_decode_encode_decode(golden: Golden) -> None:
    """Decoding what was encoded gives equal values, for every metadata file, in its version."""
    for path in golden.files():
        key, data = path.relative_to(golden.repository).as_posix(), path.read_bytes()
        if key.startswith("snapshots"):
            version = read_header(data, key).spec_version
            snapshot = decode_snapshot(data, key)
            assert decode_snapshot(encode_snapshot(snapshot, spec_version=version), key) == snapshot
        if key.startswith("manifests"):
            version = read_header(data, key).spec_version
            manifest = decode_manifest(data, key)
            assert decode_manifest(encode_manifest(manifest, spec_version=version), key) == manifest
        if key.startswith("transactions"):
            version = read_header(data, key).spec_version
            log = decode_transaction_log(data, key)
            encoded = encode_transaction_log(log, spec_version=version)
            assert decode_transaction_log(encoded, key) == log
        if path.name.startswith("repo"):
            info = decode_repo_info(data, key)
            assert decode_repo_info(encode_repo_info(info), key) == info
        if path.name == "ref.json":
            assert encode_ref(decode_ref(data, key)) == data
        if path.name.startswith("config.yaml"):
            config = config_yaml.loads(data, file=key)
            assert config_yaml.loads(config_yaml.dumps(config), file=key) == config


@pytest.mark.parametrize("name", ["v1-by-1.1.21", "v1-by-2.3.0"])
def test_icechunk_1_sees_no_difference(
    name: str, tmp_path: Path, read_with_icechunk1: Reader
) -> None:
    """Icechunk 1.1 reads the same from icefloe's files as from its own."""
    _check(Golden(name), tmp_path, read_with_icechunk1)


@every_golden
def test_icechunk_2_sees_no_difference(
    golden: Golden, tmp_path: Path, read_with_icechunk2: Reader
) -> None:
    """Icechunk 2.x reads the same from icefloe's files as from its own."""
    _check(golden, tmp_path, read_with_icechunk2)


def _check(golden: Golden, target: Path, read: Reader) -> None:
    transcode(golden, target)
    found = read(target, None)
    assert found == read(golden.repository, None)
    # and what both saw is something, and the right thing
    assert found["branches"] == golden.expected["branches"]
    assert found["ancestry"] == golden.expected["ancestry"]
    first = golden.expected["ids"]["first"]
    expected = golden.expected["snapshots"][first]
    assert found["snapshots"][first]["/split_me"] == expected["/split_me"]
