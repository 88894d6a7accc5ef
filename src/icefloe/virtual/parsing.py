"""`parse`: a file of arrays, whatever its format and place, as a `VirtualDataset`."""

from __future__ import annotations

import json
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from icefloe.errors import ErrorKind, FormatError, InvalidInputError, ObjectNotFoundError
from icefloe.virtual.dataset import SourceFile
from icefloe.virtual.parsers.sniffing import (
    FORMATS,
    HEAD_BYTES,
    USER_BLOCKS,
    Format,
    is_hdf5,
    require,
    sniff,
)
from icefloe.virtual.request import ParseRequest
from icefloe.virtual.sources import OpenSource, Sources, missing

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import ModuleType

    from icefloe.model.containers import VirtualChunkContainer
    from icefloe.storage.credentials import AnyCredential
    from icefloe.storage.interface import ObjectInfo
    from icefloe.virtual.dataset import ChecksumChoice, VirtualDataset


def parse(
    url: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002 - the word for it
    group: str | None = None,
    drop_variables: Iterable[str] = (),
    loadable_variables: Iterable[str] | None = None,
    inline_below_bytes: int = 0,
    checksum: ChecksumChoice = "auto",
    containers: Sequence[VirtualChunkContainer] = (),
    credentials: Mapping[str, AnyCredential | None] | None = None,
    parser: Callable[..., Any] | None = None,
) -> VirtualDataset:
    """Turn a file of arrays into references to its chunks, with their metadata.

    Nothing but metadata is read, and the values of small arrays as asked. The result is columns,
    knows no repository, and pickles: parse on many machines, `combine` and write on one.

    Parameters
    ----------
    url
        A path, or a URL: ``file://``, ``s3://``, ``gs://``, ``az://``, ``http(s)://``, or one that
        ``containers`` know.
    format
        What the file must be: ``netcdf4`` or ``hdf5``, ``netcdf3``, ``zarr``, ``kerchunk-json``,
        ``kerchunk-parquet``, ``geotiff`` or ``tiff``. Without it the content decides, and the name
        must not contradict.
    group
        The group to start from; groups below it are included.
    drop_variables
        Arrays and groups to leave out, by their paths.
    loadable_variables
        Arrays whose values are copied instead of referenced, by their paths. By default the
        coordinates of dimensions with their bounds, and scalars: what files are compared by and
        put in order by.
    inline_below_bytes
        Copy all arrays with fewer bytes as well.
    checksum
        What references remember of the file, so that it is not read after it changed: ``etag``,
        ``last-modified``, None for nothing; ``auto`` takes the entity tag in object stores and
        the time elsewhere. References of Kerchunk's may not be younger than the file they are in.
    containers, credentials
        How to reach the file, as for opening a repository: virtual chunk containers, and
        credentials by URL prefix or name. Without a container the environment decides.
    parser
        A parser made for VirtualiZarr, to be used instead of those here.

    Raises
    ------
    ObjectNotFoundError
        If there is no such file.
    FormatError
        If the file is damaged, cut off, or not what it claims to be.
    InvalidInputError
        Of kind ``UNSUPPORTED_VARIABLE`` if a variable cannot be referenced, and of kind
        ``MISSING_DEPENDENCY`` if a package is needed that is not installed.
    """
    return parse_at(
        url,
        Sources(containers, credentials),
        format=format,
        group=group,
        drop_variables=drop_variables,
        loadable_variables=loadable_variables,
        inline_below_bytes=inline_below_bytes,
        checksum=checksum,
        parser=parser,
    )


def parse_at(
    url: str | os.PathLike[str],
    sources: Sources,
    *,
    format: str | None = None,  # noqa: A002 - the word for it
    group: str | None = None,
    drop_variables: Iterable[str] = (),
    loadable_variables: Iterable[str] | None = None,
    inline_below_bytes: int = 0,
    checksum: ChecksumChoice = "auto",
    parser: Callable[..., Any] | None = None,
) -> VirtualDataset:
    """Do as `parse`, with places that are open already."""
    if format is not None and format not in FORMATS:
        require("hdf5", claimed=format, url="")
    source = sources.open(url)
    info = source.fetch_info()
    listed: list[tuple[str, ObjectInfo]] = []
    found: Format | None = None
    if parser is not None:
        info = info or SourceFile(source.url)
    elif info is not None:
        found = require(_sniff_file(source, info.size_bytes or 0), claimed=format, url=source.url)
    else:
        listed = _listed(source)
        folder = _sniff_folder(source, [name for name, _ in listed])
        found = require(folder, claimed=format, url=source.url)
        info = SourceFile(source.url)
        if found == "kerchunk-parquet":
            # The references are as old as the document that says what they mean.
            inner = source.below(".zmetadata").fetch_info() or info
            info = SourceFile(source.url, None, inner.etag, inner.last_modified)
    choice = checksum
    if found in {"kerchunk-json", "kerchunk-parquet"} and checksum is not None:
        choice = "last-modified"  # the entity tag of the list says nothing of the files in it
    request = ParseRequest(
        source=info,
        group=(group or "").strip("/"),
        drop_variables=frozenset(name.strip("/") for name in drop_variables),
        loadable_variables=None
        if loadable_variables is None
        else frozenset(name.strip("/") for name in loadable_variables),
        inline_below_bytes=inline_below_bytes,
        checksum=info.checksum(choice),
    )

    def opened(location: str) -> OpenSource:
        """Open what references name: mostly the file itself."""
        if location == source.url:
            return source
        return sources.open_named_by(location, source)

    match found:
        case None:
            return _load(_module("virtualizarr").parse(source, request, parser), request, opened)
        case "hdf5":
            parsed: VirtualDataset = _module("hdf5").parse(source, request)
            return parsed
        case "netcdf3":
            return _load(_module("netcdf3").parse(source, request), request, opened)
        case "zarr":
            # What lies below the store is the store.
            within = f"{source.url}/"
            parsed = _module("zarr").parse(source, request, listed, checksum)
            return _load(
                parsed, request, lambda url: source.below(unquote(url.removeprefix(within)))
            )
        case "kerchunk-json":
            return _load(_module("kerchunk").parse_json(source, request, opened), request, opened)
        case "kerchunk-parquet":
            _needed("pyarrow")
            return _load(
                _module("kerchunk").parse_parquet(source, request, opened), request, opened
            )
        case "tiff":
            tiff = _needed("virtual_tiff", "virtual-tiff").VirtualTIFF()
            return _load(_module("virtualizarr").parse(source, request, tiff), request, opened)


def _load(
    dataset: VirtualDataset, request: ParseRequest, opened: Callable[[str], OpenSource]
) -> VirtualDataset:
    loaded: VirtualDataset = _needed("icefloe.virtual.loading").load_values(
        dataset, request, opened
    )
    return loaded


def _listed(source: OpenSource) -> list[tuple[str, ObjectInfo]]:
    if source.url.startswith(("http://", "https://")):
        raise ObjectNotFoundError(
            f"{source.url}: there is no such file; a Zarr store on a web server cannot be parsed, "
            "because its chunks cannot be listed there",
            kind=ErrorKind.OBJECT_NOT_FOUND,
        )
    listed = list(source.list_below())
    if not listed:
        raise missing(source.url)
    return listed


def _sniff_folder(source: OpenSource, names: list[str]) -> Format:
    top = {name for name in names if "/" not in name}
    if ".zmetadata" in top:
        try:
            document = json.loads(source.below(".zmetadata").fetch_all())
        except ValueError:
            document = {}
        if isinstance(document, dict) and "record_size" in document:
            return "kerchunk-parquet"
    if top & {"zarr.json", ".zgroup", ".zarray", ".zmetadata"}:
        return "zarr"
    if top & {"repo", "config.yaml"} or any(name.startswith("snapshots/") for name in names):
        raise FormatError(
            "is an Icechunk repository: open it, and read from a session",
            file=source.url,
            kind=ErrorKind.INVALID_FILE_FORMAT,
        )
    raise FormatError(
        "is a folder, but neither a Zarr hierarchy (zarr.json, .zgroup) nor Kerchunk's references "
        "(.zmetadata with record_size)",
        file=source.url,
        kind=ErrorKind.INVALID_FILE_FORMAT,
    )


def _sniff_file(source: OpenSource, size_bytes: int) -> Format:
    head = source.fetch(0, min(HEAD_BYTES, size_bytes)) if size_bytes else b""
    try:
        return sniff(head, url=source.url)
    except FormatError:
        for start in USER_BLOCKS:
            if start + 8 <= size_bytes and is_hdf5(source.fetch(start, 8)):
                return "hdf5"
        raise


def _module(name: str) -> ModuleType:
    """Import what reads a format, and the packages that it needs."""
    try:
        return import_module(f"icefloe.virtual.parsers.{name}")
    except ModuleNotFoundError as error:
        raise _missing_package(error.name or name) from error


def _needed(module: str, package: str | None = None) -> ModuleType:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise _missing_package(package or module) from error


def _missing_package(package: str) -> InvalidInputError:
    extra = "geotiff" if package == "virtual-tiff" else "virtual"
    return InvalidInputError(
        f"parsing this file needs the package {package}: pip install 'icefloe[{extra}]'",
        kind=ErrorKind.MISSING_DEPENDENCY,
    )
