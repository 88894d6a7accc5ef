"""What a file is, by its first bytes; the name only has to agree. Pure, no I/O."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from icefloe.errors import ErrorKind, FormatError, InvalidInputError

Format: TypeAlias = Literal["hdf5", "netcdf3", "zarr", "kerchunk-json", "kerchunk-parquet", "tiff"]

FORMATS: Final[dict[str, Format]] = {
    "hdf5": "hdf5",
    "netcdf4": "hdf5",
    "netcdf3": "netcdf3",
    "zarr": "zarr",
    "kerchunk-json": "kerchunk-json",
    "kerchunk-parquet": "kerchunk-parquet",
    "tiff": "tiff",
    "geotiff": "tiff",
}
"""What users may call each format."""

HEAD_BYTES: Final = 512
_HDF5: Final = b"\x89HDF\r\n\x1a\n"
USER_BLOCKS: Final = (512, 1024, 2048, 4096, 8192)
"""Where an HDF5 file may start as well, after something that somebody put before it."""

_SHOWN: Final[dict[Format, str]] = {
    "hdf5": "an HDF5 or NetCDF4 file",
    "netcdf3": "a NetCDF3 file",
    "zarr": "a Zarr hierarchy",
    "kerchunk-json": "a JSON document",
    "kerchunk-parquet": "a folder of Kerchunk references as Parquet",
    "tiff": "a TIFF image",
}
_MAGIC: Final[tuple[tuple[bytes, Format], ...]] = (
    (_HDF5, "hdf5"),
    (b"CDF\x01", "netcdf3"),
    (b"CDF\x02", "netcdf3"),
    (b"CDF\x05", "netcdf3"),
    (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"),
    (b"II+\0", "tiff"),
    (b"MM\0+", "tiff"),
)
_OTHERS: Final = (
    (b"GRIB", "a GRIB file"),
    (b"\x0e\x03\x13\x01", "an HDF4 file"),
    (b"PAR1", "a single Parquet file; Kerchunk's references are a folder of them"),
    (b"PK\x03\x04", "a zip archive"),
    (b"\x1f\x8b", "compressed with gzip"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd"),
    (b"BZh", "compressed with bzip2"),
    (b"SIMPLE  =", "a FITS file"),
    (b"%PDF", "a PDF document"),
    (b"\x89PNG", "a PNG image"),
    (b"ICE\xf0\x9f\xa7\x8aCHUNK", "a metadata file of an Icechunk repository"),
)
_NAMES: Final[dict[str, tuple[Format, ...]]] = {
    ".nc": ("hdf5", "netcdf3"),
    ".nc4": ("hdf5",),
    ".cdf": ("netcdf3", "hdf5"),
    ".h5": ("hdf5",),
    ".hdf5": ("hdf5",),
    ".he5": ("hdf5",),
    ".tif": ("tiff",),
    ".tiff": ("tiff",),
    ".json": ("kerchunk-json",),
}


def is_hdf5(data: bytes) -> bool:
    """Whether an HDF5 file starts here."""
    return data.startswith(_HDF5)


def sniff(head: bytes, *, url: str) -> Format:
    """Say what a file is.

    Raises
    ------
    FormatError
        If it is nothing that can be parsed, saying what it is as far as that can be told.
    """
    for magic, found in _MAGIC:
        if head.startswith(magic):
            return found
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text.startswith(b"{"):
        return "kerchunk-json"
    raise FormatError(
        f"is {_something_else(head, text)}, which cannot be parsed: NetCDF4, HDF5, NetCDF3, Zarr, "
        "Kerchunk references and GeoTIFF can",
        file=url,
        kind=ErrorKind.INVALID_FILE_FORMAT,
    )


def require(found: Format, *, claimed: str | None, url: str) -> Format:
    """Check what a file is against what the user, or else its name, says that it is.

    Raises
    ------
    InvalidInputError
        If ``claimed`` is no format.
    FormatError
        If the file is something else.
    """
    if claimed is not None:
        wanted = FORMATS.get(claimed)
        if wanted is None:
            raise InvalidInputError(
                f"there is no format {claimed!r}: give one of {', '.join(FORMATS)}",
                kind=ErrorKind.NOT_ALLOWED,
            )
        if wanted != found:
            raise FormatError(
                f"is {_SHOWN[found]}, not {_SHOWN[wanted]}, as format={claimed!r} says",
                file=url,
                kind=ErrorKind.INVALID_FILE_FORMAT,
            )
        return found
    name = url.rpartition("/")[2].lower()
    suffix = f".{name.rpartition('.')[2]}" if "." in name else ""
    if found not in _NAMES.get(suffix, (found,)):
        raise FormatError(
            f"is {_SHOWN[found]}, not what its name says; rename it, or pass format={found!r}",
            file=url,
            kind=ErrorKind.INVALID_FILE_FORMAT,
        )
    return found


def _something_else(head: bytes, text: bytes) -> str:
    if not head:
        return "empty"
    for magic, what in _OTHERS:
        if head.startswith(magic):
            return what
    start = text[:15].lower()
    if start.startswith((b"<!doctype html", b"<html")):
        return "an HTML page (a login or an error page, perhaps)"
    if start.startswith(b"<"):
        return "an XML document"
    if not any(head[:64]):
        return "full of zeros at its start, as after a copy that broke off"
    return f"of an unknown kind (it starts with {head[:8]!r})"
