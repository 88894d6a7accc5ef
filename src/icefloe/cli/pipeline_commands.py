"""Commands that run the jobs of `icefloe.pipeline`: options and help, no logic."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from icefloe.cli.arguments import Containers, Group, Ref, RepositoryArgument, json_option
from icefloe.cli.job_options import JobOptions, commands, job_command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.repository import Repository

__all__ = ["commands"]


# The values are the names in lower case.
OnError = StrEnum("OnError", ["RAISE", "SKIP"])
Changed = StrEnum("Changed", ["STOP", "REPLACE", "KEEP"])
Order = StrEnum("Order", ["GIVEN", "COORDINATES"])
Format = StrEnum("Format", ["ZARR", "PARQUET"])
Method = StrEnum("Method", ["MEAN", "SUM", "MIN", "MAX", "MODE", "NEAREST"])
Layout = StrEnum("Layout", ["PLAIN", "OME"])
Generation = StrEnum("Generation", ["DRAFT", "SEQUENCE", "V1", "V2"])


def _parse_integers(text: str) -> Any:
    """Parse ``time=365,lat=10`` as integers by dimension, and ``365,10`` or ``2`` as a tuple."""
    try:
        if "=" in text:
            pairs = [item.split("=") for item in text.split(",")]
            return {name.strip(): int(length) for name, length in pairs}
        return tuple(int(item) for item in text.split(","))
    except ValueError as error:
        raise typer.BadParameter(
            f"expected integers by dimension such as time=365,lat=10, got {text!r}"
        ) from error


def _parse_types(text: str) -> Any:
    """Parse ``float32``, for all variables, or ``t2m=float32,rain=int16``, by variable."""
    if "=" not in text:
        return text.strip()
    pairs = [item.partition("=") for item in text.split(",")]
    return {name.strip(): dtype.strip() for name, _, dtype in pairs}


_integers_option = partial(typer.Option, parser=_parse_integers, metavar="DIM=N,…")

_Sources = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SOURCES]",
        help="Files, URLs, or quoted glob patterns: 'data/*.nc', 's3://bucket/**/*.nc'.",
    ),
]
_Table = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="Parquet or CSV file that lists sources in a column named url or path."
    ),
]
_Dims = Annotated[
    list[str],
    typer.Option(
        "--dim", "-d", metavar="NAME", help="Dimension along which to combine files; repeatable."
    ),
]
_Dim = Annotated[
    str, typer.Option("--dim", "-d", metavar="NAME", help="Dimension to append along.")
]
_OrderOption = Annotated[
    Order | None, typer.Option(help="Order of files: by coordinates if present, or as given.")
]
_OnErrorOption = Annotated[OnError, typer.Option(help="Fail and list all bad files, or skip them.")]
_Drop = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="Variable to exclude; repeatable.")
]
_Virtual = Annotated[
    bool | None,
    typer.Option(
        "--virtual/--native",
        help="Refer to the files or copy them; by default like the existing data.",
    ),
]
_Create = Annotated[bool, typer.Option("--create", help="Create the repository if missing.")]
_SpecVersion = Annotated[
    int | None, typer.Option(min=1, max=2, help="With --create: spec version, 1 or 2.")
]
_Generation = Annotated[
    Generation | None,
    typer.Option(help="With --create: generation of the format, instead of --spec-version."),
]
_Chunks = Annotated[
    Any, _integers_option(help="Chunk lengths, such as time=30,lat=-1; -1 is the whole dimension.")
]
_Shards = Annotated[Any, _integers_option(help="Shard lengths, such as time=300,lat=-1.")]
_Codecs = Annotated[Any, json_option(help="Zarr codecs, as JSON.")]
_DType = Annotated[str | None, typer.Option(help="Data type, such as float32.")]
_DTypes = Annotated[
    Any,
    typer.Option(
        parser=_parse_types,
        metavar="[NAME=]TYPE,…",
        help="Data type: float32, or by variable t2m=float32,rain=float64.",
    ),
]


@job_command(
    "Examples:\n\n"
    "  icefloe virtualize weather 'archive/*.nc' --create --container archive\n\n"
    "  icefloe virtualize s3://bucket/weather 's3://archive/2024/*.nc' --dim time --dry-run",
    omit=("max_chunks", "task_bytes"),
)
def virtualize(
    repository: RepositoryArgument,
    sources: _Sources = None,
    *,
    table: _Table = None,
    dims: _Dims = ["time"],  # noqa: B006 - typer reads it
    group: Group = "/",
    order: _OrderOption = None,
    on_error: _OnErrorOption = OnError.RAISE,
    drop: _Drop = None,
    create: _Create = False,
    spec_version: _SpecVersion = None,
    generation: _Generation = None,
    containers: Containers = None,
    job: JobOptions,
) -> None:
    """Create a virtual dataset from many files, without copying chunks."""
    files = _list_sources(sources, table)
    creation = _make_creation_options(create, spec_version, generation)
    with _open_or_create(
        job, repository, files, containers=containers, referred=files, **creation
    ) as opened:
        job.run(
            "virtualize",
            opened,
            files,
            dims=dims,
            group=group,
            order=order and order.value,
            on_error=on_error.value,
            parse_options=_make_parse_options(drop),
        )


@job_command(
    "Examples:\n\n"
    "  icefloe ingest weather 'archive/*.nc' --create --chunks time=30,lat=90,lon=90\n\n"
    "  icefloe ingest s3://bucket/weather 's3://archive/**/*.nc' --unpack --dtype float32"
)
def ingest(
    repository: RepositoryArgument,
    sources: _Sources = None,
    *,
    table: _Table = None,
    dims: _Dims = ["time"],  # noqa: B006 - typer reads it
    group: Group = "/",
    chunks: _Chunks = None,
    shards: _Shards = None,
    codecs: _Codecs = None,
    unpack: Annotated[
        bool, typer.Option("--unpack", help="Store values unpacked by scale_factor and add_offset.")
    ] = False,
    dtype: _DTypes = None,
    pack: Annotated[
        Any,
        json_option(
            help='Store packed numbers: {"t2m": {"dtype": "int16", "scale_factor": 0.01}}.'
        ),
    ] = None,
    order: _OrderOption = None,
    on_error: _OnErrorOption = OnError.RAISE,
    drop: _Drop = None,
    create: _Create = False,
    spec_version: _SpecVersion = None,
    generation: _Generation = None,
    job: JobOptions,
) -> None:
    """Copy many files into the repository as one dataset, in chosen chunks."""
    files = _list_sources(sources, table)
    creation = _make_creation_options(create, spec_version, generation)
    with _open_or_create(job, repository, files, sources=files, **creation) as opened:
        job.run(
            "ingest",
            opened,
            files,
            dims=dims,
            group=group,
            chunks=chunks,
            shards=shards,
            codecs=codecs,
            unpack=unpack,
            dtype=dtype,
            pack=pack,
            order=order and order.value,
            on_error=on_error.value,
            parse_options=_make_parse_options(drop),
        )


@job_command(
    "Examples:\n\n"
    "  icefloe refresh weather 'archive/2025-*.nc' --dry-run\n\n"
    "  icefloe refresh weather --container archive"
)
def refresh(
    repository: RepositoryArgument,
    sources: _Sources = None,
    *,
    table: _Table = None,
    dim: Annotated[
        str, typer.Option("--dim", "-d", metavar="NAME", help="Dimension of the steps of a file.")
    ] = "time",
    group: Group = "/",
    virtual: _Virtual = None,
    on_error: _OnErrorOption = OnError.RAISE,
    drop: _Drop = None,
    containers: Containers = None,
    job: JobOptions,
) -> None:
    """Replace the steps of files that changed since they were added to a group."""
    from icefloe.pipeline.jobs.append import has_virtual_chunks  # noqa: PLC0415

    files = _list_sources(sources, table) if sources or table else None
    opened = job.open(repository)
    if virtual is None:
        virtual = has_virtual_chunks(opened, group, dim, branch=job.branch)
    if virtual:
        opened = job.open(repository, containers, referred=files or ())
    else:
        # Containers of files that are copied are not saved.
        folders = [f"{container.rstrip('/')}/*" for container in containers or ()]
        opened = job.open(repository, sources=[*(files or ()), *folders])
    job.run(
        "refresh",
        opened,
        files,
        dim=dim,
        group=group,
        virtual=virtual,
        on_error=on_error.value,
        parse_options=_make_parse_options(drop),
    )


@job_command(
    "Example:  icefloe append weather 'archive/2025-*.nc'\n\n"
    "Idempotent: files that were appended before are skipped. Suitable for scheduled runs."
)
def append(
    repository: RepositoryArgument,
    sources: _Sources = None,
    *,
    table: _Table = None,
    dim: _Dim = "time",
    group: Group = "/",
    virtual: _Virtual = None,
    changed: Annotated[
        Changed,
        typer.Option(
            help="If files in the group changed: stop, replace their steps, or keep the old data."
        ),
    ] = Changed.STOP,
    insert: Annotated[
        bool, typer.Option("--insert", help="Insert files that belong between stored steps.")
    ] = False,
    on_error: _OnErrorOption = OnError.RAISE,
    drop: _Drop = None,
    containers: Containers = None,
    job: JobOptions,
) -> None:
    """Append files along a dimension; files already in the group are skipped."""
    from icefloe.pipeline.jobs.append import has_virtual_chunks  # noqa: PLC0415

    files = _list_sources(sources, table)
    if virtual is None:
        opened = job.open(repository, containers)
        virtual = has_virtual_chunks(opened, group, dim, branch=job.branch)
    files_by_use = {"referred" if virtual else "sources": files}
    job.run(
        "append",
        job.open(repository, containers, **files_by_use),
        files,
        dim=dim,
        group=group,
        virtual=virtual,
        changed=changed.value,
        insert=insert,
        on_error=on_error.value,
        parse_options=_make_parse_options(drop),
    )


@job_command(
    "Examples:\n\n"
    "  icefloe rechunk weather t2m --chunks time=-1,lat=10,lon=10 --target series/t2m\n\n"
    "  icefloe rechunk s3://bucket/weather / --chunks time=1 --dry-run"
)
def rechunk(
    repository: RepositoryArgument,
    arrays: Annotated[
        list[str], typer.Argument(metavar="ARRAYS", help="Paths of arrays or groups.")
    ],
    *,
    chunks: _Chunks = None,
    shards: _Shards = None,
    codecs: _Codecs = None,
    dtype: _DType = None,
    target: Annotated[
        str | None, typer.Option(metavar="PATH", help="Path of the result; by default in place.")
    ] = None,
    containers: Containers = None,
    job: JobOptions,
) -> None:
    """Rechunk arrays."""
    job.run(
        "rechunk",
        job.open(repository, containers),
        arrays[0] if len(arrays) == 1 else arrays,
        chunks,
        shards=shards,
        codecs=codecs,
        dtype=dtype,
        target=target,
    )


@job_command(
    "Example:  icefloe materialize weather t2m --container s3://archive/\n\n"
    "Naming a container authorizes reading its files.",
    omit=(),
)
def materialize(
    repository: RepositoryArgument,
    arrays: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARRAYS", help="Paths of arrays or groups; by default all."),
    ] = None,
    *,
    prefix: Annotated[
        str | None, typer.Option(metavar="URL", help="Only chunks whose location starts with URL.")
    ] = None,
    containers: Containers = None,
    on_error: _OnErrorOption = OnError.RAISE,
    job: JobOptions,
) -> None:
    """Copy virtual chunks into the repository, so that it no longer needs the files."""
    job.run(
        "materialize",
        job.open(repository, containers),
        arrays or "/",
        prefix=prefix,
        max_chunks=job.max_chunks,
        on_error=on_error.value,
    )


@job_command("Example:  icefloe compact s3://bucket/weather --dry-run", omit=())
def compact(
    repository: RepositoryArgument,
    *,
    min_live: Annotated[
        float,
        typer.Option(min=0, max=1, help="Rewrite packs with a smaller fraction of live bytes."),
    ] = 0.5,
    job: JobOptions,
) -> None:
    """Pack small objects, merge small manifests and rewrite sparse packs."""
    job.run("compact", job.open(repository), min_live=min_live, max_chunks=job.max_chunks)


@job_command(
    "Examples:\n\n"
    "  icefloe pyramid weather t2m overview --factors lat=2,lon=2 --levels 4\n\n"
    "  icefloe pyramid cells image levels --layout ome --method nearest"
)
def pyramid(
    repository: RepositoryArgument,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Array or group.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="New group.")],
    *,
    factors: Annotated[
        Any,
        _integers_option(
            help="Downsampling factors; a single number applies to the last two dimensions."
        ),
    ] = "2",
    levels: Annotated[
        int | None,
        typer.Option(min=1, help="Number of levels; by default until an array fits in one chunk."),
    ] = None,
    method: Annotated[Method, typer.Option(help="Aggregation method.")] = Method.MEAN,
    layout: Annotated[Layout, typer.Option(help="Plain, or as in OME-NGFF.")] = Layout.PLAIN,
    containers: Containers = None,
    job: JobOptions,
) -> None:
    """Downsample arrays to several levels, for zoomable maps."""
    job.run(
        "pyramid",
        job.open(repository, containers),
        source,
        target,
        factors=factors if isinstance(factors, dict) else factors[0],
        levels=levels,
        method=method.value,
        layout=layout.value,
    )


@job_command(
    "Examples:\n\n"
    "  icefloe export weather weather.zarr --ref v1.0 --chunks time=365\n\n"
    "  icefloe export weather rows --format parquet --variable t2m --sel '{\"lat\": 52.5}'",
    omit=("max_chunks", "branch", "transaction_id", "message"),
)
def export(
    repository: RepositoryArgument,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="New directory or URL.")],
    *,
    format: Annotated[  # noqa: A002 - Spark's word for it
        Format, typer.Option("--format", "-f", help="Zarr store, or rows in Parquet.")
    ] = Format.ZARR,
    group: Group = "/",
    ref: Ref = "main",
    variables: Annotated[
        list[str] | None,
        typer.Option("--variable", metavar="NAME", help="Variable to export; repeatable."),
    ] = None,
    chunks: _Chunks = None,
    shards: _Shards = None,
    codecs: _Codecs = None,
    sel: Annotated[Any, json_option(help="Selection by label (only Parquet).")] = None,
    isel: Annotated[Any, json_option(help="Selection by index (only Parquet).")] = None,
    partition_by: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Partition column (only Parquet); repeatable."),
    ] = None,
    containers: Containers = None,
    job: JobOptions,
) -> None:
    """Export a snapshot to a Zarr store, or as rows to Parquet."""
    from icefloe.inspection.repository import resolve_ref  # noqa: PLC0415
    from icefloe.refs import open_refs  # noqa: PLC0415

    opened = job.open(repository, containers)
    snapshot_id = str(resolve_ref(open_refs(opened.storage).opening_refs, ref))
    job.run_export(
        "export",
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
    )


@job_command(
    "Examples:\n\n"
    "  icefloe compute weather mymodule:celsius --input t2m --output t2m_celsius\n\n"
    "  icefloe compute weather mymodule:smooth -i air=t2m -o smooth --halo lat=1,lon=1"
)
def compute(
    repository: RepositoryArgument,
    function: Annotated[
        str,
        typer.Argument(metavar="MODULE:NAME", help="Function to call with a block of each input."),
    ],
    *,
    inputs: Annotated[
        list[str],
        typer.Option("--input", "-i", metavar="[NAME=]PATH", help="Input array; repeatable."),
    ],
    outputs: Annotated[
        list[str], typer.Option("--output", "-o", metavar="PATH", help="New array; repeatable.")
    ],
    dtype: _DType = None,
    halo: Annotated[
        Any, _integers_option(help="Number of neighbouring items around a block, by dimension.")
    ] = None,
    boundary: Annotated[
        str, typer.Option(help="Halo at array edges: none, reflect, nearest, wrap, …")
    ] = "none",
    decode: Annotated[
        bool,
        typer.Option("--decode/--stored", help="Pass values decoded as by xarray, or as stored."),
    ] = True,
    probe: Annotated[bool, typer.Option(help="Call the function on a small block first.")] = True,
    containers: Containers = None,
    job: JobOptions,
) -> None:
    """Compute arrays by applying a Python function to blocks of other arrays."""
    from icefloe.pipeline import Output  # noqa: PLC0415 - imports zarr
    from icefloe.pipeline.named_function import load_function  # noqa: PLC0415

    named_paths = [item.rpartition("=") for item in inputs]
    job.run(
        "compute",
        job.open(repository, containers),
        load_function(function),
        {name or path.rpartition("/")[2]: path for name, _, path in named_paths},
        {path: None if dtype is None else Output(dtype) for path in outputs},
        halo=halo if halo is None or isinstance(halo, dict) else halo[0],
        boundary=boundary,
        decode=decode,
        probe=probe,
    )


def _make_creation_options(
    create: bool,  # noqa: FBT001
    spec_version: int | None,
    generation: Generation | None,
) -> dict[str, Any]:
    if not create and (spec_version is not None or generation is not None):
        raise typer.BadParameter("--spec-version and --generation need --create")
    return {
        "create": create,
        "spec_version": spec_version,
        "generation": generation and generation.value,
    }


@contextmanager
def _open_or_create(
    job: JobOptions, url: str, files: list[str], *, create: bool, **options: Any
) -> Iterator[Repository]:
    """Open or create a repository; delete it again if it is new and the job fails."""
    from icefloe.pipeline.files.source_files import find_sources  # noqa: PLC0415
    from icefloe.pipeline.opening import deleting_if_failed  # noqa: PLC0415

    if create and not job.dry_run:
        # A pattern without matches fails before the repository is created and Spark is started.
        preview = replace(job, dry_run=True).open(url, create=True, **options)
        find_sources(files, preview.readonly_session("main"))
    with deleting_if_failed(url):
        yield job.open(url, create=create, **options)


def _list_sources(sources: list[str] | None, table: str | None) -> list[str]:
    from icefloe.pipeline.files.source_files import read_source_table  # noqa: PLC0415 - imports zarr

    if (table is None) == (not sources):
        raise typer.BadParameter("expected either sources or --table")
    return read_source_table(table) if table is not None else list(sources or ())


def _make_parse_options(drop: list[str] | None) -> dict[str, Any] | None:
    return {"drop_variables": tuple(drop)} if drop else None
