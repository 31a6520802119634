"""The pool of uniform blocks: who holds how many references, and which blocks may be taken.

A block is in exactly one state:
  free    nobody refers to it
  held    sequences refer to it (references >= 1)
  cached  no sequence refers to it, but the prefix tree keeps it; it may be evicted at any time
"""

from __future__ import annotations

from collections import OrderedDict


class LedgerError(AssertionError):
    """The books do not balance: blocks were lost, invented, or given to two owners. Always a bug of ours."""


class BlockPool:
    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_held = 0
        self.num_touched = 0  # ever taken; the others' memory was never written
        self.num_evicted = 0  # ever
        self.num_taken = 0  # ever; less those ever freed, the blocks that are held or cached
        self.num_freed = 0
        self._references = [0] * num_blocks
        self._kept = bytearray(num_blocks)  # 1: the prefix tree refers to it
        self._free = list(range(num_blocks - 1, -1, -1))  # taken from the end, so low blocks first
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently released first

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_available(self) -> int:
        """Blocks that can be taken now: free ones, and cached ones by evicting them."""
        return len(self._free) + len(self._cached)

    @property
    def would_touch(self) -> bool:
        """Whether the next block taken is one that never was: those given back are taken before."""
        return not self._free or self._free[-1] >= self.num_touched

    def take(self) -> int:
        """A free block, held once by the caller."""
        block = self._free.pop()
        self.num_touched = max(self.num_touched, block + 1)
        self._references[block] = 1
        self.num_held += 1
        self.num_taken += 1
        return block

    def hold(self, block: int) -> None:
        """One more reference to a block that is held or cached."""
        references = self._references[block]
        if references == 0:
            del self._cached[block]
            self.num_held += 1
        self._references[block] = references + 1

    def release(self, block: int) -> None:
        """One reference less. After the last one the block is cached if the prefix tree keeps it, and free otherwise."""
        references = self._references[block] - 1
        if references < 0:
            raise LedgerError(f"block {block} was released more often than held")
        self._references[block] = references
        if references == 0:
            self.num_held -= 1
            if self._kept[block]:
                self._cached[block] = None
            else:
                self._free.append(block)
                self.num_freed += 1

    def keep(self, block: int) -> None:
        """The prefix tree refers to this held block from now on."""
        self._kept[block] = 1

    def unkeep(self, block: int) -> None:
        """The prefix tree no longer refers to this held block."""
        self._kept[block] = 0

    def evict(self) -> int:
        """Frees the least recently released cached block; the caller takes it out of the prefix tree."""
        block, _ = self._cached.popitem(last=False)
        self._kept[block] = 0
        self._free.append(block)
        self.num_evicted += 1
        self.num_freed += 1
        return block

    def is_shared(self, block: int) -> bool:
        """Whether writing into the block would be seen by anyone but its one holder."""
        return self._references[block] > 1 or bool(self._kept[block])

    def references(self, block: int) -> int:
        return self._references[block]

    def is_kept(self, block: int) -> bool:
        return bool(self._kept[block])

    def is_unused(self, blocks: range) -> bool:
        """Whether none of them is held or kept."""
        return not any(self._references[blocks.start : blocks.stop]) and not any(self._kept[blocks.start : blocks.stop])

    def free_blocks(self) -> list[int]:
        return list(self._free)

    def cached_blocks(self) -> list[int]:
        """Least recently released first: the order in which they will be evicted."""
        return list(self._cached)

    def assert_conserved(self) -> None:
        """free + cached + held == total, from three independent counts. Cheap enough for every step."""
        if len(self._free) + len(self._cached) + self.num_held != self.num_blocks:
            raise LedgerError(
                f"{len(self._free)} free + {len(self._cached)} cached + {self.num_held} held blocks"
                f" are not the {self.num_blocks} of the pool"
            )
