"""Processes that append at one moment: ``python racing_appends.py REPOSITORY FOLDER WAY SETS``.

``WAY`` is ``virtualize`` or ``ingest``, ``SETS`` is JSON: the names of the files that each process
appends. Each prints its report as JSON.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import icefloe
from icefloe.pipeline.jobs.ingest import ingest
from icefloe.pipeline.jobs.virtualize import virtualize

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.racers import race


def append(path: str, folder: Path, way: str, names: list[str]) -> None:
    access = {f"{folder.as_uri()}/": icefloe.Credentials.LocalFileSystemAccess()}
    storage = icefloe.local_filesystem_storage(path)
    repository = icefloe.Repository.open(storage, authorize_virtual_chunk_access=access)
    job = virtualize if way == "virtualize" else ingest
    report = job(None, repository, [folder / name for name in names], append=True)
    sys.stdout.write(json.dumps(report.to_json()) + "\n")


if __name__ == "__main__":
    place, files, kind, sets = sys.argv[1:]
    race([partial(append, place, Path(files), kind, names) for names in json.loads(sets)])
