"""``make demo``: a repository from its first commit to two writers at once, in a few seconds.

Everything here is plain zarr and the API of Icechunk; short enough to be a first tutorial.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from rich.console import Console

import icefloe

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROOT = Path(__file__).parents[1]
REPOSITORY = Path("demo/output/weather")
console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


def title(text: str) -> None:
    """Print what comes next."""
    console.print(f"\n[bold]{text}[/]")


def run(*command: str) -> None:
    """Print a command and run it."""
    console.print(f"[dim]$ icefloe {' '.join(command)}[/]")
    icefloe_command = Path(sys.executable).with_name("icefloe")
    subprocess.run([icefloe_command, *command], cwd=ROOT, check=True)


def temperatures(days: int) -> NDArray[np.float32]:
    """Make up a field: warm at the equator, with seasons and weather."""
    day = np.arange(days)[:, None, None]
    latitude = np.linspace(-90, 90, 90)[None, :, None]
    seasons = 15 * np.sin(2 * np.pi * day / 365) * np.sign(latitude)
    weather = np.random.default_rng(0).normal(0, 3, (days, 90, 180))
    field: NDArray[np.float64] = 300 - 40 * (latitude / 90) ** 2 + seasons + weather
    return field.astype(np.float32)


def open_t2m(store: icefloe.IcechunkStore) -> zarr.Array[Any]:
    """Open the array of a session's store."""
    return zarr.open_array(store, path="t2m", mode="r" if store.read_only else "r+")


def main() -> None:
    """Show what sessions do."""
    shutil.rmtree(ROOT / REPOSITORY, ignore_errors=True)
    storage = icefloe.local_filesystem_storage(str(ROOT / REPOSITORY))
    repo = icefloe.Repository.create(storage)
    field = temperatures(365)

    title("A first commit: an array of a year, ten days of it filled")
    session = repo.writable_session("main")
    group = zarr.create_group(session.store)
    t2m = group.create_array("t2m", shape=field.shape, chunks=(10, 45, 90), dtype="f4")
    t2m[:10] = field[:10]
    console.print(session)
    first = session.commit("the first ten days", {"source": "made up"})
    repo.create_tag("ten-days", first)

    title("The rest, on a branch of its own; main does not see it")
    repo.create_branch("backfill", first)
    with repo.transaction("backfill", message="the rest of the year") as store:
        open_t2m(store)[10:] = field[10:]
    for branch in ("main", "backfill"):
        array = open_t2m(repo.readonly_session(branch).store)
        console.print(f"{branch:9} mean of July: {np.asarray(array[181:212]).mean():.2f} K")

    title("main goes on from there: one conditional write")
    repo.reset_branch("main", repo.lookup_branch("backfill"), from_snapshot_id=first)

    title("Two writers at once, each with a month of its own")
    one, two = repo.writable_session("main"), repo.writable_session("main")
    open_t2m(one.store)[0:30] = field[0:30] + 0.5
    open_t2m(two.store)[330:360] = field[330:360] - 0.5
    one.commit("January, recalibrated")
    two.commit("December, recalibrated", rebase_with=icefloe.ConflictDetector())
    run("history", str(REPOSITORY))

    title("And two who contradict each other")
    one, two = repo.writable_session("main"), repo.writable_session("main")
    open_t2m(one.store)[0, 0, 0] = 1
    open_t2m(two.store)[0, 0, 0] = 2
    one.commit("one")
    try:
        two.commit("two", rebase_with=icefloe.ConflictDetector())
    except icefloe.RebaseFailedError as error:
        console.print(f"[yellow]{error}[/]")

    title("What changed since the tag, from the transaction logs alone")
    diff = repo.diff(from_tag="ten-days", to_branch="main")
    console.print(f"{len(diff.updated_chunks['/t2m'])} chunks of /t2m, nothing else")

    title("Back in time")
    array = open_t2m(repo.readonly_session(tag="ten-days").store)
    console.print(f"at the tag the twentieth day is still empty: {np.asarray(array[19, 0, 0]):.1f}")
    run("tree", str(REPOSITORY), "--ref", "ten-days")
    console.print(
        f"\nThe repository is in {REPOSITORY}: any Icechunk reads it. README.md says more."
    )


if __name__ == "__main__":
    main()
