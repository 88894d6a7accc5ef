"""Secrets in URLs that Icechunk saved are in no error, repr, HTML, log or output of a command."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import icechunk
import pytest
import zarr

import icefloe

if TYPE_CHECKING:
    from collections.abc import Callable

SECRET = "hush-hush"
COMMAND = Path(sys.executable).with_name("icefloe")

PREFIXES = {
    f"http://me:{SECRET}@example.org/": icechunk.http_store(),
    f"https://{SECRET}@example.org/": icechunk.http_store(),
    f"s3://me:{SECRET}@bucket/": icechunk.s3_store(region="us-east-1"),
}
LOCATIONS = [
    *(f"{prefix}x.nc" for prefix in PREFIXES),
    f"s3://me:a/{SECRET}@bucket/x.nc",
    f"s3://open/x.nc?X-Amz-Signature={SECRET}",
    f"ftp://me:{SECRET}@nowhere/x.nc",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a repository of Icechunk with secrets in containers and references."""
    root = tmp_path_factory.mktemp("secrets")
    config = icechunk.RepositoryConfig.default()
    for number, (prefix, store) in enumerate(PREFIXES.items()):
        name = "named" if number == 0 else None
        config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, store, name))
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(root)), config)
    repository.save_config()
    session = repository.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(len(LOCATIONS),), chunks=(1,), dtype="u1")
    for number, location in enumerate(LOCATIONS):
        session.store.set_virtual_ref(
            f"a/c/{number}", location, offset=0, length=1, validate_container=False
        )
    session.commit("references")
    return root


def open_repository(folder: Path, access: dict[str, Any] | None = None) -> icefloe.Repository:
    return icefloe.Repository.open(icefloe.local_filesystem_storage(folder), None, access)


def show(value: Any) -> str:
    html = value._repr_html_() if hasattr(value, "_repr_html_") else ""
    return f"{value!r} {value} {html}"


def test_values(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Configurations, containers, references and dependencies show no secret."""
    caplog.set_level(logging.DEBUG)
    repository = open_repository(folder, {"named": icefloe.Credentials.HttpAccess()})
    dependencies = repository.dependencies()
    references = list(repository.readonly_session("main").virtual_refs())
    assert {ref.location for ref in references} == set(LOCATIONS)
    shown = " ".join(
        [
            show(repository),
            show(repository.config),
            *map(show, (repository.config.virtual_chunk_containers or {}).values()),
            *map(show, repository.list_virtual_chunk_containers()),
            *(access.authorization for access in repository.list_virtual_chunk_containers()),
            show(dependencies),
            *map(show, dependencies.containers),
            *map(show, dependencies.files()),
            *map(show, references),
            *(show(repository.find_dependents(location)) for location in LOCATIONS),
            *(show(icefloe.VirtualChunkSpec([0], location, 0, 1)) for location in LOCATIONS),
        ]
    )
    assert SECRET not in shown
    assert "http://...@example.org/" in shown
    assert SECRET not in caplog.text


def test_authorization_is_shown_without_secrets(folder: Path) -> None:
    """The expression for an authorization works, with the name or the masked prefix as key."""
    for access in open_repository(folder).list_virtual_chunk_containers():
        prefix = access.container.url_prefix
        if prefix in PREFIXES:
            names = {name: getattr(icefloe, name) for name in ("Credentials", "S3Credentials")}
            keys = eval(access.authorization, names)  # noqa: S307 - our own expression
            assert open_repository(folder, keys).authorized_virtual_container_prefixes >= {prefix}


def test_errors(folder: Path) -> None:
    """Errors and their causes show no secret."""
    array = zarr.open_array(open_repository(folder).readonly_session("main").store, path="a")
    store = open_repository(folder).writable_session("main").store
    web = icefloe.http_storage("http://127.0.0.1:1")
    url = LOCATIONS[0]
    calls: list[Callable[[], object]] = [
        *(lambda number=number: array[number] for number in range(len(LOCATIONS))),
        lambda: store.set_virtual_ref("a/c/0", LOCATIONS[-1], offset=0, length=1),
        lambda: list(store.session.virtual_refs(container=LOCATIONS[-1])),
        lambda: web.get(url),
        lambda: icefloe.VirtualChunkContainer(url, icefloe.http_store()),
        lambda: icefloe.redirect_storage(url),
    ]
    for call in calls:
        with pytest.raises(icefloe.IcefloeError) as raised:
            call()
        assert SECRET not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize(
    "arguments",
    [
        ("dependencies", "{}"),
        ("dependencies", "{}", "--files"),
        ("dependencies", "{}", "--files", "--json"),
        ("locations", "{}"),
        ("locations", "{}", "--json"),
        ("dependents", "{}", LOCATIONS[0]),
        ("dependents", "{}", LOCATIONS[0], "--json"),
        ("inspect", "{}/repo"),
        ("inspect", "{}/manifest"),
    ],
)
def test_commands(folder: Path, arguments: tuple[str, ...]) -> None:
    """Commands and ``--json`` mask secrets, also in the keys of containers."""
    (manifest,) = (folder / "manifests").iterdir()
    names = {f"{folder}/manifest": str(manifest)}
    formatted = [part.format(folder) for part in arguments]
    done = subprocess.run(
        [COMMAND, *(names.get(part, part) for part in formatted)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "...@example.org" in done.stdout or arguments[0] == "dependents"
    assert SECRET not in done.stdout + done.stderr
    if "--json" in arguments:
        json.loads(done.stdout)
