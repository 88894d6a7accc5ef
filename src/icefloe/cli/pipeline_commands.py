"""The commands that start jobs of `icefloe.pipeline`: their options, their help, no logic."""

from __future__ import annotations

import re
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from icefloe.cli.arguments import (
    WHERE_IT_RUNS,
    AsJson,
    Containers,
    Group,
    Master,
    Ref,
    Remote,
    RepositoryPlace,
    read_json,
)
from icefloe.cli.job_runner import Engine, run_job

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.repository import Repository

Command = TypeVar("Command", bound="Callable[..., Any]")
commands = typer.Typer(rich_markup_mode="rich")
_PANEL = "Jobs on Spark"
_COMMIT = "The commit"


class OnError(StrEnum):
    """What becomes of sources in which something is wrong."""

    RAISE = "raise"
    SKIP = "skip"


class Order(StrEnum):
    """How files follow each other."""

    GIVEN = "given"
    COORDINATES = "coordinates"


class Format(StrEnum):
    """What exports are written in."""

    ZARR = "zarr"
    PARQUET = "parquet"


class Method(StrEnum):
    """How several items become one."""

    MEAN = "mean"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    MODE = "mode"
    NEAREST = "nearest"


class Layout(StrEnum):
    """How levels are laid out."""

    PLAIN = "plain"
    OME = "ome"


_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}


def _size(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?I?)B?", text.strip().upper())
    if found is None or found[2] not in _UNITS:
        raise typer.BadParameter(f"{text!r} is no size: give one such as 256MB")
    return int(float(found[1]) * _UNITS[found[2]])


def _lengths(text: str) -> Any:
    """Read ``time=365,lat=10`` as lengths by dimension, ``365,10`` as a shape, ``2`` as both."""
    try:
        if "=" in text:
            pairs = [one.split("=") for one in text.split(",")]
            return {name.strip(): int(length) for name, length in pairs}
        return tuple(int(one) for one in text.split(","))
    except ValueError as error:
        raise typer.BadParameter(
            f"{text!r}: give lengths by dimension, as time=365,lat=10 (-1 is a whole dimension)"
        ) from error


def _types(text: str) -> Any:
    """Read ``float32`` as the data type of all, ``t2m=float32,rain=int16`` as those of some."""
    if "=" not in text:
        return text.strip()
    pairs = [one.partition("=") for one in text.split(",")]
    return {name.strip(): dtype.strip() for name, _, dtype in pairs}


_Sources = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SOURCES]",
        help="Files, URLs, or patterns of them in quotes: 'data/*.nc', 's3://bucket/**/*.nc'.",
    ),
]
_Table = Annotated[
    str | None,
    typer.Option(
        "--table",
        metavar="FILE",
        help="A Parquet or CSV file that lists sources, in a column called url or path.",
    ),
]
_Dims = Annotated[
    list[str],
    typer.Option(
        "--dim",
        "-d",
        metavar="NAME",
        help="The dimension along which files follow each other; may be repeated.",
    ),
]
_Dim = Annotated[str, typer.Option("--dim", "-d", metavar="NAME", help="The dimension that grows.")]
_Branch = Annotated[
    str,
    typer.Option(
        "--branch", "-b", metavar="NAME", rich_help_panel=_COMMIT, help="The branch that gets it."
    ),
]
_OrderOption = Annotated[
    Order | None,
    typer.Option("--order", help="By coordinates where files have them, or as given."),
]
_OnErrorOption = Annotated[
    OnError,
    typer.Option("--on-error", help="Fail and list all bad files, or go on without them."),
]
_Drop = Annotated[
    list[str] | None,
    typer.Option("--drop", metavar="NAME", help="A variable to leave out; may be repeated."),
]
_Create = Annotated[bool, typer.Option("--create", help="Create the repository if there is none.")]
_SpecVersion = Annotated[
    int | None,
    typer.Option(
        "--spec-version", min=1, max=2, help="With --create: the version of the format, 1 or 2."
    ),
]
_Chunks = Annotated[
    Any,
    typer.Option(
        "--chunks",
        parser=_lengths,
        metavar="DIM=N,…",
        help="Lengths of chunks, as time=30,lat=-1; -1 is the whole dimension.",
    ),
]
_Shards = Annotated[
    Any, typer.Option("--shards", parser=_lengths, metavar="DIM=N,…", help="Lengths of shards.")
]
_Codecs = Annotated[
    Any,
    typer.Option(
        "--codecs", parser=read_json, metavar="JSON", help="A chain of Zarr codecs, as JSON."
    ),
]
_DType = Annotated[str | None, typer.Option("--dtype", help="Another data type, as float32.")]
_DTypes = Annotated[
    Any,
    typer.Option(
        "--dtype",
        parser=_types,
        metavar="[NAME=]TYPE,…",
        help="Another data type: float32, or by variable t2m=float32,rain=float64.",
    ),
]
_TransactionId = Annotated[
    str | None,
    typer.Option(
        "--transaction-id",
        metavar="ID",
        rich_help_panel=_COMMIT,
        help="The name of this job: run twice with one name, it commits once.",
    ),
]
_Message = Annotated[
    str | None,
    typer.Option(
        "--message", "-m", metavar="TEXT", rich_help_panel=_COMMIT, help="What history shows."
    ),
]
_MaxChunks = Annotated[
    int,
    typer.Option(
        "--max-chunks",
        min=1,
        rich_help_panel=WHERE_IT_RUNS,
        help="Refuse more than so many: this process holds a reference to each.",
    ),
]
_DEFAULT_MAX_CHUNKS: Final = 10_000_000

_TaskBytes = Annotated[
    Any,
    typer.Option(
        "--task-bytes",
        parser=_size,
        metavar="SIZE",
        rich_help_panel=WHERE_IT_RUNS,
        help="What a task may hold in memory.",
    ),
]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan, and touch nothing.")]
_Spark = Annotated[
    bool,
    typer.Option(
        "--spark/--no-spark",
        rich_help_panel=WHERE_IT_RUNS,
        help="On Spark, or in this one process: quicker for small jobs.",
    ),
]


def _job(epilog: str) -> Callable[[Command], Command]:
    return commands.command(epilog=epilog, rich_help_panel=_PANEL)


@_job(
    "Examples:\n\n"
    "  icefloe virtualize weather 'archive/*.nc' --create --container archive\n\n"
    "  icefloe virtualize s3://bucket/weather 's3://archive/2024/*.nc' --dim time --dry-run"
)
def virtualize(
    repository: RepositoryPlace,
    sources: _Sources = None,
    *,
    table: _Table = None,
    dims: _Dims = ["time"],  # noqa: B006 - typer reads it
    group: Group = "/",
    branch: _Branch = "main",
    order: _OrderOption = None,
    on_error: _OnErrorOption = OnError.RAISE,
    drop: _Drop = None,
    create: _Create = False,
    spec_version: _SpecVersion = None,
    containers: Containers = None,
    transaction_id: _TransactionId = None,
    message: _Message = None,
    dry_run: _DryRun = False,
    as_json: AsJson = False,
    master: Master = None,
    remote: Remote = None,
    spark: _Spark = True,
) -> None:
    """Make one dataset of many files without copying them: chunks stay where they are."""
    from icefloe import pipeline  # noqa: PLC0415 - brings zarr along

    files = _listed(sources, table)
    opened = _open_or_create(
        repository,
        files,
        create=create,
        spec_version=spec_version,
        dry_run=dry_run,
        containers=containers or (),
        referred=files,
    )
    run_job(
        Engine(master, remote, spark),
        lambda session, progress: pipeline.virtualize(
            session,
            opened,
            files,
            dims=dims,
            group=group,
            branch=branch,
            order=_value(order),
            on_error=_value(on_error),
            parse_options=_parse_options(drop),
            transaction_id=transaction_id,
            message=message,
            dry_run=dry_run,
            progress=progress,
        ),
        as_json=as_json,
    )


@_job(
    "Examples:\n\n"
    "  icefloe ingest weather 'archive/*.nc' --create --chunks time=30,lat=90,lon=90\n\n"
    "  icefloe ingest s3://bucket/weather 's3://archive/**/*.nc' --unpack --dtype float32"
)
def ingest(
    repository: RepositoryPlace,
    sources: _Sources = None,
    *,
    table: _Table = None,
    dims: _Dims = ["time"],  # noqa: B006 - typer reads it
    group: Group = "/",
    branch: _Branch = "main",
    chunks: _Chunks = None,
    shards: _Shards = None,
    codecs: _Codecs = None,
    unpack: Annotated[
        bool, typer.Option("--unpack", help="Apply scale_factor and add_offset to the values.")
    ] = False,
    dtype: _DTypes = None,
    pack: Annotated[
        Any,
        typer.Option(
            "--pack",
            parser=read_json,
            metavar="JSON",
            help='Store as packed numbers: {"t2m": {"dtype": "int16", "scale_factor": 0.01}}.',
        ),
    ] = None,
    order: _OrderOption = None,
    on_error: _OnErrorOption = OnError.RAISE,
    drop: _Drop = None,
    create: _Create = False,
    spec_version: _SpecVersion = None,
    task_bytes: _TaskBytes = "256MB",
    transaction_id: _TransactionId = None,
    message: _Message = None,
    dry_run: _DryRun = False,
    as_json: AsJson = False,
    master: Master = None,
    remote: Remote = None,
    spark: _Spark = True,
) -> None:
    """Copy many files into the repository as one dataset, in chunks of your choice."""
    from icefloe import pipeline  # noqa: PLC0415 - brings zarr along

    files = _listed(sources, table)
    opened = _open_or_create(
        repository,
        files,
        create=create,
        spec_version=spec_version,
        dry_run=dry_run,
        sources=files,
    )
    run_job(
        Engine(master, remote, spark),
        lambda session, progress: pipeline.ingest(
            session,
            opened,
            files,
            dims=dims,
            group=group,
            branch=branch,
            chunks=chunks,
            shards=shards,
            codecs=codecs,
            unpack=unpack,
            dtype=dtype,
            pack=pack,
            order=_value(order),
            on_error=_value(on_error),
            parse_options=_parse_options(drop),
            task_bytes=task_bytes,
            transaction_id=transaction_id,
            message=message,
            dry_run=dry_run,
            progress=progress,
        ),
        as_json=as_json,
    )


@_job(
    "Example:  icefloe append weather 'archive/2025-*.nc'\n\n"
    "Files that were appended before are left alone, so that it can run every hour."
)
def append(
    repository: RepositoryPlace,
    sources: _Sources = None,
    *,
    table: _Table = None,
    dim: _Dim = "time",
    group: Group = "/",
    branch: _Branch = "main",
    virtual: Annotated[
        bool | None,
        typer.Option(
            "--virtual/--native", help="Refer to the files or copy them; else as the group has it."
        ),
    ] = None,
    on_error: _OnErrorOption = OnError.RAISE,
    drop: _Drop = None,
    containers: Containers = None,
    task_bytes: _TaskBytes = "256MB",
    transaction_id: _TransactionId = None,
    message: _Message = None,
    dry_run: _DryRun = False,
    as_json: AsJson = False,
    master: Master = None,
    remote: Remote = None,
    spark: _Spark = True,
) -> None:
    """Add new files along a dimension; those that are there already are left alone."""
    from icefloe import pipeline  # noqa: PLC0415 - brings zarr along
    from icefloe.pipeline.jobs.append import holds_virtual_chunks  # noqa: PLC0415

    files = _listed(sources, table)
    open_with = partial(
        pipeline.open_repository, repository, containers=containers or (), dry_run=dry_run
    )
    if virtual is None:
        virtual = holds_virtual_chunks(open_with(), group, dim, branch=branch)
    opened = open_with(referred=files) if virtual else open_with(sources=files)
    run_job(
        Engine(master, remote, spark),
        lambda session, progress: pipeline.append(
            session,
            opened,
            files,
            dim=dim,
            group=group,
            branch=branch,
            virtual=virtual,
            on_error=_value(on_error),
            parse_options=_parse_options(drop),
            task_bytes=task_bytes,
            transaction_id=transaction_id,
            message=message,
            dry_run=dry_run,
            progress=progress,
        ),
        as_json=as_json,
    )


@_job(
    "Examples:\n\n"
    "  icefloe rechunk weather t2m --chunks time=-1,lat=10,lon=10 --target series/t2m\n\n"
    "  icefloe rechunk s3://bucket/weather / --chunks time=1 --dry-run"
)
def rechunk(
    repository: RepositoryPlace,
    arrays: Annotated[
        list[str],
        typer.Argument(metavar="ARRAYS", help="Arrays, or groups of arrays, by their paths."),
    ],
    *,
    chunks: _Chunks = None,
    shards: _Shards = None,
    codecs: _Codecs = None,
    dtype: _DType = None,
    target: Annotated[
        str | None,
        typer.Option("--target", metavar="PATH", help="Where it goes; in place if not given."),
    ] = None,
    branch: _Branch = "main",
    containers: Containers = None,
    task_bytes: _TaskBytes = "256MB",
    transaction_id: _TransactionId = None,
    message: _Message = None,
    dry_run: _DryRun = False,
    as_json: AsJson = False,
    master: Master = None,
    remote: Remote = None,
    spark: _Spark = True,
) -> None:
    """Cut arrays into other chunks."""
    from icefloe import pipeline  # noqa: PLC0415 - brings zarr along

    opened = pipeline.open_repository(repository, containers=containers or (), dry_run=dry_run)
    run_job(
        Engine(master, remote, spark),
        lambda session, progress: pipeline.rechunk(
            session,
            opened,
            arrays[0] if len(arrays) == 1 else arrays,
            chunks,
            shards=shards,
            codecs=codecs,
            dtype=dtype,
            target=target,
            branch=branch,
            task_bytes=task_bytes,
            transaction_id=transaction_id,
            message=message,
            dry_run=dry_run,
            progress=progress,
        ),
        as_json=as_json,
    )


@_job(
    "Example:  icefloe materialize weather t2m --container s3://archive/\n\n"
    "Containers are named, because reading them is what you allow here."
)
def materialize(
    repository: RepositoryPlace,
    arrays: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARRAYS", help="Arrays or groups by their paths; else all."),
    ] = None,
    *,
    prefix: Annotated[
        str | None, typer.Option("--prefix", metavar="URL", help="Only chunks in these files.")
    ] = None,
    branch: _Branch = "main",
    containers: Containers = None,
    on_error: _OnErrorOption = OnError.RAISE,
    task_bytes: _TaskBytes = "256MB",
    max_chunks: _MaxChunks = _DEFAULT_MAX_CHUNKS,
    transaction_id: _TransactionId = None,
    message: _Message = None,
    dry_run: _DryRun = False,
    as_json: AsJson = False,
    master: Master = None,
    remote: Remote = None,
    spark: _Spark = True,
) -> None:
    """Copy virtual chunks into the repository, so that it needs the files no more."""
    from icefloe import pipeline  # noqa: PLC0415 - brings zarr along

    opened = pipeline.open_repository(repository, containers=containers or (), dry_run=dry_run)
    run_job(
        Engine(master, remote, spark),
        lambda session, progress: pipeline.materialize(
            session,
            opened,
            arrays or "/",
            prefix=prefix,
            branch=branch,
            task_bytes=task_bytes,
            max_chunks=max_chunks,
            on_error=on_error.value,
            transaction_id=transaction_id,
            message=message,
            dry_run=dry_run,
            progress=progress,
        ),
        as_json=as_json,
    )


@_job("Example:  icefloe compact s3://bucket/weather --dry-run")
def compact(
    repository: RepositoryPlace,
    *,
    min_live: Annotated[
        float,
        typer.Option("--min-live", min=0, max=1, help="Rewrite packs that are used less than so."),
    ] = 0.5,
    branch: _Branch = "main",
    task_bytes: _TaskBytes = "256MB",
    max_chunks: _MaxChunks = _DEFAULT_MAX_CHUNKS,
    transaction_id: _TransactionId = None,
    message: _Message = None,
    dry_run: _DryRun = False,
    as_json: AsJson = False,
    master: Master = None,
    remote: Remote = None,
    spark: _Spark = True,
) -> None:
    """Put small objects and manifests together, and rewrite packs that are mostly dead."""
    from icefloe import pipeline  # noqa: PLC0415 - brings zarr along

    opened = pipeline.open_repository(repository)
    run_job(
        Engine(master, remote, spark),
        lambda session, progress: pipeline.compact(
            session,
            opened,
            min_live=min_live,
            branch=branch,
            task_bytes=task_bytes,
            max_chunks=max_chunks,
            transaction_id=transaction_id,
            message=message,
            dry_run=dry_run,
            progress=progress,
        ),
        as_json=as_json,
    )


@_job(
    "Examples:\n\n"
    "  icefloe pyramid weather t2m overview --factors lat=2,lon=2 --levels 4\n\n"
    "  icefloe pyramid cells image levels --layout ome --method nearest"
)
def pyramid(
    repository: RepositoryPlace,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="An array or a group.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The new group.")],
    *,
    factors: Annotated[
        Any,
        typer.Option(
            "--factors",
            parser=_lengths,
            metavar="DIM=N,…",
            help="How many items become one; a plain number is for the last two dimensions.",
        ),
    ] = "2",
    levels: Annotated[
        int | None, typer.Option("--levels", min=1, help="How many; else until it is small.")
    ] = None,
    method: Annotated[Method, typer.Option("--method", help="How items become one.")] = Method.MEAN,
    layout: Annotated[Layout, typer.Option("--layout", help="For xarray, or OME.")] = Layout.PLAIN,
    branch: _Branch = "main",
    containers: Containers = None,
    task_bytes: _TaskBytes = "256MB",
    transaction_id: _TransactionId = None,
    message: _Message = None,
    dry_run: _DryRun = False,
    as_json: AsJson = False,
    master: Master = None,
    remote: Remote = None,
    spark: _Spark = True,
) -> None:
    """Make arrays at lower and lower resolutions, for maps that zoom."""
    from icefloe import pipeline  # noqa: PLC0415 - brings zarr along

    opened = pipeline.open_repository(repository, containers=containers or (), dry_run=dry_run)
    run_job(
        Engine(master, remote, spark),
        lambda session, progress: pipeline.pyramid(
            session,
            opened,
            source,
            target,
            factors=factors if isinstance(factors, dict) else factors[0],
            levels=levels,
            method=method.value,
            layout=layout.value,
            branch=branch,
            task_bytes=task_bytes,
            transaction_id=transaction_id,
            message=message,
            dry_run=dry_run,
            progress=progress,
        ),
        as_json=as_json,
    )


@_job(
    "Examples:\n\n"
    "  icefloe export weather weather.zarr --ref v1.0 --chunks time=365\n\n"
    "  icefloe export weather rows --format parquet --variable t2m --sel '{\"lat\": 52.5}'"
)
def export(
    repository: RepositoryPlace,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A new directory or URL.")],
    *,
    format: Annotated[  # noqa: A002 - Spark's word for it
        Format, typer.Option("--format", "-f", help="A Zarr store, or rows in Parquet.")
    ] = Format.ZARR,
    group: Group = "/",
    ref: Ref = "main",
    variables: Annotated[
        list[str] | None,
        typer.Option("--variable", metavar="NAME", help="Only these; may be repeated."),
    ] = None,
    chunks: _Chunks = None,
    shards: _Shards = None,
    codecs: _Codecs = None,
    sel: Annotated[
        Any, typer.Option("--sel", parser=read_json, metavar="JSON", help="By label (Parquet).")
    ] = None,
    isel: Annotated[
        Any, typer.Option("--isel", parser=read_json, metavar="JSON", help="By index (Parquet).")
    ] = None,
    partition_by: Annotated[
        list[str] | None,
        typer.Option("--partition-by", metavar="COLUMN", help="A folder per value (Parquet)."),
    ] = None,
    containers: Containers = None,
    task_bytes: _TaskBytes = "256MB",
    dry_run: _DryRun = False,
    as_json: AsJson = False,
    master: Master = None,
    remote: Remote = None,
    spark: _Spark = True,
) -> None:
    """Write a snapshot to a Zarr store, or as rows to Parquet."""
    from icefloe import pipeline  # noqa: PLC0415 - brings zarr along
    from icefloe.inspection.repository import resolve_ref  # noqa: PLC0415
    from icefloe.refs import open_refs  # noqa: PLC0415

    opened = pipeline.open_repository(repository, containers=containers or (), dry_run=dry_run)
    snapshot_id = str(resolve_ref(open_refs(opened.storage).at_opening, ref))
    run_job(
        Engine(master, remote, spark),
        lambda session, progress: pipeline.export(
            session,
            opened,
            target,
            format=format.value,
            group=group,
            snapshot_id=snapshot_id,
            variables=variables or None,
            chunks=chunks,
            shards=shards,
            codecs=codecs,
            sel=sel,
            isel=isel,
            partition_by=partition_by or None,
            task_bytes=task_bytes,
            dry_run=dry_run,
            progress=progress,
        ),
        as_json=as_json,
    )


@_job(
    "Examples:\n\n"
    "  icefloe compute weather mymodule:celsius --input t2m --output t2m_celsius\n\n"
    "  icefloe compute weather mymodule:smooth -i air=t2m -o smooth --halo lat=1,lon=1"
)
def compute(
    repository: RepositoryPlace,
    function: Annotated[
        str,
        typer.Argument(metavar="MODULE:NAME", help="Gets a block of each input, by its name."),
    ],
    *,
    inputs: Annotated[
        list[str],
        typer.Option("--input", "-i", metavar="[NAME=]PATH", help="An array; may be repeated."),
    ],
    outputs: Annotated[
        list[str],
        typer.Option("--output", "-o", metavar="PATH", help="A new array; may be repeated."),
    ],
    dtype: _DType = None,
    halo: Annotated[
        Any,
        typer.Option(
            "--halo",
            parser=_lengths,
            metavar="DIM=N,…",
            help="How many items of its neighbours a block gets.",
        ),
    ] = None,
    boundary: Annotated[
        str, typer.Option("--boundary", help="Beyond the edges: none, reflect, nearest, wrap, …")
    ] = "none",
    decode: Annotated[
        bool,
        typer.Option("--decode/--stored", help="Values as xarray reads them, or stored numbers."),
    ] = True,
    probe: Annotated[
        bool, typer.Option("--probe/--no-probe", help="Try the function on a small block first.")
    ] = True,
    branch: _Branch = "main",
    containers: Containers = None,
    task_bytes: _TaskBytes = "256MB",
    transaction_id: _TransactionId = None,
    message: _Message = None,
    dry_run: _DryRun = False,
    as_json: AsJson = False,
    master: Master = None,
    remote: Remote = None,
    spark: _Spark = True,
) -> None:
    """Make arrays from a Python function of blocks of other arrays."""
    from icefloe import pipeline  # noqa: PLC0415 - brings zarr along
    from icefloe.pipeline.named_function import load_function  # noqa: PLC0415

    called = load_function(function)
    opened = pipeline.open_repository(repository, containers=containers or (), dry_run=dry_run)
    named = [one.rpartition("=") for one in inputs]
    run_job(
        Engine(master, remote, spark),
        lambda session, progress: pipeline.compute(
            session,
            opened,
            called,
            {name or path.rpartition("/")[2]: path for name, _, path in named},
            {path: None if dtype is None else pipeline.Output(dtype) for path in outputs},
            halo=halo if halo is None or isinstance(halo, dict) else halo[0],
            boundary=boundary,
            decode=decode,
            probe=probe,
            branch=branch,
            task_bytes=task_bytes,
            transaction_id=transaction_id,
            message=message,
            dry_run=dry_run,
            progress=progress,
        ),
        as_json=as_json,
    )


def _open_or_create(
    place: str, files: list[str], *, create: bool, dry_run: bool, **how: Any
) -> Repository:
    from icefloe import pipeline  # noqa: PLC0415 - brings zarr along
    from icefloe.pipeline.files.source_files import find_sources  # noqa: PLC0415

    open_with = partial(pipeline.open_repository, place, create=create, **how)
    if create and not dry_run:
        # Who mistypes a pattern learns it before a repository is made and Spark is started.
        find_sources(files, open_with(dry_run=True).readonly_session("main"))
    return open_with(dry_run=dry_run)


def _listed(sources: list[str] | None, table: str | None) -> list[str]:
    from icefloe.pipeline.files.source_files import read_source_table  # noqa: PLC0415 - brings zarr along

    if (table is None) == (not sources):
        raise typer.BadParameter("give sources, or a --table that lists them")
    return read_source_table(table) if table is not None else list(sources or ())


def _value(choice: StrEnum | None) -> Any:
    return None if choice is None else choice.value


def _parse_options(drop: list[str] | None) -> dict[str, Any] | None:
    return {"drop_variables": tuple(drop)} if drop else None
