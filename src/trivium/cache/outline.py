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
    chains: tuple[Chain, ...] = ()  # parents before children, those in use first, then the newest
    is_whole: bool = True  # nothing was left out


def outline(cache: BlockCache, max_chains: int, max_blocks: int) -> TreeOutline:
    """The tree from its roots on, level by level, until so many chains or blocks have been seen.

    What sequences hold comes before what is only kept: who holds a block holds those before it, so running sequences are seen
    however large the tree is.
    """
    chains: list[Chain] = []
    held: deque[tuple[int, Node]] = deque()
    kept: deque[tuple[int, Node]] = deque()

    def add(parent: int, node: Node) -> None:
        for child in reversed(node.children.values()):
            (held if _is_held(cache, child) else kept).append((parent, child))

    for root in cache.tree.roots():
        add(-1, root)
    while (held or kept) and len(chains) < max_chains and max_blocks > 0:
        parent, node = (held or kept).popleft()
        chain, last = _chain_from(cache, parent, node, max_blocks)
        max_blocks -= chain.blocks
        add(len(chains), last)
        chains.append(chain)
    return TreeOutline(tuple(chains), is_whole=not held and not kept)


def _is_held(cache: BlockCache, node: Node) -> bool:
    return any(block != NO_BLOCK and cache.pool.references(block) for block in node.blocks)


def _chain_from(cache: BlockCache, parent: int, node: Node, max_blocks: int) -> tuple[Chain, Node]:
    blocks = held = ends = 0
    while True:
        blocks += 1
        held += _is_held(cache, node)
        ends += node.pins
        if len(node.children) != 1 or blocks == max_blocks:
            return Chain(parent, blocks, held, ends), node
        (node,) = node.children.values()
