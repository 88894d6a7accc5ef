"""Packing of small chunks, which jobs and row writes switch on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.model.config import PackingConfig, RepositoryConfig

if TYPE_CHECKING:
    from icefloe.repository import Repository


def enable_packing(repository: Repository) -> Repository:
    """Return the repository, reopened with packing of small chunks unless it is configured."""
    if repository.config.packing is not None:
        return repository
    return repository.reopen(RepositoryConfig(packing=PackingConfig()))
