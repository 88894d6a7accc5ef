"""What Spark calls, in the order in which it calls it, with a copy for each of its processes."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import xarray as xr

from icefloe.errors import InvalidInputError
from icefloe.spark.option_parsing import encode_options
from support.stream_cells import NEW, SCHEMA, batch, expected, found, num_commits, write_rows

pytest.importorskip("pyspark", reason="SPARK IS NOT TESTED ON THIS MACHINE: no pyspark")

from pyspark.sql.pandas.types import from_arrow_schema

from icefloe.spark.data_source import IcefloeDataSource
from icefloe.spark.data_source_writers import CommitMessage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql.types import StructType

    from icefloe.repository import Repository


class AnswerLostError(Exception):
    """The commit succeeded, and its response was lost."""


def source(folder: Path, **given: Any) -> IcefloeDataSource:
    return IcefloeDataSource(encode_options(path=str(folder), **given))


def elsewhere(value: Any) -> Any:
    """Go to another process."""
    return pickle.loads(pickle.dumps(value))  # noqa: S301 - our own


def columns(schema: pa.Schema = SCHEMA) -> StructType:
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


@pytest.mark.parametrize("coords", [None, {"time": ["2020-01-01"], "lat": [10, 20, 30]}])
def test_a_commit_whose_answer_is_lost(
    repository: Repository, folder: Path, coords: dict[str, Any] | None
) -> None:
    """Abort deletes nothing of it, and the same write again is found to be done."""
    given = {**NEW, "coords": coords, "transaction_id": "load"}
    for _ in range(2):
        writer = source(folder, **given).writer(columns(), overwrite=False)
        messages = [
            elsewhere(elsewhere(writer).write(iter([batch([1])]))),
            elsewhere(elsewhere(writer).write(iter([]))),
        ]
        with pytest.raises(AnswerLostError):
            lose_answer(elsewhere(writer), messages)
        elsewhere(writer).abort([messages[0], None])
    assert num_commits(repository) == 1
    xr.testing.assert_equal(found(repository), expected([1]))


def lose_answer(writer: Any, messages: list[Any]) -> None:
    writer.commit(messages)
    raise AnswerLostError


def test_a_commit_between_writer_and_commit(repository: Repository, folder: Path) -> None:
    """Rows go behind what came since; where they cannot, they are refused, and nothing is lost."""
    write_rows(repository, batch([1]), **NEW)
    writers = [
        source(folder, append_dim="time").writer(columns(), overwrite=False) for _ in range(2)
    ]
    early, late = (
        elsewhere(elsewhere(writer).write(iter([batch([day])])))
        for writer, day in zip(writers, (2, 4), strict=True)
    )
    write_rows(repository, batch([3]), append_dim="time")
    elsewhere(writers[1]).commit([late])
    with pytest.raises(InvalidInputError, match="out of order"):
        elsewhere(writers[0]).commit([early])
    elsewhere(writers[0]).abort([early])
    xr.testing.assert_equal(found(repository), expected([1, 3, 4]))


@pytest.mark.parametrize(
    "given, overwrite",
    [
        ({"append_dim": "time", "coords": {"time": ["2020-01-03", "2020-01-04"]}}, False),
        ({"replaceWhere": {"time": ["2020-01-01", "2020-01-02"]}}, True),
    ],
    ids=["coords", "replaceWhere"],
)
def test_rows_of_a_chunk_in_several_tasks(
    repository: Repository, folder: Path, given: dict[str, Any], *, overwrite: bool
) -> None:
    """Spark has no shuffle to offer to a source, so the rows meet where they are committed."""
    write_rows(repository, batch([1, 2]), **NEW)
    days = (1, 2) if overwrite else (3, 4)
    writer = source(folder, **given).writer(columns(), overwrite=overwrite)
    messages = [elsewhere(elsewhere(writer).write(iter([batch([day])]))) for day in days]
    elsewhere(writer).commit(messages)
    xr.testing.assert_equal(found(repository), expected(range(1, days[-1] + 1)))


def test_a_micro_batch_that_is_committed_again(repository: Repository, folder: Path) -> None:
    """Queries count for themselves; a batch of one is committed once."""
    here = source(folder, append_dim="time", **NEW)
    for query, number, one in [("a", 0, 1), ("a", 0, 1), ("b", 0, 2), ("a", 1, 3), ("a", 1, 3)]:
        writer = here.streamWriter(columns(), overwrite=False)
        put = elsewhere(writer).write(iter([batch([one])]))
        message = elsewhere(CommitMessage(put.content, query))
        # Created again, as Spark does.
        here.streamWriter(columns(), overwrite=False).commit([message, None], number)
    assert num_commits(repository) == 3
    xr.testing.assert_equal(found(repository), expected([1, 2, 3]))


@pytest.mark.parametrize(
    "use, example",
    [
        (lambda: IcefloeDataSource({}).schema(), r"spark\.read\.format.*\.load"),
        (
            lambda: IcefloeDataSource({"maxCommitsPerTrigger": "1"}).schema(),
            r"spark\.readStream\.format.*\.load",
        ),
        (
            lambda: IcefloeDataSource({}).writer(columns(), overwrite=False),
            r"df\.write\.format.*\.save",
        ),
        (
            lambda: IcefloeDataSource({}).streamWriter(columns(), overwrite=False),
            r"df\.writeStream\.format.*\.start",
        ),
    ],
    ids=["read", "readStream", "write", "writeStream"],
)
def test_who_names_no_repository_is_shown_how(use: Callable[[], object], example: str) -> None:
    """With an example of what they tried."""
    with pytest.raises(InvalidInputError, match=example + r'\("s3://bucket/weather"\)'):
        use()


def test_columns_are_refused_before_tasks_run(repository: Repository, folder: Path) -> None:
    write_rows(repository, batch([1]), **NEW)
    wrong = columns(SCHEMA.set(2, pa.field("v", pa.float64())))
    here = source(folder, append_dim="time")
    for make in (here.writer, here.streamWriter):
        with pytest.raises(InvalidInputError, match="'v': expected float, got double"):
            make(wrong, overwrite=False)
