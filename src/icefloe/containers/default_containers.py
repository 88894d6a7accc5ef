"""The containers of a repository whose configuration has none.

The default container of the repository's own platform has its endpoint, region and account, so that
a repository and its virtual chunks in one place need no configuration. Default containers are
created when a repository is opened, and never persisted. Pure, no I/O.
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
    """Return the default containers of a repository; name and prefix are the same, as ``s3``.

    ``home`` is the place of the repository, None if that is not an object store.
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
    # Such as r2, whose endpoint depends on the account.
    if isinstance(home, S3Place) and home.scheme not in stores:
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
