"""All commands: their names, help, suggestions and imports."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from cli.test_commands import GOLDEN, icefloe
from icefloe.cli.command_table import COMMAND_MODULES, suggest_commands


@pytest.mark.parametrize("command", COMMAND_MODULES)
def test_help_of_each_command(command: str) -> None:
    """The help of each command explains it and shows an example of it."""
    assert f"icefloe {command} " in icefloe(command, "--help").stdout


def test_help_lists_all_commands() -> None:
    """The help of the program lists each command once, and the exit codes."""
    text = icefloe("--help").stdout
    for command in COMMAND_MODULES:
        assert len(re.findall(rf"^│ {command} ", text, re.MULTILINE)) == 1
    assert "4 another writer committed first" in " ".join(text.split())


@pytest.mark.parametrize(
    "word, command",
    [("list", "ls"), ("prune", "gc"), ("brunch", "branch"), ("LOG", "log"), ("du", "stats")],
)
def test_unknown_commands_suggest_one(word: str, command: str) -> None:
    """By meaning, or by spelling."""
    assert suggest_commands(word)[0] == command
    message = icefloe(word, "weather", code=2).stderr
    assert f"did you mean `icefloe {command}`" in " ".join(message.replace("│", "").split())


def test_a_word_like_no_command() -> None:
    """Refers to the help."""
    assert "see `icefloe --help`" in icefloe("xyzzy", code=2).stderr


def test_suggested_commands_exist() -> None:
    """Every word that means a command means an existing one, and is none itself."""
    from icefloe.cli.command_table import _MEANINGS  # noqa: PLC0415

    assert set(_MEANINGS.values()) <= set(COMMAND_MODULES)
    assert not set(_MEANINGS) & set(COMMAND_MODULES)


def test_options_of_other_commands() -> None:
    """An option that the command lacks names the commands that have it."""
    message = icefloe("ls", GOLDEN.repository, "--oneline", code=2).stderr
    assert "`icefloe ls` has no option --oneline; commands that have it: log." in " ".join(
        message.replace("│", "").split()
    )
    assert "No such option" in icefloe("ls", GOLDEN.repository, "--xyzzy", code=2).stderr


@pytest.mark.parametrize(
    "words",
    [
        ("log", "--stat"),
        ("show",),
        ("diff", "v1.0"),
        ("ls",),
        ("info",),
        ("branch",),
        ("tag",),
        ("gc", "--dry-run"),
        ("stats",),
    ],
)
def test_heavy_libraries_are_not_imported(words: tuple[str, ...]) -> None:
    """Commands that need neither Zarr nor Spark, Arrow or xarray import none of them."""
    program = (
        "import sys; from icefloe.cli import main\n"
        "try: main()\n"
        "finally: print(*sys.modules, file=sys.stderr)"
    )
    command = [sys.executable, "-c", program, words[0], str(GOLDEN.repository), *words[1:]]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    modules = {name.partition(".")[0] for name in done.stderr.split()}
    assert "icefloe" in modules
    assert not modules & {"zarr", "pyspark", "pyarrow", "xarray", "pandas", "dask", "h5py"}
