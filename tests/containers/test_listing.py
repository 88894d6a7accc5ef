"""Listing virtual references: all of them or those of a query, in bounded memory."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import zarr

import icefloe
from icefloe.containers.virtual_refs import VirtualRef
from icefloe.errors import InvalidInputError, NodeNotFoundError
from support.referring_repositories import (
    archive_config,
    new_repository,
    numbers,
    session_with,
)

TIME = datetime(2024, 1, 2, tzinfo=UTC)
ALIAS = icefloe.VirtualChunkContainer(
    "s3://archive/2019/", icefloe.s3_store(region="x"), name="one year"
)


def referring_session() -> icefloe.Session:
    """Refer to six files from three arrays, in five ways to name them."""
    session = session_with(
        {"a": (2, 2), "group/b": (3,), "group/deep/c": (2,)},
        new_repository(config=archive_config(ALIAS)),
    )
    store = session.store
    store.set_virtual_refs_arr(
        "a",
        (2, 2),
        ["s3://archive/2018/x.nc", "s3://archive/2019/x.nc", "", "vcc://cold/2019/x.nc"],
        numbers(0, 1, 2, 3),
        numbers(10, 11, 12, 13),
        checksum=["tag", TIME, None, None],
    )
    store.set_virtual_refs_arr(
        "group/b",
        (3,),
        ["s3://archive/2019/%78.nc", "gs://nowhere/x", "s3://archive/2018/x.nc"],
        numbers(4, 5, 6),
        numbers(1, 1, 1),
        validate_containers=False,
    )
    store.set_virtual_ref("group/deep/c/c/1", "s3://archive/y.txt", offset=0, length=1)
    zarr.open_array(store, path="group/deep/c")[0] = 1
    return session


def test_every_reference_with_all_that_is_known() -> None:
    """A listing has each virtual chunk once, native ones not at all."""
    found = list(referring_session().virtual_refs(array_path="a"))
    cold, year = "s3://archive/", "s3://archive/2019/"
    assert found == [
        VirtualRef("/a", (0, 0), "s3://archive/2018/x.nc", 0, 10, "tag", None, cold),
        VirtualRef("/a", (0, 1), "s3://archive/2019/x.nc", 1, 11, None, TIME, year),
        VirtualRef("/a", (1, 1), "vcc://cold/2019/x.nc", 3, 13, None, None, year),
    ]


A, B, C = (("/a", {0, 1, 3}), ("/group/b", {4, 5, 6}), ("/group/deep/c", {0}))
QUERIES: dict[str, tuple[dict[str, Any], list[tuple[str, set[int]]]]] = {
    "all": ({}, [A, B, C]),
    "an array": ({"array_path": "/group/b"}, [B]),
    "a group": ({"array_path": "group"}, [B, C]),
    "a prefix, whatever the name": (
        {"prefix": "s3://archive/2019/"},
        [("/a", {1, 3}), ("/group/b", {4})],
    ),
    "a prefix as it is stored": ({"prefix": "vcc://cold/"}, [("/a", {3})]),
    "a glob": ({"glob": "s3://*/x.nc"}, [A, ("/group/b", {4, 6})]),
    "a regular expression": ({"regex": r"\.txt$"}, [C]),
    "a container by name": ({"container": "one year"}, [("/a", {1, 3}), ("/group/b", {4})]),
    "a container by prefix": ({"container": "s3://archive"}, [("/a", {0}), ("/group/b", {6}), C]),
    "everything at once": (
        {
            "array_path": "a",
            "prefix": "s3://",
            "regex": "2019",
            "glob": "*.nc",
            "container": "one year",
        },
        [("/a", {1, 3})],
    ),
    "nothing": ({"prefix": "s3://other/"}, []),
}


@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.parametrize("committed", [True, False])
def test_queries(name: str, *, committed: bool) -> None:
    """A query finds what it asks for, by array and by location, committed or not."""
    session = referring_session()
    if committed:
        session.commit("referred")
    query, expected = QUERIES[name]
    refs = list(session.virtual_refs(**query))
    assert [(ref.array_path, ref.offset) for ref in refs] == [
        (path, offset) for path, offsets in expected for offset in sorted(offsets)
    ]
    table = session.virtual_refs_table(**query)
    assert table.num_rows == len(refs)
    assert table.column("location").to_pylist() == [ref.location for ref in refs]
    assert sorted(session.virtual_locations(**query)) == sorted({ref.location for ref in refs})


def test_the_table_is_what_the_iterator_yields() -> None:
    """Both listings agree in every column, and batches have the same schema."""
    session = referring_session()
    table = session.virtual_refs_table()
    rows = [VirtualRef(**{**row, "index": tuple(row["index"])}) for row in table.to_pylist()]
    assert rows == list(session.virtual_refs())
    batches = list(session.virtual_refs_batches())
    assert {batch.schema for batch in batches} == {table.schema}
    assert pa.Table.from_batches(batches).to_pylist() == table.to_pylist()


def test_a_listing_can_be_set_again() -> None:
    """What was listed of one array makes the same references in another repository."""
    session = referring_session()
    for path, grid in (("a", (2, 2)), ("group/b", (3,))):
        other = session_with({path: grid})
        table = session.virtual_refs_table(array_path=path)
        assert other.store.set_virtual_refs_table(path, table, validate_containers=False) is None
        again = other.virtual_refs_table(array_path=path)
        assert again.drop_columns("container").to_pylist() == (
            table.drop_columns("container").to_pylist()
        )


def test_nothing_to_list() -> None:
    """A repository without virtual chunks has an empty listing with all columns."""
    session = session_with({"a": (2,)})
    assert list(session.virtual_refs()) == []
    assert session.virtual_locations() == []
    table = session.virtual_refs_table()
    assert (table.num_rows, table.num_columns) == (0, 8)


def test_bad_queries() -> None:
    """What a query names must be there, and an expression must be one."""
    session = referring_session()
    with pytest.raises(NodeNotFoundError, match="/absent"):
        list(session.virtual_refs(array_path="absent"))
    with pytest.raises(InvalidInputError, match="cold"):
        list(session.virtual_refs(container="absent"))
    with pytest.raises(InvalidInputError, match="not a regular expression"):
        list(session.virtual_refs(regex="("))


def test_manifest_by_manifest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The iterator has read one manifest when it yields the first reference, not all of them."""
    sizes = {
        icefloe.ManifestSplitCondition.AnyArray(): {icefloe.ManifestSplitDimCondition.Any(): 10}
    }
    config = archive_config()
    config.manifest = icefloe.ManifestConfig(
        splitting=icefloe.ManifestSplittingConfig.from_dict(sizes)
    )
    session = session_with({"a": (50,)}, new_repository(config=config))
    ones = np.ones(50, np.uint64)
    session.store.set_virtual_refs_arr("a", (50,), ["s3://archive/a"] * 50, ones, ones)
    session.commit("five manifests")
    fetched = []
    real = session.transaction.assets.fetch_manifest

    def fetch_manifest(manifest_id: Any) -> Any:
        fetched.append(manifest_id)
        return real(manifest_id)

    monkeypatch.setattr(session.transaction.assets, "fetch_manifest", fetch_manifest)
    refs = session.virtual_refs()
    assert next(refs).index == (0,)
    assert len(fetched) == 1
    assert len(list(refs)) == 49
    assert len(fetched) == 5
