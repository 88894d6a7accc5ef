"""The commands ``ls`` and ``info``."""

from __future__ import annotations

import json

from cli.test_commands import GOLDEN, icefloe


def test_ls() -> None:
    """The children of a group are listed, groups with a slash and arrays with type and shape."""
    lines = icefloe("ls", GOLDEN.repository).stdout.splitlines()
    assert "empty group/" in lines
    assert "split_me  float64 (y: 40, x: 30, 4) in 60 chunks" in lines
    assert not any("complex64" in line for line in lines)
    (line,) = icefloe("ls", GOLDEN.repository, "coords").stdout.splitlines()
    assert line.startswith("time  int64")
    assert icefloe("ls", GOLDEN.repository, "/coords/time").stdout.splitlines() == [line]


def test_ls_of_everything_below() -> None:
    """``-R`` lists paths at any depth, at any ref."""
    lines = icefloe("ls", GOLDEN.repository, "-R", "--ref", "v1.0").stdout.splitlines()
    assert "dtypes/complex64  complex64 (7, 5) in 9 chunks" in lines
    found = json.loads(icefloe("ls", GOLDEN.repository, "-R", "--json", "--ref", "v1.0").stdout)
    tag = GOLDEN.expected["tags"]["v1.0"]
    assert {node["path"] for node in found} == set(GOLDEN.expected["snapshots"][tag]) - {"/"}


def test_ls_of_a_missing_path_says_what_is_there() -> None:
    """The error suggests the nearest node."""
    message = " ".join(icefloe("ls", GOLDEN.repository, "coords/tim", code=1).stderr.split())
    assert "no group or array at /coords/tim" in message
    assert "did you mean /coords/time?" in message


def test_info() -> None:
    """Chunks are counted by kind, with their sizes, for all arrays or one."""
    text = icefloe("info", GOLDEN.repository).stdout
    assert "container  s3://example-bucket/" in text
    (line,) = (line for line in text.splitlines() if line.startswith("/split_me"))
    assert line.split("in 60 chunks")[1].split() == [
        *("60", "of", "60", "38.4", "kB", "59", "native,", "1", "inline")
    ]
    found = json.loads(icefloe("info", GOLDEN.repository, "virtual", "--json").stdout)
    (array,) = found["arrays"]
    assert (array["chunks_in_grid"], array["chunks_stored"], array["virtual"]) == (9, 5, 5)
    assert array["virtual_bytes"] == array["bytes_stored"] == 80
    assert found["branches"] == ["dev", "main"]
