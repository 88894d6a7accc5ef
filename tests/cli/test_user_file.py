"""Names of repositories in the user file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from cli.test_commands import GOLDEN
from cli.test_commands import icefloe as run
from icefloe.cli.user_file import find_user_file, resolve_name

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def user_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "names.toml"
    monkeypatch.setenv("ICEFLOE_CONFIG", str(path))
    monkeypatch.setenv("GOLDEN_ROOT", str(GOLDEN.repository.parent.resolve()))
    monkeypatch.chdir(tmp_path)
    path.write_text(
        '[repositories]\ngolden = "$GOLDEN_ROOT/repo"\n"my weather ☔" = "s3://b/p?region=r"\n'
    )
    return path


def test_commands_take_names(user_file: Path) -> None:
    """A name stands for its URL in every command, and variables in it are replaced."""
    assert "split_me" in run("tree", "golden").stdout
    assert json.loads(run("branch", "golden", "--json").stdout)[0]["name"] == "dev"
    assert resolve_name("my weather ☔") == "s3://b/p?region=r"
    assert user_file.exists()


def test_urls_and_paths_come_first(user_file: Path) -> None:
    """A URL, a path with a slash, and an existing path are never names."""
    for text in ("s3://golden", "./golden", "a/golden", "unknown", ""):
        assert resolve_name(text) == text
    (user_file.parent / "golden").mkdir()
    assert resolve_name("golden") == "golden"


@pytest.mark.parametrize(
    "text, problem",
    [
        ("[repositories", "cannot be read as TOML"),
        ('[repositories]\na = "x"\na = "y"\n', "cannot be read as TOML"),
        ("[repositories]\na = 1\n", "expected lines such as"),
        ("repositories = 1\n", "expected lines such as"),
        ("\xff", "cannot be read as TOML"),
    ],
)
def test_broken_user_files(user_file: Path, text: str, problem: str) -> None:
    """A broken file, or two repositories of one name, are an error that names the file.

    It stops only commands that may need the file.
    """
    user_file.write_text(text, "latin-1")
    message = " ".join(run("ls", "golden", code=1).stderr.split())
    assert problem in message
    assert str(user_file) in message
    assert "split_me" in run("ls", GOLDEN.repository.resolve()).stdout


def test_a_missing_repository_names_similar_names(user_file: Path) -> None:
    """A name that is neither a path nor in the file suggests those of the file."""
    message = " ".join(run("ls", "goldn", code=1).stderr.split())
    assert "there is no repository at" in message
    assert f"{user_file} has similar names: golden" in message
    assert f"{user_file.parent} contains: names.toml" in message


def test_a_wrong_path_shows_what_is_there(tmp_path: Path) -> None:
    """The repositories in the nearest existing directory are named."""
    run("init", tmp_path / "weather")
    for path in (tmp_path, tmp_path / "wether"):
        message = " ".join(run("log", path, code=1).stderr.split())
        assert f"{tmp_path} contains repositories: weather" in message


def test_default_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The file is in the configuration directory of the user; a missing one has no names."""
    monkeypatch.delenv("ICEFLOE_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert find_user_file() == tmp_path / "icefloe" / "config.toml"
    assert resolve_name("weather") == "weather"
