"""Storages for state machines, which need a new one for each example."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from icefloe.storage import LocalStorage, MemoryStorage, Storage, s3_storage
from support.generations import examples_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.servers import S3Server


@dataclass(frozen=True)
class Place:
    """Where repositories are made, and what part of the usual examples is run there."""

    make_storage: Callable[[], Storage]
    share: float

    def limit(self, usual: settings, generation: str) -> settings:
        """Return settings with as many examples as fit this place and a generation."""
        number = examples_of(generation, usual.max_examples, thorough=10 * usual.max_examples)
        return settings(usual, max_examples=max(2, int(number * self.share)))


@pytest.fixture(params=["memory", "local", pytest.param("s3", marks=pytest.mark.full)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Return each kind of storage; S3 only in ``make full``."""
    if request.param == "memory":
        return Place(MemoryStorage, 1)
    if request.param == "local":
        return Place(lambda: LocalStorage(tmp_path / uuid.uuid4().hex, durable=False), 0.25)
    server: S3Server = request.getfixturevalue("s3_server")

    def make_storage() -> Storage:
        return s3_storage(
            bucket=server.bucket,
            prefix=f"machine/{uuid.uuid4()}",
            endpoint_url=server.endpoint_url,
            allow_http=True,
            force_path_style=True,
            region="us-east-1",
            access_key_id=server.access_key_id,
            secret_access_key=server.secret_access_key,
        )

    return Place(make_storage, 0.25)
