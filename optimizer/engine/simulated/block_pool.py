"""The KV cache as fixed-size blocks: reference counts, a free list in LRU order, and the prefix cache on top of it.

A freed block keeps its content until it is given out again, so the free list is the prefix cache's eviction order.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class BlockPool:
    """Hands out KV blocks and remembers which full block holds which tokens.

    Args:
        num_blocks: Blocks in the pool. Block 0 is never handed out: vLLM keeps it as a null block.
        prefix_caching: False makes every lookup miss.
    """

    def __init__(self, num_blocks: int, *, prefix_caching: bool) -> None:
        self.num_blocks = num_blocks
        self._prefix_caching = prefix_caching
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self._references = [0] * num_blocks
        self._hash_of_block: dict[int, int] = {}
        self._block_of_hash: dict[int, int] = {}

    @property
    def num_usable(self) -> int:
        """Blocks that sequences can hold."""
        return self.num_blocks - 1

    @property
    def num_free(self) -> int:
        """Blocks that no sequence holds, cached content or not."""
        return len(self._free)

    @property
    def usage(self) -> float:
        """Share of the usable blocks that sequences hold, 0 to 1."""
        return 1.0 - self.num_free / self.num_usable

    def cached_prefix(self, hashes: Iterable[int]) -> list[int]:
        """The blocks that hold the longest cached prefix of a chain of block hashes."""
        blocks: list[int] = []
        for block_hash in hashes:
            block = self._block_of_hash.get(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def num_free_among(self, blocks: Sequence[int]) -> int:
        """How many of these blocks `share` would take off the free list."""
        return sum(block in self._free for block in blocks)

    def share(self, blocks: Sequence[int]) -> None:
        """Adds a holder to cached blocks."""
        for block in blocks:
            self._free.pop(block, None)
            self._references[block] += 1

    def allocate(self, count: int) -> list[int] | None:
        """Takes `count` blocks, least recently used first, and forgets what they cached; None when too few are free."""
        if count > self.num_free:
            return None
        blocks = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
            block_hash = self._hash_of_block.pop(block, None)
            if block_hash is not None:
                del self._block_of_hash[block_hash]
        return blocks

    def release(self, blocks: Sequence[int]) -> None:
        """Drops one holder of each block. The last block of a chain is evicted first: its prefix is worth more."""
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free[block] = None

    def remember(self, block: int, block_hash: int) -> None:
        """Makes a full block findable by its hash; the first block with that content stays the one to be found."""
        if self._prefix_caching and block_hash not in self._block_of_hash:
            self._block_of_hash[block_hash] = block
            self._hash_of_block[block] = block_hash

    def forget_all(self) -> bool:
        """Empties the prefix cache. Refused (False) while a sequence holds a block, as vLLM refuses it."""
        if self.num_free != self.num_usable:
            return False
        self._hash_of_block.clear()
        self._block_of_hash.clear()
        return True
