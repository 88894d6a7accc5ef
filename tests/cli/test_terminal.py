"""Commands on a terminal: width, colours and questions."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from cli.test_commands import COMMAND, GOLDEN
from icefloe.display.text import count_columns
from support.histories import make_history

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Shown:
    """What a terminal received, and the exit code."""

    text: str
    code: int


def run_in_terminal(
    *arguments: str | Path, columns: int = 80, answer: str = "", colours: bool = False
) -> Shown:
    """Run a command on a pseudo-terminal, type ``answer``, and return what it wrote."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns)}
    environment.pop("NO_COLOR", None)
    if not colours:
        environment["NO_COLOR"] = "1"
    command = [str(COMMAND), *map(str, arguments)]
    with subprocess.Popen(
        command,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=environment,
        start_new_session=True,
    ) as process:
        os.close(terminal)
        os.write(controller, answer.encode())
        received = b""
        try:
            while data := os.read(controller, 1 << 16):
                received += data
        except OSError:  # the command closed its end
            pass
        os.close(controller)
    return Shown(received.decode().replace("\r\n", "\n"), process.returncode)


@pytest.mark.parametrize("words", [("log", "--oneline"), ("ls", "-R"), ("info",)])
def test_a_narrow_terminal(words: tuple[str, ...]) -> None:
    """No line is longer than 40 columns, and a line of the graph or a listing stays one line."""
    shown = run_in_terminal(words[0], GOLDEN.repository, *words[1:], columns=40)
    assert shown.code == 0
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown.text).splitlines()
    long_lines = [line for line in lines if count_columns(line) > 40]
    if words == ("info",):  # its head has the URL in full
        long_lines = [line for line in long_lines if not line.startswith("repository ")]
    assert long_lines == []
    if words[0] == "log":
        assert all(line[:1] in {"●", "│", " ", ""} for line in lines)


def test_colours_can_be_switched_off() -> None:
    """``NO_COLOR`` leaves no colours; otherwise the graph has some."""
    coloured = run_in_terminal("log", GOLDEN.repository, "--oneline", colours=True).text
    plain = run_in_terminal("log", GOLDEN.repository, "--oneline").text
    assert re.search(r"\x1b\[[0-9;]*3[0-9]m", coloured)
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", plain)


def test_questions(tmp_path: Path) -> None:
    """Only ``y`` confirms; any other answer changes nothing and gives exit code 1."""
    repository, _ = make_history(tmp_path, "v2")
    refused = run_in_terminal("branch", tmp_path, "-d", "dev", answer="n\n")
    assert refused.code == 1
    assert "Delete the branch 'dev'" in refused.text
    assert "dev" in repository.list_branches()
    assert run_in_terminal("branch", tmp_path, "-d", "dev", answer="y\n").code == 0
    assert "dev" not in repository.list_branches()
