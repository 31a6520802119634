"""A radix tree of blocks: which token prefixes have their keys and values in the pool.

One node is one full block of tokens after those of its parent; a child is found by its tokens themselves, so a hit is
never a hash collision. Each salt (tenant) has a root of its own. A node has one block per KV group, or `NO_BLOCK`
where that group's was evicted or never kept.

The tree decides nothing about eviction: the pool evicts in the order of release. Sequences release from their last
block to their first, and a sequence that holds a node's block holds its parent's too; so in groups of full attention
a child always goes before its parent, and what is left is always a prefix.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from trivium.types.kv import KVSpec

NO_BLOCK = -1
MAX_EVICTED = 65_536  # prefixes that are remembered, to tell why one was not found; 8 MiB at most


class Node:
    __slots__ = ("blocks", "children", "fingerprint", "key", "parent", "pins")

    def __init__(self, key: tuple[int, ...] | str, parent: Node | None, num_groups: int) -> None:
        self.key = key  # the tokens of this block; the salt in a salt's root
        self.parent = parent  # None only above the salts' roots
        above = parent.fingerprint if parent is not None else 0
        self.fingerprint: int = hash((above, key))  # of all tokens up to here
        self.children: dict[tuple[int, ...] | str, Node] = {}
        self.blocks = [NO_BLOCK] * num_groups
        self.pins = 0  # sequences that will add their next block under this node

    @property
    def has_blocks(self) -> bool:
        return any(block != NO_BLOCK for block in self.blocks)

    @property
    def is_bare(self) -> bool:
        """Nothing needs it: no sequence, no descendant, no block."""
        return not self.pins and not self.children and not self.has_blocks


class PrefixTree:
    def __init__(self, spec: KVSpec) -> None:
        self._block_size = spec.block_size
        self._num_groups = len(spec.groups)
        self._full_groups = [g for g, group in enumerate(spec.groups) if group.window is None]
        # A query after a match sees the last window - 1 tokens of it: so many blocks before its end must be there.
        self._sliding_groups = [
            (g, -(-(group.window - 1) // spec.block_size))
            for g, group in enumerate(spec.groups)
            if group.window is not None
        ]
        self._top = Node("", None, self._num_groups)  # its children are the roots, by salt
        self._places: dict[int, tuple[Node, int]] = {}  # block -> its node and group
        self._evicted: OrderedDict[int, None] = OrderedDict()  # fingerprints, oldest first

    def match(self, salt: str, tokens: Sequence[int]) -> list[Node]:
        """The nodes of the longest prefix from which a sequence can go on, never of all the tokens.

        Full attention needs its block in every node; a sliding group only in those that its window still sees.
        """
        node = self._top.children.get(salt)
        if node is None:
            return []
        path: list[Node] = []
        longest = 0
        unbroken = [0] * len(self._sliding_groups)  # nodes up to the last of `path` that have the group's block
        size = self._block_size
        for start in range(0, len(tokens) - size, size):
            node = node.children.get(tuple(tokens[start : start + size]))
            if node is None or any(node.blocks[g] == NO_BLOCK for g in self._full_groups):
                break
            path.append(node)
            seen = True
            for i, (g, needed) in enumerate(self._sliding_groups):
                unbroken[i] = unbroken[i] + 1 if node.blocks[g] != NO_BLOCK else 0
                seen = seen and unbroken[i] >= min(needed, len(path))
            if seen:
                longest = len(path)
        return path[:longest]

    def root(self, salt: str) -> Node:
        """The node before the first block of a salt's prefixes; to be pinned at once, like a new child."""
        return self.child(self._top, salt)

    def child(self, parent: Node, key: tuple[int, ...] | str) -> Node:
        """The node of these tokens after `parent`, new if need be; to be pinned before anything is pruned."""
        node = parent.children.get(key)
        if node is None:
            node = parent.children[key] = Node(key, parent, self._num_groups)
        return node

    def place(self, node: Node, group: int, block: int) -> None:
        node.blocks[group] = block
        self._places[block] = (node, group)

    def evict(self, block: int) -> None:
        """Like `drop`, and it is remembered that there was such a prefix."""
        self._evicted[self._places[block][0].fingerprint] = None
        if len(self._evicted) > MAX_EVICTED:
            self._evicted.popitem(last=False)
        self.drop(block)

    def was_evicted(self, parent: Node, tokens: Sequence[int]) -> bool:
        """Whether the block of these tokens after `parent` was there once."""
        return hash((parent.fingerprint, tuple(tokens))) in self._evicted

    def drop(self, block: int) -> None:
        """The block was evicted or withdrawn."""
        node, group = self._places.pop(block)
        node.blocks[group] = NO_BLOCK
        self._prune(node)

    def pin(self, node: Node) -> None:
        node.pins += 1

    def unpin(self, node: Node) -> None:
        node.pins -= 1
        self._prune(node)

    def _prune(self, node: Node) -> None:
        """Removes the node if nothing needs it any more, and then its ancestors likewise."""
        while node.parent is not None and node.is_bare:
            del node.parent.children[node.key]
            node = node.parent

    def roots(self) -> list[Node]:
        """One for each salt, the newest first."""
        return list(reversed(self._top.children.values()))

    def nodes(self) -> Iterator[Node]:
        """All nodes, roots included, parents before children."""
        stack = self.roots()
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    @property
    def num_nodes(self) -> int:
        return sum(1 for _ in self.nodes())
