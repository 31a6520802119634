"""The shape of the prefix tree, for people to look at: how prefixes branch, how long they are, what is in use.

It holds no tokens: what others have asked is nobody's business. Its size and the time to make it are bounded, whatever
the tree's are.
"""

from __future__ import annotations

from collections import deque

from msgspec import Struct

from trivium.cache.block_cache import BlockCache
from trivium.cache.prefix_tree import NO_BLOCK, Node


class Chain(Struct, frozen=True):
    """Blocks that follow each other without a branch."""

    parent: int  # place of the chain before it in the outline, -1: it begins a prefix
    blocks: int  # tokens / block size
    held: int  # of these blocks, those that a sequence holds; the others are kept for reuse
    ends: int  # running sequences that are within it


class TreeOutline(Struct, frozen=True):
    chains: tuple[Chain, ...] = ()  # parents before children, of siblings the newest first
    is_whole: bool = True  # nothing was left out


def outline(cache: BlockCache, max_chains: int, max_blocks: int) -> TreeOutline:
    """The tree from its roots on, level by level, until so many chains or blocks have been seen."""
    chains: list[Chain] = []
    waiting = deque((-1, node) for root in cache.tree.roots() for node in reversed(root.children.values()))
    while waiting and len(chains) < max_chains and max_blocks > 0:
        parent, node = waiting.popleft()
        chain, last = _chain_from(cache, parent, node, max_blocks)
        max_blocks -= chain.blocks
        waiting.extend((len(chains), child) for child in reversed(last.children.values()))
        chains.append(chain)
    return TreeOutline(tuple(chains), is_whole=not waiting)


def _chain_from(cache: BlockCache, parent: int, node: Node, max_blocks: int) -> tuple[Chain, Node]:
    blocks = held = ends = 0
    while True:
        blocks += 1
        held += any(block != NO_BLOCK and cache.pool.references(block) for block in node.blocks)
        ends += node.pins
        if len(node.children) != 1 or blocks == max_blocks:
            return Chain(parent, blocks, held, ends), node
        (node,) = node.children.values()
