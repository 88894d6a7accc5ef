"""``make bench BENCH=growth``: how the cost of operations grows, relative to Icechunk.

``python growth.py FOLDER [--rounds N] [--divide N] [--curves …]`` runs parts of it, at sizes
divided by N.

Each operation is measured at three sizes, in new processes of both libraries that take turns. At
each size, the medians of the two libraries are compared; a last row has the growth of icefloe's
cost per item from the second size to the third, or, where the cost must not depend on the size,
from the first to the third. Times are processor times unless the row says otherwise: these works
last minutes, in which a machine does other things too.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from histories import build_history, link_files, upgrade_history
from results import Result, Samples, compare, format_spread, print_table, run_side

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

ROUNDS = 3
SIDES = ("icechunk", "icefloe")
SCRIPT = "growth_side.py"
COMMITS = (100, 1_000, 10_000)
COMPARED, LINEAR, FLAT = 1.0, 1.3, 1.3

Measured = dict[str, dict[str, list[Any]]]
"""The values of the rounds by library and operation."""


@dataclass(frozen=True)
class Operation:
    """A measured operation, and its goal relative to Icechunk at each size.

    ``unit`` is "s" for processor time, "wall" for wall time, "MB" or "B". With ``at_largest`` the
    goal is that of the largest size.
    """

    name: str
    title: str
    goal: float | None = COMPARED
    unit: str = "s"
    at_largest: bool = False

    @property
    def is_time(self) -> bool:
        """Whether it is measured in seconds."""
        return self.unit in {"s", "wall"}


@dataclass(frozen=True)
class Curve:
    """A work of ``growth_side.py`` at three sizes.

    ``build`` is the work that makes the repository, which both libraries then read; without it
    each library makes its own. ``argument`` is the name of the size in the work.
    """

    work: str
    title: str
    sizes: tuple[int, ...]
    operations: tuple[Operation, ...]
    build: str | None = None
    builder: str = "icechunk"
    argument: str | None = "count"


# At small sizes, memory is that of the libraries themselves.
PEAK_MEMORY = Operation("mb", "peak memory", unit="MB", at_largest=True)
CREATE = (Operation("create", "create and commit"),)
CURVES = {
    "hierarchy": Curve(
        "hierarchy", "{:,} arrays, create_hierarchy", (2_000, 10_000, 50_000), CREATE
    ),
    "arrays": Curve("arrays", "{:,} arrays, create_array", (500, 2_000, 10_000), CREATE),
    "depth": Curve("path", "a path {:,} groups deep", (100, 300, 1_000), CREATE),
    "nodes": Curve(
        "nodes",
        "{:,} arrays",
        (2_000, 10_000, 50_000),
        (Operation("open", "open and read a chunk"), PEAK_MEMORY),
        build="build_nodes",
        argument=None,
    ),
    "refs": Curve(
        "ref",
        "{:,} references in as many files",
        (100_000, 1_000_000, 10_000_000),
        (Operation("read", "open and find a reference"), PEAK_MEMORY),
        build="build_refs",
        builder="icefloe",  # Icechunk takes minutes for ten million
    ),
    "collection": Curve(
        "collection",
        "{:,} objects",
        (1_000, 10_000, 100_000),
        (
            Operation("collect", "garbage collection, wall", unit="wall"),
            PEAK_MEMORY,
        ),
    ),
    "changes": Curve(
        "changes",
        "{:,} uncommitted chunks",
        (1_000, 10_000, 100_000),
        (
            Operation("status", "status", at_largest=True),
            Operation("pickle", "pickle a fork", at_largest=True),
            Operation("bytes", "size of the pickle", unit="B"),
        ),
    ),
}
HISTORY_CURVES = ("history", "rebase", "expiration")
MANY_NODES, MANY_NODES_GOALS = 1_000_000, {"open": (1.0, "s"), "mb": (500.0, "MB")}
ALL_CURVES = (*HISTORY_CURVES, *CURVES, "many-nodes")


def measure_growth(
    folder: Path,
    *,
    rounds: int = ROUNDS,
    divide: int = 1,
    curves: Container[str] = ALL_CURVES,
) -> Iterator[Result]:
    """Measure all curves, or some."""
    folder.mkdir()
    if any(name in curves for name in HISTORY_CURVES):
        sizes = [max(10, size // divide) for size in COMMITS]
        for spec_version in (1, 2):
            sources = build_histories(folder, spec_version, sizes)
            if "history" in curves:
                yield from measure_histories(folder, sources, spec_version, rounds)
            if "rebase" in curves:
                yield from measure_rebases(folder, sources, spec_version, rounds)
            if "expiration" in curves and spec_version == 1:
                yield from measure_expirations(folder, sources, rounds)
    for name, curve in CURVES.items():
        if name in curves:
            sizes = [size // divide for size in curve.sizes]
            yield from measure_curve(folder, curve, sizes, rounds)
    if "many-nodes" in curves:
        yield from measure_many_nodes(folder, MANY_NODES // divide)


def run(library: str, work: str, folder: Path, **arguments: Any) -> dict[str, Any]:
    """Run a work with one library."""
    return run_side(SCRIPT, library, work, json.dumps({"folder": str(folder), **arguments}))


def measure_rounds(rounds: int, measure: Callable[[str, int], dict[str, Any]]) -> Measured:
    """Call a function with each library in turn, and with the number of the round."""
    measured: Measured = {library: {} for library in SIDES}
    for turn in range(rounds):
        for library in SIDES:
            for name, value in measure(library, turn).items():
                measured[library].setdefault(name, []).append(value)
    return measured


def compare_operation(title: str, operation: Operation, measured: Measured) -> Result:
    """Compare both libraries at one size."""
    what = f"{title}: {operation.title}"
    icechunk, icefloe = (measured[library][operation.name] for library in SIDES)
    if operation.is_time:
        return compare(
            what,
            make_samples(icefloe),
            make_samples(icechunk),
            operation.goal,
            by="processor" if operation.unit == "s" else "wall",
        )
    ours, theirs = median(icefloe), median(icechunk)
    unit = operation.unit
    return Result(
        what, f"{ours:,.0f} {unit}", f"{theirs:,.0f} {unit}", ours / theirs, operation.goal, "ratio"
    )


def make_samples(values: list[list[float]]) -> Samples:
    """Return the wall and processor seconds of rounds as samples."""
    samples = Samples()
    for value in values:
        samples.add(value)
    return samples


def get_cost(operation: Operation, measured: Measured) -> float:
    """Return the median of an operation of icefloe."""
    values = measured["icefloe"][operation.name]
    if operation.is_time:
        values = [value[operation.unit == "s"] for value in values]
    return float(median(values))


def compare_sizes(
    title: str, operation: Operation, sizes: list[int], points: list[Measured]
) -> Iterator[Result]:
    """Compare the libraries at each size; then icefloe's cost per item at the last two sizes."""
    for size, measured in zip(sizes, points, strict=True):
        goal = None if operation.at_largest and size != sizes[-1] else operation.goal
        yield compare_operation(title.format(size), replace(operation, goal=goal), measured)
    if not operation.is_time:  # sizes grow in steps, with the width of integers
        return
    middle, last = (
        get_cost(operation, measured) / size
        for size, measured in zip(sizes[1:], points[1:], strict=True)
    )
    yield Result(
        f"{title.format(sizes[2])} / {sizes[1]:,}: {operation.title}, per item",
        f"{last * 1e6:.3g} µs",
        f"({middle * 1e6:.3g} µs)",
        last / middle,
        LINEAR,
        "ratio",
    )


def measure_curve(folder: Path, curve: Curve, sizes: list[int], rounds: int) -> Iterator[Result]:
    """Measure a work that makes its own repositories, or reads a built one."""
    points = []
    for size in sizes:
        built = folder / f"{curve.work}-{size}"
        if curve.build is not None:
            run(curve.builder, curve.build, built, count=size)
        points.append(measure_rounds(rounds, partial(run_curve, curve, built, size)))
    for operation in curve.operations:
        yield from compare_sizes(curve.title, operation, sizes, points)


def run_curve(curve: Curve, built: Path, size: int, library: str, turn: int) -> dict[str, Any]:
    """Run the work of a curve on the built repository, or on a new one."""
    place = built if curve.build else Path(f"{built}-{library}-{turn}")
    return run(library, curve.work, place, **({curve.argument: size} if curve.argument else {}))


def measure_many_nodes(folder: Path, size: int) -> Iterator[Result]:
    """Open a repository with a million nodes, which has limits of its own."""
    built = folder / "many-nodes"
    run("icechunk", "build_nodes", built, count=size, kind="group")
    measured = {library: run(library, "many_nodes", built) for library in SIDES}
    for name, (goal, unit) in MANY_NODES_GOALS.items():
        icechunk, icefloe = (
            measured[library][name][1] if unit == "s" else measured[library][name]
            for library in SIDES
        )
        yield Result(
            f"{size:,} groups: open and read a chunk, {'processor time' if unit == 's' else 'MB'}",
            f"{icefloe:,.3g} {unit}",
            f"{icechunk:,.3g} {unit}",
            icefloe,
            goal,
            unit,
        )


def build_histories(folder: Path, spec_version: int, sizes: list[int]) -> dict[int, Path]:
    """Make repositories with histories of several lengths."""
    sources = {size: folder / f"history-v{spec_version}-{size}" for size in sizes}
    for size, source in sources.items():
        if spec_version == 1:
            build_history(source, size)
        else:
            upgrade_history(folder / f"history-v1-{size}", source, size)
    return sources


def measure_copies(
    folder: Path, source: Path, rounds: int, work: str, **arguments: Any
) -> Measured:
    """Run a work that changes a repository on a copy each time."""
    numbers = count()

    def measure(library: str, _turn: int) -> dict[str, Any]:
        copy = folder / "-".join(
            [source.name, work, *map(str, arguments.values()), str(next(numbers))]
        )
        link_files(source, copy)
        return run(library, work, copy, **arguments)

    return measure_rounds(rounds, measure)


def measure_histories(
    folder: Path, sources: dict[int, Path], spec_version: int, rounds: int
) -> Iterator[Result]:
    """Measure what must not depend on the length of the history, and the log."""
    sizes = list(sources)
    points = [measure_copies(folder, source, rounds, "history") for source in sources.values()]
    for name in ("open", "session", "read", "commit"):
        for size, measured in zip(sizes, points, strict=True):
            title = f"v{spec_version}, {size:,} commits"
            yield compare_operation(title, Operation(name, HISTORY_TITLES[name], None), measured)
        yield compare_flat(name, spec_version, sizes, points)
    for size, measured in zip(sizes, points, strict=True):
        goal = 0.5 if size == sizes[-1] else None
        yield compare_operation(
            f"v{spec_version}, {size:,} commits",
            Operation("log", "log, wall", goal, "wall"),
            measured,
        )
    blocks = [median(measured["icefloe"]["blocks"]) for measured in points]
    yield Result(
        f"v{spec_version}: objects of Python in an open repository, per commit",
        f"{blocks[-1]:,.0f}",
        f"({blocks[0]:,.0f})",
        (blocks[-1] - blocks[0]) / (sizes[-1] - sizes[0]),
        0.1,
        "objects",
    )


HISTORY_TITLES = {
    "open": "open",
    "session": "writable_session",
    "read": "read a chunk",
    "commit": "commit of a chunk",
}


def compare_flat(name: str, spec_version: int, sizes: list[int], points: list[Measured]) -> Result:
    """Compare icefloe at the longest history with the shortest.

    The file ``repo`` of v2 grows with history. What a process needs at least to read it, for
    opening, or to write it, for a commit, is subtracted: transfer and compression.
    """
    part = {"open": "read_repo", "commit": "write_repo"}.get(name)
    costs, parts = [], []
    for measured in (points[0], points[-1]):
        values = measured["icefloe"]
        cost = [processor for _, processor in values[name]]
        parts.append(median(values[part]) if part in values else 0.0)
        costs.append([seconds - parts[-1] for seconds in cost])
    first, last = costs
    without = f", without {parts[-1] * 1000:.2g} ms of transfer and compression" * bool(parts[-1])
    return Result(
        f"v{spec_version}, {sizes[-1]:,} commits / {sizes[0]:,}: {HISTORY_TITLES[name]}{without}",
        format_spread(last),
        f"({format_spread(first)})",
        median(last) / median(first),
        FLAT,
        "ratio",
    )


def measure_rebases(
    folder: Path, sources: dict[int, Path], spec_version: int, rounds: int
) -> Iterator[Result]:
    """Rebase over a few, some and many commits of the history of middle length."""
    length, source = list(sources.items())[1]
    sizes = [length // 20, length // 5, length]
    points = [
        measure_copies(folder, source, rounds, "rebase", commits=min(size, length - 2))
        for size in sizes
    ]
    title = f"v{spec_version}, {{:,}} commits"
    yield from compare_sizes(title, Operation("rebase", "rebase"), sizes, points)


def measure_expirations(folder: Path, sources: dict[int, Path], rounds: int) -> Iterator[Result]:
    """Expire all snapshots of histories of generation v1 except the newest."""
    points = [measure_copies(folder, source, rounds, "expiration") for source in sources.values()]
    yield from compare_sizes(
        "v1, {:,} commits", Operation("expire", "expire"), list(sources), points
    )


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description="Compare the growth of costs with Icechunk.")
    parser.add_argument("folder", type=Path, help="new folder for repositories")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--divide", type=int, default=1, help="divide all sizes by this")
    parser.add_argument("--curves", nargs="+", default=ALL_CURVES, choices=ALL_CURVES)
    results = list(measure_growth(**vars(parser.parse_args())))
    print_table(results)
    sys.exit(not all(result.is_met for result in results))


if __name__ == "__main__":
    main()
