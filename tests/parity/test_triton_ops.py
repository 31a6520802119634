"""The Triton kernels compute what the reference computes: here on Triton's interpreter, on small shapes.

`tests/gpu` runs the same cases, and those of real models' shapes, on a GPU.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from drawn_seed import drawn_seed
from triton_interpreter import INTERPRETS, set_up_interpreter

pytest.importorskip("triton")
from trivium.kernels import fused_cases, gated, rms_norm, sample
from trivium.kernels.attention import HeadRules
from trivium.kernels.cases import error, normal
from trivium.kernels.cuda import gpu_ops
from trivium.kernels.ops import ExpertLayers
from trivium.kernels.sample import NOT_FINITE
from trivium.kernels.select import reference_ops
from trivium.kernels.triton import (
    argmax as triton_argmax,
)
from trivium.kernels.triton import (
    choose,
    decode_attention,
    draw,
    experts,
    norm_route,
    route,
    skinny_linear,
    sorted_experts,
)
from trivium.kernels.triton.argmax import argmax
from trivium.kernels.triton.experts import stream_down
from trivium.kernels.triton.norm_route import MAX_TOKENS, norm_and_route
from trivium.kernels.triton.prompt_attention import PromptTiles, prompt_attention, takes_prompts
from trivium.kernels.triton.route import route_to_tiles
from trivium.kernels.triton.sorted_experts import SortedTiles, can_be_described, sorted_up

pytestmark = pytest.mark.skipif(not INTERPRETS, reason="tests/gpu runs them compiled")
set_up_interpreter()

REFERENCE = reference_ops("the oracle")
TRITON = gpu_ops("under test", num_processors=4)


@pytest.fixture(autouse=True)
def unwritten_memory_is_nan():
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


DRAWS: Counter[str] = Counter()  # of each test


def fresh() -> torch.Generator:
    """Another one at each call."""
    test = os.environ["PYTEST_CURRENT_TEST"]
    DRAWS[test] += 1
    return torch.Generator().manual_seed(drawn_seed(f"{test} {DRAWS[test]}"))


@pytest.mark.parametrize("part", ["linear_cases", "attention_cases", "expert_cases"])
def test_fused_ops_are_the_ops_they_are_made_of(part: str) -> None:
    for case in getattr(fused_cases, part)(fresh(), torch.float32, False):
        off = fused_cases.case_error(case, TRITON, REFERENCE, "cpu")
        assert off <= fused_cases.TOLERANCE[torch.float32], f"{case.name}: {off}"


def test_layers_of_a_few_rows_that_stream_their_weights_are_the_ops_they_are_made_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether or not they are chosen for that many."""
    monkeypatch.setattr(choose, "skinny_tiles", lambda *_, **__: skinny_linear.SkinnyTiles(16, 32, 4, 2))
    for case in fused_cases.linear_cases(fresh(), torch.float32, False):
        off = fused_cases.case_error(case, TRITON, REFERENCE, "cpu")
        assert off <= fused_cases.TOLERANCE[torch.float32], f"{case.name}: {off}"


def test_kernels_that_start_early_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the waiting, which only a GPU knows."""
    for module in (skinny_linear, decode_attention, experts, norm_route, route, sorted_experts):
        monkeypatch.setattr(module, "launch_options", lambda starts_early: {"EARLY": starts_early})
        monkeypatch.setattr(module, "inputs_are_there", lambda EARLY: None)
    monkeypatch.setattr(skinny_linear, "fetch_to_cache", lambda rows, NUM_IN: None)
    monkeypatch.setattr(choose, "skinny_tiles", lambda *_, **__: skinny_linear.SkinnyTiles(8, 32, 4, 2))
    early = gpu_ops("under test", num_processors=4, starts_early=True)
    cases = [*fused_cases.linear_cases(fresh(), torch.float32, False)]
    cases += [case for case in fused_cases.attention_cases(fresh(), torch.float32, False) if "decode" in case.name]
    cases += fused_cases.expert_cases(fresh(), torch.float32, False)
    for case in cases:
        off = fused_cases.case_error(case, early, REFERENCE, "cpu")
        assert off <= fused_cases.TOLERANCE[torch.float32], f"{case.name}: {off}"


# rows, outputs, inputs, warps, stages, tiles in a group, programs of a processor (0: one for each tile)
SORTED_TILES = [
    (SortedTiles(16, 16, 16, 4, 2, 3, 0), SortedTiles(16, 32, 16, 4, 2, 1, 0)),
    (SortedTiles(16, 32, 32, 4, 2, 2, 1, swaps=True), SortedTiles(16, 16, 32, 4, 2, 8, 2, swaps=True)),
    (SortedTiles(32, 16, 64, 4, 2, 4, 1), SortedTiles(32, 64, 16, 4, 2, 2, 1)),
]


@pytest.mark.parametrize("tiles", SORTED_TILES, ids=["a program for each tile", "swapped", "a program for many tiles"])
def test_experts_over_sorted_tiles_are_the_experts(tiles: tuple[SortedTiles, SortedTiles]) -> None:
    for case in fused_cases.expert_cases(fresh(), torch.float32, False):
        hidden, norm, eps, layers = case.arguments
        if not can_be_described(layers.gate_up, layers.down):
            continue
        x = TRITON.rms_norm(hidden, norm, eps)
        logits = TRITON.linear(x, layers.router, None)
        routed, expert_tiles = route_to_tiles(logits, layers.top_k, layers.norm_topk_prob, tiles[0].rows)
        arguments = (layers.gate_up, layers.down, layers.activation, hidden, *tiles)
        got = sorted_experts.sorted_experts(x, routed, expert_tiles, *arguments, num_processors=3)
        wanted = REFERENCE.norm_experts_add(*case.arguments)
        assert error(got, wanted) <= fused_cases.TOLERANCE[torch.float32], case.name
        choice = (layers.activation, layers.top_k, tiles[0])
        middle = sorted_up(x, expert_tiles, layers.gate_up, *choice, num_processors=3, by_pair=True)
        got = stream_down(middle, routed, layers.down, hidden, choose.stream_tiles()[1])
        assert error(got, wanted) <= fused_cases.TOLERANCE[torch.float32], f"{case.name}, down streamed"


@pytest.mark.parametrize("num_tokens", [1, 2, 5, 12, 30, 60, 170])
def test_experts_of_16_bits_are_near_the_experts_however_many_tokens_share_them(num_tokens: int) -> None:
    num_experts, wide, hidden = 4, 40, 48
    gate_up = (normal(fresh(), num_experts, 2 * wide, hidden) * hidden**-0.5).half()
    gate, up = torch.split(gate_up, wide, dim=1)
    down = (normal(fresh(), num_experts, hidden, wide) * wide**-0.5).half()
    router = torch.eye(num_experts, hidden).half()
    layers = ExpertLayers(router, gate, up, down, 2, True, "silu", gate_up)
    x = normal(fresh(), num_tokens, hidden)
    for row in x:  # far apart, so that rounding does not change which experts are the likeliest
        row[:num_experts] = torch.randperm(num_experts, generator=fresh()) - 1.5
    case = fused_cases.FusedCase("", "norm_experts_add", (x.half(), torch.ones(hidden), 1e-6, layers))
    assert fused_cases.case_error(case, TRITON, REFERENCE, "cpu") <= fused_cases.TOLERANCE[torch.float16]


@pytest.mark.parametrize("num_tokens", [1, 5, MAX_TOKENS, 33, 90])
@pytest.mark.parametrize(("num_experts", "top_k"), [(5, 3), (24, 8)])
def test_every_pair_has_one_place_in_a_tile_of_its_expert(num_tokens: int, num_experts: int, top_k: int) -> None:
    hidden, norm, router = normal(fresh(), num_tokens, 300), torch.ones(300), torch.eye(num_experts, 300)
    for row in hidden:  # no two experts are nearly alike: rounding must not change which is the likelier
        row[:num_experts] = torch.randperm(num_experts, generator=fresh()) * 0.2 - 1
    x = rms_norm.reference(hidden, norm, 1e-6)
    logits = x @ router.T
    shares, ids = torch.topk(logits.softmax(dim=-1), top_k)
    found = [route_to_tiles(logits, top_k, True, 16)]
    if num_tokens <= MAX_TOKENS:
        normed, *both = norm_and_route(hidden, norm, 1e-6, router, top_k, True, 16)
        torch.testing.assert_close(normed, x)
        found.append(tuple(both))
    for routed, tiles in found:
        assert torch.equal(routed.experts.long(), ids)
        torch.testing.assert_close(routed.shares, shares / shares.sum(dim=-1, keepdim=True), atol=1e-4, rtol=1e-3)
        used = int(tiles.used)
        assert used == sum(-(-int(count) // 16) for count in torch.bincount(ids.flatten()))
        assert (tiles.expert_of_tile[used:] == -1).all()
        pair_of = tiles.pair_of.view(-1, 16)[:used]
        present = pair_of >= 0
        assert sorted(pair_of[present].tolist()) == list(range(num_tokens * top_k))
        experts_of_pairs = ids.flatten()[pair_of[present].long()]
        assert torch.equal(experts_of_pairs, tiles.expert_of_tile[:used, None].expand(-1, 16)[present].long())


def test_rows_that_only_pad_a_decode_get_zeros_and_whoever_splits_keys_leaves_no_count_behind() -> None:
    contexts = [40, 0, 17, 1]
    rows = [(1, max(context, 1)) for context in contexts]
    arguments = fused_cases.paged_arguments(fresh(), rows, 4, 2, 16, 8, torch.float32, None, None, True)
    parts, cos, sin, keys, values, batch, rules = arguments
    batch.context_lens[1], batch.slots[1] = 0, -1
    wanted = REFERENCE.attend(*fused_cases.mapped(arguments, torch.clone))
    arrivals = torch.zeros(len(rows) * 2, dtype=torch.int32)
    tiles = decode_attention.DecodeTiles(keys=16, splits=4)
    found = decode_attention.decode_attention(
        *parts, cos, sin, keys, values, batch, rules, tiles, out=None, arrivals=arrivals
    )
    assert found[1].count_nonzero() == 0
    kept = [0, 2, 3]
    assert error(found[kept], wanted[kept]) <= fused_cases.TOLERANCE[torch.float32]
    assert arrivals.count_nonzero() == 0


@pytest.mark.parametrize("op", [rms_norm, gated])
def test_single_ops_are_near_the_reference(op) -> None:
    name = op.__name__.rsplit(".", 1)[1]
    for case in op.cases(fresh()):
        off = error(getattr(TRITON, name)(*case.arguments), op.reference(*case.arguments))
        assert off <= 2 * op.TOLERANCE, f"{case.name}: {off}"


@pytest.mark.parametrize("queries, keys", [(32, 16), (16, 16), (64, 64)])
def test_whole_prompts_see_themselves_alone(queries: int, keys: int) -> None:
    """Of five rows the first and the fourth are not asked for, and hold no numbers."""
    lengths = [7, 45, 1, 20, 64]
    starts = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    parts = torch.randn(sum(lengths), (4 + 2 + 2) * 64, generator=fresh()).to(torch.float16)
    others = [slice(starts[row], starts[row + 1]) for row in (0, 3)]
    for tokens in others:
        parts[tokens] = float("nan")
    q, k, v = torch.split(parts, [4 * 64, 2 * 64, 2 * 64], dim=1)
    rules = HeadRules(head_dim=64, scale=0.2, window=None, softcap=None)
    assert takes_prompts(q, k, v, rules)
    tiles = PromptTiles(queries, keys, warps=4, stages=2)
    out = torch.full_like(q, 5.0, memory_format=torch.contiguous_format)
    prompt_attention(q, k, v, starts[1:4], 2, rules, tiles, out)
    prompt_attention(q, k, v, starts[4:], 1, rules, tiles, out)
    for row in (1, 2, 4):
        tokens = slice(starts[row], starts[row + 1])
        heads = [x[tokens].view(-1, x.shape[1] // 64, 64).transpose(0, 1).double() for x in (q, k, v)]
        wanted = F.scaled_dot_product_attention(*heads, is_causal=True, scale=0.2, enable_gqa=True)
        assert error(out[tokens].view(-1, 4, 64).transpose(0, 1).double(), wanted) < 2e-3
    assert all(bool((out[tokens] == 5.0).all()) for tokens in others)


def test_argmax_finds_the_lowest_of_equals_and_notices_what_is_no_number() -> None:
    logits = torch.randn(6, 9000, generator=fresh())
    logits[1, 70] = logits[1, 8000] = 9.0
    logits[2, 8999] = float("nan")
    logits[3, 4] = float("inf")
    logits[4] = float("-inf")
    found = argmax(logits).tolist()
    assert found == [int(logits[0].argmax()), 70, NOT_FINITE, NOT_FINITE, NOT_FINITE, int(logits[5].argmax())]


def test_the_token_that_is_drawn_is_the_one_that_the_reference_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draw, "BLOCK", 256)  # so that also few tokens are several blocks and chunks
    monkeypatch.setattr(draw, "CHUNK", 128)
    monkeypatch.setattr(triton_argmax, "CHUNK", 128)
    for case in sample.cases(fresh()):
        logits, batch = case.arguments
        if logits.shape[1] <= 515:  # more takes the interpreter seconds for each case
            assert TRITON.sample(logits, batch).tolist() == sample.reference(logits, batch).tolist(), case.name


def test_typical_p_beside_other_filters_is_left_to_the_reference() -> None:
    logits = torch.randn(2, 50, generator=fresh())
    columns = torch.tensor([[1.0, 0, 1, 0, 0.5, 0.3], [0.7, 9, 0.9, 0.01, 1, 0.9]], dtype=torch.float64)
    batch = sample.SampleBatch(sample.Draws(columns, filters=True, typical=True))
    assert TRITON.sample(logits, batch).tolist() == sample.reference(logits, batch).tolist()


def test_argmax_of_bfloat16_is_that_of_the_same_numbers_in_float32() -> None:
    logits = torch.randn(3, 9000, generator=fresh()).bfloat16()  # so coarse that several are the largest
    assert argmax(logits).tolist() == argmax(logits.float()).tolist()


def test_logits_are_written_where_they_are_wanted() -> None:
    for rows in (1, 3):
        x, head = torch.randn(rows, 40, generator=fresh()), torch.randn(70, 40, generator=fresh())
        room = torch.full((5, 70), float("nan"))
        TRITON.logits(x, head, out=room[:rows])
        assert error(room[:rows], x @ head.T) <= fused_cases.TOLERANCE[torch.float32]
        assert room[rows:].isnan().all()
