"""The command ``doctor``."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING

from cli.test_commands import GOLDEN
from cli.test_commands import icefloe as run

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from support.servers import S3Server


def test_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions are listed, and variables without their values."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "S3CR3T")
    text = run("doctor").stdout
    assert "AWS_SECRET_ACCESS_KEY" in text
    assert "S3CR3T" not in text
    checks = {check["name"]: check for check in json.loads(run("doctor", "--json").stdout)}
    assert checks["zarr"]["status"] == "ok"
    assert "read" not in checks


def test_storage(tmp_path: Path) -> None:
    """Nothing is written unless asked for, and a write test leaves nothing behind."""
    run("init", tmp_path / "weather")
    before = sorted(tmp_path.rglob("*"))
    text = run("doctor", tmp_path / "weather").stdout
    assert "a repository, generation v1" in text
    assert "pass --write" in text
    checks = json.loads(run("doctor", tmp_path / "weather", "--write", "--json").stdout)
    found = {check["name"]: check["status"] for check in checks}
    assert found["create if absent"] == found["update if unchanged"] == found["clock"] == "ok"
    assert sorted(tmp_path.rglob("*")) == before


def test_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed check gives exit code 1, and the other checks still run."""
    broken = tmp_path / "names.toml"
    broken.write_text("[")
    monkeypatch.setenv("ICEFLOE_CONFIG", str(broken))
    text = run("doctor", GOLDEN.repository.resolve(), code=1).stdout
    assert "cannot be read as TOML" in text
    assert "a repository, generation v2" in text
    assert "--write needs a REPOSITORY" in run("doctor", "--write", code=2).stderr


def test_storage_from_url_options(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A URL says where the server is; only the credentials come from the environment."""
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.access_key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.secret_access_key)
    place = f"s3://{s3_server.bucket}/{uuid.uuid4().hex}"
    options = f"?endpoint={s3_server.endpoint_url}&region=us-east-1"
    run("init", place + options, "--generation", "v2")
    checks = json.loads(run("doctor", place + options, "--write", "--json").stdout)
    assert {check["status"] for check in checks} <= {"ok", "skipped", "warning"}
    assert [check["status"] for check in checks if check["name"] == "update if unchanged"] == ["ok"]
    run("branch", place + options, "dev")
    shown = json.loads(run("inspect", f"{place}/repo{options}").stdout)
    assert set(shown["branches"]) == {"main", "dev"}
