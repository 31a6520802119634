"""A wrong call is an exception, and has touched nothing."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from native_paths import ops_of
from torch import Tensor

from trivium.kernels.attention import AttentionBatch
from trivium.kernels.cases import normal, quantized
from trivium.kernels.native import load_extension, usable_instruction_sets
from trivium.kernels.ops import Ops

RANDOM = torch.Generator().manual_seed(0)
X = normal(RANDOM, 3, 64)
TABLE = quantized(RANDOM, "Q4_1", 8, 64)


@pytest.fixture
def ops() -> Ops:
    return ops_of(usable_instruction_sets()[-1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda ops: ops.linear(X, ops.prepare(quantized(RANDOM, "Q4_1", 8, 96)), None), "packed must have shape"),
        (lambda ops: ops.linear(X, ops.prepare(torch.zeros(8, 97)), None), "packed must have shape"),
        (lambda ops: ops.linear(X, ops.prepare(TABLE), torch.zeros(7)), r"bias must have shape \[8\], not \[7\]"),
        (lambda ops: ops.linear(X[0:1].view(64, 1), ops.prepare(TABLE), None), "1 columns are not whole units"),
        (lambda ops: ops.route(X, 65, True), "65 of 64 experts cannot be chosen"),
        (lambda ops: ops.route(X, 0, True), "0 of 64 experts cannot be chosen"),
        (lambda ops: ops.route(X[0], 2, True), "logits must have shape"),
        (lambda ops: ops.embed(torch.zeros(2, dtype=torch.int32), TABLE, torch.float32), "ids must be int64"),
        (lambda ops: ops.rms_norm(X, torch.ones(63), 1e-6), r"weight must have shape \[64\], not \[63\]"),
        (lambda ops: ops.gated(X, X[:2], "silu"), "up must have shape"),
        (lambda ops: ops.gated(X, X, "relu"), "no kernel for the activation relu"),
        (lambda ops: ops.rotary(X[:, None], X[:2, None], X[:, :32], X[:, :32]), "k must have shape"),
        (lambda ops: ops.rotary(X[:, None], X[:, None], X[:, :33], X[:, :33]), "wider than half a head"),
        (lambda ops: ops.rotary(X[:, None], X[:, None], X[:, :32].double(), X[:, :32]), "cos must be float32"),
        (lambda ops: ops.rotary(X[:, None], X[:, None], X[:, :32].bool(), X[:, :32]), "cos has a dtype"),
    ],
)
def test_what_does_not_fit_together_is_refused(ops: Ops, call: Callable[[Ops], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(ops)


@pytest.mark.parametrize("token", [-1, 8, 2**40, -(2**62)])
def test_a_token_outside_the_vocabulary_is_refused(ops: Ops, token: int) -> None:
    with pytest.raises(IndexError, match=f"token id {token} is outside 0 to 7"):
        ops.embed(torch.tensor([0, token]), TABLE, torch.float32)


@pytest.mark.parametrize("slot", [-1, 12, 2**62])
def test_a_slot_outside_the_cache_is_refused_before_anything_is_written(ops: Ops, slot: int) -> None:
    cache = torch.zeros(2, 3, 4, 2, 8)
    k = torch.ones(2, 2, 8)
    with pytest.raises(IndexError, match=f"slot {slot} is outside 0 to 11"):
        ops.write_kv(k, k, cache[0], cache[1], torch.tensor([0, slot]))
    assert not cache.any()


@pytest.mark.parametrize("expert", [-1, 4])
def test_an_expert_that_is_not_there_is_refused(ops: Ops, expert: int) -> None:
    gate, down = ops.prepare(torch.zeros(4, 16, 64)), ops.prepare(torch.zeros(4, 64, 16))
    ids = torch.tensor([[0], [expert], [1]])
    with pytest.raises(IndexError, match=f"expert id {expert} is outside 0 to 3"):
        ops.experts(X, ids, torch.ones(3, 1), gate, gate, down, "silu")


def test_experts_that_do_not_fit_together_are_refused(ops: Ops) -> None:
    gate, down, ids = ops.prepare(torch.zeros(4, 16, 64)), ops.prepare(torch.zeros(4, 64, 16)), torch.zeros(3, 1).long()
    fewer, shorter = ops.prepare(torch.zeros(3, 64, 16)), ops.prepare(torch.zeros(4, 15, 64))
    with pytest.raises(ValueError, match="do not fit together"):
        ops.experts(X, ids, torch.ones(3, 1), gate, gate, fewer, "silu")
    with pytest.raises(ValueError, match="do not fit together"):
        ops.experts(X, ids, torch.ones(3, 1), gate, shorter, down, "silu")
    with pytest.raises(ValueError, match="gate must have shape"):
        ops.experts(X[:, :32], ids, torch.ones(3, 1), gate, gate, down, "silu")
    with pytest.raises(ValueError, match=r"shares must have shape \[3, 1\], not \[3, 2\]"):
        ops.experts(X, ids, torch.ones(3, 2), gate, gate, down, "silu")


def int32(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


BATCH = AttentionBatch(int32([0, 1, 3]), int32([5, 9]), int32([0, 1, -1, 2, 3, 0]).view(2, 3), torch.empty(0).long())


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (replace(BATCH, block_table=int32([0, 4, -1, 2, 3, 0]).view(2, 3)), "block 4 is outside 0 to 3"),
        (replace(BATCH, block_table=int32([0, -1, -1, 2, 3, 0]).view(2, 3)), "block -1 is outside 0 to 3"),
        (replace(BATCH, context_lens=int32([5, 13])), "block table of row 1 is too short"),
        (replace(BATCH, context_lens=int32([5, 1])), "row 1 has fewer keys than queries"),
        (replace(BATCH, context_lens=int32([-3, 9])), "row 0 has fewer keys than queries"),
        (replace(BATCH, query_starts=int32([0, 1, 4])), "query_starts must run from 0"),
        (replace(BATCH, query_starts=int32([0, 5, 3])), "row 1 has fewer keys than queries|row 0 has fewer"),
        (replace(BATCH, query_starts=int32([0, -(2**31), 3])), "row 0 has fewer keys than queries"),
        (replace(BATCH, query_starts=int32([0, 1])), "query_starts must have shape"),
        (replace(BATCH, context_lens=torch.tensor([5, 9])), "context_lens must be int32"),
    ],
)
def test_a_batch_that_points_outside_the_cache_is_refused(ops: Ops, batch: AttentionBatch, message: str) -> None:
    cache = torch.zeros(4, 4, 1, 64)
    with pytest.raises((ValueError, IndexError), match=message):
        ops.paged_attention(X[:, None].expand(3, 2, 64), cache, cache, batch, 1.0, None, None)


def test_blocks_out_of_the_window_need_not_be_there(ops: Ops) -> None:
    cache = torch.ones(4, 4, 1, 64)
    batch = AttentionBatch(int32([0, 1]), int32([9]), int32([[-1, -1, 3]]), torch.empty(0).long())  # type: ignore[list-item]
    assert torch.equal(ops.paged_attention(X[:1, None], cache, cache, batch, 1.0, 1, None), torch.ones(1, 1, 64))


def test_heads_that_do_not_divide_are_refused(ops: Ops) -> None:
    cache = torch.zeros(4, 4, 2, 64)
    with pytest.raises(ValueError, match="not a multiple"):
        ops.paged_attention(torch.zeros(3, 3, 64), cache, cache, BATCH, 1.0, None, None)


def test_the_extension_itself_checks_what_it_is_given() -> None:
    kernels = load_extension().Kernels("baseline", 1)
    out = torch.zeros(3, 8)
    packed = torch.zeros(1, 64 * 64, dtype=torch.uint8)
    with pytest.raises(TypeError, match="x must be a tensor, not list"):
        kernels.packed_linear([[1.0]], packed, "F32", None, out)
    with pytest.raises(ValueError, match=r"out must have shape \[3, any\], not \[4, 8\]"):
        kernels.packed_linear(X, packed, "F32", None, torch.zeros(4, 8))
    with pytest.raises(ValueError, match="x must be contiguous from dimension 1 on"):
        kernels.packed_linear(torch.zeros(64, 3).T, packed, "F32", None, out)
    with pytest.raises(ValueError, match="no kernel for weights of type Q9_Z"):
        kernels.packed_linear(X, packed, "Q9_Z", None, out)
    with pytest.raises(ValueError, match="packed must be uint8, not float32"):
        kernels.packed_linear(X, packed.float(), "F32", None, out)
    with pytest.raises(ValueError, match=r"out must have shape \[1, 4096\], not \[2, 4096\]"):
        kernels.pack(torch.zeros(8, 64), None, torch.zeros(2, 4096, dtype=torch.uint8), "F32")
    with pytest.raises(ValueError, match="does not hold whole blocks"):
        kernels.pack(torch.zeros(8, 21, dtype=torch.uint8), "Q4_1", packed, "Q4_1")
    with pytest.raises(ValueError, match="Q4_1 weights cannot be packed as Q8_0"):
        kernels.pack(torch.zeros(8, 20, dtype=torch.uint8), "Q4_1", packed, "Q8_0")
    with pytest.raises(ValueError, match="no kernel for weights of type BYTE_ROWS"):
        kernels.pack(torch.zeros(8, 64, dtype=torch.uint8), "BYTE_ROWS", packed, "BYTE_ROWS")
    with pytest.raises(ValueError, match="out must be uint8, not float32"):
        kernels.pack(torch.zeros(8, 64), None, packed.float(), "F32")
    with pytest.raises(ValueError, match="out overlaps itself"):
        kernels.gated(X, X, "silu", torch.zeros(1, 64).expand(3, 64))
    with pytest.raises(ValueError, match="num_threads must be at least 1"):
        load_extension().Kernels("baseline", 0)
    assert not out.any()
