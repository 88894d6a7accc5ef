"""Tables that do not fit: an error names what is wrong and the remedy, and nothing is committed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
import zarr

from icefloe.errors import InvalidInputError, NotFoundError
from icefloe.repository import Repository
from icefloe.spark.option_parsing import encode_options
from icefloe.spark.reading.read_options import ReadOptions
from icefloe.spark.reading.read_plan import plan_read
from icefloe.spark.reading.snapshot_source import SnapshotSource
from icefloe.storage import local_filesystem_storage
from support.rows_in_memory import event_rows, write_table

if TYPE_CHECKING:
    from pathlib import Path

    from icefloe.spark.reading.read_plan import PlannedRead

NEW: dict[str, Any] = {"dims": ["event", "lat"], "chunks": {"event": 3, "lat": 2}}
NAN = float("nan")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a repository with one group, which nothing here changes."""
    made = tmp_path_factory.mktemp("bad") / "repository"
    repository = Repository.create(local_filesystem_storage(made))
    table = event_rows([1, 2, 3, 4])
    counts = pa.array(np.arange(len(table)), pa.int32())
    write_table(repository, table.append_column("n", counts), group="g", **NEW)
    return made


@pytest.fixture
def repository(folder: Path) -> Repository:
    return Repository.open(local_filesystem_storage(folder))


def rows(events: list[int], **columns: Any) -> pa.Table:
    """Make rows of some events, with other columns than they should have; None leaves one out."""
    table = event_rows(events)
    made = {name: table[name] for name in table.column_names}
    made["n"] = pa.chunked_array([pa.array([7] * len(table), pa.int32())])
    return pa.table({name: one for name, one in {**made, **columns}.items() if one is not None})


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


def planned(repository: Repository, **given: Any) -> PlannedRead:
    options = ReadOptions.parse(encode_options(**given))
    return plan_read(SnapshotSource.resolve(repository, options), options)


SIX = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize(
    "columns, given, problem",
    [
        ({"v": None}, {}, r"no column for variable 'v' \(double\): add it, or .*'leave_missing'"),
        ({"lat": None}, {}, r"no column for dimension 'lat' \(double\): add it"),
        (
            {"vv": SIX},
            {},
            r"'vv' is not a variable of the group \(did you mean 'v'\?\): drop or ren",
        ),
        ({"v": ["a"] * 6}, {}, "'v': expected double, got string: cast"),
        ({"event": [5.5] * 6}, {}, "'event': expected int64, got double: cast"),
        ({"n": pa.array([1] * 6, pa.int64())}, {}, "'n': expected int32, got int64"),
        ({"v": None, "n": None, "w": SIX}, {}, "variable 'n'.*variable 'v'.*'w' is not a variable"),
        ({"event": [5, 5, 5, 6, 6, None]}, {}, "dimension column 'event' contains nulls or NaN"),
        (
            {},
            {"append_dim": "evnt"},
            "append_dim: there is no dimension 'evnt'.*did you mean 'event'",
        ),
        ({}, {"append_dim": None}, "'append_dim' to one of event, lat"),
        ({}, {"dims": "lat,event"}, "dimensions of the group are event, lat, not .*'dims': omit"),
        ({}, {"chunks": {"event": 5}}, "'chunks' is 5 along 'event'.*chunks of 3: omit"),
        ({}, {"chunks": {"lon": 5}}, "chunks: there is no dimension 'lon'"),
        ({}, {"group": "gg"}, r"group '/gg' has no arrays \(did you mean '/g'\?\).*option 'dims'"),
        ({}, {"group": "g/v"}, "'/g/v' is an array: set 'group'"),
        ({}, {"group": "g/v/w", **NEW}, "'/g/v' is an array: set 'group'"),
        ({}, {"grp": "g"}, "there is no option 'grp': did you mean 'group'"),
        ({}, {"dims": "[event"}, r"option 'dims': expected a list of names, got '\[event'"),
        ({}, {"replace_where": {"event": 1}}, "needs mode 'overwrite'"),
        ({}, {"group": "new", "dims": "event,lta"}, r"dimension 'lta' \(did you mean 'lat'\?\)"),
        (
            {"b": [b"x"] * 6},
            {"group": "new", **NEW},
            "'b' has the unsupported type binary: cast",
        ),
        (
            {"a/b": SIX},
            {"group": "new", **NEW},
            "'a/b' has an invalid name for an array: rename",
        ),
        ({"v": None, "n": None}, {"group": "new", **NEW}, "all columns are dimensions"),
        (
            {"v": None},
            {"leave_missing": "v", "group": "new", **NEW},
            "'leave_missing' is only for app",
        ),
        (
            {"lat": [NAN] * 6},
            {"group": "new", **NEW},
            "dimension column 'lat' contains nulls or NaN",
        ),
        (
            {},
            {"group": "new", "dims": "event,lat", "append_dim": "time"},
            "no dimension 'time'",
        ),
    ],
)
def test_refused_before_anything_is_written(
    repository: Repository,
    folder: Path,
    columns: dict[str, Any],
    given: dict[str, Any],
    problem: str,
) -> None:
    before = files(folder)
    with pytest.raises(InvalidInputError, match=problem):
        write_table(
            repository, rows([5, 6], **columns), **{"group": "g", "append_dim": "event", **given}
        )
    assert files(folder) == before


@pytest.mark.parametrize(
    "columns, problem",
    [
        (
            {"lat": [10.0, 25.0, 30.0] * 2},
            r"such as the row at event=5, lat=25\.0: expected one of the 3 labels",
        ),
        (
            {"lat": [10.0, None, 30.0] * 2},
            r"dimension column 'lat' contains nulls.*df\.dropna\(subset=\['lat'\]\)",
        ),
        ({"lat": [10.0, 20.0, 20.0] * 2}, r"more than once.*lat=20\.0: .*df\.dropDuplicates"),
        ({"n": pa.array([1, 2, 3, 4, 5, None], pa.int32())}, r"'n' has nulls.*df\.fillna"),
    ],
)
def test_refused_by_tasks(repository: Repository, columns: dict[str, Any], problem: str) -> None:
    """What only the rows can tell."""
    tip = repository.lookup_branch("main")
    with pytest.raises(InvalidInputError, match=problem):
        write_table(repository, rows([5, 6], **columns), group="g", append_dim="event")
    assert repository.lookup_branch("main") == tip


def test_a_cell_that_cannot_be_missing(repository: Repository) -> None:
    tip = repository.lookup_branch("main")
    with pytest.raises(InvalidInputError, match=r"'n' has no _FillValue.*5 rows for 6 cells"):
        write_table(repository, rows([5, 6]).slice(1), group="g", append_dim="event")
    assert repository.lookup_branch("main") == tip


@pytest.mark.parametrize(
    "group, region, problem",
    [
        ("g", {"event": 99}, "'replace_where'.* nothing along 'event' with 99.* from 1 to 4"),
        ("g", {"event": "abc"}, "'replace_where'.* nothing along 'event' with 'abc'"),
        ("g", {"evnt": 1}, "replace_where: there is no dimension 'evnt'.*did you mean 'event'"),
        ("g", {"event": [1, 3]}, "the region along 'event' has gaps"),
        (
            "g",
            {"event": [1, 2]},
            r"such as the row at event=3.*region along 'event' is 1 to 2: filter",
        ),
        ("g", "event = 3", "'replace_where': expected a JSON object by dimension such as"),
        ("h", {"event": 3}, "needs an existing group, but '/h' has no arrays"),
    ],
    ids=str,
)
def test_regions(
    repository: Repository, folder: Path, group: str, region: Any, problem: str
) -> None:
    before = files(folder)
    with pytest.raises(InvalidInputError, match=problem):
        write_table(repository, rows([3]), overwrite=True, group=group, replace_where=region)
    assert files(folder) == before


def test_a_branch_that_is_not_there(repository: Repository) -> None:
    with pytest.raises(NotFoundError, match="no branch 'dev'"):
        write_table(repository, rows([5]), group="g", append_dim="event", branch="dev")


@pytest.mark.parametrize(
    "given, problem",
    [
        ({"branch": "dev"}, "no branch 'dev'.*list_branches"),
        ({"tag": "v1"}, "no tag 'v1'.*list_tags"),
        ({"snapshot": "nope"}, "'nope' is not a SnapshotId"),
        ({"snapshot": "0" * 19 + "G"}, "may have expired"),
        ({"as_of": "2001-01-01T00:00:00Z"}, "'main' begins after 2001"),
        ({"group": "gg"}, "no group '/gg'.*did you mean '/g'"),
        ({"group": "g/v"}, "'/g/v' is an array: set 'group'"),
        ({"group": "/"}, "group '/' has no arrays: set the option 'group'"),
        ({"variables": "vv"}, "no variable 'vv' in group '/g': did you mean 'v'"),
        ({"variables": "vv", "layout": "chunks"}, "no variable 'vv' in group '/g'"),
        ({"sel": {"lat": 95}}, r"nothing along 'lat' with 95: its labels range from 10\.0 to 30"),
        ({"sel": {"lta": 10}}, "sel: there is no dimension 'lta'.*did you mean 'lat'"),
        ({"sel": {"lat": 95}, "layout": "chunks"}, "nothing along 'lat' with 95"),
        ({"isel": {"lat": 7}}, "'lat' has no position 7, only 0 to 2"),
        ({"isel": {"lat": []}}, "isel selects nothing along 'lat'"),
        ({"grp": "g"}, "no option 'grp': did you mean 'group'"),
        ({"table": "snaps"}, "no table 'snaps': did you mean 'snapshots'"),
        ({"table": "changes", "from": "v1"}, "v1"),
        ({"table": "changes", "from": "main", "to": "v2"}, "v2"),
    ],
    ids=str,
)
def test_reads(repository: Repository, given: dict[str, Any], problem: str) -> None:
    """What is asked for and not there shows when the read is planned, not in a task."""
    given = given if "table" in given else {"group": "g", **given}
    with pytest.raises((InvalidInputError, NotFoundError), match=problem):
        planned(repository, **given)


def test_a_repository_that_is_not_there(tmp_path: Path) -> None:
    """Neither reading nor writing makes one."""
    pytest.importorskip("pyspark", reason="SPARK IS NOT TESTED ON THIS MACHINE: no pyspark")
    from pyspark.sql.types import StructType  # noqa: PLC0415

    from icefloe.spark.data_source import IcefloeDataSource  # noqa: PLC0415

    source = IcefloeDataSource({"path": str(tmp_path / "nothing"), "dims": "x"})
    schema = StructType().add("x", "integer").add("v", "integer")
    for make in (source.writer, source.streamWriter):
        with pytest.raises(NotFoundError, match=r"no repository at .*nothing: check the path"):
            make(schema, overwrite=False)
    with pytest.raises(NotFoundError, match=r"no repository at .*nothing: check the path"):
        IcefloeDataSource({"path": str(tmp_path / "nothing")}).schema()
    assert not list(tmp_path.iterdir())


def test_changes_stay_those_between_two_snapshots(empty: Repository) -> None:
    """Whatever is committed after the table was made."""
    write_table(empty, event_rows([1]), **NEW)
    tip = empty.lookup_branch("main")
    plan = planned(empty, table="changes", **{"from": tip, "to": "main"})
    write_table(empty, event_rows([2]), append_dim="event")
    assert [batch for task in plan.partitions() for batch in plan.read(task) if len(batch)] == []


@pytest.mark.parametrize("layout", ["rows", "chunks"])
def test_metadata_that_tells_of_too_many_chunks(tmp_path: Path, layout: str) -> None:
    """A few bytes of metadata cost no gigabytes: a part is read, and the whole is refused."""
    repository = Repository.create(local_filesystem_storage(tmp_path / "r"))
    length = 1 << 31
    with repository.transaction("main", message="huge") as store:
        for name in "ax":
            zarr.create_array(
                store, name=name, shape=(length,), chunks=(1,), dtype="f8", dimension_names=["x"]
            )[length - 3 :] = [1, 2, 3]
    with pytest.raises(InvalidInputError, match=r"'a' has 2147483648 chunks .* along 'x'.*'isel'"):
        planned(repository, layout=layout)
    with pytest.raises(InvalidInputError, match=r"'/x' has 17179869184 bytes of labels.*'isel'"):
        planned(repository, layout=layout, sel={"x": 2.0})
    for part, count in (
        (slice(-2, None), 2),
        ([5, -2, -1], 3),
        (slice(None, None, 1 << 20), 1 << 11),
    ):
        read = planned(repository, layout=layout, variables="a", isel={"x": part})
        batches = [batch for task in read.partitions() for batch in read.read(task)]
        found = [row for batch in batches for row in batch.to_pylist()]
        if layout == "rows":
            assert len(found) == count
            written = [row["a"] for row in found if row["a"]]
        else:
            written = [float(np.frombuffer(row["data"])[0]) for row in found]
        assert written == ([2, 3] if count < 10 else [])
