"""Packing of small chunks into larger objects, which jobs and row writes enable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.model.config import PackingConfig, RepositoryConfig

if TYPE_CHECKING:
    from icefloe.repository import Repository


def enable_packing(repository: Repository) -> Repository:
    """Reopen a repository with packing enabled, unless its configuration sets packing."""
    if repository.config.packing is not None:
        return repository
    return repository.reopen(RepositoryConfig(packing=PackingConfig()))
