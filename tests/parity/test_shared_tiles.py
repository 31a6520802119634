"""Rows whose tables begin with the same blocks are computed together, and each is what it is alone, to the last bit."""

from itertools import accumulate

import pytest
import torch
from native_paths import INSTRUCTION_SETS, every_path
from test_native_invariance import attention_batch
from torch import Generator, Tensor

from trivium.kernels.cases import normal
from trivium.kernels.kv_layout import LaneLayout
from trivium.kernels.ops import Ops
from trivium.kernels.select import native_ops

NUM_HEADS, NUM_BLOCKS = 2, 320
TABLE_WIDTH_OF = {16: 50, 32: 25, 48: 17}  # blocks of 800 positions, by their size

Row = tuple[int, int, tuple[str, ...]]  # queries, keys, the names of what it begins with: "a" is its first 128 keys …

TREE: list[Row] = [
    (1, 600, ("a", "b", "c", "d")),
    (1, 601, ("a", "b", "c", "d")),
    (1, 700, ("x", "y")),
    (3, 333, ("a", "b")),
    (1, 512, ("a", "b", "c", "d")),  # its own key is the last of a shared tile
    (1, 513, ("a", "b", "c", "e")),
    (20, 530, ("a", "b", "c", "e")),
    (1, 40, ()),
    (1, 300, ("a",)),
    (9, 640, ("x", "y", "z")),
    (0, 640, ("x", "y", "z")),
    (40, 168, ("a",)),
    (1, 129, ("a",)),
    (1, 128, ("a",)),
    (1, 700, ("a", "b", "c", "d", "f")),
]
CROWD: list[Row] = [(1, 530 + i, ("a", "b", "c", "d")) for i in range(40)]


class Sharing:
    """Caches and tables of rows, written through `write_kv`."""

    def __init__(self, rows: list[Row], kv_dtype: torch.dtype, block_size: int, dim: int, random: Generator) -> None:
        self.rows = rows
        self.q = normal(random, sum(queries for queries, _, _ in rows), 3 * NUM_HEADS, dim)
        free = iter(torch.randperm(NUM_BLOCKS, generator=random).tolist())
        named: dict[tuple[str, ...], list[int]] = {}
        self.table = torch.full((len(rows), TABLE_WIDTH_OF[block_size]), -1)
        for row, (_, keys, begins) in enumerate(rows):
            blocks: list[int] = []
            for names in accumulate((name,) for name in begins):
                shared = -(-128 * len(names) // block_size)
                if names not in named:
                    named[names] = blocks + [next(free) for _ in range(shared - len(blocks))]
                blocks = named[names]
            blocks = blocks + [next(free) for _ in range(-(-keys // block_size) - len(blocks))]
            self.table[row, : len(blocks)] = torch.tensor(blocks)
        element_bytes = {torch.float32: 4, torch.bfloat16: 2, torch.int8: 1}[kv_dtype]
        token_bytes = dim * element_bytes + (4 if kv_dtype == torch.int8 else 0)
        pool = torch.zeros((2, NUM_BLOCKS, NUM_HEADS * block_size * token_bytes // element_bytes), dtype=kv_dtype)
        sizes = (NUM_HEADS, block_size, dim)
        self.keys, self.values = LaneLayout().keys(pool[0], *sizes), LaneLayout().values(pool[1], *sizes)
        k, v = (normal(random, NUM_BLOCKS * block_size, NUM_HEADS, dim) for _ in range(2))
        native_ops("baseline", 1).write_kv(k, v, self.keys, self.values, torch.arange(NUM_BLOCKS * block_size))

    def together(self, ops: Ops, order: list[int], window: int | None, softcap: float | None) -> list[Tensor]:
        """Of each row, by its place in `rows`, where the batch has them in this order."""
        parts = dict(zip(order, self._in_order(ops, order, window, softcap), strict=True))
        return [parts[row] for row in range(len(order))]

    def alone(self, ops: Ops, row: int, window: int | None, softcap: float | None) -> Tensor:
        return self._in_order(ops, [row], window, softcap)[0]

    def _in_order(self, ops: Ops, order: list[int], window: int | None, softcap: float | None) -> tuple[Tensor, ...]:
        counts = [queries for queries, _, _ in self.rows]
        q = self.q.split(counts)
        batch = attention_batch([self.rows[row][:2] for row in order], self.table[order])
        out = ops.paged_attention(
            torch.cat([q[row] for row in order]), self.keys, self.values, batch, 0.125, window, softcap
        )
        return out.split([counts[row] for row in order])


@every_path
@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (200, None), (300, 20.0)])
@pytest.mark.parametrize("rows", [TREE, CROWD], ids=["a tree", "a crowd"])
def test_a_row_that_shares_its_beginning_is_the_same_as_alone(
    rows: list[Row],
    window: int | None,
    softcap: float | None,
    kv_dtype: torch.dtype,
    instruction_set: str,
    random: Generator,
) -> None:
    sharing = Sharing(rows, kv_dtype, 16, 64, random)
    one_thread = native_ops(instruction_set, 1)
    alone = [sharing.alone(one_thread, row, window, softcap) for row in range(len(rows))]
    for threads in (1, 3):
        ops, order = native_ops(instruction_set, threads), torch.randperm(len(rows), generator=random).tolist()
        together = sharing.together(ops, order, window, softcap)
        assert [torch.equal(*pair) for pair in zip(together, alone, strict=True)] == [True] * len(rows)


@every_path
@pytest.mark.parametrize(("block_size", "dim"), [(32, 64), (48, 80), (16, 10)])
def test_it_is_so_for_blocks_that_do_not_end_where_tiles_do_and_for_odd_heads(
    block_size: int, dim: int, instruction_set: str, random: Generator
) -> None:
    sharing = Sharing(TREE, torch.bfloat16, block_size, dim, random)
    ops, order = native_ops(instruction_set, 2), list(range(len(TREE)))
    together = sharing.together(ops, order, None, None)
    assert all(torch.equal(together[row], sharing.alone(ops, row, None, None)) for row in order)


@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_it_is_the_same_on_every_path_that_fuses_multiply_and_add(kv_dtype: torch.dtype, random: Generator) -> None:
    sharing, order = Sharing(TREE, kv_dtype, 16, 64, random), list(range(len(TREE)))
    paths = [native_ops(name, 2) for name in INSTRUCTION_SETS if name != "baseline"]
    results = [torch.cat(sharing.together(ops, order, None, None)) for ops in paths]
    assert all(torch.equal(result, results[0]) for result in results)


def test_a_row_does_not_meet_what_only_others_see(random: Generator) -> None:
    """Keys and values that are not numbers, in a tile that rows share and that one of them sees only a part of."""
    sharing = Sharing([(1, 130, ("a",)), (1, 131, ("a",)), (1, 100, ("a",))], torch.float32, 16, 64, random)
    block = int(sharing.table[0, 7])  # positions 112 to 127
    sharing.keys[block] = sharing.values[block] = float("nan")
    for name in INSTRUCTION_SETS:
        first, second, third = sharing.together(native_ops(name, 2), [0, 1, 2], None, None)
        assert first.isnan().all() and second.isnan().all() and third.isfinite().all()
