"""A process that commits to main again and again, with icefloe or with Icechunk.

``python racing_committer.py LIBRARY PLACE NUMBER COMMITS SOLVER``, where PLACE is a path, or the
arguments of ``s3_storage`` as JSON. Each commit writes a chunk of its own, and with the solver
``contest`` the same chunk as everybody. Prints the id of each commit that reported success, or
``lost`` for one that was refused. With 0 commits it creates the repository instead: the solver is
the version of the format then.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any

import zarr

ARRAY, CHUNK = "a", 2
CONTESTED = 0


def storage_of(library: Any, place: str) -> Any:
    if place.startswith("{"):
        return library.s3_storage(**json.loads(place))
    return library.local_filesystem_storage(place)


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def create(library: Any, storage: Any, spec_version: int) -> None:
    try:
        library.Repository.create(storage, spec_version=spec_version)
    except library.IcechunkError:
        say("refused")
    else:
        say("created")


def commit(library: Any, storage: Any, number: int, commits: int, solver: str) -> None:
    repository = library.Repository.open(storage)
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
    name, place, number, commits, solver = sys.argv[1:]
    library = import_module(name)
    storage = storage_of(library, place)
    say("ready")
    sys.stdin.readline()  # all start at once
    if int(commits):
        commit(library, storage, int(number), int(commits), solver)
    else:
        create(library, storage, int(solver))


if __name__ == "__main__":
    main()
