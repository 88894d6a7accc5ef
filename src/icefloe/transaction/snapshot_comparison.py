"""Placeholder."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from icefloe.assets import Assets
    from icefloe.model.transaction_log import TransactionLog
    from icefloe.model.tree import Tree


def compare_snapshots(before: Tree | None, after: Tree, assets: Assets) -> TransactionLog:
    """Return the changes from one snapshot to another."""
    raise AssertionError(before, after, assets)
