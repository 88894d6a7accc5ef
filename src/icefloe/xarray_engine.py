"""The engine ``icechunk`` of Xarray: ``xr.open_dataset(URL, engine="icechunk")``.

Xarray imports this module whenever it opens anything: the imports of other modules are in the
functions.
"""

from __future__ import annotations

import os
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from xarray.backends import BackendEntrypoint, ZarrBackendEntrypoint

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    import xarray as xr

    from icefloe.reading import Readable
    from icefloe.storage import AnyCredential

_STATE = ("branch", "tag", "snapshot", "as_of", "group", "authorize_virtual_chunk_access")
_NOT_OFFERED = {"self", "filename_or_obj", "group", "mode", "consolidated", "storage_options"} | {
    "zarr_format",
    "store",
    "engine",
}


class IcechunkBackendEntrypoint(BackendEntrypoint):
    """Opens repositories for reading.

    In addition to Xarray's options for decoding, it takes ``branch`` (``main`` by default), ``tag``
    or ``snapshot``, ``as_of``, ``group`` and ``authorize_virtual_chunk_access``.
    """

    description = "Open Icechunk repositories with icefloe"
    url = "https://github.com/icefloe-project/icefloe"
    supports_groups = True
    open_dataset_parameters: ClassVar[tuple[str, ...]] = (
        "filename_or_obj",
        *_STATE,
        *(
            name
            for name in signature(ZarrBackendEntrypoint.open_dataset).parameters
            if name not in _NOT_OFFERED
        ),
    )

    def guess_can_open(self, filename_or_obj: object) -> bool:
        """Whether this is a directory with a repository, or a URL pipeline of one."""
        if isinstance(filename_or_obj, str) and "|icechunk:" in filename_or_obj:
            return True
        if not isinstance(filename_or_obj, str | os.PathLike):
            return False
        folder = Path(filename_or_obj)
        is_repository = (folder / "repo").is_file() or (folder / "refs").is_dir()
        return is_repository and (folder / "snapshots").is_dir()

    def open_dataset(  # type: ignore[override]
        self, filename_or_obj: Readable, **options: Any
    ) -> xr.Dataset:
        """Open a group as a Dataset."""
        store, options = _open(filename_or_obj, **options)
        return ZarrBackendEntrypoint().open_dataset(store, **options)

    def open_datatree(  # type: ignore[override]
        self, filename_or_obj: Readable, **options: Any
    ) -> xr.DataTree:
        """Open a group, with all groups below it, as a DataTree."""
        store, options = _open(filename_or_obj, **options)
        return ZarrBackendEntrypoint().open_datatree(store, **options)

    def open_groups_as_dict(  # type: ignore[override]
        self, filename_or_obj: Readable, **options: Any
    ) -> dict[str, xr.Dataset]:
        """Open a group, and all groups below it, as Datasets by path."""
        store, options = _open(filename_or_obj, **options)
        return ZarrBackendEntrypoint().open_groups_as_dict(store, **options)


def _open(
    place: Readable,
    *,
    branch: str | None = None,
    tag: str | None = None,
    snapshot: str | None = None,
    as_of: datetime | None = None,
    group: str | None = None,
    authorize_virtual_chunk_access: Mapping[str, AnyCredential | None] | None = None,
    **options: Any,
) -> tuple[Any, dict[str, Any]]:
    # The store is Any, because Xarray's annotations do not have Zarr stores.
    from icefloe.reading import State, open_state  # noqa: PLC0415

    session, group = open_state(
        place,
        State(branch, tag, snapshot, as_of, group),
        authorize_virtual_chunk_access=authorize_virtual_chunk_access,
    )
    return session.store, {**options, "group": group, "consolidated": False, "zarr_format": 3}
