"""``make bench``: speed, memory and size of icefloe relative to Icechunk.

``python run.py FOLDER [--json] [--no-spark] [WORK …]`` runs all benchmarks, or the named ones, as
in ``make bench BENCH="chunks one_chunk"``. Nothing is deleted from the folder: ext4 creates files
ten times slower for minutes after many deletions, which would distort the next measurement.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from generations import KINDS as REFERENCE_KINDS
from growth import measure_growth
from latency import measure_latency
from references import PATTERNS
from results import Result, print_table, run_side

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


def measure_manifest(pattern: str, folder: Path) -> list[Result]:
    """Measure a manifest of a million virtual references."""
    icechunk = run_side("icechunk_side.py", "manifest", pattern, folder / pattern)
    icechunk_file = Path(icechunk["file"])
    icefloe_file = folder / f"{pattern}.manifest"
    encoded = run_side("icefloe_side.py", "encode", pattern, icefloe_file)
    decoded = run_side("icefloe_side.py", "decode", icefloe_file)
    decoded_icechunk = run_side("icefloe_side.py", "decode", icechunk_file)
    commit, icechunk_size = icechunk["commit_seconds"], icechunk_file.stat().st_size
    title = f"1,000,000 virtual refs, {pattern} chunks"

    def format_seconds(value: float) -> str:
        return f"{value:.3f} s"

    return [
        Result(
            f"{title}: encode and compress / commit",
            format_seconds(encoded["seconds"]),
            format_seconds(commit),
            encoded["seconds"] / commit,
            0.15,
            "ratio",
        ),
        Result(
            f"{title}: size of the manifest",
            f"{encoded['size']:,} B",
            f"{icechunk_size:,} B",
            encoded["size"] / icechunk_size,
            1.0,
            "ratio",
        ),
        Result(
            f"{title}: peak memory, encoding",
            f"{encoded['rss_mb']:.0f} MB",
            f"{icechunk['rss_mb']:.0f} MB",
            encoded["rss_mb"],
            300,
            "MB",
        ),
        Result(
            f"{title}: decode",
            format_seconds(decoded["seconds"]),
            "",
            decoded["seconds"],
            0.25,
            "s",
        ),
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
            format_seconds(decoded_icechunk["seconds"]),
            format_seconds(commit),
            decoded_icechunk["seconds"] / commit,
            1.0,
            "ratio",
        ),
    ]


def measure_snapshot(folder: Path) -> list[Result]:
    """Measure a snapshot of ten thousand nodes."""
    commit = run_side("icechunk_side.py", "snapshot", folder / "snapshot")["commit_seconds"]
    seconds = run_side("icefloe_side.py", "snapshot")
    return [
        Result(
            f"10,000 nodes: {what} a snapshot",
            f"{seconds[f'{what}_seconds']:.3f} s",
            f"{commit:.3f} s (commit)",
            seconds[f"{what}_seconds"],
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

# Times and bytes relative to v2 of icefloe itself.
GENERATION_GOALS: dict[str, dict[str, float | None]] = {
    "draft": {"commit": 1.5, "open": 1.5, "bytes": 1.2},
    "sequence": {"commit": 6.0, "open": 6.0, "bytes": None},
}

SPARK_WORK = ("ingest", "virtualize", "nothing_to_do", "driver_memory", "rows")
# Compared with Icechunk 2.x only.
LATENCY_WORK: dict[str, Callable[[Path], Iterator[Result]]] = {
    "latency": measure_latency,
    "growth": measure_growth,
}
FEW_REFS, MANY_REFS = 100_000, 10_000_000
ROWS = 5_000_000

WORK = [
    "manifest",
    "snapshot",
    *dict.fromkeys(goal[0] for goal in SESSION_GOALS),
    *(goal[0] for goal in REFS_GOALS),
    "append_refs",
    "bounded_decoding",
    "generations",
    *LATENCY_WORK,
    *SPARK_WORK,
]


def measure_sessions(folder: Path, work: str) -> list[Result]:
    """Measure work through sessions: the libraries alternate, and the best time of each counts."""
    # Icechunk has no packing: compare with its unpacked chunks.
    peer = "chunks" if work == "packed_chunks" else work
    icefloe, icechunk = alternate("sessions.py", folder, work, peer)
    return [
        Result(
            title,
            f"{icefloe[what]:.3f} s",
            f"{icechunk[what]:.3f} s",
            icefloe[what] / icechunk[what],
            goal,
            "ratio",
        )
        for name, what, goal, title in SESSION_GOALS
        if name == work
    ]


def alternate(
    script: str, folder: Path, work: str, peer: str
) -> tuple[dict[str, float], dict[str, float]]:
    """Run the libraries alternately; return the best times of icefloe and of Icechunk."""
    icefloe: dict[str, float] = {}
    icechunk: dict[str, float] = {}
    for turn in range(ROUNDS):
        for library, task, best in (("icechunk", peer, icechunk), ("icefloe", work, icefloe)):
            measured = run_side(script, library, task, folder / f"{work}-{library}-{turn}")
            for what, seconds in measured.items():
                best[what] = min(seconds, best.get(what, seconds))
    return icefloe, icechunk


def measure_bounded_decoding(folder: Path) -> list[Result]:
    """Measure reads of chunks whose decoded size is bounded relative to the same without."""
    measured = run_side("bounded_decoding.py", folder / "bounded")
    return [
        Result(
            f"chunks of {what}: read with a bound on the decoded size / without, processor time",
            f"{seconds['bounded']:.4f} s",
            f"({seconds['unbounded']:.4f} s)",
            seconds["bounded"] / seconds["unbounded"],
            1.01,
            "ratio",
        )
        for what, seconds in measured.items()
    ]


def measure_virtual_refs(folder: Path, work: str) -> list[Result]:
    """Measure setting, committing and finding a million virtual references."""
    title, set_goal, memory_goal, find_goal = next(
        goal[1:] for goal in REFS_GOALS if goal[0] == work
    )
    icefloe, icechunk = alternate("virtual_refs.py", folder, work, work)
    return [
        Result(
            f"{title}: {what}",
            f"{icefloe[key]:{form}} {unit}",
            f"{icechunk[key]:{form}} {unit}",
            icefloe[key] / icechunk[key],
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
    measured = run_side("virtual_refs.py", "icefloe", "append_refs", folder / "append")
    title = "10,000 virtual refs appended to 10,000,000 / to 100,000"
    return [
        Result(
            f"{title}: {what}",
            f"{measured[f'many_{key}']:{form}} {unit}",
            f"({measured[f'few_{key}']:{form}} {unit})",
            measured[f"many_{key}"] / measured[f"few_{key}"],
            goal,
            "ratio",
        )
        for key, what, goal, form, unit in (
            ("append", "processor time", 3.0, ".3f", "s"),
            ("bytes", "bytes written", 1.5, ",.0f", "B"),
            ("manifests", "manifests written", 1.0, ".0f", "files"),
        )
    ]


def measure_generations(folder: Path) -> list[Result]:
    """Measure a million references in the older generations relative to v2.

    The generations alternate, and the best time of each counts.
    """
    results = []
    for kind in REFERENCE_KINDS:
        best: dict[str, dict[str, float]] = {}
        for turn in range(ROUNDS):
            for name in ("v2", *GENERATION_GOALS):
                target = folder / f"generations-{kind}-{name}-{turn}"
                measured = run_side("generations.py", name, kind, target)
                for what, value in measured.items():
                    values = best.setdefault(name, {})
                    values[what] = min(value, values.get(what, value))
        results += [
            Result(
                f"1,000,000 {kind} references in {name} / in v2: {what}",
                f"{best[name][what]:,.3f} s" if is_time else f"{best[name][what]:,.0f} B",
                f"({best['v2'][what]:,.3f} s)" if is_time else f"({best['v2'][what]:,.0f} B)",
                best[name][what] / best["v2"][what],
                goal,
                "ratio",
            )
            for name, goals in GENERATION_GOALS.items()
            for what, goal in goals.items()
            for is_time in [what != "bytes"]
        ]
    return results


def measure_spark(folder: Path, work: str) -> list[Result]:
    """Measure jobs and tables on Spark with two cores."""
    work_folder = folder / ("virtualize" if work == "nothing_to_do" else work)  # the same files
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
            run_side("pipeline.py", work, work_folder, str(count))["rss_mb"]
            for count in (FEW_REFS, MANY_REFS)
        )
        title = f"virtualize {MANY_REFS:,} references / {FEW_REFS:,}: peak memory of the driver"
        return [Result(title, f"{many:.0f} MB", f"({few:.0f} MB)", many / few, 1.2, "ratio")]
    if work == "nothing_to_do":
        seconds = run_side("pipeline.py", work, work_folder)["seconds"]
        title = "append 2,000 files that were appended before, after Spark has started"
        return [Result(title, f"{seconds:.2f} s", "", seconds, 1.0, "s")]
    peers: list[tuple[str, str, float | None]]
    if work == "virtualize":
        peers = [("virtualizarr", "VirtualiZarr in one process", 1 / 1.5)]
        title = "virtualize 2,000 files"
    else:
        peers = [
            ("icechunk", "xarray with dask to icechunk", 1.0),
            # No goal for one process of icefloe with all cores, because its codecs use threads.
            ("xarray", "xarray to icechunk in one process", 1 / 1.6),
            ("core", "one process of icefloe with one core", 1 / 1.6),
            ("single", "one process of icefloe with all cores", None),
        ]
        title = "ingest files into other chunks"
    peer_seconds = {
        peer: run_side("pipeline.py", f"{work}_{peer}", work_folder)["seconds"]
        for peer, *_ in peers
    }
    seconds = run_side("pipeline.py", f"{work}_spark", work_folder)["seconds"]
    return [
        Result(
            f"{title}: on Spark / {what}",
            f"{seconds:.1f} s",
            f"{peer_seconds[peer]:.1f} s",
            seconds / peer_seconds[peer],
            goal,
            "ratio",
        )
        for peer, what, goal in peers
    ]


def measure(work: str, folder: Path) -> Iterable[Result]:
    """Run one benchmark; some give results while they run."""
    if work == "manifest":
        return [result for pattern in PATTERNS for result in measure_manifest(pattern, folder)]
    if work == "snapshot":
        return measure_snapshot(folder)
    if work in {goal[0] for goal in REFS_GOALS}:
        return measure_virtual_refs(folder, work)
    if work == "append_refs":
        return measure_append_refs(folder)
    if work == "bounded_decoding":
        return measure_bounded_decoding(folder)
    if work == "generations":
        return measure_generations(folder)
    if work in LATENCY_WORK:
        return LATENCY_WORK[work](folder / work)
    if work in SPARK_WORK:
        return measure_spark(folder, work)
    return measure_sessions(folder, work)


def main() -> None:
    """Run the named benchmarks, or all, and print the results."""
    parser = argparse.ArgumentParser(
        description="Compare icefloe with Icechunk.", allow_abbrev=False
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="new folder for repositories")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--no-spark", action="store_true", help="skip the benchmarks on Spark")
    parser.add_argument(
        "works",
        nargs="*",
        metavar="WORK",
        help=f"benchmarks to run; by default all of: {', '.join(WORK)}",
    )
    # Options may precede the names of benchmarks.
    arguments = parser.parse_intermixed_args()
    if unknown := set(arguments.works) - set(WORK):
        parser.error(f"unknown WORK {', '.join(sorted(unknown))}; available: {', '.join(WORK)}")
    with_spark = find_spec("pyspark") and not arguments.no_spark
    works = arguments.works or [work for work in WORK if work not in SPARK_WORK or with_spark]
    if version("icechunk").startswith("1."):
        works = [work for work in works if work not in LATENCY_WORK]
        if not works:
            sys.exit()
    results: list[Result] = []
    arguments.folder.mkdir()
    try:
        with Console(stderr=True).status("") as status:
            for work in works:
                status.update(f"{work.replace('_', ' ')} …")
                for result in measure(work, arguments.folder):
                    results.append(result)
                    status.update(f"after {result.what}: {result.measured:.2f} …")
    finally:  # also if a benchmark fails
        if arguments.json:
            rows = [asdict(result) | {"met": result.is_met} for result in results]
            print(json.dumps(rows, indent=2))
        else:
            print_table(results)
    sys.exit(not all(result.is_met for result in results))


if __name__ == "__main__":
    main()
