"""Passwords, signatures and tokens in URLs reach neither the repository nor a message."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import icefloe
import icefloe.virtual
from icefloe.errors import InvalidInputError
from icefloe.pipeline import append, export, ingest, open_repository, virtualize
from icefloe.storage.urls import require_shareable
from support.netcdf_files import create, write_files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PASSWORDS = ["https://me:SECRET@host/a.nc", "s3://key:SECRET@bucket/*.nc", "https://SECRET@host/a"]
SIGNATURES = [
    "https://host/a.nc?X-Amz-Credential=a/b&X-Amz-Signature=SECRET",
    "https://host/a.nc?sv=2024&sig=SECRET",
    "s3://bucket/a.nc?X-Amz-Security-Token=SECRET",
]


@pytest.fixture
def repository(tmp_path: Path) -> icefloe.Repository:
    return create(tmp_path / "repository", tmp_path)


def catch_refusal(call: Callable[[], Any]) -> str:
    """Return the error message of a call, which must not contain the secret."""
    with pytest.raises(InvalidInputError) as raised:
        call()
    assert "SECRET" not in str(raised.value)
    assert "credentials" in str(raised.value), "what to do instead"
    return str(raised.value)


@pytest.mark.parametrize("url", [*PASSWORDS, *SIGNATURES])
def test_no_source_with_a_secret(url: str, repository: icefloe.Repository) -> None:
    """References and the record of sources would expose it to all readers."""
    problem = "user or password" if url in PASSWORDS else "signature or token"
    for job in (virtualize, ingest):
        assert problem in catch_refusal(lambda job=job: job(None, repository, url))  # type: ignore[misc]
        assert problem in catch_refusal(lambda job=job: job(None, repository, [url], dry_run=True))  # type: ignore[misc]
    assert problem in catch_refusal(lambda: icefloe.virtual.parse(url))
    assert len(list(repository.ancestry(branch="main"))) == 1


def test_no_appended_source_with_a_secret(tmp_path: Path, repository: icefloe.Repository) -> None:
    ingest(None, repository, write_files(tmp_path / "archive"))
    catch_refusal(lambda: append(None, repository, SIGNATURES))
    assert len(list(repository.ancestry(branch="main"))) == 2


def test_no_repository_is_opened_for_such_sources(tmp_path: Path) -> None:
    """No repository is created, and no container is saved or suggested."""
    for url in (*PASSWORDS, *SIGNATURES):
        for named in ("sources", "referred"):
            catch_refusal(lambda: open_repository(tmp_path / "new", create=True, **{named: [url]}))  # type: ignore[arg-type] # noqa: B023
    for prefix in ("https://me:SECRET@host/", "s3://key:SECRET@bucket/"):
        catch_refusal(lambda: open_repository(tmp_path / "new", create=True, containers=[prefix]))  # noqa: B023
    with pytest.raises(InvalidInputError) as raised:
        open_repository(tmp_path / "new", create=True, containers=["https://host/?sig=SECRET"])
    assert "SECRET" not in str(raised.value)
    assert not (tmp_path / "new").exists()


def test_no_endpoint_with_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The endpoint of the environment is saved with the container."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://key:SECRET@127.0.0.1:9000")
    with pytest.raises(InvalidInputError, match="AWS_ACCESS_KEY_ID") as raised:
        open_repository(tmp_path / "new", create=True, containers=["s3://bucket/"])
    assert "SECRET" not in str(raised.value)


@pytest.mark.parametrize("url", [PASSWORDS[0], SIGNATURES[0]])
def test_no_reference_of_others_with_a_secret(url: str, tmp_path: Path) -> None:
    """References in reference files may be signed URLs."""
    array = {"zarr_format": 2, "shape": [1], "chunks": [1], "dtype": "<i4", "order": "C"}
    refs = {
        ".zgroup": json.dumps({"zarr_format": 2}),
        "a/.zarray": json.dumps({**array, "compressor": None, "filters": None, "fill_value": 0}),
        "a/0": [url, 0, 4],
    }
    (tmp_path / "refs.json").write_text(json.dumps({"version": 1, "refs": refs}))
    catch_refusal(lambda: icefloe.virtual.parse(tmp_path / "refs.json"))


def test_no_target_with_a_secret(repository: icefloe.Repository) -> None:
    for format in ("zarr", "parquet"):  # noqa: A001 - as export calls it
        with pytest.raises(InvalidInputError, match="password") as raised:
            export(None, repository, "s3a://key:SECRET@bucket/x", format=format)
        assert "SECRET" not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket/part-?/key=7/*.nc",
        "s3://bucket/a?.nc",
        "https://host:8080/a@b.nc?download=1",
        "https://[::1]:80/a.nc",
        "abfss://box@account.dfs.core.windows.net/a.nc",
        "data/a?sig=b.nc",
        "file:///data/a@b:c?key=d.nc",
    ],
)
def test_what_only_looks_like_a_secret_is_none(url: str) -> None:
    require_shareable(url)
