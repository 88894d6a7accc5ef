"""The containers that every repository has until its configuration names some (seed `002`).

They follow the repository: the default container of its own platform has its endpoint, region and
account, so that a repository and its virtual chunks in one place need no configuration. They are
made when a repository is opened and are never persisted. Pure, no I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.containers.stores import endpoint_of
from icefloe.model.containers import ObjectStoreConfig, S3Options, VirtualChunkContainer
from icefloe.storage.places import AzurePlace, GcsPlace, S3Place

if TYPE_CHECKING:
    from icefloe.model.containers import AnyObjectStoreConfig
    from icefloe.storage.places import Place


def default_containers(home: Place | None) -> list[VirtualChunkContainer]:
    """Make the default containers of a repository; each has one name and prefix, as ``s3``.

    Parameters
    ----------
    home
        Where the repository is, None where that is no object store.
    """
    gcs = ObjectStoreConfig.Gcs(home.config if isinstance(home, GcsPlace) else {})
    azure = ObjectStoreConfig.Azure(_azure_options(home))
    stores: dict[str, AnyObjectStoreConfig] = {
        "s3": ObjectStoreConfig.S3(_s3_options(home, "s3")),
        "gcs": gcs,
        "gs": gcs,
        "azure": azure,
        "az": azure,
        "tigris": ObjectStoreConfig.Tigris(_s3_options(home, "tigris")),
    }
    if isinstance(home, S3Place) and home.scheme not in stores:  # as r2, which has no one endpoint
        stores[home.scheme] = ObjectStoreConfig.S3Compatible(_s3_options(home, home.scheme))
    return [VirtualChunkContainer(name, store, name) for name, store in stores.items()]


def _s3_options(home: Place | None, scheme: str) -> S3Options:
    if not isinstance(home, S3Place) or home.scheme != scheme:
        return S3Options()
    return S3Options(
        region=None if home.region == "auto" else home.region,
        endpoint_url=endpoint_of(home),
        allow_http=home.allow_http,
        force_path_style=not home.virtual_hosted,
    )


def _azure_options(home: Place | None) -> dict[str, str]:
    if not isinstance(home, AzurePlace):
        return {}
    account = {} if home.account is None else {"account": home.account}
    return {**account, **home.config}
