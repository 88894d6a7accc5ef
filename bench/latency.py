"""``make bench BENCH=latency``: small operations relative to Icechunk.

``python latency.py FOLDER [--rounds N] [--places …] [--works …]`` runs parts of it.

Rows of latency are wall time; the ratio of processor times is printed beside it. Two processes, one
per library, stay warm and take turns; the medians of the rounds are compared, and their ranges
printed. On local disk icefloe writes with ``durable=False``, because Icechunk does not flush files
to disk either; the figures of the default, ``durable=True``, follow without a goal.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results import Result, Samples, Side, compare, print_table, start_side

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.counting_proxy import counting_proxy
from support.servers import seaweedfs

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

ROUNDS = 3
IMPORT_ROUNDS = 7
DELAY_SECONDS = 0.03
SPEC_VERSIONS = (1, 2)
SCRIPT = "latency_side.py"


@dataclass(frozen=True)
class Row:
    """A row of the report: an operation of one work, and the goals of its ratio by place."""

    operation: str
    title: str
    goals: dict[str, float]


@dataclass(frozen=True)
class Work:
    """Operations that are measured together, and their sizes by place."""

    name: str
    sizes: dict[str, dict[str, int]]
    rows: tuple[Row, ...]


LOCAL, S3, SLOW_S3 = PLACES = ("local", "s3", "s3-30ms")
PLACE_TITLES = {LOCAL: "local disk", S3: "S3", SLOW_S3: "S3 with 30 ms"}
HISTORY = Work(
    "history",
    {
        LOCAL: {"built": 0, "commits": 300, "behind": 50},
        S3: {"built": 0, "commits": 300, "behind": 50},
        SLOW_S3: {"built": 90, "commits": 10, "behind": 50},
    },
    (
        Row("commits", "{commits} commits of one chunk each", {LOCAL: 1.0, S3: 0.8, SLOW_S3: 1.0}),
        Row("log", "log of {history} commits, cold", {LOCAL: 1.0, S3: 1.0, SLOW_S3: 1.0}),
        Row(
            "collect",
            "garbage collection of {collected} commits",
            {LOCAL: 0.5, S3: 0.5, SLOW_S3: 1.0},
        ),
        Row("open", "open and read the first chunk", {LOCAL: 1.0, S3: 1.0, SLOW_S3: 1.0}),
        Row("rebase", "rebase over {behind} commits", {LOCAL: 1.0, S3: 1.0, SLOW_S3: 1.0}),
    ),
)
SMALL_CHUNKS = Work(
    "chunks",
    {place: {"count": 64, "megabytes": 1} for place in (LOCAL, S3, SLOW_S3)},
    (
        Row("write", "{count} chunks of 1 MB, write", {LOCAL: 1.0, S3: 1.0, SLOW_S3: 1.0}),
        Row("read", "{count} chunks of 1 MB, read", {LOCAL: 0.7, S3: 0.7, SLOW_S3: 1.0}),
    ),
)
LARGE_CHUNKS = Work(
    "chunks",
    {LOCAL: {"count": 4, "megabytes": 64}},
    (Row("write", "{count} chunks of 64 MB, write", {LOCAL: 1.0}),),
)
ARRAYS = Work(
    "arrays",
    {LOCAL: {"count": 2000}},
    (Row("create", "{count:,} arrays created through zarr", {LOCAL: 0.5}),),
)
XARRAY = Work(
    "xarray", {LOCAL: {}}, (Row("write", "xarray, 52 MB in four variables", {LOCAL: 0.8}),)
)
WORKS = {
    "history": HISTORY,
    "small-chunks": SMALL_CHUNKS,
    "large-chunks": LARGE_CHUNKS,
    "arrays": ARRAYS,
    "xarray": XARRAY,
}
ALL_WORKS = ("import", *WORKS)


@dataclass
class Place:
    """Where repositories are, with a new folder or prefix for each measurement."""

    name: str
    folder: Path
    server: dict[str, Any] | None = None
    fast_server: dict[str, Any] | None = None

    def make_arguments(self, name: str, *, durable: bool) -> dict[str, Any]:
        """Return where a work measures, and where it may prepare faster what it measures."""
        if self.server is None:
            place = {"path": str(self.folder / name), "durable": durable}
            return {"place": place, "build_place": place}
        return {
            "place": {**self.server, "prefix": name},
            "build_place": {**(self.fast_server or self.server), "prefix": name},
        }


def measure_latency(
    folder: Path,
    *,
    rounds: int = ROUNDS,
    places: Container[str] = PLACES,
    works: Container[str] = ALL_WORKS,
) -> Iterator[Result]:
    """Measure all rows at all places, or some."""
    folder.mkdir()
    if "import" in works:
        yield measure_import()
    with ExitStack() as running:
        sides = {
            library: running.enter_context(start_side(SCRIPT, library))
            for library in ("icechunk", "icefloe")
        }
        for place in start_places(folder, places, running):
            for name, work in WORKS.items():
                if name in works and place.name in work.sizes:
                    for spec_version in SPEC_VERSIONS:
                        yield from measure_work(sides, place, work, spec_version, rounds)


def start_places(folder: Path, names: Container[str], running: ExitStack) -> Iterator[Place]:
    """Start the servers of the named places."""
    if LOCAL in names:
        yield Place(LOCAL, folder)
    if S3 in names or SLOW_S3 in names:
        server = running.enter_context(seaweedfs())
        options = {
            "bucket": server.bucket,
            "endpoint_url": server.endpoint_url,
            "access_key_id": server.access_key_id,
            "secret_access_key": server.secret_access_key,
        }
        if S3 in names:
            yield Place(S3, folder, options)
        if SLOW_S3 in names:
            proxy = running.enter_context(counting_proxy(server.endpoint_url, DELAY_SECONDS))
            yield Place(SLOW_S3, folder, options | {"endpoint_url": proxy.url}, options)


def measure_work(
    sides: dict[str, Side], place: Place, work: Work, spec_version: int, rounds: int
) -> Iterator[Result]:
    """Run one work in rounds, in which the libraries take turns."""
    sizes = work.sizes[place.name]
    variants = {"icechunk": ("icechunk", True), "icefloe": ("icefloe", False)}
    if place.server is None:
        variants["durable"] = ("icefloe", True)
    samples: dict[str, dict[str, Samples]] = {variant: {} for variant in variants}
    for turn in range(rounds):
        for variant, (library, durable) in variants.items():
            name = "-".join(
                [place.name, work.name, *map(str, sizes.values()), f"v{spec_version}", variant]
            )
            places = place.make_arguments(f"{name}-{turn}", durable=durable)
            if work is not HISTORY:
                del places["build_place"]
            measured = sides[library].run(work.name, spec_version=spec_version, **places, **sizes)
            for operation, seconds in measured.items():
                samples[variant].setdefault(operation, Samples()).add(seconds)
    for row in work.rows:
        history = sizes.get("built", 0) + sizes.get("commits", 0)
        collected = history + sizes.get("behind", 0)
        title = row.title.format(**sizes, history=history, collected=collected)
        icechunk = samples["icechunk"][row.operation]
        for variant, label in (("icefloe", ""), ("durable", ", durable")):
            if variant in samples:
                yield compare(
                    f"{PLACE_TITLES[place.name]}, v{spec_version}: {title}{label}",
                    samples[variant][row.operation],
                    icechunk,
                    None if label else row.goals[place.name],
                )


def measure_import() -> Result:
    """Measure the time of imports, each in a new process."""
    statements = {"icechunk": "import icechunk", "icefloe": "import icefloe; icefloe.Repository"}
    samples = {library: Samples() for library in statements}
    for _ in range(IMPORT_ROUNDS):
        for library, statement in statements.items():
            program = (
                "import time; start, work = time.perf_counter(), time.process_time()\n"
                f"{statement}\n"
                "print(time.perf_counter() - start, time.process_time() - work)"
            )
            command = [sys.executable, "-c", program]
            output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            samples[library].add([float(seconds) for seconds in output.split()])
    title = "import icefloe; icefloe.Repository / import icechunk"
    return compare(title, samples["icefloe"], samples["icechunk"], 1.0)


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description="Compare small operations with Icechunk.")
    parser.add_argument("folder", type=Path, help="new folder for repositories")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--places", nargs="+", default=PLACES, choices=PLACES)
    parser.add_argument("--works", nargs="+", default=ALL_WORKS, choices=ALL_WORKS)
    arguments = parser.parse_args()
    results = measure_latency(**vars(arguments))
    report = list(results)
    print_table(report)
    sys.exit(not all(result.is_met for result in report))


if __name__ == "__main__":
    main()
