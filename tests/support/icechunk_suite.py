"""Run Icechunk's own test suite with icefloe in Icechunk's place.

``python tests/support/icechunk_suite.py [PYTEST ARGUMENTS]`` prints the tests of
``tests/compat/icechunk-suite.txt`` that fail, and returns 1 if there are any; with ``--update`` it
adds the tests that pass to that file.

The suite is in the source distribution of Icechunk, which pip downloads; the variable
``ICECHUNK_SUITE`` names a folder that contains it. The packages that only the suite needs are
installed into a temporary folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import textwrap
from pathlib import Path
from xml.etree import ElementTree as ET

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))

from support.servers import S3Identity, seaweedfs  # noqa: E402

PASSING = TESTS / "compat" / "icechunk-suite.txt"
RELEASE = "2.3.0"
PACKAGES = ("boto3", "mypy-boto3-s3", "pytest-asyncio", "pytest-timeout", "termcolor")
# The S3 server that the suite expects.
PORT = 4200
BUCKET = "testbucket"
IDENTITIES = (
    S3Identity("test123", "test123", ("Admin",)),
    S3Identity("modify", "modifydata", ("Read", "Write", "List")),
    S3Identity("readonly", "basicuser", ("Read",)),
)
# To know the metadata of a source distribution, pip calls its build backend. This one compiles
# nothing.
BUILD_BACKEND = f"""
from pathlib import Path


def prepare_metadata_for_build_wheel(folder, config_settings=None):
    metadata = Path(folder, "icechunk-{RELEASE}.dist-info")
    metadata.mkdir()
    text = "Metadata-Version: 2.1\\nName: icechunk\\nVersion: {RELEASE}\\n"
    metadata.joinpath("METADATA").write_text(text)
    return metadata.name
"""


class SuiteUnavailableError(Exception):
    """The suite or a package that it needs cannot be downloaded."""


def read_passing() -> set[str]:
    """Return the ids of the tests that passed so far."""
    return set(PASSING.read_text().split()) if PASSING.exists() else set()


def run_suite(folder: Path, arguments: list[str]) -> dict[str, str]:
    """Return the outcome of each test by its id: passed, failure, error or skipped.

    Raises
    ------
    SuiteUnavailableError
        If the suite cannot be downloaded.
    """
    suite = os.environ.get("ICECHUNK_SUITE")
    working_folder = download_suite(folder) if suite is None else Path(suite)
    packages = folder / "packages"
    _pip("install", f"--target={packages}", *PACKAGES)
    paths = [TESTS.parent / "src", TESTS, packages]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    with seaweedfs(port=PORT, bucket=BUCKET, identities=IDENTITIES):
        report = folder / "report.xml"
        command = [
            *(sys.executable, "-m", "pytest", "-p", "support.icechunk_suite_plugin"),
            *("-q", "-n", "2", "--timeout=300", "-o", "log_cli_level=CRITICAL"),
            *(f"--basetemp={folder / 'tests'}", f"--junit-xml={report}"),
            *(arguments or ["tests"]),
        ]
        subprocess.run(command, cwd=working_folder, env=environment, check=False)
    return _read_outcomes(report)


def download_suite(folder: Path) -> Path:
    """Download Icechunk's source distribution, and return its folder of Python sources."""
    backend = folder / "backend"
    backend.mkdir()
    (backend / "maturin.py").write_text(textwrap.dedent(BUILD_BACKEND))
    _pip(
        *("download", "--no-deps", "--no-build-isolation", "--no-binary=icechunk"),
        *(f"--dest={folder}", f"icechunk=={RELEASE}"),
        python_path=backend,
    )
    with tarfile.open(folder / f"icechunk-{RELEASE}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / f"icechunk-{RELEASE}" / "icechunk-python"


def _pip(*arguments: str, python_path: Path | None = None) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    environment = dict(os.environ)
    if python_path is not None:
        environment["PYTHONPATH"] = str(python_path)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SuiteUnavailableError(done.stderr.strip()[-300:])


def _read_outcomes(report: Path) -> dict[str, str]:
    outcomes = {}
    for case in ET.parse(report).getroot().iter("testcase"):  # noqa: S314 - our own pytest
        kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
        module = f"tests{case.get('classname', '').partition('tests')[2]}"
        name = f"{module}::{case.get('name')}".replace(" ", "_")
        outcomes[name] = min(kinds, default="passed")
    return outcomes


def main() -> int:
    """Run the suite, and compare with the tests that passed so far."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--update"]
    with tempfile.TemporaryDirectory(prefix="icefloe-suite-") as folder:
        outcomes = run_suite(Path(folder), arguments)
    passed = {name for name, outcome in outcomes.items() if outcome == "passed"}
    expected = read_passing()
    lost = sorted(expected & outcomes.keys() - passed)
    counts = f"{len(passed)} of {len(outcomes)} passed, {len(passed - expected)} of them new"
    sys.stdout.write("\n".join([*(f"lost: {name}" for name in lost), counts, ""]))
    if "--update" in sys.argv:
        PASSING.write_text("".join(f"{name}\n" for name in sorted(expected | passed)))
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
