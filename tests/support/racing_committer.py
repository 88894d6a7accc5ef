"""Processes that commit to main again and again, with icefloe or with Icechunk.

``python racing_committer.py LIBRARY PLACE NUMBERS COMMITS SOLVER``, where PLACE is a path, or the
arguments of ``s3_storage`` as JSON, and NUMBERS has one for each process, with commas between. Says
``ready`` when all are, and waits for a line before they begin. Each commit writes a chunk of its
own, and with the solver ``contest`` the same chunk as everybody. Prints the id of each commit that
reported success, or ``lost`` for one that was refused. With 0 commits they create the repository
instead: the solver is the version of the format then.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import zarr

sys.path.append(str(Path(__file__).parents[1]))

from support.racers import race

ARRAY, CHUNK = "a", 2
CONTESTED = 0


def storage_of(library: Any, place: str) -> Any:
    if place.startswith("{"):
        return library.s3_storage(**json.loads(place))
    return library.local_filesystem_storage(place)


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())  # atomic among writers


def create(library: Any, place: str, generation: str) -> None:
    storage = storage_of(library, place)
    try:
        library.Repository.create(storage, generation=generation)
    except library.IcechunkError:
        say("refused")
    else:
        say("created")


def commit(library: Any, place: str, number: int, commits: int, solver: str) -> None:
    repository = library.Repository.open(storage_of(library, place))
    contest = solver == "contest"
    rebase_with = library.ConflictDetector() if contest else getattr(library, solver)()
    for turn in range(commits):
        session = repository.writable_session("main")
        array = zarr.open_array(session.store, path=ARRAY, mode="r+")
        chunk = 1 + number * commits + turn
        value = 1000 * number + turn + 1
        array[chunk * CHUNK : (chunk + 1) * CHUNK] = value
        if contest:
            array[:CHUNK] = value
        try:
            made = session.commit(f"{chunk} {value}", rebase_with=rebase_with)
        except (library.ConflictError, library.RebaseFailedError):
            say("lost")
        else:
            say(made)


def main() -> None:
    name, place, numbers, commits, solver = sys.argv[1:]
    if name == "icefloe":
        # Once for all. Not so Icechunk: its threads start with it, and are lost in a fork.
        import_module("icefloe.repository")

    def start() -> None:
        say("ready")
        sys.stdin.readline()  # those of other libraries start at the same moment

    def run(number: int) -> None:
        library = import_module(name)
        if int(commits):
            commit(library, place, number, int(commits), solver)
        else:
            create(library, place, solver)

    tasks = [partial(run, int(number)) for number in numbers.split(",")]
    race(tasks, prepare=partial(import_module, name), start=start)


if __name__ == "__main__":
    main()
