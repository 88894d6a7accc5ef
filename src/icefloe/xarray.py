"""Reads a state of a repository in one line; writes to a session, with dask arrays in parallel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import xarray as xr
import zarr
from xarray.backends.common import ArrayWriter
from xarray.backends.zarr import ZarrStore, _choose_default_mode
from zarr.storage import StorePath

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.reading import State, open_state
from icefloe.session import Session
from icefloe.store import IcechunkStore
from icefloe.xarray_engine import IcechunkBackendEntrypoint

try:
    from xarray.backends.writers import _validate_dataset_names, dump_to_store
except ImportError:  # xarray 2025.9 and earlier
    from xarray.backends.api import (  # type: ignore[attr-defined, no-redef, unused-ignore]
        _validate_dataset_names,
        dump_to_store,
    )

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping
    from datetime import datetime

    from icefloe.reading import Readable
    from icefloe.storage import AnyCredential

__all__ = ["open_dataset", "open_datatree", "to_icechunk"]

Region: TypeAlias = "Mapping[str, slice | Literal['auto']] | Literal['auto'] | None"
ZarrWriteModes: TypeAlias = Literal["w", "w-", "a", "a-", "r+", "r"]

# Xarray's attribute for the name of a DataArray, and variable for its values, in a Dataset.
_NAME = "__xarray_dataarray_name__"
_VARIABLE = "__xarray_dataarray_variable__"


def open_dataset(
    place: Readable,
    *,
    branch: str | None = None,
    tag: str | None = None,
    snapshot: str | None = None,
    as_of: datetime | None = None,
    group: str | None = None,
    authorize_virtual_chunk_access: Mapping[str, AnyCredential | None] | None = None,
    **options: Any,
) -> xr.Dataset:
    """Open a group of a repository as a Dataset.

    Parameters
    ----------
    place
        A path, a URL such as ``s3://bucket/weather`` or
        ``s3://bucket/weather|icechunk:@tag.v1/maps``, a storage, a repository or a session.
        Credentials of URLs come from the environment.
    branch, tag, snapshot
        The state to read, only one of them; default is the branch ``main``.
    as_of
        Reads the branch as of this time.
    group
        Path of the group; default is the root.
    authorize_virtual_chunk_access
        Credentials by prefix or name of the containers that may be read.
    options
        Other options of `xarray.open_dataset`, such as ``chunks`` or ``decode_times``.

    Raises
    ------
    RepositoryNotFoundError, RefNotFoundError, SnapshotNotFoundError, NodeNotFoundError
        If there is no such repository, state or group.
    """
    session, group = open_state(
        place,
        State(branch, tag, snapshot, as_of, group),
        authorize_virtual_chunk_access=authorize_virtual_chunk_access,
    )
    return xr.open_dataset(
        cast("Any", session), engine=IcechunkBackendEntrypoint, group=group, **options
    )


def open_datatree(
    place: Readable,
    *,
    branch: str | None = None,
    tag: str | None = None,
    snapshot: str | None = None,
    as_of: datetime | None = None,
    group: str | None = None,
    authorize_virtual_chunk_access: Mapping[str, AnyCredential | None] | None = None,
    **options: Any,
) -> xr.DataTree:
    """Open a group of a repository, with all groups below it, as a DataTree.

    The parameters are those of `open_dataset`.
    """
    session, group = open_state(
        place,
        State(branch, tag, snapshot, as_of, group),
        authorize_virtual_chunk_access=authorize_virtual_chunk_access,
    )
    return xr.open_datatree(
        cast("Any", session), engine=IcechunkBackendEntrypoint, group=group, **options
    )


def to_icechunk(
    obj: xr.DataArray | xr.Dataset,
    session: Session,
    *,
    group: str | None = None,
    mode: ZarrWriteModes | None = None,
    safe_chunks: bool = True,
    align_chunks: bool = False,
    append_dim: Hashable | None = None,
    region: Region = None,
    encoding: Mapping[Any, Any] | None = None,
    chunkmanager_store_kwargs: Mapping[str, Any] | None = None,
    split_every: int | None = None,
) -> None:
    """Write a Dataset or a DataArray to a group of a session.

    Like ``obj.to_zarr(session.store, zarr_format=3, consolidated=False)``, and also merges the
    writes of dask tasks in other processes. Metadata and arrays in memory are written to the
    session, dask arrays to a fork of it, which is merged at the end. Nothing is committed. After an
    error, parts may be written; ``session.discard_changes()`` discards all uncommitted changes.

    Parameters
    ----------
    session
        A writable session, or a fork.
    group
        Path of the group; default is the root.
    mode
        ``w``: replace the group; ``w-``: create it, or raise if it exists; ``a``: add and replace
        variables; ``a-``: add variables, and extend those with ``append_dim``; ``r+``: change
        values only. By default ``a`` with ``append_dim``, ``r+`` with ``region``, else ``w-``.
    safe_chunks
        Whether to refuse dask chunks that share a Zarr chunk.
    align_chunks
        Whether to rechunk dask arrays so that no two dask chunks share a Zarr chunk.
    append_dim
        Dimension along which to extend existing arrays.
    region
        Part of the arrays to write: slices by dimension, or ``"auto"`` to find them by coordinates.
    encoding
        Encoding of variables by name, such as ``{"x": {"dtype": "int16"}}``.
    chunkmanager_store_kwargs
        Arguments of ``dask.compute``.
    split_every
        Number of forks that one task merges; dask chooses by default.

    Raises
    ------
    InvalidInputError
        If ``session`` is not a session, or ``obj`` not an Xarray object.
    ReadOnlyError, SessionStateError
        If the session is not writable, or dask tasks wrote different bytes to the same chunk.
    """
    _require_writable(session)
    dataset = _as_dataset(obj).copy()
    for variable in dataset.variables.values():
        if variable.size == 0:
            variable.load()  # as Xarray does: dask has chunks of length 0, Zarr does not
    _validate_dataset_names(dataset)
    group_store = ZarrStore.open_group(
        session.store,
        mode=_choose_default_mode(mode=mode, append_dim=append_dim, region=region),
        group=group,
        zarr_format=3,
        consolidated=False,
        consolidate_on_close=False,
        append_dim=append_dim,
        write_region=region,
        safe_chunks=safe_chunks,
        align_chunks=align_chunks,
    )
    dataset = group_store._validate_and_autodetect_region(dataset)  # noqa: SLF001
    encodings = dict(encoding or {})
    group_store._validate_encoding(encodings)  # noqa: SLF001
    # The writer writes arrays in memory at once, and collects lazy arrays in `sources`.
    writer = ArrayWriter()  # type: ignore[no-untyped-call]
    dump_to_store(dataset, group_store, writer, encoding=encodings)  # type: ignore[no-untyped-call, unused-ignore]
    if writer.sources:
        _write_lazy(writer, session, split_every, dict(chunkmanager_store_kwargs or {}))


def _write_lazy(
    writer: ArrayWriter, session: Session, split_every: int | None, options: dict[str, Any]
) -> None:
    try:
        import dask.array as da  # noqa: PLC0415 - not needed for arrays in memory

        from icefloe.dask import store_dask  # noqa: PLC0415
    except ImportError:
        unsupported = writer.sources
    else:
        unsupported = [source for source in writer.sources if not isinstance(source, da.Array)]
    if unsupported:
        raise InvalidInputError(
            f"expected dask arrays or arrays in memory, got {type(unsupported[0])}: load them "
            "first with obj.compute(), or write them with their own library through session.fork()",
            kind=ErrorKind.UNIMPLEMENTED,
        )
    fork = session.fork()
    targets = [_rebind_array(target, fork.store) for target in writer.targets]
    session.merge(
        store_dask(
            sources=writer.sources,
            targets=targets,
            regions=writer.regions,
            split_every=split_every,
            **options,
        )
    )


def _rebind_array(array: zarr.Array[Any], store: IcechunkStore) -> zarr.Array[Any]:
    """Return the array at the same path of another store, with the same runtime configuration."""
    path = StorePath(store, array.path)
    return zarr.Array(zarr.AsyncArray(array.metadata, path, array.async_array.config))


def _as_dataset(obj: object) -> xr.Dataset:
    """Convert a DataArray to a Dataset that `xarray.open_dataarray` reads as the same DataArray."""
    if isinstance(obj, xr.Dataset):
        return obj
    if not isinstance(obj, xr.DataArray):
        raise InvalidInputError(
            f"to_icechunk expected a Dataset or DataArray, got a {type(obj).__name__}",
            kind=ErrorKind.NOT_ALLOWED,
        )
    if obj.name is not None and obj.name not in obj.coords and obj.name not in obj.dims:
        return obj.to_dataset()
    dataset = obj.to_dataset(name=_VARIABLE)
    if obj.name is not None:
        dataset.attrs[_NAME] = obj.name
    return dataset


def _require_writable(session: object) -> None:
    if not isinstance(session, Session):
        hint = ": pass store.session" if isinstance(session, IcechunkStore) else ""
        raise InvalidInputError(
            f"to_icechunk expected a session, got a {type(session).__name__}{hint}",
            kind=ErrorKind.NOT_ALLOWED,
        )
    session.require_editable()
