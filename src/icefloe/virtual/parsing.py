"""`parse`: turn a file of arrays, of any supported format and place, into a `VirtualDataset`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

from icefloe.errors import FormatError, ObjectNotFoundError
from icefloe.virtual.loading import load_values
from icefloe.virtual.parse_errors import format_error, import_optional
from icefloe.virtual.parsers import kerchunk, netcdf3, sniffing, zarr
from icefloe.virtual.request import ParseRequest
from icefloe.virtual.sources import OpenSource, SourceFile, Sources, not_found_error

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from icefloe.model.containers import VirtualChunkContainer
    from icefloe.storage.credentials import AnyCredential
    from icefloe.storage.interface import ObjectInfo
    from icefloe.virtual.dataset import VirtualDataset
    from icefloe.virtual.sources import ChecksumChoice


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
    """Parse a file of arrays into chunk references and Zarr metadata.

    Reads only metadata, and the values of the arrays to load. The result is columnar, does not
    refer to a repository, and pickles: parse on many machines, `combine` and write on one.

    Parameters
    ----------
    url
        A path, or a URL: ``file://``, ``s3://``, ``gs://``, ``az://``, ``http(s)://``, or one that
        ``containers`` cover.
    format
        Expected format: ``netcdf4`` or ``hdf5``, ``netcdf3``, ``zarr``, ``kerchunk-json``,
        ``kerchunk-parquet``, ``geotiff`` or ``tiff``. By default it is detected from the content,
        and must match the file name extension.
    group
        Group to parse, including the groups below it.
    drop_variables
        Paths of arrays and groups to drop.
    loadable_variables
        Paths of arrays whose values are copied instead of referenced. By default the coordinates
        of dimensions with their bounds, which are needed to compare and order files, and scalars.
    inline_below_bytes
        Copy all smaller arrays as well.
    checksum
        Checksum stored with each reference, so that a modified file is not read: ``etag``,
        ``last-modified``, or None. ``auto`` is the ETag in object stores and the modification time
        elsewhere. References from Kerchunk files have the modification time of the Kerchunk file.
    containers, credentials
        How to access the file, as for opening a repository: virtual chunk containers, and
        credentials by URL prefix or name. Without a container, those of the environment apply.
    parser
        A VirtualiZarr parser to use instead of the built-in ones.

    Raises
    ------
    ObjectNotFoundError
        If the file does not exist.
    FormatError
        If the file is damaged, truncated, or not of the expected format.
    InvalidInputError
        Of kind ``UNSUPPORTED_VARIABLE`` if a variable cannot be referenced, and of kind
        ``MISSING_DEPENDENCY`` if a required package is not installed.
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
    """Parse a file as `parse` does, with open ``sources`` that several files can share."""
    if format is not None:
        sniffing.get_format(format)  # raises before any I/O
    source = sources.open(url)
    info = source.fetch_info()
    listing: list[tuple[str, ObjectInfo]] = []
    found: sniffing.Format | None = None
    if parser is not None:
        info = info or SourceFile(source.url)
    elif info is not None:
        sniffed = _sniff_file(source, info.size_bytes or 0)
        found = sniffing.require_format(sniffed, claimed=format, url=source.url)
    else:
        listing = _list_directory(source)
        sniffed = _sniff_directory(source, [name for name, _ in listing])
        found = sniffing.require_format(sniffed, claimed=format, url=source.url)
        info = SourceFile(source.url)
        if found == "kerchunk-parquet":
            # The references are as old as the document that describes them.
            inner = source.child(".zmetadata").fetch_info() or info
            info = SourceFile(source.url, None, inner.etag, inner.last_modified)
    choice = checksum
    if found in {"kerchunk-json", "kerchunk-parquet"} and checksum is not None:
        choice = "last-modified"  # the ETag of the reference file does not apply to other files
    request = ParseRequest(
        source=info,
        group=(group or "").strip("/"),
        drop_variables=_strip_slashes(drop_variables),
        loadable_variables=None
        if loadable_variables is None
        else _strip_slashes(loadable_variables),
        inline_below_bytes=inline_below_bytes,
        checksum=info.checksum(choice),
    )

    def open_location(location: str) -> OpenSource:
        if location == source.url:
            return source
        if found == "zarr":
            return source.child(unquote(location.removeprefix(f"{source.url}/")))
        return sources.open_named_by(location, source)

    match found:
        case "hdf5":  # loads values in the same pass
            return cast("VirtualDataset", _import_parser("hdf5").parse(source, request))
        case "netcdf3":
            parsed = netcdf3.parse(source, request)
        case "zarr":
            parsed = zarr.parse(source, request, listing, checksum)
        case "kerchunk-json":
            parsed = kerchunk.parse_json(source, request, open_location)
        case "kerchunk-parquet":
            import_optional("pyarrow")
            parsed = kerchunk.parse_parquet(source, request, open_location)
        case "tiff":
            parser = import_optional("virtual_tiff", "virtual-tiff").VirtualTIFF()
            parsed = _import_parser("virtualizarr").parse(source, request, parser)
        case None:
            parsed = _import_parser("virtualizarr").parse(source, request, parser)
    return load_values(parsed, request, open_location)


def _strip_slashes(paths: Iterable[str]) -> frozenset[str]:
    return frozenset(path.strip("/") for path in paths)


def _import_parser(name: str) -> Any:
    """Import a parser that needs optional packages at import time."""
    return import_optional(f"icefloe.virtual.parsers.{name}")


def _list_directory(source: OpenSource) -> list[tuple[str, ObjectInfo]]:
    if source.url.startswith(("http://", "https://")):
        raise ObjectNotFoundError(
            f"{source.url}: there is no such file; a Zarr store on a web server cannot be parsed, "
            "because its chunks cannot be listed"
        )
    listing = list(source.list_tree())
    if not listing:
        raise not_found_error(source.url)
    return listing


def _sniff_directory(source: OpenSource, names: list[str]) -> sniffing.Format:
    top = {name for name in names if "/" not in name}
    if ".zmetadata" in top:
        try:
            document = json.loads(source.child(".zmetadata").fetch_all())
        except ValueError:
            document = {}
        if isinstance(document, dict) and "record_size" in document:
            return "kerchunk-parquet"
    if top & {"zarr.json", ".zgroup", ".zarray", ".zmetadata"}:
        return "zarr"
    if top & {"repo", "config.yaml"} or any(name.startswith("snapshots/") for name in names):
        reason = "is an Icechunk repository: open it, and read from a session"
        raise format_error(source.url, reason)
    raise format_error(
        source.url,
        "is a directory, but neither a Zarr hierarchy (zarr.json, .zgroup) nor Kerchunk references "
        "(.zmetadata with record_size)",
    )


def _sniff_file(source: OpenSource, size_bytes: int) -> sniffing.Format:
    head = source.fetch(0, min(sniffing.HEAD_BYTES, size_bytes)) if size_bytes else b""
    try:
        return sniffing.sniff(head, url=source.url)
    except FormatError:
        for start in sniffing.USER_BLOCKS:
            if start + 8 <= size_bytes and source.fetch(start, 8) == sniffing.HDF5:
                return "hdf5"
        raise
