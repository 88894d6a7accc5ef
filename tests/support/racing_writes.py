"""Processes that append rows at one moment: ``python racing_writes.py REPOSITORY SETS OPTIONS``.

``SETS`` is JSON: for each process the lists of labels that it appends, one write each. A label's
rows tell which it is. Each process prints for each write the labels, and the snapshot that it made
or why it did not.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import icefloe

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.racers import race
from support.rows_in_memory import event_rows, write_table


def append(path: str, sets: list[list[int]], options: dict[str, Any]) -> None:
    repository = icefloe.Repository.open(icefloe.local_filesystem_storage(path))
    for labels in sets:
        try:
            made = write_table(repository, event_rows(labels), append_dim="event", **options)
            answer = [made.snapshot_id, made.is_new]
        except icefloe.IcefloeError as error:
            answer = [str(error), False]
        sys.stdout.write(json.dumps([labels, *answer]) + "\n")


if __name__ == "__main__":
    place, racers, given = sys.argv[1:]
    race([partial(append, place, sets, json.loads(given)) for sets in json.loads(racers)])
