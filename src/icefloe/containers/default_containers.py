"""The default containers of a repository, one for each platform.

The default container of the repository's own platform has the endpoint, region and account of the
repository, so that virtual chunks on that platform need no configuration. Default containers are
created when a repository is opened, and never persisted. A container of the configuration overrides
the default with its own prefix. Pure, no I/O.

The configuration is untrusted, and gains nothing by this: it can leave all defaults in place by
having no containers, and a default is authorized as any other container is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from icefloe.containers.stores import get_endpoint
from icefloe.model.containers import (
    ObjectStoreConfig,
    S3Options,
    VirtualChunkContainer,
    normalize_prefix,
)
from icefloe.storage.places import AzurePlace, GcsPlace, S3Place

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from icefloe.model.containers import AnyObjectStoreConfig
    from icefloe.storage.places import Place


def make_default_containers(home: Place | None) -> list[VirtualChunkContainer]:
    """Make the default containers of a repository; the name and URL prefix of each is its scheme.

    ``home`` is the place of the repository, or None if the repository is not in an object store.
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
    # The repository is on another S3-compatible platform, such as r2.
    if isinstance(home, S3Place) and home.scheme not in stores:
        stores[home.scheme] = ObjectStoreConfig.S3Compatible(_make_s3_options(home, home.scheme))
    return [VirtualChunkContainer(scheme, store, scheme) for scheme, store in stores.items()]


def select_default_containers(
    home: Place | None, names: Collection[str], configured: Iterable[VirtualChunkContainer]
) -> list[VirtualChunkContainer]:
    """Return the default containers that apply beside those of the configuration.

    A container of the configuration overrides the default with its prefix even if it is invalid:
    its chunks must not be read from another place. If it has the name of another default, that
    default has no name and is found by its prefix.
    """
    present = list(configured)
    prefixes = {normalize_prefix(container.url_prefix) for container in present}
    taken_names = {container.name for container in present}
    return [
        replace(default, name=None) if default.name in taken_names else default
        for default in make_default_containers(home)
        if default.name in names and default.url_prefix not in prefixes
    ]


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
