"""Writers that append at the same time: rows land one behind the other, each once, or are refused.

Chunks are three events long and writes are not, so that writers share chunks.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import xarray as xr
import zarr

from icefloe.errors import InvalidInputError, RebaseFailedError
from icefloe.spark import write
from icefloe.spark.writing.staged_commit import commit_staged_rows
from icefloe.spark.writing.staged_rows import stage_rows
from icefloe.spark.writing.write_job import find_written
from icefloe.spark.writing.write_options import WriteOptions
from support import SUPPORT, warm_python
from support.rows_in_memory import LATS, event_rows, write_table
from support.spark_tables import commit

if TYPE_CHECKING:
    from pathlib import Path

    from icefloe.repository import Repository

NEW: dict[str, Any] = {"dims": ["event", "lat"], "chunks": {"event": 3, "lat": 2}}
UNSORTED = [5, 1, 3, 2]


def unsorted(repository: Repository) -> None:
    """Commit events that are in no order, behind which any may come."""
    values = np.add.outer(np.array(UNSORTED) * 100.0, LATS)
    dataset = xr.Dataset(
        {"v": (("event", "lat"), values)}, coords={"event": UNSORTED, "lat": list(LATS)}
    )
    commit(repository, dataset, {"v": {"chunks": (3, 2)}})


def found(repository: Repository) -> xr.Dataset:
    store = repository.readonly_session("main").store
    dataset: xr.Dataset = xr.open_zarr(store, consolidated=False).load()
    return dataset


def require_events(repository: Repository) -> list[int]:
    """Check that each event is there once, with its own values; return them in order."""
    dataset = found(repository)
    events: list[int] = dataset["event"].values.tolist()
    assert len(set(events)) == len(events)
    np.testing.assert_array_equal(dataset["v"].values, np.add.outer(np.array(events) * 100.0, LATS))
    return events


def race(
    folder: Path, sets: list[list[list[int]]], **options: Any
) -> list[tuple[list[int], str, bool]]:
    program = SUPPORT / "racing_writes.py"
    ran = warm_python.run(sys.executable, program, folder, json.dumps(sets), json.dumps(options))
    assert ran.returncode == 0, ran.stderr
    return [tuple(json.loads(line)) for line in ran.stdout.splitlines()]


def test_processes_that_append_at_once(empty: Repository, tmp_path: Path) -> None:
    """Every write of every process lands, behind those that came before it."""
    unsorted(empty)
    sets = [[[10 * number, 10 * number + 1], [10 * number + 2]] for number in range(1, 5)]
    reports = race(tmp_path / "repository", sets)
    assert [report for report in reports if not report[2]] == []
    history = list(empty.ancestry(branch="main"))
    assert {info.id for info in history[:-2]} == {made for _, made, _ in reports}
    by_commit = {made: labels for labels, made, _ in reports}
    in_order = [label for info in reversed(history[:-2]) for label in by_commit[info.id]]
    assert require_events(empty) == [*UNSORTED, *in_order]


def test_processes_that_append_in_order_at_once(empty: Repository, tmp_path: Path) -> None:
    """What others overtook is refused, with the reason; what was reported is there, no more."""
    sets = [[[number], [number + 4], [number + 8]] for number in range(1, 5)]
    reports = race(tmp_path / "repository", sets, **NEW)
    landed = sorted(label for labels, _, is_new in reports if is_new for label in labels)
    assert require_events(empty) == landed
    refused = [message for _, message, is_new in reports if not is_new]
    assert len(landed) + len(refused) == 12
    assert all("out of order" in message for message in refused)
    assert len(list(empty.ancestry(branch="main"))) == len(landed) + 1


def test_processes_that_are_the_same_write(empty: Repository, tmp_path: Path) -> None:
    """Of one transaction id one commit is made, and all report it."""
    unsorted(empty)
    reports = race(tmp_path / "repository", [[[7, 8]]] * 4, transaction_id="seven and eight")
    assert len({made for _, made, _ in reports}) == 1
    assert sum(is_new for _, _, is_new in reports) == 1
    assert require_events(empty) == [*UNSORTED, 7, 8]


def test_rows_that_overlap_what_others_appended(empty: Repository) -> None:
    """The error says that others were faster, and which label is there."""
    unsorted(empty)
    theirs = event_rows([7])
    with pytest.raises(
        InvalidInputError, match=r"another writer committed to branch 'main'.*such as 7"
    ):
        write_table(
            empty,
            event_rows([6, 7]),
            lambda: write_table(empty, theirs, append_dim="event"),
            append_dim="event",
        )
    assert require_events(empty) == [*UNSORTED, 7]


def test_a_group_that_others_created(empty: Repository) -> None:
    """The second to create the group appends if it has an append_dim, and fails otherwise."""

    def create() -> object:
        return write_table(empty, event_rows([1]), **NEW)

    write_table(empty, event_rows([2]), create, append_dim="event", **NEW)
    assert require_events(empty) == [1, 2]
    with pytest.raises(InvalidInputError, match=r"another writer committed.*option 'append_dim'"):
        write_table(
            empty,
            event_rows([2]),
            lambda: write_table(empty, event_rows([1]), group="b", **NEW),
            group="b",
            **NEW,
        )


def test_the_other_is_the_same_write(empty: Repository) -> None:
    """A commit of the same transaction id that lands meanwhile is found, not doubled."""
    unsorted(empty)
    given: dict[str, Any] = {"append_dim": "event", "transaction_id": "seven"}
    made = write_table(
        empty, event_rows([7]), lambda: write_table(empty, event_rows([7]), **given), **given
    )
    assert not made.is_new
    assert made.snapshot_id == empty.lookup_branch("main")
    assert require_events(empty) == [*UNSORTED, 7]


@pytest.mark.parametrize("way", ["tasks", "aside"])
def test_the_same_write_commits_during_the_search(
    empty: Repository, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """It has looked in vain, and then the rows are there: that is its commit, not an error."""
    unsorted(empty)
    options = WriteOptions.parse({"append_dim": "event", "transaction_id": "seven"})
    waiting = [event_rows([7])]

    def find_after_other_commit(*asked: Any) -> Any:
        found = find_written(*asked)
        if waiting:
            write_table(empty, waiting.pop(), append_dim="event", transaction_id="seven")
        return found

    module = "writing.write_retries" if way == "tasks" else "writing.staged_commit"
    monkeypatch.setattr(f"icefloe.spark.{module}.find_written", find_after_other_commit)
    if way == "tasks":
        made = write_table(empty, event_rows([7]), append_dim="event", transaction_id="seven")
    else:
        rows = event_rows([7])
        aside = stage_rows(empty.readonly_session("main").connection, rows.to_batches())
        made = commit_staged_rows(
            empty, options, rows.schema, [aside], overwrite=False, job=options.job
        )
    assert (made.is_new, made.snapshot_id) == (False, empty.lookup_branch("main"))
    assert require_events(empty) == [*UNSORTED, 7]


@pytest.mark.parametrize("region", [None, {"event": 1}])
def test_what_is_overwritten_must_not_have_changed(
    empty: Repository, region: dict[str, Any] | None
) -> None:
    """An overwrite that has not seen a concurrent commit fails, and that commit stays."""
    unsorted(empty)

    def change() -> None:
        session = empty.writable_session("main")
        zarr.open_array(session.store, path="v", mode="r+")[1, 0] = -1
        session.commit("another writer")

    with pytest.raises(RebaseFailedError):
        write_table(empty, event_rows([1]), change, overwrite=True, replace_where=region)
    assert found(empty)["v"][1, 0] == -1


def test_somebody_is_always_faster(empty: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of tries is bounded, and nothing is left on the branch."""
    monkeypatch.setattr("icefloe.spark.writing.write_retries._MAX_ATTEMPTS", 3)
    unsorted(empty)
    others = [
        partial(write_table, empty, event_rows([label]), append_dim="event")
        for label in range(100, 110)
    ]
    with pytest.raises(RebaseFailedError):
        write_table(empty, event_rows([7]), *others, append_dim="event")
    assert require_events(empty) == [*UNSORTED, 100, 101, 102]


def test_tasks_that_wrote_chunks_at_once(empty: Repository, tmp_path: Path) -> None:
    """With ``coords`` a conflict cannot be retried: the error says what to do."""
    pytest.importorskip("pyspark", reason="SPARK IS NOT TESTED ON THIS MACHINE: no pyspark")
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415

    from icefloe.spark.data_source import IcefloeDataSource  # noqa: PLC0415

    unsorted(empty)
    rows = event_rows([7])
    options = {"path": str(tmp_path / "repository"), "append_dim": "event"}
    source = IcefloeDataSource({**options, "coords": '{"event": [7]}'})
    writer = source.writer(from_arrow_schema(rows.schema), overwrite=False)
    message = writer.write(iter(rows.to_batches()))
    write_table(empty, event_rows([8]), append_dim="event")
    with pytest.raises(RebaseFailedError, match=r"nothing was committed.* write again"):
        writer.commit([message])
    assert require_events(empty) == [*UNSORTED, 8]


def test_on_spark(spark: Any, empty: Repository, tmp_path: Path) -> None:
    """Rows go behind those that another writer appends meanwhile."""
    unsorted(empty)
    place, theirs = str(tmp_path / "repository"), event_rows([9]).to_batches()[0]

    def append_once(batches: Any) -> Any:
        """Pass rows on; another writer appends once."""
        from icefloe.repository import Repository  # noqa: PLC0415 - in the worker
        from icefloe.spark.writing.staged_commit import commit_staged_rows  # noqa: PLC0415
        from icefloe.spark.writing.staged_rows import stage_rows  # noqa: PLC0415
        from icefloe.spark.writing.write_options import WriteOptions  # noqa: PLC0415
        from icefloe.storage import local_filesystem_storage  # noqa: PLC0415

        yield from batches
        repository = Repository.open(local_filesystem_storage(place))
        options = WriteOptions.parse({"append_dim": "event", "transaction_id": "theirs"})
        aside = stage_rows(repository.readonly_session("main").connection, [theirs])
        commit_staged_rows(
            repository, options, theirs.schema, [aside], overwrite=False, job=options.job
        )

    ddl = "event long, lat double, v double"
    rows = spark.createDataFrame(event_rows([7, 8]).to_pandas(), ddl).coalesce(1)
    # The first look at the rows comes after the plan, and lets the others in.
    made = write(rows.mapInArrow(append_once, ddl), empty, append_dim="event")
    assert made.is_new
    assert require_events(empty) == [*UNSORTED, 9, 7, 8]
