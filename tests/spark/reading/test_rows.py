from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe.errors import InvalidInputError, NodeNotFoundError
from icefloe.model.node import ArrayNodeData
from icefloe.model.path import Path
from icefloe.repository import Repository
from icefloe.spark.reading.axes import Axis, RegularEdges, iter_boxes, iter_pieces
from icefloe.spark.reading.partitions import choose_target_bytes, split_evenly
from icefloe.spark.reading.read_options import ReadOptions
from icefloe.spark.reading.rows import plan_rows, read_rows
from icefloe.storage import local_filesystem_storage
from support.counting_storage import CountingStorage
from support.spark_tables import assert_same_rows, commit, rows

if TYPE_CHECKING:
    import pathlib

    from icefloe.session import Session


def zarr_dataset(session: Session) -> xr.Dataset:
    opened: xr.Dataset = xr.open_zarr(session.store, consolidated=False, chunks=None)
    return opened


# -- rows say what xarray says


def test_rows_of_a_group_are_those_of_to_dataframe(session: Session) -> None:
    """Coordinates of dimensions, others, packed values, transposed and repeated variables."""
    assert_same_rows(rows(session), zarr_dataset(session))


def test_rows_do_not_depend_on_how_partitions_are_cut(session: Session) -> None:
    expected = zarr_dataset(session)
    for target in (1, 2_000, 10_000_000):
        assert_same_rows(rows(session, target_bytes=str(target)), expected)


def test_missing_is_null_and_integers_stay_integers(session: Session, dataset: xr.Dataset) -> None:
    found = rows(session, variables=["t2m", "count"])
    assert found["t2m"].null_count == 3
    assert found.schema.field("count").type == pa.int32()
    assert found["count"].null_count == int((dataset["count"] == 7).sum()) > 0


def test_nan_stays_nan_by_choice(session: Session) -> None:
    found = rows(session, variables="t2m", nan_as_null="false")
    assert found["t2m"].null_count == 0
    assert int(np.isnan(found["t2m"].to_numpy()).sum()) == 3


def test_types_that_spark_refuses_are_widened(empty: Repository) -> None:
    with empty.transaction("main", message="types") as store:
        values: dict[str, Any] = {
            "u1": np.array([0, 255], "u1"),
            "u4": np.array([0, 2**32 - 1], "u4"),
            "u8": np.array([0, 2**64 - 1], "u8"),
            "f2": np.array([0.5, np.nan], "f2"),
            "big": np.array([1, 2], ">i4"),
            "yes": np.array([True, False]),
        }
        for name, data in values.items():
            zarr.create_array(store, name=name, data=data, dimension_names=["x"])
    found = rows(empty.readonly_session("main"))
    types = {field.name: field.type for field in found.schema}
    assert types == {
        "x": pa.int64(),
        "big": pa.int32(),
        "f2": pa.float32(),
        "u1": pa.int16(),
        "u4": pa.int64(),
        "u8": pa.decimal128(20, 0),
        "yes": pa.bool_(),
    }
    assert found.to_pylist() == [
        {"x": 0, "big": 1, "f2": 0.5, "u1": 0, "u4": 0, "u8": Decimal(0), "yes": True},
        {
            "x": 1,
            "big": 2,
            "f2": None,
            "u1": 255,
            "u4": 2**32 - 1,
            "u8": Decimal(2**64 - 1),
            "yes": False,
        },
    ]


def test_strings_are_text(empty: Repository) -> None:
    labels = np.array(["Bern", "Zürich", "Genève"], dtype=object)
    dataset = xr.Dataset({"t": ("city", [1.0, 2.0, 3.0])}, coords={"city": labels})
    commit(empty, dataset)
    found = rows(empty.readonly_session("main"), sel={"city": ["Zürich", "Bern"]})
    assert found.to_pylist() == [{"city": "Bern", "t": 1.0}, {"city": "Zürich", "t": 2.0}]


def test_a_type_that_no_column_holds_is_refused_by_name(empty: Repository) -> None:
    commit(empty, xr.Dataset({"wave": ("x", np.ones(2, "c8"))}))
    with pytest.raises(InvalidInputError, match="'wave' has type complex64"):
        rows(empty.readonly_session("main"))


# -- times


def times_of(empty: Repository, attributes: dict[str, Any], values: Any) -> pa.Table:
    with empty.transaction("main", message="times") as store:
        zarr.create_array(
            store, name="time", data=values, dimension_names=["time"], attributes=attributes
        )
        zarr.create_array(store, name="v", data=np.arange(len(values)), dimension_names=["time"])
    return rows(empty.readonly_session("main"))


def test_times_are_timestamps_without_a_zone(empty: Repository) -> None:
    found = times_of(empty, {"units": "hours since 1970-01-01"}, np.array([0, 25]))
    assert found.schema.field("time").type == pa.timestamp("us")
    assert found["time"].to_pylist() == [
        datetime(1970, 1, 1),  # noqa: DTZ001
        datetime(1970, 1, 2, 1),  # noqa: DTZ001
    ]


def test_a_reference_before_the_calendar_reform_makes_timestamps_too(empty: Repository) -> None:
    """Spark's type follows from the calendar, not from what a first value happens to be."""
    found = times_of(empty, {"units": "days since 0001-01-01"}, np.array([737_791.5]))
    expected = xr.open_zarr(empty.readonly_session("main").store, consolidated=False)["time"]
    assert found["time"].to_pylist() == [expected.values[0].astype("datetime64[us]").item()]


def test_other_calendars_become_text_that_sorts(empty: Repository) -> None:
    found = times_of(
        empty, {"units": "days since 2001-01-01", "calendar": "360_day"}, np.array([0, 59])
    )
    assert found["time"].to_pylist() == ["2001-01-01T00:00:00", "2001-02-30T00:00:00"]


def test_missing_times_are_null(empty: Repository) -> None:
    dataset = xr.Dataset({"when": ("x", np.array(["2020-01-01", "NaT"], "M8[ns]"))})
    commit(empty, dataset)
    found = rows(empty.readonly_session("main"))
    assert found["when"].to_pylist() == [datetime(2020, 1, 1), None]  # noqa: DTZ001


def test_units_that_cannot_be_read_are_told_with_their_variable(empty: Repository) -> None:
    with pytest.raises(InvalidInputError, match=r"'time' cannot be decoded.*fortnights"):
        times_of(empty, {"units": "fortnights since 2001-01-01"}, np.array([0, 1]))


# -- which variables


def test_variables_that_do_not_fit_are_refused_with_those_that_do(empty: Repository) -> None:
    dataset = xr.Dataset(
        {"a": (("x", "y"), np.ones((2, 2))), "b": (("x", "z"), np.ones((2, 3))), "c": ("x", [1, 2])}
    )
    commit(empty, dataset)
    session = empty.readonly_session("main")
    with pytest.raises(InvalidInputError, match=r"variables='a' over \(x, y\), or variables='b'"):
        rows(session)
    assert rows(session, variables="a,c").num_rows == 4


def test_bounds_stay_out_unless_they_are_asked_for(empty: Repository) -> None:
    dataset = xr.Dataset(
        {"t": ("time", [1.0, 2.0]), "time_bnds": (("time", "nv"), np.ones((2, 2)))},
        coords={"time": ("time", [0, 1], {"bounds": "time_bnds"})},
    )
    commit(empty, dataset)
    session = empty.readonly_session("main")
    assert rows(session).column_names == ["time", "t"]
    assert rows(session, variables=["time_bnds"]).column_names == ["time", "nv", "time_bnds"]


def test_a_group_below_the_root(empty: Repository, dataset: xr.Dataset) -> None:
    commit(empty, dataset[["t2m"]].isel(time=slice(2)).drop_vars(["region", "run"]), group="a/b")
    session = empty.readonly_session("main")
    assert rows(session, group="a/b").num_rows == 2 * 6 * 8
    with pytest.raises(NodeNotFoundError, match=r"no group '/a/c' .* did you mean '/a/b'"):
        rows(session, group="a/c")
    with pytest.raises(InvalidInputError, match="'/a/b/t2m' is an array: set 'group'"):
        rows(session, group="a/b/t2m")
    with pytest.raises(InvalidInputError, match="group '/' has no arrays"):
        rows(session)


def test_a_variable_that_does_not_exist_is_told_with_the_nearest(session: Session) -> None:
    with pytest.raises(
        NodeNotFoundError, match="no variable 't2' in group '/': did you mean 't2m'"
    ):
        rows(session, variables=["t2"])


def test_arrays_that_disagree_about_a_dimension_are_refused(empty: Repository) -> None:
    with empty.transaction("main", message="two") as store:
        zarr.create_array(store, name="a", data=np.ones(2), dimension_names=["x"])
        zarr.create_array(store, name="b", data=np.ones(3), dimension_names=["x"])
    with pytest.raises(InvalidInputError, match="'x' has 2 positions in 'a' and 3 in 'b'"):
        rows(empty.readonly_session("main"))


def test_arrays_without_names_of_dimensions_are_numbered(empty: Repository) -> None:
    with empty.transaction("main", message="bare") as store:
        zarr.create_array(store, name="a", data=np.arange(4).reshape(2, 2))
    found = rows(empty.readonly_session("main"))
    assert found.to_pylist() == [
        {"dim_0": i, "dim_1": j, "a": 2 * i + j} for i in range(2) for j in range(2)
    ]


def test_a_scalar_is_one_row_and_an_empty_array_none(empty: Repository) -> None:
    with empty.transaction("main", message="small") as store:
        zarr.create_array(store, name="a", data=np.array(5))
        zarr.create_array(store, name="none", shape=(0,), chunks=(1,), dtype="i4")
    session = empty.readonly_session("main")
    assert rows(session, variables="a").to_pylist() == [{"a": 5}]
    assert rows(session, variables="none").num_rows == 0


def test_labels_too_many_to_travel_are_read_by_the_tasks(empty: Repository) -> None:
    labels = np.arange(100_000) / 8
    commit(
        empty,
        xr.Dataset({"a": ("x", np.arange(100_000))}, coords={"x": labels}),
        {"a": {"chunks": (7_000,)}, "x": {"chunks": (9_000,)}},
    )
    session = empty.readonly_session("main")
    plan = plan_rows(session, ReadOptions.parse({}))
    assert plan.columns[0].labels is None
    found = rows(session, sel={"x": slice(1000, 9000)}, target_bytes="100000")
    assert found["x"].to_pylist() == labels[8_000:72_001].tolist()
    assert found["a"].to_pylist() == list(range(8_000, 72_001))


def test_a_variable_with_the_name_of_a_dimension_is_refused(empty: Repository) -> None:
    with empty.transaction("main", message="odd") as store:
        zarr.create_array(store, name="x", data=np.ones((2, 2)), dimension_names=["x", "y"])
    with pytest.raises(InvalidInputError, match="'x' has the name of a dimension"):
        rows(empty.readonly_session("main"))


# -- chunks and partitions


def chunk_ids(session: Session, path: str, box: tuple[slice, ...]) -> set[str]:
    """Tell the files of an array's chunks in a box of the chunk grid."""
    node = session.transaction.require_array(Path(path))
    assert isinstance(node.node_data, ArrayNodeData)
    found = set()
    for part in session.transaction.fetch_chunk_refs(Path(path)):
        for indices, payload in zip(part.coords.tolist(), part.payloads, strict=True):
            inside = all(
                place in range(*axis.indices(1000))
                for place, axis in zip(indices, box, strict=True)
            )
            if inside and hasattr(payload, "id"):
                found.add(f"chunks/{payload.id}")
    return found


def chunk_reads(storage: CountingStorage) -> Counter[str]:
    """Count how often each chunk file was read from."""
    keys = (key for call in storage.calls for key in call.keys)
    return Counter(key for key in keys if key.startswith("chunks/"))


def test_a_selection_reads_its_chunks_and_no_others(empty: Repository) -> None:
    storage = CountingStorage(empty.storage)
    counted = Repository.open(storage)
    with counted.transaction("main", message="wide") as store:
        array = zarr.create_array(
            store, name="a", shape=(1200, 800), chunks=(100, 100), dtype="f8", compressors=None
        )
        array[:] = np.random.default_rng(0).random((1200, 800))
    session = counted.readonly_session("main")
    wanted = chunk_ids(session, "/a", (slice(2, 4), slice(7, 8)))
    assert len(wanted) == 2
    storage.forget()
    found = rows(session, isel={"dim_0": {"start": 250, "stop": 350}, "dim_1": -1})
    assert found.num_rows == 100
    read = chunk_reads(storage)
    assert set(read) == wanted
    assert set(read.values()) == {1}


def test_each_chunk_is_read_once_by_one_partition(tmp_path: pathlib.Path) -> None:
    """Also where chunks of one variable are parts of those of another."""
    storage = CountingStorage(local_filesystem_storage(tmp_path / "r"))
    repository = Repository.create(storage)
    random = np.random.default_rng(0)
    with repository.transaction("main", message="two grids") as store:
        for name, chunks in {"coarse": (50, 100), "fine": (25, 50)}.items():
            zarr.create_array(
                store,
                name=name,
                data=random.random((200, 200)),
                chunks=chunks,
                dimension_names=["y", "x"],
            )
    session = repository.readonly_session("main")
    options = ReadOptions.parse({"target_bytes": "1"})
    plan = plan_rows(session, options)
    parts = plan.partitions()
    assert len(parts) == 8
    storage.forget()
    for part in parts:
        for _ in read_rows(session, plan, part):
            pass
    read = chunk_reads(storage)
    everything = chunk_ids(session, "/coarse", (slice(None),) * 2)
    everything |= chunk_ids(session, "/fine", (slice(None),) * 2)
    assert set(read) == everything
    # Small chunks are packed: several of them may come from one file, but none of them twice.
    assert sum(read.values()) <= 8 + 32


def test_small_chunks_share_partitions(session: Session) -> None:
    plan = plan_rows(session, ReadOptions.parse({"variables": "rain"}))
    assert plan.grid == (5, 2, 4)
    assert len(plan.partitions()) == 1
    assert len(replace(plan, target_rows=48).partitions()) == 10


@pytest.mark.parametrize("total", [1, 10**6, 10**9, 10**13])
def test_partitions_are_neither_tiny_nor_too_many(total: int) -> None:
    count = 10**7
    parts = split_evenly(count, total, choose_target_bytes(total))
    assert len(parts) <= 10_001
    assert len(parts) == 1 or total / len(parts) >= 2**21
    assert [part.start for part in parts[1:]] == [part.stop for part in parts[:-1]]
    assert parts[0].start == 0
    assert parts[-1].stop == count


def test_a_range_of_blocks_becomes_few_boxes() -> None:
    """So that a task asks for many neighbouring chunks at a time."""
    assert list(iter_boxes(0, 24, (2, 3, 4))) == [((0, 2), (0, 3), (0, 4))]
    assert list(iter_boxes(5, 20, (2, 3, 4))) == [
        ((0, 1), (1, 2), (1, 4)),
        ((0, 1), (2, 3), (0, 4)),
        ((1, 2), (0, 2), (0, 4)),
    ]


@given(st.data())
def test_boxes_cover_their_range_exactly(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 5), max_size=4))
    size = int(np.prod(shape))
    first = data.draw(st.integers(0, size))
    stop = data.draw(st.integers(first, size))
    numbers = np.arange(size).reshape(shape)
    found = [
        number
        for box in iter_boxes(first, stop, shape)
        for number in numbers[tuple(slice(*ends) for ends in box)].reshape(-1).tolist()
    ]
    assert found == list(range(first, stop))


@given(st.lists(st.integers(1, 7), max_size=4), st.integers(1, 60))
def test_pieces_cover_a_box_in_order_and_are_small(shape: list[int], max_size: int) -> None:
    numbers = np.arange(int(np.prod(shape))).reshape(shape)
    found: list[int] = []
    for piece in iter_pieces(shape, max_size):
        part = numbers[tuple(slice(*ends) for ends in piece)].reshape(-1).tolist()
        assert len(part) <= max_size
        found += part
    assert found == list(range(numbers.size))


@given(st.data())
def test_an_axis_knows_the_chunk_of_every_position(data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 40))
    regular = RegularEdges("/x", length, data.draw(st.integers(1, 12)))
    edges = np.array([regular[number] for number in range(len(regular))])
    assert edges[-1] == length
    if data.draw(st.booleans()):
        start = data.draw(st.integers(0, length - 1))
        positions: Any = range(start, length, data.draw(st.integers(1, 9)))
    else:
        chosen = data.draw(st.sets(st.integers(0, length - 1), min_size=1))
        positions = np.array(sorted(chosen))
    axis = Axis.from_edges("x", positions, regular if data.draw(st.booleans()) else edges)
    found = []
    for number, chunk in enumerate(axis.chunks.tolist()):
        part = list(axis.positions[axis.offsets[number] : axis.offsets[number + 1]])
        assert part
        assert all(edges[chunk] <= position < edges[chunk + 1] for position in part)
        found += part
    assert found == list(positions)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_selected_rows_are_those_of_xarray(written: pathlib.Path, data: st.DataObject) -> None:
    session = Repository.open(local_filesystem_storage(written)).readonly_session("main")
    expected = xr.open_zarr(session.store, consolidated=False, chunks=None)
    isel: dict[str, Any] = {}
    for name, length in (("time", 10), ("lat", 6), ("lon", 8)):
        kind = data.draw(st.sampled_from(["all", "one", "list", "slice"]))
        if kind == "one":
            isel[name] = [data.draw(st.integers(-length, length - 1))]
        elif kind == "list":
            picked = st.lists(st.integers(0, length - 1), min_size=1, unique=True)
            isel[name] = data.draw(picked)
        elif kind == "slice":
            start = data.draw(st.integers(0, length - 1))
            stop = data.draw(st.integers(start + 1, length))
            isel[name] = slice(start, stop, data.draw(st.integers(1, 3)))
    target = data.draw(st.sampled_from([1, 500, 10**6]))
    found = rows(session, isel=isel, target_bytes=str(target))
    assert_same_rows(found, expected.isel(isel))
