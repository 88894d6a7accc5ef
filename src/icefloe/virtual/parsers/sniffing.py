"""Detects file formats from the first bytes, and checks the file name. Pure, no I/O."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.virtual.parse_errors import file_format_error

Format: TypeAlias = Literal["hdf5", "netcdf3", "zarr", "kerchunk-json", "kerchunk-parquet", "tiff"]

_ALIASES: Final[dict[str, Format]] = {"hdf5": "hdf5", "netcdf4": "hdf5", "geotiff": "tiff"}
HEAD_BYTES: Final = 512
HDF5: Final = b"\x89HDF\r\n\x1a\n"
USER_BLOCKS: Final = (512, 1024, 2048, 4096, 8192)
"""Offsets at which an HDF5 file starts after a user block."""

_DESCRIPTIONS: Final[dict[Format, str]] = {
    "hdf5": "an HDF5 or NetCDF4 file",
    "netcdf3": "a NetCDF3 file",
    "zarr": "a Zarr hierarchy",
    "kerchunk-json": "a JSON document",
    "kerchunk-parquet": "a directory of Kerchunk references in Parquet",
    "tiff": "a TIFF image",
}
_MAGIC: Final[dict[Format, tuple[bytes, ...]]] = {
    "hdf5": (HDF5,),
    "netcdf3": (b"CDF\x01", b"CDF\x02", b"CDF\x05"),
    "tiff": (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"),
}
_UNSUPPORTED: Final = (
    (b"GRIB", "a GRIB file"),
    (b"\x0e\x03\x13\x01", "an HDF4 file"),
    (b"PAR1", "a single Parquet file; Kerchunk references are a directory of them"),
    (b"PK\x03\x04", "a zip archive"),
    (b"\x1f\x8b", "compressed with gzip"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd"),
    (b"BZh", "compressed with bzip2"),
    (b"SIMPLE  =", "a FITS file"),
    (b"%PDF", "a PDF document"),
    (b"\x89PNG", "a PNG image"),
    (b"ICE\xf0\x9f\xa7\x8aCHUNK", "a metadata file of an Icechunk repository"),
)
_EXTENSIONS: Final[dict[str, tuple[Format, ...]]] = {
    **dict.fromkeys((".nc", ".cdf"), ("hdf5", "netcdf3")),
    **dict.fromkeys((".nc4", ".h5", ".hdf5", ".he5"), ("hdf5",)),
    **dict.fromkeys((".tif", ".tiff"), ("tiff",)),
    ".json": ("kerchunk-json",),
}


def sniff(head: bytes, *, url: str) -> Format:
    """Detect the format of a file from its first bytes.

    Raises `FormatError` if it cannot be parsed; the message identifies the file type if possible.
    """
    for file_format, signatures in _MAGIC.items():
        if head.startswith(signatures):
            return file_format
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text.startswith(b"{"):
        return "kerchunk-json"
    raise file_format_error(
        url,
        f"is {_identify(head, text)}, which cannot be parsed; supported formats: NetCDF4, HDF5, "
        "NetCDF3, Zarr, Kerchunk references, GeoTIFF",
    )


def parse_format(name: str) -> Format:
    """Parse the name of a format; raises `InvalidInputError` if it is unknown."""
    formats = _ALIASES | {format_name: format_name for format_name in _DESCRIPTIONS}
    if name not in formats:
        raise InvalidInputError(
            f"unknown format {name!r}; expected one of: {', '.join(formats)}",
            kind=ErrorKind.NOT_ALLOWED,
        )
    return formats[name]


def require_format(detected: Format, *, claimed: str | None, url: str) -> Format:
    """Check a detected format against the user's claim, or else the file name extension.

    Raises `FormatError` if the file has another format.
    """
    if claimed is not None:
        expected = parse_format(claimed)
        if expected != detected:
            formats = f"{_DESCRIPTIONS[detected]}, not {_DESCRIPTIONS[expected]}"
            raise file_format_error(url, f"is {formats} as format={claimed!r} requires")
        return detected
    name = url.rpartition("/")[2].lower()
    extension = f".{name.rpartition('.')[2]}" if "." in name else ""
    if detected not in _EXTENSIONS.get(extension, (detected,)):
        raise file_format_error(
            url,
            f"is {_DESCRIPTIONS[detected]}, which does not match its extension {extension}; rename "
            f"it, or pass format={detected!r}",
        )
    return detected


def _identify(head: bytes, text: bytes) -> str:
    if not head:
        return "empty"
    for magic, description in _UNSUPPORTED:
        if head.startswith(magic):
            return description
    start = text[:15].lower()
    if start.startswith((b"<!doctype html", b"<html")):
        return "an HTML page (perhaps a login or error page)"
    if start.startswith(b"<"):
        return "an XML document"
    if not any(head[:64]):
        return "filled with zeros at its start (perhaps an incomplete copy)"
    return f"of an unknown type (it starts with {head[:8]!r})"
