"""The requests of both libraries to one S3 server, as documented in docs/requests.md."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING, NamedTuple

import pytest

from support import ROOT
from support.counting_proxy import count_sequential, counting_proxy
from support.request_operations import OPERATIONS

if TYPE_CHECKING:
    from pathlib import Path

    from support.servers import S3Server

# So long that concurrent requests overlap on a machine with much else to do.
DELAY_SECONDS = 0.1
SCRIPT = ROOT / "tests" / "support" / "request_operations.py"
PAGE = (ROOT / "docs" / "requests.md").read_text()


class Counts(NamedTuple):
    """All requests of an operation, and those of them that are one after another."""

    requests: int
    sequential: int

    def __str__(self) -> str:
        return f"{self.requests} / {self.sequential}"


@pytest.mark.parametrize("spec_version", [1, 2])
def test_never_more_requests_than_icechunk(
    s3_server: S3Server, icechunk2: Path, spec_version: int
) -> None:
    """No operation makes more requests than Icechunk, or more one after another."""
    icefloe = count_requests(s3_server, sys.executable, "icefloe", spec_version)
    icechunk = count_requests(s3_server, icechunk2, "icechunk", spec_version)
    rows = {name: (icefloe[name], icechunk[name]) for name in OPERATIONS}
    measured = "\n".join(f"| {name} | {ours} | {theirs} |" for name, (ours, theirs) in rows.items())
    more = [
        name
        for name, (ours, theirs) in rows.items()
        if ours.requests > theirs.requests or ours.sequential > theirs.sequential
    ]
    assert not more, measured
    documented = read_table(spec_version)
    for name, (ours, _) in documented.items():
        assert icefloe[name].requests == ours.requests, measured
        # On a busy machine, a request that could be concurrent may start late.
        assert abs(icefloe[name].sequential - ours.sequential) <= 2, measured
    if f"Icechunk {version('icechunk')}" in PAGE:
        for name, (_, theirs) in documented.items():
            # Concurrent tasks of Icechunk may fetch the same file twice.
            assert abs(icechunk[name].requests - theirs.requests) <= 2, measured


def count_requests(
    server: S3Server, python: str | Path, library: str, spec_version: int
) -> dict[str, Counts]:
    """Run all operations with one library, and count the requests of each."""
    options = {
        "bucket": server.bucket,
        "prefix": f"requests-{library}-{spec_version}",
        "endpoint_url": server.endpoint_url,
        "access_key_id": server.access_key_id,
        "secret_access_key": server.secret_access_key,
    }
    with counting_proxy(server.endpoint_url, DELAY_SECONDS) as proxy:
        command = [python, SCRIPT, library, str(spec_version), json.dumps(options), proxy.url]
        counts = {}
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin
            assert process.stdout
            for name in OPERATIONS:
                assert process.stdout.readline() == "ready\n"
                proxy.take_requests()
                print(file=process.stdin, flush=True)
                assert process.stdout.readline() == "done\n"
                requests = proxy.take_requests()
                counts[name] = Counts(len(requests), count_sequential(requests))
        assert process.returncode == 0
        return counts


def read_table(spec_version: int) -> dict[str, tuple[Counts, Counts]]:
    """Return the documented counts of icefloe and Icechunk."""
    table = {}
    for line in PAGE.splitlines():
        name, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        if name in OPERATIONS:
            ours, theirs = (
                Counts(*map(int, cell.split(" / ")))
                for cell in cells[2 * spec_version - 2 : 2 * spec_version]
            )
            table[name] = ours, theirs
    return table
