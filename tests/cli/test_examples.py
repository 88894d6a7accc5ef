"""The examples of ``--help`` and docs/command-line.md run as they are written."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import typer
import zarr

import icefloe
from cli.test_commands import icefloe as run
from icefloe.cli.app import app
from icefloe.cli.command_table import COMMAND_MODULES
from support import ROOT

if TYPE_CHECKING:
    from pathlib import Path

GUIDE = (ROOT / "docs" / "command-line.md").read_text()
GROUP: Any = typer.main.get_group(app)
CONTEXT = typer.Context(GROUP)
# These need files of another generation, or archives and Spark: only their options are checked.
PARSED_ONLY = {"convert", "sql", "inspect weather/state.json"} | {
    command for command, module in COMMAND_MODULES.items() if "pipeline" in module
}


def get_epilog(command: str) -> str:
    return str(GROUP.get_command(CONTEXT, command).epilog)


def list_help_examples() -> list[str]:
    epilogs = [get_epilog(command) for command in COMMAND_MODULES]
    return re.findall(r"^\s*(?:Example:)?\s*(icefloe [^\n]+)$", "\n".join(epilogs), re.MULTILINE)


def list_calls(example: str) -> list[list[str]]:
    """Return the arguments of each call of icefloe in a line; other programs are left out."""
    lines = [re.split(r" \| |\s+# ", part)[0] for part in example.split(" && ")]
    return [words[1:] for line in lines if (words := shlex.split(line))[0] == "icefloe"]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the repository of the examples."""
    root = tmp_path_factory.mktemp("examples") / "weather"
    storage = icefloe.local_filesystem_storage(str(root))
    config = icefloe.RepositoryConfig()
    store = icefloe.config.ObjectStoreConfig.S3(icefloe.storage.S3Options(region="eu-west-1"))
    config.set_virtual_chunk_container(icefloe.VirtualChunkContainer("s3://archive/", store))
    repository = icefloe.Repository.create(storage, config)
    with repository.transaction("main", message="First year") as zarr_store:
        group = zarr.create_group(zarr_store, attributes={"title": "Weather", "history": "made"})
        group.create_group("surface")
        group.create_array("old/t2m", data=np.arange(4.0), chunks=(2,))
        group.create_array("forecast/wind", data=np.arange(6.0), chunks=(2,))
        group.create_array(
            "t2m",
            data=np.random.default_rng(0).normal(280, 9, (365, 4, 8)).astype("f4"),
            chunks=(73, 4, 8),
            dimension_names=("time", "lat", "lon"),
        )
    repository.create_tag("v1.0", repository.lookup_branch("main"))
    repository.create_branch("dev", repository.lookup_branch("main"))
    with repository.transaction("main", message="Correct the first days") as zarr_store:
        array = zarr.open_array(zarr_store, path="t2m")
        array[:73] = np.random.default_rng(1).normal(280, 9, (73, 4, 8))
        zarr_store.set_virtual_ref("t2m/c/4/0/0", "s3://archive/2019/1.nc", offset=0, length=9344)
    return root


@pytest.fixture
def weather(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(template, tmp_path / "weather")


@pytest.mark.parametrize("command", COMMAND_MODULES)
def test_examples_of_each_command(command: str) -> None:
    """Each command has an example in its help."""
    assert f"icefloe {command} " in get_epilog(command)


@pytest.mark.parametrize("example", list_help_examples())
def test_help_examples_run(example: str, weather: Path) -> None:
    """Each example of ``--help`` succeeds; those of jobs have arguments and options that exist."""
    for words in list_calls(example):
        if words[0] in PARSED_ONLY or " ".join(words) in PARSED_ONLY:
            GROUP.get_command(CONTEXT, words[0]).make_context(words[0], words[1:])
            continue
        if words[0] == "init":
            shutil.rmtree(weather, ignore_errors=True)
        local = [word.replace("s3://bucket/weather", "weather") for word in words]
        # Without a terminal, what asks for confirmation stops there; files are in use (3).
        asks = words[0] in {"branch", "reset"} and "--delete" in words
        is_in_use = words[0] == "dependents" and words[-1] == "s3://archive/2019/"
        code = 1 if asks else 3 if is_in_use else 0
        shown = run(*local, code=code).stdout
        if "--json" in words:
            json.loads(shown)


def list_guide_examples() -> list[tuple[str, str]]:
    """Return the commands of the guide, in order, with the output shown below each."""
    blocks = re.findall(r"```console\n(.*?)```", GUIDE, re.DOTALL)
    call = re.compile(r"^\$ (icefloe [^\n]+)\n((?:[^$\n][^\n]*\n|\n)*)", re.MULTILINE)
    pairs = call.findall("".join(blocks))
    return [(command, output.strip("\n")) for command, output in pairs]


def mask(text: str) -> str:
    """Replace ids and times, which differ from run to run, and sizes, which depend on codecs."""
    text = re.sub(r"\b[0-9A-Z]{20}\b", "ID", text)
    text = re.sub(r"(?<=[●│] )[0-9A-Z]{8}\b", "ID", text)
    text = re.sub(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d(\.\d+)?)?(\+00:00)?", "TIME", text)
    text = re.sub(r"\d+(\.\d)? k?B\b", "SIZE", text)
    text = re.sub(r"(?<=\S) +", " ", text)
    text = re.sub(r"file://\S+/weather", "file:///data/weather", text)
    return "\n".join(line.rstrip() for line in text.strip("\n").split("\n"))


def test_guide_examples_run(weather: Path) -> None:
    """The commands of the guide run one after another and print what it shows."""
    examples = list_guide_examples()
    assert len(examples) > 15
    for example, expected in examples:
        code = 0
        if match := re.search(r"# exits with (\d)$", example):
            code = int(match[1])
        (words,) = list_calls(example)
        done = run(*words, code=code)
        if expected:
            assert mask(done.stdout + done.stderr) == mask(expected), example
    assert weather.exists()


def test_guide_has_all_commands() -> None:
    """The guide names every command, and its JSON."""
    for command in COMMAND_MODULES:
        assert f"`{command}`" in GUIDE
