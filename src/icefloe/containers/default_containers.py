"""The containers of a repository whose configuration has none.

The default container of the repository's own platform has the same endpoint, region and account, so
that virtual chunks on that platform need no configuration. Default containers are created when a
repository is opened, and never persisted. Pure, no I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.containers.stores import get_endpoint
from icefloe.model.containers import ObjectStoreConfig, S3Options, VirtualChunkContainer
from icefloe.storage.places import AzurePlace, GcsPlace, S3Place

if TYPE_CHECKING:
    from icefloe.model.containers import AnyObjectStoreConfig
    from icefloe.storage.places import Place


def make_default_containers(home: Place | None) -> list[VirtualChunkContainer]:
    """Make the default containers of a repository; the name of each, such as ``s3``, is its prefix.

    ``home`` is the place of the repository, None if it is not in an object store.
    """
    gcs = ObjectStoreConfig.Gcs(home.config if isinstance(home, GcsPlace) else {})
    azure = ObjectStoreConfig.Azure(_make_azure_options(home))
    stores: dict[str, AnyObjectStoreConfig] = {
        "s3": ObjectStoreConfig.S3(_make_s3_options(home, "s3")),
        "gcs": gcs,
        "gs": gcs,
        "azure": azure,
        "az": azure,
        "tigris": ObjectStoreConfig.Tigris(_make_s3_options(home, "tigris")),
    }
    # Other S3-compatible platforms: for example, the endpoint of r2 depends on the account.
    if isinstance(home, S3Place) and home.scheme not in stores:
        stores[home.scheme] = ObjectStoreConfig.S3Compatible(_make_s3_options(home, home.scheme))
    return [VirtualChunkContainer(name, store, name) for name, store in stores.items()]


def _make_s3_options(home: Place | None, scheme: str) -> S3Options:
    if not isinstance(home, S3Place) or home.scheme != scheme:
        return S3Options()
    return S3Options(
        region=None if home.region == "auto" else home.region,
        endpoint_url=get_endpoint(home),
        allow_http=home.allow_http,
        force_path_style=not home.virtual_hosted,
    )


def _make_azure_options(home: Place | None) -> dict[str, str]:
    if not isinstance(home, AzurePlace):
        return {}
    account = {} if home.account is None else {"account": home.account}
    return {**account, **home.config}
