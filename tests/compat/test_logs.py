"""The ``icefloe`` logger: silent by default, enabled by variables and Icechunk's functions."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import icefloe

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOGGER = logging.getLogger("icefloe")


@pytest.fixture(autouse=True)
def _restore_logger(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("ICEFLOE_LOG", "ICECHUNK_LOG"):
        monkeypatch.delenv(name, raising=False)
    level, handlers = LOGGER.level, list(LOGGER.handlers)
    yield
    LOGGER.setLevel(level)
    LOGGER.handlers[:] = handlers


@pytest.mark.parametrize(
    "directive, level",
    [
        (None, logging.WARNING),
        ("debug", logging.DEBUG),
        ("icechunk=debug,info", logging.DEBUG),
        ("info,icechunk::store=error,hyper=off", logging.ERROR),
        ("hyper=debug", logging.WARNING),
        ("icechunk", logging.DEBUG),
        ("error,icechunk::store", logging.DEBUG),
        ("off", logging.CRITICAL + 1),
        ("4", logging.DEBUG),
        ("icechunk=0", logging.CRITICAL + 1),
        ("icechunk=1", logging.ERROR),
        ("icechunk=garbage", logging.WARNING),
    ],
)
def test_a_filter_sets_the_level(directive: str | None, level: int) -> None:
    """Entries for Icechunk apply to icefloe, entries for other targets do not."""
    icefloe.set_logs_filter(directive)
    assert LOGGER.level == level


@pytest.mark.parametrize("directive", ["false", "tokio:debug", "loud", "", "a=b", "=", ","])
def test_any_filter_is_accepted(directive: str, capfd: pytest.CaptureFixture[str]) -> None:
    icefloe.set_logs_filter(directive)
    assert LOGGER.level == logging.WARNING
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("target", ["icehunk", "icecunk", "iecchunk", "ichunk"])
def test_misspelt_targets_are_pointed_out(target: str, capfd: pytest.CaptureFixture[str]) -> None:
    for directive in (f"{target}:debug", f"warn,{target}=debug,tokio=off", f"{target}::store:info"):
        icefloe.set_logs_filter(directive)
        assert f"WARNING: Did you mean 'icechunk' instead of '{target}'" in capfd.readouterr().err
    icefloe.set_logs_filter("icechunk:debug,icefloe=debug,serde:info")
    assert capfd.readouterr().err == ""


def test_initialize_logs_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """It adds one handler; ``ICEFLOE_LOG`` precedes ``ICECHUNK_LOG``."""
    before = len(LOGGER.handlers)
    monkeypatch.setenv("ICECHUNK_LOG", "error")
    icefloe.initialize_logs()
    icefloe.initialize_logs()
    assert LOGGER.level == logging.ERROR
    assert len(LOGGER.handlers) == before + 1
    monkeypatch.setenv("ICEFLOE_LOG", "debug")
    icefloe.initialize_logs()
    assert LOGGER.level == logging.DEBUG
    icefloe.shutdown_telemetry()


PROGRAM = """
import datetime, icefloe, zarr
storage = icefloe.local_filesystem_storage({folder!r})
repository = icefloe.Repository.create(storage)
with repository.transaction("main", message="root") as store:
    zarr.create_group(store)
session, other = repository.writable_session("main"), repository.writable_session("main")
zarr.create_group(session.store, path="a")
zarr.create_group(other.store, path="b")
session.commit("first")
other.commit("second", rebase_with=icefloe.ConflictDetector())
repository = icefloe.Repository.open(storage)
now = datetime.datetime.now(datetime.timezone.utc)
repository.expire_snapshots(now)
repository.garbage_collect(now)
"""


@pytest.mark.parametrize(
    "variables",
    [{}, {"ICEFLOE_LOG": "info"}, {"ICECHUNK_LOG": "icechunk=debug"}, {"ICECHUNK_LOG": "error"}],
    ids=["none", "ICEFLOE_LOG", "ICECHUNK_LOG", "error"],
)
def test_what_a_program_logs(variables: dict[str, str], tmp_path: Path) -> None:
    """Nothing by default; if a variable is set, opening, commits, rebases and collections."""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_LOG")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(folder=str(tmp_path / "repo"))],
        env=environment | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == ""
    logged = [line.split(" ", 2)[2] for line in done.stderr.splitlines()]
    if variables in ({}, {"ICECHUNK_LOG": "error"}):
        assert logged == []
        return
    for expected in (
        "INFO icefloe.repository: created file://",
        "INFO icefloe.session.session: committed",
        "INFO icefloe.session.session: rebase attempt 1 of",
        "INFO icefloe.repository: expired 3 snapshots of",
        "INFO icefloe.maintenance.garbage_collection: deleted",
    ):
        assert any(line.startswith(expected) for line in logged), expected
    is_debug = any(line.startswith("DEBUG icefloe.repository: opened") for line in logged)
    assert is_debug == ("ICECHUNK_LOG" in variables)


def test_logs_have_no_secrets(caplog: pytest.LogCaptureFixture) -> None:
    """Neither credentials nor commit metadata are logged."""
    secrets = icefloe.s3_credentials(access_key_id="k3y", secret_access_key="s3cret")
    with caplog.at_level(logging.DEBUG, "icefloe"):
        repository = icefloe.Repository.create(
            icefloe.in_memory_storage(),
            authorize_virtual_chunk_access=icefloe.containers_credentials({"s3": secrets}),
        )
        session = repository.writable_session("main")
        session.commit("t0ken", {"name": "t0ken"}, allow_empty=True)
    assert "committed" in caplog.text
    assert not [secret for secret in ("k3y", "s3cret", "t0ken") if secret in caplog.text]
