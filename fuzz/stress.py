"""Writers, maintenance and Icechunk on one repository, killed at random: no commit may be lost.

``python fuzz/stress.py [--seconds N] [--place local|s3] [--generation v1|v2] [--writers N]``

Each writer has an array of its own, writes some chunks, waits a little and commits; half of them
pack chunks. One process expires all snapshots and collects garbage with a cutoff of now, which is
careless: sessions are open. One writer is Icechunk, if it is
installed. All are killed at random
and started again. In the end each array must have the values of the last commit that was reported,
or of one that was killed before it could report; icefloe and Icechunk read them.

Commits of Icechunk do not notice that their chunks were collected: its array is not checked. On a
local disk its commits would replace those of others, so it takes part on S3 only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import zarr

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import icefloe
from icefloe import PackingConfig, RepositoryConfig
from icefloe.refs import commit_check
from support.servers import seaweedfs

NUM_CHUNKS, CHUNK_LENGTH = 16, 256
THEIRS = "theirs"


def make_storage(library: Any, place: dict[str, Any]) -> Any:
    """Return the storage of the repository."""
    if "path" in place:
        return library.local_filesystem_storage(place["path"])
    return library.s3_storage(region="us-east-1", allow_http=True, force_path_style=True, **place)


def open_repository(library: Any, place: dict[str, Any], *, packs: bool = False) -> Any:
    """Open the repository; all chunks are native."""
    options = {"packing": PackingConfig(max_chunk_bytes=1 << 16)} if packs else {}
    config = library.RepositoryConfig(inline_chunk_threshold_bytes=0, **options)
    return library.Repository.open(make_storage(library, place), config)


# -- processes


def write(library: Any, place: dict[str, Any], name: str, journal: Path) -> None:
    """Commit to one array until killed; record attempts and their results in the journal."""
    random_numbers = random.Random()  # noqa: S311
    # Except in v2, commits of sessions younger than this do not check their files.
    commit_check.MAX_UNCHECKED_AGE_S = 0.0  # type: ignore[misc]
    repository = open_repository(library, place, packs=name.endswith("packed"))
    number = time.time_ns()
    with journal.open("a", buffering=1) as log:
        while True:
            number += 1
            chunks = random_numbers.sample(range(NUM_CHUNKS), random_numbers.randint(1, 4))
            log.write(json.dumps({"try": number, "chunks": chunks}) + "\n")
            try:
                session = repository.writable_session("main")
                array = zarr.open_array(session.store, path=name)
                for chunk in chunks:
                    array[chunk * CHUNK_LENGTH : (chunk + 1) * CHUNK_LENGTH] = number
                time.sleep(random_numbers.choice([0, 0, 0.05, 0.5]))
                session.commit(f"{name} {number}", rebase_with=library.ConflictDetector())
            except library.IcechunkError as error:
                kind = getattr(error, "kind", None)
                log.write(json.dumps({"refused": number, "kind": str(kind or error)[:200]}) + "\n")
            else:
                log.write(json.dumps({"done": number}) + "\n")


def maintain(place: dict[str, Any], journal: Path) -> None:
    """Expire snapshots and collect garbage until killed, ignoring open sessions."""
    with journal.open("a", buffering=1) as log:
        while True:
            try:
                repository = open_repository(icefloe, place)
                repository.expire_snapshots(datetime.now(UTC))
                summary = repository.garbage_collect(datetime.now(UTC))
                log.write(json.dumps({"deleted": summary.chunks_deleted}) + "\n")
            except icefloe.IcechunkError as error:
                log.write(json.dumps({"refused": 0, "kind": str(error.kind)}) + "\n")
            time.sleep(0.3)


# -- the run


class Run:
    """Starts and kills the processes, and judges what they left."""

    def __init__(self, place: dict[str, Any], folder: Path, writers: int) -> None:
        self.place, self.folder = place, folder
        self.names = [f"w{number}{'-packed' * (number % 2)}" for number in range(writers)]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.kills = 0

    def create(self, generation: str) -> None:
        """Create the repository with an array for each writer."""
        config = RepositoryConfig(inline_chunk_threshold_bytes=0)
        repository = icefloe.Repository.create(
            make_storage(icefloe, self.place), config, generation=generation
        )
        with repository.transaction("main", message="arrays") as store:
            for name in [*self.names, THEIRS]:
                zarr.create_array(
                    store,
                    name=name,
                    shape=(NUM_CHUNKS * CHUNK_LENGTH,),
                    chunks=(CHUNK_LENGTH,),
                    dtype="i8",
                    compressors=None,
                    fill_value=0,
                )

    def start(self, name: str) -> None:
        """Start a process."""
        command = [sys.executable, __file__, "--role", name, json.dumps(self.place)]
        with (self.folder / f"{name}.err").open("ab") as errors:
            self.processes[name] = subprocess.Popen(
                [*command, str(self.folder / f"{name}.jsonl")], stderr=errors
            )

    def run(self, seconds: float, *, with_icechunk: bool) -> None:
        """Run and kill processes for some seconds."""
        for name in [*self.names, "maintenance", *([THEIRS] if with_icechunk else [])]:
            self.start(name)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(random.uniform(0.3, 1.5))  # noqa: S311
            name = random.choice([*self.processes])  # noqa: S311
            self.processes[name].kill()
            self.processes[name].wait()
            self.kills += 1
            self.start(name)
        for process in self.processes.values():
            process.kill()
            process.wait()

    def judge(self) -> list[str]:
        """Return what is wrong, and print what happened."""
        problems: list[str] = []
        outcomes: Counter[str] = Counter()
        libraries = [icefloe]
        with contextlib.suppress(ImportError):
            libraries.append(__import__("icechunk"))
        found = {library.__name__: self._read(library, problems) for library in libraries}
        for name in self.names:
            allowed = self._read_journal(name, outcomes)
            for library, values in found.items():
                for chunk, value in enumerate(values.get(name, [])):
                    if value not in allowed[chunk]:
                        problems.append(f"{library}: {name} chunk {chunk} is {value}: lost")
        problems += [
            f"{path.name}: {path.read_text()[-1500:]}"
            for path in sorted(self.folder.glob("*.err"))
            if "Traceback" in path.read_text()
        ]
        sys.stdout.write(f"{self.kills} kills; {dict(outcomes.most_common())}\n")
        return problems

    def _read(self, library: Any, problems: list[str]) -> dict[str, list[int]]:
        store = open_repository(library, self.place).readonly_session("main").store
        values = {}
        for name in self.names:
            try:
                data = zarr.open_array(store, path=name, mode="r")[:]
            except Exception as error:  # noqa: BLE001 - reported
                problems.append(f"{library.__name__} cannot read {name}: {error}")
                continue
            rows = np.asarray(data).reshape(NUM_CHUNKS, CHUNK_LENGTH)
            if (rows != rows[:, :1]).any():
                problems.append(f"{library.__name__}: {name} has a mixed chunk")
            values[name] = rows[:, 0].tolist()
        return values

    def _read_journal(self, name: str, outcomes: Counter[str]) -> list[set[int]]:
        """Return the values that each chunk may have."""
        allowed: list[set[int]] = [{0} for _ in range(NUM_CHUNKS)]
        path = self.folder / f"{name}.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        entries = []
        for line in lines:
            with contextlib.suppress(ValueError):  # the last line of a killed process
                entries.append(json.loads(line))
        ended = {
            entry[end]: end for entry in entries for end in ("done", "refused") if end in entry
        }
        outcomes.update(
            f"refused: {entry['kind']}" if "refused" in entry else "committed"
            for entry in entries
            if "try" not in entry
        )
        for entry in entries:
            if "try" not in entry:
                continue
            end = ended.get(entry["try"], "killed")
            for chunk in entry["chunks"]:
                if end == "done":
                    allowed[chunk] = {entry["try"]}
                elif end == "killed":
                    allowed[chunk].add(entry["try"])
        return allowed


def main() -> int:
    """Run a role, or all."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--place", choices=("local", "s3"), default="local")
    parser.add_argument("--generation", choices=("v1", "v2"), default="v2")
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--role", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        name, place, journal = options.role
        if name == "maintenance":
            maintain(json.loads(place), Path(journal))
        library = __import__("icechunk") if name == THEIRS else icefloe
        write(library, json.loads(place), name, Path(journal))
    with contextlib.ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory()))
        place = {"path": str(folder / "repository")}
        if options.place == "s3":
            server = running.enter_context(seaweedfs())
            place = {
                "bucket": server.bucket,
                "prefix": "stress",
                "endpoint_url": server.endpoint_url,
                "access_key_id": server.access_key_id,
                "secret_access_key": server.secret_access_key,
            }
        run = Run(place, folder, options.writers)
        run.create(options.generation)
        run.run(options.seconds, with_icechunk=options.place == "s3" and has_icechunk())
        problems = run.judge()
    for problem in problems:
        sys.stdout.write(problem + "\n")
    return bool(problems)


def has_icechunk() -> bool:
    """Whether Icechunk is installed."""
    try:
        __import__("icechunk")
    except ImportError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
