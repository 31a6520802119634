"""The block tables of one sequence: for each KV group, which block holds its tokens i * block_size … of that group.

All groups' tables have one length. An entry is `NO_BLOCK` where a sliding group no longer sees those tokens. Entries
are told to the device as they change; a device row therefore mirrors the tables exactly.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from trivium.cache.block_cache import BlockCache
from trivium.cache.prefix_tree import NO_BLOCK, Node
from trivium.types.step import BlockCopy, TableUpdate

NEVER = sys.maxsize


class BlockTables:
    """Empty until `adopt` or `fork`, and again after `release`."""

    __slots__ = (
        "_block_size",
        "_cache",
        "_edits",
        "_first_seen",
        "_node",
        "_num_published",
        "_num_told",
        "_tail_may_be_shared",
        "groups",
        "has_changes",
        "next_full",
        "next_slide",
        "writable_end",
    )

    def __init__(self, cache: BlockCache) -> None:
        self._cache = cache
        self._block_size = cache.spec.block_size
        self._reset()

    def _reset(self) -> None:
        self.groups: list[list[int]] = [[] for _ in self._cache.spec.groups]
        self.writable_end = 0  # from the first position not yet computed up to here, `reserve` has nothing to do
        self.next_full = NEVER  # when so many tokens are computed, there is a full block to publish
        self.next_slide = NEVER  # when so many tokens are computed, a block leaves its window
        self.has_changes = False  # since `take_updates`
        self._first_seen = [0] * len(self.groups)  # the first entry of each group that is not NO_BLOCK
        self._edits: list[tuple[int, int]] = []  # (group, index) of entries that changed after they were told
        self._num_told = 0  # entries of each group that the device knows
        self._node: Node | None = None  # of the last published block; its root before the first
        self._num_published = 0
        self._tail_may_be_shared = False

    # Beginnings

    def adopt(self, salt: str, tokens: Sequence[int]) -> int:
        """Begins with the longest cached prefix of the tokens; returns how many tokens that is."""
        if not self._cache.prefix_caching:
            self._set_thresholds(0)
            return 0
        tree, pool = self._cache.tree, self._cache.pool
        path = tree.match(salt, tokens)
        num_tokens = len(path) * self._block_size
        for g, window in self._cache.windows:
            self._first_seen[g] = self._first_visible(window, num_tokens)
        for g, table in enumerate(self.groups):
            first = self._first_seen[g]
            table.extend([NO_BLOCK] * first)
            for node in path[first:]:
                pool.hold(node.blocks[g])
                table.append(node.blocks[g])
        self._move_to(path[-1] if path else tree.root(salt), len(path))
        self.has_changes = True
        self._set_thresholds(num_tokens)
        return num_tokens

    def why_missed(self, tokens: Sequence[int]) -> str:
        """After `adopt`: why no more blocks of the tokens were found. "": there is no whole block more."""
        begin = self.num_published_tokens
        following = tokens[begin : begin + self._block_size]
        if not self._cache.prefix_caching:
            return "prefix caching is off"
        if begin + self._block_size >= len(tokens):
            return ""
        assert self._node is not None
        return "evicted" if self._cache.tree.was_evicted(self._node, following) else "not seen before"

    def can_fork(self, num_tokens: int) -> bool:
        """Whether all that a query at the last of the first `num_tokens` positions sees is still held."""
        return num_tokens <= len(self.groups[0]) * self._block_size and all(
            self._first_seen[g] <= self._first_visible(window, num_tokens - 1) for g, window in self._cache.windows
        )

    def fork(self, source: BlockTables, num_tokens: int) -> None:
        """Begins with the source's blocks of the first `num_tokens` tokens, shared, so as to compute the last anew."""
        pool, length = self._cache.pool, -(-num_tokens // self._block_size)
        for g, window in self._cache.windows:
            self._first_seen[g] = self._first_visible(window, num_tokens - 1)
        for g, table in enumerate(self.groups):
            first = self._first_seen[g]
            table.extend([NO_BLOCK] * first)
            for block in source.groups[g][first:length]:
                pool.hold(block)
                table.append(block)
        if source._node is not None:
            num_published = min(source._num_published, (num_tokens - 1) // self._block_size)
            node = source._node
            for _ in range(source._num_published - num_published):
                assert node.parent is not None
                node = node.parent
            self._move_to(node, num_published)
        self.has_changes = True
        self._set_thresholds(num_tokens - 1)
        for tables in (self, source):
            tables._tail_may_be_shared = True
            tables.writable_end = 0

    # Growth

    def furthest(self, start: int, end: int) -> int:
        """How far from `start` towards `end` the available blocks reach; `start` if nowhere."""
        available = self._cache.pool.num_available - len(self._shared_entries(start, end))
        if available < 0:
            return start
        num_entries = len(self.groups[0]) + available // len(self.groups)
        return max(start, min(end, num_entries * self._block_size))

    def reserve(self, start: int, end: int) -> list[BlockCopy]:
        """Makes positions start … end - 1 writable by this sequence alone; returns the copies to make before."""
        cache, copies = self._cache, []
        for g, i in self._shared_entries(start, end):
            shared, own = self.groups[g][i], cache.take()
            copies.append(BlockCopy(src=shared, dst=own))
            self._replace(g, i, own)
            cache.pool.release(shared)
        self._tail_may_be_shared = False
        length = -(-end // self._block_size)
        if length > len(self.groups[0]):
            for table in self.groups:
                for _ in range(length - len(table)):
                    table.append(cache.take())
            self.has_changes = True
        self.writable_end = len(self.groups[0]) * self._block_size
        return copies

    def num_more_blocks(self, num_tokens: int) -> int:
        """Blocks still to be taken, at most, on the way to `num_tokens` computed tokens, advancing in small chunks."""
        whole = -(-num_tokens // self._block_size)
        return sum(
            max(0, min(whole, most) - (len(table) - first))
            for table, first, most in zip(self.groups, self._first_seen, self._cache.most_blocks, strict=True)
        )

    def publish(self, tokens: Sequence[int], num_computed: int) -> None:
        """Puts newly full blocks into the prefix tree, for others to find.

        Where the tree has the same tokens already, this sequence goes over to the tree's block and gives its own
        back: so a sequence that holds a node's block holds those of all its ancestors, as eviction relies upon.
        """
        tree, pool, size = self._cache.tree, self._cache.pool, self._block_size
        assert self._node is not None
        for i in range(self._num_published, num_computed // size):
            node = tree.child(self._node, tuple(tokens[i * size : (i + 1) * size]))
            for g, table in enumerate(self.groups):
                own, kept = table[i], node.blocks[g]
                if own in (kept, NO_BLOCK):
                    continue
                if kept == NO_BLOCK:
                    tree.place(node, g, own)
                    pool.keep(own)
                else:
                    pool.hold(kept)
                    pool.release(own)
                    self._replace(g, i, kept)
            self._move_to(node, i + 1)
        self.next_full = (self._num_published + 1) * size

    def offer(self, tokens: Sequence[int], end: int) -> None:
        """Puts blocks into the tree that a step being planned will fill, computing up to `end`.

        Whoever adopts them comes later in the same step, or in a later one: a step writes the keys and values of all
        its rows before any row reads. Blocks of tokens that the tree has already are left to `publish`: until they are
        computed, this sequence writes into its own.
        """
        size = self._block_size
        node, count = self._node, self._num_published
        while node is not None and (count + 1) * size <= end:
            node = node.children.get(tuple(tokens[count * size : (count + 1) * size]))
            if node is not None and node.has_blocks:
                break
            count += 1
        self.publish(tokens, end if node is None else count * size)

    def withdraw(self, start: int) -> list[int]:
        """Takes back what was offered of positions from `start` on, since it was not computed well; returns the blocks."""
        tree, pool = self._cache.tree, self._cache.pool
        node, first = self._node, start // self._block_size
        withdrawn = []
        for i in range(self._num_published - 1, first - 1, -1):
            assert node is not None and node.parent is not None
            for g, table in enumerate(self.groups):
                if table[i] != NO_BLOCK and node.blocks[g] == table[i]:
                    tree.drop(table[i])
                    pool.unkeep(table[i])
                    withdrawn.append(table[i])
            node = node.parent
        if node is not None and first < self._num_published:
            self._move_to(node, first)
            self.next_full = (first + 1) * self._block_size
        return withdrawn

    def stop_publishing(self) -> None:
        """What comes into the blocks from now on is not to be found by others."""
        self.next_full = NEVER

    def slide(self, num_computed: int) -> None:
        """Gives back blocks that no query from position `num_computed` on can see."""
        pool = self._cache.pool
        for g, window in self._cache.windows:
            table, first_visible = self.groups[g], self._first_visible(window, num_computed)
            for i in range(self._first_seen[g], first_visible):
                pool.release(table[i])
                self._replace(g, i, NO_BLOCK)
            self._first_seen[g] = first_visible
        self._set_next_slide()

    # The end

    def release(self) -> None:
        """Gives everything back, the last block first: of a cached prefix the end is then evicted before the rest."""
        pool = self._cache.pool
        tables = [self.groups[g] for g in self._cache.release_order]
        for i in range(len(self.groups[0]) - 1, -1, -1):
            for table in tables:
                if table[i] != NO_BLOCK:
                    pool.release(table[i])
        if self._node is not None:
            self._cache.tree.unpin(self._node)
        self._reset()

    # What the device and the ledger are told

    def take_updates(self) -> tuple[TableUpdate, ...]:
        """What changed since the last call, as runs of entries; everything, the first time."""
        told, length = self._num_told, len(self.groups[0])
        updates = []
        for g, table in enumerate(self.groups):
            changed = sorted({i for group, i in self._edits if group == g and i < told})
            changed.extend(range(told, length))
            begin = 0
            for k in range(1, len(changed) + 1):
                if k == len(changed) or changed[k] != changed[k - 1] + 1:
                    first, last = changed[begin], changed[k - 1]
                    updates.append(TableUpdate(group=g, first=first, blocks=tuple(table[first : last + 1])))
                    begin = k
        self._edits.clear()
        self._num_told = length
        self.has_changes = False
        return tuple(updates)

    def held_blocks(self) -> list[int]:
        return [block for table in self.groups for block in table if block != NO_BLOCK]

    @property
    def num_published_tokens(self) -> int:
        """Tokens in blocks that the prefix tree was given, computed or planned."""
        return self._num_published * self._block_size

    @property
    def pinned_node(self) -> Node | None:
        return self._node

    # Small steps of the above

    def _first_visible(self, window: int, position: int) -> int:
        """The first block that a query at `position` sees."""
        return max(0, position - window + 1) // self._block_size

    def _shared_entries(self, start: int, end: int) -> list[tuple[int, int]]:
        """(group, index) of blocks in the range that others would see written."""
        if not self._tail_may_be_shared:
            return []
        length, is_shared = len(self.groups[0]), self._cache.pool.is_shared
        indices = range(start // self._block_size, min(length, -(-end // self._block_size)))
        return [(g, i) for i in indices for g, table in enumerate(self.groups) if is_shared(table[i])]

    def _replace(self, group: int, index: int, block: int) -> None:
        self.groups[group][index] = block
        self._edits.append((group, index))
        self.has_changes = True

    def _move_to(self, node: Node, num_published: int) -> None:
        self._cache.tree.pin(node)
        if self._node is not None:
            self._cache.tree.unpin(self._node)
        self._node = node
        self._num_published = num_published

    def _set_thresholds(self, num_computed: int) -> None:
        if self._cache.prefix_caching:
            self.next_full = (num_computed // self._block_size + 1) * self._block_size
        self._set_next_slide()

    def _set_next_slide(self) -> None:
        """Entry i is out of sight once computed - window + 1 >= (i + 1) * block_size."""
        self.next_slide = min(
            ((self._first_seen[g] + 1) * self._block_size + window - 1 for g, window in self._cache.windows),
            default=NEVER,
        )
