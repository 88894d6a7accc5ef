"""Lines of the report of ``make bench``, and the processes that measure."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Result:
    """One line of the report; ``goal`` is the upper limit of the measured value, if any.

    ``processor`` is the ratio of processor times where wall times were measured.
    """

    what: str
    icefloe: str
    icechunk: str
    measured: float
    goal: float | None
    unit: str
    processor: float | None = None

    @property
    def is_met(self) -> bool:
        """Whether the goal is met."""
        return self.goal is None or self.measured <= self.goal


def run_side(script: str, *arguments: str | Path) -> dict[str, Any]:
    """Run one measurement in a separate process."""
    command = [sys.executable, HERE / script, *arguments]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        sys.exit(f"{command} failed:\n{process.stderr}")
    measurements: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return measurements


class Side:
    """A process with one library, which stays warm between measurements."""

    def __init__(self, process: subprocess.Popen[str], name: str) -> None:
        self._process = process
        self._name = name

    def run(self, work: str, **arguments: Any) -> dict[str, Any]:
        """Measure one work, and return the measurements by operation."""
        requests, responses = self._process.stdin, self._process.stdout
        assert requests is not None
        assert responses is not None
        print(json.dumps({"work": work, "arguments": arguments}), file=requests, flush=True)
        line = responses.readline()
        if not line:
            sys.exit(f"{work} failed with {self._name}")
        measurements: dict[str, Any] = json.loads(line)
        return measurements


@contextmanager
def start_side(script: str, library: str) -> Iterator[Side]:
    """Run a script that reads work from its input, one line of JSON each."""
    command = [sys.executable, str(HERE / script), library]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Side(process, library)
        finally:
            process.kill()


@dataclass(frozen=True)
class Samples:
    """Wall and processor seconds of one operation in several rounds."""

    wall: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def add(self, measured: Sequence[float]) -> None:
        """Add the wall and processor seconds of a round."""
        self.wall.append(measured[0])
        self.processor.append(measured[1])


def format_spread(values: Sequence[float]) -> str:
    """Format the median of some seconds, and their range."""
    unit, factor = ("s", 1.0) if median(values) >= 1 else ("ms", 1000.0)
    low, middle, high = (
        f"{value * factor:.3g}" for value in (min(values), median(values), max(values))
    )
    return f"{middle} {unit} ({low} to {high})" if len(values) > 1 else f"{middle} {unit}"


def compare(
    what: str,
    icefloe: Samples,
    icechunk: Samples,
    goal: float | None,
    *,
    by: Literal["wall", "processor"] = "wall",
) -> Result:
    """Compare the median times of two libraries; add the ratio of processor times."""
    ours, theirs = getattr(icefloe, by), getattr(icechunk, by)
    return Result(
        what,
        format_spread(ours),
        format_spread(theirs),
        median(ours) / median(theirs),
        goal,
        "ratio",
        median(icefloe.processor) / median(icechunk.processor),
    )


def print_table(results: list[Result]) -> None:
    """Print the results as a table."""
    names = [f"{name} {version(name)}" for name in ("icefloe", "icechunk", "zarr")]
    table = Table(title=f"{', '.join(names)}, Python {platform.python_version()}")
    for column in ("what", "icefloe", "icechunk", "measured", "goal", "", "processor"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for result in results:
        goal = "" if result.goal is None else f"≤ {result.goal:.3g}"
        if result.goal is not None and result.unit != "ratio":
            goal = f"{goal} {result.unit}"
        table.add_row(
            result.what,
            result.icefloe,
            result.icechunk,
            f"{result.measured:.2f}",
            goal,
            "" if not goal else "[green]met[/]" if result.is_met else "[bold red]missed[/]",
            "" if result.processor is None else f"{result.processor:.2f}",
        )
    Console(width=None if sys.stdout.isatty() else 150).print(table)
