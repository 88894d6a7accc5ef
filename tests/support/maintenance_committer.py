"""A process that commits, amends, drops and leaves behind, while others collect garbage.

``python -m maintenance.committer REPOSITORY COUNT STARTED``: before each session it writes the time
into the file STARTED. Prints the id of each snapshot that it committed on main.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

from icefloe.format.generation import get_generation
from icefloe.repository import Repository
from icefloe.storage import LocalStorage
from support.histories import commit, write


def main() -> None:
    """Make COUNT commits on main, and at least as much garbage."""
    repository = Repository.open(LocalStorage(sys.argv[1], durable=False))
    started = Path(sys.argv[3])
    for number in range(int(sys.argv[2])):
        new = started.with_suffix(".new")
        new.write_text(datetime.now(UTC).isoformat())
        new.replace(started)
        session = repository.writable_session("main")
        write(session, "a", number % 4, -number)
        write(session, "a", number % 4, number)  # the first one is garbage
        print(session.commit(f"commit {number}"), flush=True)  # noqa: T201
        branch = f"branch-{number}"
        repository.create_branch(branch, repository.lookup_branch("main"))
        commit(repository, "b", number % 4, number, branch=branch)
        repository.delete_branch(branch)
        if number % 5 == 4 and get_generation(repository.generation).has_repo_info:
            session = repository.writable_session("main")
            write(session, "c", number % 4, number)
            session.amend(f"amended {number}")


if __name__ == "__main__":
    main()
