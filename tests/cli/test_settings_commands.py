"""The commands ``init`` and ``config``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import icefloe
from cli.test_commands import GOLDEN
from cli.test_commands import icefloe as run

if TYPE_CHECKING:
    from pathlib import Path


def fetch_config(root: Path) -> icefloe.RepositoryConfig | None:
    return icefloe.Repository.fetch_config(icefloe.local_filesystem_storage(str(root)))


def test_init(tmp_path: Path, generation: str) -> None:
    """A repository of any generation is created, and an existing one is kept."""
    done = json.loads(run("init", tmp_path, "--generation", generation, "--json").stdout)
    assert done["generation"] == generation
    assert json.loads(run("log", tmp_path, "--json").stdout)[0]["id"] == done["snapshot_id"]
    message = run("init", tmp_path, code=1).stderr
    assert "choose another location" in message
    assert "check_clean_root" not in message
    assert "'x'" in run("init", tmp_path / "new", "--generation", "x", code=1).stderr


def test_settings_are_set_and_removed(tmp_path: Path) -> None:
    """Values are saved by dotted key, and removing one leaves the others."""
    run("init", tmp_path)
    run("config", tmp_path, "set", "inline_chunk_threshold_bytes", "1024")
    run("config", tmp_path, "set", "caching.num_bytes_chunks", "7")
    run("config", tmp_path, "set", "caching.num_chunk_refs", "8", "--dry-run")
    assert run("config", tmp_path).stdout.splitlines() == [
        "inline_chunk_threshold_bytes = 1024",
        "caching.num_bytes_chunks = 7",
    ]
    assert run("config", tmp_path, "get", "caching.num_bytes_chunks").stdout == "7\n"
    assert run("config", tmp_path, "get", "manifest.preload").stdout == "null\n"
    run("config", tmp_path, "unset", "inline_chunk_threshold_bytes")
    assert json.loads(run("config", tmp_path, "--json").stdout) == {"caching.num_bytes_chunks": 7}
    settings = fetch_config(tmp_path)
    assert settings is not None
    assert settings.caching is not None
    assert settings.caching.num_bytes_chunks == 7


@pytest.mark.parametrize(
    "words, code, problem",
    [
        (("set", "caching.num_bytes_chunks", "x"), 1, "expected an integer"),
        (("set", "caching.x", "1"), 1, "no setting 'x' in caching; there are: num_snapshot"),
        (("get", "x"), 1, "no setting 'x'; there are: inline_chunk_threshold_bytes"),
        (("get", "inline_chunk_threshold_bytes.x"), 1, "no setting 'x' in inline"),
        (("set", "caching.num_bytes_chunks"), 2, "set takes 2 more arguments, got 1"),
        (("put", "x"), 2, "unknown action 'put'"),
    ],
)
def test_wrong_settings(words: tuple[str, ...], code: int, problem: str) -> None:
    """Wrong keys, values and actions are refused with what is possible."""
    message = run("config", GOLDEN.repository, *words, code=code).stderr
    assert problem in " ".join(message.replace("│", "").split())


def test_containers(tmp_path: Path) -> None:
    """Containers are added, listed with the defaults, and removed."""
    run("init", tmp_path)
    run("config", tmp_path, "add-container", "s3://archive/")
    assert any(
        line.startswith("s3://archive/")
        for line in run("config", tmp_path, "containers").stdout.splitlines()
    )
    listed = json.loads(run("config", tmp_path, "containers", "--json").stdout)
    assert [item["url_prefix"] for item in listed if not item["is_default"]] == ["s3://archive/"]
    run("config", tmp_path, "remove-container", "s3://archive/")
    settings = fetch_config(tmp_path)
    assert settings is not None
    assert not settings.virtual_chunk_containers
