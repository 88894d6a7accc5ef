"""`parse`: parses a file of any supported format and storage into a `VirtualDataset`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

from icefloe.errors import FormatError, ObjectNotFoundError
from icefloe.virtual.loading import load_values
from icefloe.virtual.parse_errors import file_format_error, import_optional
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
    format: str | None = None,  # noqa: A002 - shadows the builtin
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
    depend on a repository, and pickles, so that many machines can parse files for one writer.

    Parameters
    ----------
    url
        A path, or a URL: ``file://``, ``s3://``, ``gs://``, ``az://``, ``http(s)://``, or one that
        ``containers`` match.
    format
        Expected format: ``netcdf4`` or ``hdf5``, ``netcdf3``, ``zarr``, ``kerchunk-json``,
        ``kerchunk-parquet``, ``geotiff`` or ``tiff``. By default, the format is detected from the
        content, and must match the file name extension.
    group
        Group to parse, with all groups below it.
    drop_variables
        Paths of arrays and groups to drop.
    loadable_variables
        Paths of arrays whose values are copied instead of referenced. By default scalars, and
        dimension coordinates with their bounds, which are used to compare and sort files.
    inline_below_bytes
        Also copy all arrays smaller than this.
    checksum
        Checksum stored with each reference, so that a modified file is not read: ``etag``,
        ``last-modified``, or None. ``auto`` is the ETag in object stores and the modification time
        elsewhere. References from Kerchunk files have the modification time of the Kerchunk file.
    containers, credentials
        How to access the file, as for opening a repository: virtual chunk containers, and
        credentials by URL prefix or name. By default, credentials of the environment are used.
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
    dropped: set[str] | None = None,
    *,
    format: str | None = None,  # noqa: A002 - shadows the builtin
    group: str | None = None,
    drop_variables: Iterable[str] = (),
    loadable_variables: Iterable[str] | None = None,
    inline_below_bytes: int = 0,
    checksum: ChecksumChoice = "auto",
    parser: Callable[..., Any] | None = None,
) -> VirtualDataset:
    """Parse a file as `parse` does, with ``sources`` that several files can share.

    ``dropped`` receives the paths in ``drop_variables`` that the file has.
    """
    if format is not None:
        sniffing.parse_format(format)  # raises before any I/O
    source = sources.open(url)
    info = source.fetch_info()
    listing: list[tuple[str, ObjectInfo]] = []
    detected: sniffing.Format | None = None
    if parser is not None:
        info = info or SourceFile(source.url)
    elif info is not None:
        sniffed = _sniff_file(source, info.size_bytes or 0)
        detected = sniffing.require_format(sniffed, claimed=format, url=source.url)
    else:
        listing = _list_directory(source)
        sniffed = _sniff_directory(source, [name for name, _ in listing])
        detected = sniffing.require_format(sniffed, claimed=format, url=source.url)
        info = SourceFile(source.url)
        if detected == "kerchunk-parquet":
            # The metadata document has the modification time of the references.
            inner = source.open_child(".zmetadata").fetch_info() or info
            info = SourceFile(source.url, None, inner.etag, inner.last_modified)
    choice = checksum
    if detected in {"kerchunk-json", "kerchunk-parquet"} and checksum is not None:
        choice = "last-modified"  # the files have other ETags than the Kerchunk file
    loadable = None if loadable_variables is None else _strip_slashes(loadable_variables)
    request = ParseRequest(
        source=info,
        group=(group or "").strip("/"),
        drop_variables=_strip_slashes(drop_variables),
        loadable_variables=loadable,
        inline_below_bytes=inline_below_bytes,
        checksum=info.checksum(choice),
        dropped=set() if dropped is None else dropped,
    )

    def open_location(location: str) -> OpenSource:
        if location == source.url:
            return source
        if detected == "zarr":
            return source.open_child(unquote(location.removeprefix(f"{source.url}/")))
        return sources.open_referenced(location, source)

    match detected:
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
            document = json.loads(source.open_child(".zmetadata").fetch_all())
        except ValueError:
            document = {}
        if isinstance(document, dict) and "record_size" in document:
            return "kerchunk-parquet"
    if top & {"zarr.json", ".zgroup", ".zarray", ".zmetadata"}:
        return "zarr"
    if top & {"repo", "config.yaml", "state.json"} or any(
        name.startswith(("snapshots/", "r/main/")) for name in names
    ):
        reason = "is an Icechunk repository: open it, and read from a session"
        raise file_format_error(source.url, reason)
    raise file_format_error(
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
