from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np
import pytest

from icefloe.errors import InvalidInputError, RepositoryNotFoundError
from icefloe.spark.option_parsing import encode_options
from icefloe.spark.reading.read_options import ReadOptions
from icefloe.spark.reading.repository_options import open_from_options
from icefloe.storage.credentials import S3Credentials

if TYPE_CHECKING:
    from icefloe.storage import ObjectStorage


def test_options_are_read_in_any_case() -> None:
    read = ReadOptions.parse(
        {
            "PATH": "s3://bucket/weather",
            "Group": "a/b/",
            "variables": "t2m, rain",
            "as_of": "2026-01-31T12:00:00Z",
            "isel": '{"time": 0}',
            "nan_as_null": "False",
            "target_rows": "1000",
        }
    )
    assert read.repository == {"path": "s3://bucket/weather"}
    assert read.group == "/a/b"
    assert read.variables == ("t2m", "rain")
    assert read.as_of == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert read.isel == {"time": 0}
    assert not read.nan_as_null
    assert read.target_rows == 1000


def test_names_with_commas_are_given_as_json() -> None:
    assert ReadOptions.parse({"variables": '["a,b", "c"]'}).variables == ("a,b", "c")


def test_python_values_become_options_that_are_read_back() -> None:
    time = datetime(2020, 1, 2)  # noqa: DTZ001
    given = encode_options(
        variables=["a"],
        sel={"time": slice(time, None), "x": np.float32(0.5), "y": np.arange(2)},
        isel={"z": slice(0, 4, 2), "t": range(2), "w": np.datetime64("2020-01-01")},
        branch=None,
    )
    read = ReadOptions.parse(given)
    assert read.sel == {"time": {"start": "2020-01-02T00:00:00"}, "x": 0.5, "y": [0, 1]}
    assert read.isel == {
        "z": {"start": 0, "stop": 4, "step": 2},
        "t": [0, 1],
        "w": "2020-01-01",
    }
    with pytest.raises(InvalidInputError, match="cannot be written as an option"):
        encode_options(sel={"x": object()})


@pytest.mark.parametrize(
    "options, message",
    [
        ({"brnch": "dev"}, "no option 'brnch': did you mean 'branch'"),
        ({"table": "snapshot"}, "no table 'snapshot': did you mean 'snapshots'"),
        ({"layout": "columns"}, "no layout 'columns'"),
        ({"table": "refs", "branch": "dev"}, "'branch' has no effect on table='refs'"),
        ({"table": "nodes", "sel": "{}"}, "'sel' has no effect on table='nodes'"),
        ({"layout": "chunks", "nan_as_null": "true"}, "no effect on layout='chunks'"),
        ({"from": "v1"}, "'from' has no effect"),
        ({"table": "changes"}, "needs the option 'from'"),
        ({"branch": "dev", "tag": "v1"}, "'branch' and 'tag' are mutually exclusive"),
        ({"as_of": "2026-01-01T00:00:00Z", "tag": "v1"}, "omit 'tag'"),
        ({"as_of": "yesterday"}, "a time such as"),
        ({"as_of": "2026-01-01"}, "no time zone"),
        ({"sel": "time"}, "'sel': expected a JSON object by dimension"),
        ({"isel": "[1]"}, "JSON object by dimension"),
        ({"target_bytes": "lots"}, "a positive integer"),
        ({"target_rows": "0"}, "a positive integer"),
        ({"nan_as_null": "maybe"}, "true or false"),
        ({"variables": "a,,b"}, "an empty name"),
    ],
    ids=str,
)
def test_errors_name_the_option(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        ReadOptions.parse(options)


@pytest.mark.parametrize(
    "name", ["secret_access_key", "aws_session_token", "access_key_id", "sas_token", "password"]
)
def test_credentials_are_no_options_and_are_not_repeated(name: str) -> None:
    with pytest.raises(InvalidInputError, match=r"pass an open repository") as refused:
        ReadOptions.parse({name: "hunter2"})
    assert "hunter2" not in str(refused.value)


def test_options_name_kinds_of_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[ObjectStorage] = []

    def note(storage: ObjectStorage, **_: object) -> None:
        opened.append(storage)

    monkeypatch.setattr("icefloe.spark.reading.repository_options.Repository.open", note)
    open_from_options(
        {
            "path": "s3://bucket/weather",
            "anonymous": "true",
            "region": "eu-central-1",
            "endpoint_url": "http://127.0.0.1:9",
            "allow_http": "true",
        }
    )
    place = opened[0].place
    assert place.region == "eu-central-1"  # type: ignore[union-attr]
    assert isinstance(place.credentials, S3Credentials.Anonymous)  # type: ignore[union-attr]
    assert opened[0].url.endswith("weather")


@pytest.mark.parametrize(
    "place, message",
    [
        ({}, "option 'path' is missing"),
        ({"path": "/data/repo", "anonymous": "true"}, "are only for s3://, gs:// and az://"),
        ({"path": "gs://bucket/x", "region": "eu"}, "'region' is only for s3:// URLs"),
        ({"path": "/x", "authorize_virtual_chunk_access": "all"}, "JSON object such as"),
        (
            {"path": "/x", "authorize_virtual_chunk_access": '{"s3://b/": "hunter2"}'},
            "'s3://b/': expected null",
        ),
    ],
    ids=str,
)
def test_places_that_make_no_sense_are_refused(place: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as refused:
        open_from_options(place)
    assert "hunter2" not in str(refused.value)


def test_a_repository_that_does_not_exist_is_told_with_its_place(tmp_path: object) -> None:
    with pytest.raises(RepositoryNotFoundError, match=f"no repository at .*{tmp_path}"):
        open_from_options({"path": f"{tmp_path}/nothing"})
