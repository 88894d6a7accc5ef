"""``make bench``: the same work with icefloe and with the icechunk wheel, as ratios.

``python run.py FOLDER [--json] [--no-spark] [WORK …]`` measures all works or those named, as in
``make bench BENCH="chunks one_chunk"``. Nothing is deleted from the folder: ext4 creates files ten
times slower for minutes after many deletions, which would distort the next measurement.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from references import PATTERNS

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Result:
    """One line of the report; ``goal`` is the upper limit of the measured value, if any."""

    what: str
    icefloe: str
    icechunk: str
    measured: float
    goal: float | None
    unit: str

    @property
    def met(self) -> bool:
        """Whether the goal is met."""
        return self.goal is None or self.measured <= self.goal


def run_side(script: str, *arguments: str | Path) -> dict[str, Any]:
    """Run one measurement in a separate process."""
    command = [sys.executable, HERE / script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{command} failed:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure_manifest(pattern: str, folder: Path) -> list[Result]:
    """Measure a manifest of a million virtual references."""
    theirs = run_side("icechunk_side.py", "manifest", pattern, folder / pattern)
    their_file = Path(theirs["file"])
    our_file = folder / f"{pattern}.manifest"
    encoded = run_side("icefloe_side.py", "encode", pattern, our_file)
    decoded = run_side("icefloe_side.py", "decode", our_file)
    read_theirs = run_side("icefloe_side.py", "decode", their_file)
    commit, their_size = theirs["commit_seconds"], their_file.stat().st_size
    title = f"1,000,000 virtual refs, {pattern} chunks"

    def seconds(value: float) -> str:
        return f"{value:.3f} s"

    return [
        Result(
            f"{title}: encode and compress / commit",
            seconds(encoded["seconds"]),
            seconds(commit),
            encoded["seconds"] / commit,
            0.15,
            "ratio",
        ),
        Result(
            f"{title}: size of the manifest",
            f"{encoded['size']:,} B",
            f"{their_size:,} B",
            encoded["size"] / their_size,
            1.0,
            "ratio",
        ),
        Result(
            f"{title}: peak memory, encoding",
            f"{encoded['rss_mb']:.0f} MB",
            f"{theirs['rss_mb']:.0f} MB",
            encoded["rss_mb"],
            300,
            "MB",
        ),
        Result(f"{title}: decode", seconds(decoded["seconds"]), "", decoded["seconds"], 0.25, "s"),
        Result(
            f"{title}: peak memory, decoding",
            f"{decoded['rss_mb']:.0f} MB",
            "",
            decoded["rss_mb"],
            300,
            "MB",
        ),
        Result(
            f"{title}: decode icechunk's file / its commit",
            seconds(read_theirs["seconds"]),
            seconds(commit),
            read_theirs["seconds"] / commit,
            1.0,
            "ratio",
        ),
    ]


def measure_snapshot(folder: Path) -> list[Result]:
    """Measure a snapshot of ten thousand nodes."""
    theirs = run_side("icechunk_side.py", "snapshot", folder / "snapshot")["commit_seconds"]
    ours = run_side("icefloe_side.py", "snapshot")
    return [
        Result(
            f"10,000 nodes: {what} a snapshot",
            f"{ours[f'{what}_seconds']:.3f} s",
            f"{theirs:.3f} s (commit)",
            ours[f"{what}_seconds"],
            0.3,
            "s",
        )
        for what in ("encode", "decode")
    ]


SESSION_GOALS = [
    ("chunks", "write", 0.5, "10,000 chunks of 16 KB through zarr: write and commit"),
    ("chunks", "read", 0.35, "10,000 chunks of 16 KB through zarr: read"),
    ("packed_chunks", "write", 0.35, "the same with packing: write and commit"),
    ("packed_chunks", "read", 0.35, "the same with packing: read"),
    ("one_chunk", "commit", 0.2, "one chunk of an array with 1,000,000 refs: commit, cold"),
    ("many_arrays", "commit", 0.3, "one chunk in each of 2,000 arrays: commit"),
]
ROUNDS = 3

REFS_GOALS = [
    ("set_refs", "1,000,000 virtual refs into 1,000 files", 0.2, 0.5, 0.3),
    ("set_refs_of_files", "1,000,000 virtual refs, each into its own file", 0.4, 0.5, 1.0),
]

SPARK_WORK = ("ingest", "virtualize", "nothing_to_do", "driver_memory", "rows")
FEW_REFS, MANY_REFS = 100_000, 10_000_000
ROWS = 5_000_000

WORK = [
    "manifest",
    "snapshot",
    *dict.fromkeys(goal[0] for goal in SESSION_GOALS),
    *(goal[0] for goal in REFS_GOALS),
    "append_refs",
    *SPARK_WORK,
]


def measure_sessions(folder: Path, work: str) -> list[Result]:
    """Measure work through sessions: the libraries alternate, and the best of each counts."""
    # Icechunk has no packing: compare with its unpacked chunks.
    peer = "chunks" if work == "packed_chunks" else work
    ours, theirs = alternate("sessions.py", folder, work, peer)
    return [
        Result(
            title,
            f"{ours[what]:.3f} s",
            f"{theirs[what]:.3f} s",
            ours[what] / theirs[what],
            goal,
            "ratio",
        )
        for name, what, goal, title in SESSION_GOALS
        if name == work
    ]


def alternate(
    script: str, folder: Path, work: str, peer: str
) -> tuple[dict[str, float], dict[str, float]]:
    """Run the libraries alternately; return the best of icefloe and of icechunk."""
    ours: dict[str, float] = {}
    theirs: dict[str, float] = {}
    for turn in range(ROUNDS):
        for library, task, best in (("icechunk", peer, theirs), ("icefloe", work, ours)):
            found = run_side(script, library, task, folder / f"{work}-{library}-{turn}")
            for what, seconds in found.items():
                best[what] = min(seconds, best.get(what, seconds))
    return ours, theirs


def measure_virtual_refs(folder: Path, work: str) -> list[Result]:
    """Measure setting, committing and finding a million virtual references."""
    title, set_goal, memory_goal, find_goal = next(
        goal[1:] for goal in REFS_GOALS if goal[0] == work
    )
    ours, theirs = alternate("virtual_refs.py", folder, work, work)
    return [
        Result(
            f"{title}: {what}",
            f"{ours[key]:{form}} {unit}",
            f"{theirs[key]:{form}} {unit}",
            ours[key] / theirs[key],
            goal,
            "ratio",
        )
        for key, what, goal, form, unit in (
            ("set", "set and commit", set_goal, ".3f", "s"),
            ("rss_mb", "peak memory", memory_goal, ".0f", "MB"),
            ("locations", "find the distinct locations, cold", find_goal, ".3f", "s"),
        )
    ]


def measure_append_refs(folder: Path) -> list[Result]:
    """Measure the cost of appending to a large array relative to a small one.

    Not run with Icechunk, which takes minutes and gigabytes for ten million references.
    """
    found = run_side("virtual_refs.py", "icefloe", "append_refs", folder / "append")
    title = "10,000 virtual refs appended to 10,000,000 / to 100,000"
    return [
        Result(
            f"{title}: {what}",
            f"{found[f'many_{key}']:{form}} {unit}",
            f"({found[f'few_{key}']:{form}} {unit})",
            found[f"many_{key}"] / found[f"few_{key}"],
            goal,
            "ratio",
        )
        for key, what, goal, form, unit in (
            ("append", "processor time", 3.0, ".3f", "s"),
            ("bytes", "bytes written", 1.5, ",.0f", "B"),
            ("manifests", "manifests written", 1.0, ".0f", "files"),
        )
    ]


def measure_spark(folder: Path, work: str) -> list[Result]:
    """Measure jobs and tables on Spark with two cores."""
    own = folder / ("virtualize" if work == "nothing_to_do" else work)  # the same files
    if work == "rows":
        rates = run_side("spark_rows.py")["million_rows_per_second"]
        return [
            Result(
                f"{ROWS:,} rows read into Spark by {what}",
                f"{rates[way]:.1f} M/s",
                f"({rates[f'{way}_ceiling']:.1f} M/s ceiling)",
                ROWS / 1e6 / rates[way],
                1.0,
                "s",
            )
            for way, what in (("read", "icefloe.spark.read"), ("format", 'format("icefloe")'))
        ]
    if work == "driver_memory":
        few, many = (
            run_side("pipeline.py", work, own, str(n))["rss_mb"] for n in (FEW_REFS, MANY_REFS)
        )
        title = f"virtualize {MANY_REFS:,} references / {FEW_REFS:,}: peak memory of the driver"
        return [Result(title, f"{many:.0f} MB", f"({few:.0f} MB)", many / few, 1.2, "ratio")]
    if work == "nothing_to_do":
        seconds = run_side("pipeline.py", work, own)["seconds"]
        title = "append 2,000 files that are already there, after Spark has started"
        return [Result(title, f"{seconds:.2f} s", "", seconds, 1.0, "s")]
    peers: list[tuple[str, str, float | None]]
    if work == "virtualize":
        peers = [("virtualizarr", "VirtualiZarr in one process", 1 / 1.5)]
        title = "virtualize 2,000 files"
    else:
        peers = [
            ("icechunk", "xarray with dask to icechunk", 1.0),
            # No goal for one process of icefloe with all cores: its codecs use threads.
            ("xarray", "xarray to icechunk in one process", 1 / 1.6),
            ("core", "one process of icefloe with one core", 1 / 1.6),
            ("single", "one process of icefloe with all cores", None),
        ]
        title = "ingest files into other chunks"
    theirs = {peer: run_side("pipeline.py", f"{work}_{peer}", own)["seconds"] for peer, *_ in peers}
    ours = run_side("pipeline.py", f"{work}_spark", own)["seconds"]
    return [
        Result(
            f"{title}: on Spark / {what}",
            f"{ours:.1f} s",
            f"{theirs[peer]:.1f} s",
            ours / theirs[peer],
            goal,
            "ratio",
        )
        for peer, what, goal in peers
    ]


def measure(work: str, folder: Path) -> list[Result]:
    """Measure one work."""
    if work == "manifest":
        return [result for pattern in PATTERNS for result in measure_manifest(pattern, folder)]
    if work == "snapshot":
        return measure_snapshot(folder)
    if work in {goal[0] for goal in REFS_GOALS}:
        return measure_virtual_refs(folder, work)
    if work == "append_refs":
        return measure_append_refs(folder)
    if work in SPARK_WORK:
        return measure_spark(folder, work)
    return measure_sessions(folder, work)


def main() -> None:
    """Measure the named works, or all, and print the report."""
    options = {"--json", "--no-spark"}
    folder, *works = [argument for argument in sys.argv[1:] if argument not in options]
    if unknown := set(works) - set(WORK):
        sys.exit(f"there is no work {', '.join(sorted(unknown))}; there is: {', '.join(WORK)}")
    if not works:
        with_spark = find_spec("pyspark") and "--no-spark" not in sys.argv
        works = [work for work in WORK if work not in SPARK_WORK or with_spark]
    results: list[Result] = []
    Path(folder).mkdir()
    with Console(stderr=True).status("") as status:
        for work in works:
            status.update(f"{work.replace('_', ' ')} …")
            results += measure(work, Path(folder))
    if "--json" in sys.argv:
        print(json.dumps([asdict(result) | {"met": result.met} for result in results], indent=2))
    else:
        show(results)
    sys.exit(not all(result.met for result in results))


def show(results: list[Result]) -> None:
    """Print the results as a table."""
    names = [f"{name} {version(name)}" for name in ("icefloe", "icechunk", "zarr")]
    table = Table(title=f"{', '.join(names)}, Python {platform.python_version()}")
    for column in ("what", "icefloe", "icechunk", "measured", "goal", ""):
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
            "" if not goal else "[green]met[/]" if result.met else "[bold red]missed[/]",
        )
    Console(width=None if sys.stdout.isatty() else 150).print(table)


if __name__ == "__main__":
    main()
