"""Preloads manifests, by default those of small coordinate arrays."""

from __future__ import annotations

import threading
from itertools import islice
from math import prod
from typing import TYPE_CHECKING, Final

from icefloe.errors import IcefloeError
from icefloe.model import manifest_config
from icefloe.model.node import ArrayNodeData
from icefloe.transaction.splitting import compile_regex

if TYPE_CHECKING:
    from icefloe.assets import Assets
    from icefloe.model.ids import ManifestId
    from icefloe.model.manifest_config import Bound, ManifestPreloadCondition, ManifestPreloadConfig
    from icefloe.model.path import Path
    from icefloe.model.tree import Tree

# The limit of the configuration counts arrays; there may be many more groups.
_MAX_SCANNED_NODES: Final = 4096


def plan_preload(tree: Tree, config: ManifestPreloadConfig) -> list[ManifestId]:
    """Choose the manifests to load, within the limits of the configuration."""
    condition = config.effective_preload_if
    remaining = config.effective_max_total_refs
    sizes: dict[ManifestId, int] = {}
    chosen: dict[ManifestId, None] = {}
    scanned = 0
    for node in islice(tree.snapshot.nodes, _MAX_SCANNED_NODES):
        if not isinstance(node.node_data, ArrayNodeData):
            continue
        if scanned >= config.effective_max_arrays_to_scan:
            break
        scanned += 1
        ids = dict.fromkeys(ref.id for ref in node.node_data.manifests)
        for manifest_id in ids:
            info = tree.get_manifest_file(manifest_id)
            sizes[manifest_id] = 0 if info is None else info.num_chunk_refs
        refs = sum(sizes[manifest_id] for manifest_id in ids)
        # A file may contain other arrays too; the grid limits the references of this one.
        num_refs = min(refs, prod(dimension.num_chunks for dimension in node.node_data.shape))
        if refs <= remaining and ids and matches(condition, node.path, num_refs):
            remaining -= sum(sizes[manifest_id] for manifest_id in ids if manifest_id not in chosen)
            chosen |= ids
    return list(chosen)


def matches(condition: ManifestPreloadCondition, path: Path, num_refs: int) -> bool:
    """Whether a condition holds for an array; an unknown condition does not."""
    match condition:
        case manifest_config.PreloadOr(conditions=conditions):
            return any(matches(part, path, num_refs) for part in conditions)
        case manifest_config.PreloadAnd(conditions=conditions):
            return all(matches(part, path, num_refs) for part in conditions)
        case manifest_config.PreloadPathMatches(regex=regex):
            return compile_regex(regex).search(path.value) is not None
        case manifest_config.PreloadNameMatches(regex=regex):
            return compile_regex(regex).search(path.name) is not None
        case manifest_config.PreloadNumRefs():
            return _is_above(condition.from_bound, num_refs) and _is_below(
                condition.to_bound, num_refs
            )
        case manifest_config.PreloadTrue():
            return True
        case _:
            return False


def start_preload(assets: Assets, tree: Tree, config: ManifestPreloadConfig) -> None:
    """Load manifests in the background; a reader waits only for the manifest that it needs."""
    manifest_ids = plan_preload(tree, config)
    if not manifest_ids:
        return

    def load() -> None:
        for manifest_id in manifest_ids:
            try:
                assets.load_manifest(manifest_id)
            except IcefloeError:
                # A reader of this manifest gets the error.
                return

    threading.Thread(target=load, name="icefloe-preload", daemon=True).start()


def _is_above(bound: Bound, value: int) -> bool:
    match bound:
        case manifest_config.Included(limit):
            return value >= limit
        case manifest_config.Excluded(limit):
            return value > limit
        case _:
            return True


def _is_below(bound: Bound, value: int) -> bool:
    match bound:
        case manifest_config.Included(limit):
            return value <= limit
        case manifest_config.Excluded(limit):
            return value < limit
        case _:
            return True
