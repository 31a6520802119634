"""A mixture of experts on a GPU, by the number of tokens: every way of cutting it, checked and timed.

Gate and up, and down, are timed by themselves; then the whole with the best of both, beside what `choose` takes now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from trivium.kernels.cuda import cuda_ops
from trivium.kernels.ops import ExpertLayers
from trivium.kernels.triton import choose, norm_route
from trivium.kernels.triton.experts import (
    GroupedTiles,
    StreamTiles,
    grouped_experts,
    stream_down,
    stream_experts,
)
from trivium.kernels.triton.rms_norm import rms_norm
from trivium.kernels.triton.route import ExpertTiles, Routed, route, route_to_tiles
from trivium.kernels.triton.skinny_linear import skinny_linear
from trivium.kernels.triton.sorted_experts import SortedTiles, sorted_down, sorted_experts, sorted_up

DEVICE = torch.device("cuda")
BF16 = torch.bfloat16
NUM_EXPERTS, TOP_K, WIDE, HIDDEN, EPS = 128, 8, 768, 2048, 1e-6  # of qwen3-30b-a3b
EXPERT_BYTES = 3 * WIDE * HIDDEN * 2
LAYERS = 3  # sets of weights, so that none is still in the cache when its turn comes
FEW_TOKENS = (1, 2, 4, 8, 16, 32, 64)
MANY_TOKENS = (128, 256, 512, 1024, 4096, 8192)
STREAMED_TOKENS = 16  # up to so many, streaming the weights for each pair is tried too
CHECKED_TOKENS = 12
TOLERANCE = 2e-2  # of the largest result, which is rounded to bfloat16 on the way three times

Calls = list[Callable[[], object]]
Measure = Callable[[Calls], float]  # seconds of one call


def tile_rows(num_tokens: int) -> list[int]:
    """Worth trying: from a quarter to four times the rows that an expert has when all are used."""
    per_expert = num_tokens * TOP_K / NUM_EXPERTS
    return [
        rows for rows in (16, 32, 64, 128) if (rows == 16 or rows <= 4 * per_expert) and rows >= per_expert / 4
    ] or [128]


# outputs, inputs, warps, stages, tiles in a group, programs of a processor, swaps
UP = {
    16: [
        (64, 128, 4, 3, 8, 2, True), (64, 128, 4, 3, 8, 0, True), (64, 128, 4, 6, 8, 1, True),
        (64, 256, 4, 3, 8, 1, True), (64, 64, 4, 4, 8, 3, True), (64, 64, 4, 4, 8, 0, True),
        (32, 128, 4, 4, 8, 2, False), (32, 256, 4, 3, 8, 2, False), (32, 128, 4, 5, 8, 0, False),
        (64, 128, 4, 4, 8, 2, False),
    ],
    32: [
        (64, 128, 4, 3, 8, 0, True), (64, 128, 4, 5, 8, 1, True), (64, 64, 4, 4, 8, 2, True), (64, 64, 4, 4, 8, 0, True),
        (32, 128, 4, 4, 8, 2, False), (64, 128, 4, 3, 8, 2, False),
    ],
    64: [
        (64, 64, 4, 4, 8, 0, False), (64, 64, 4, 4, 8, 2, False), (128, 64, 8, 4, 8, 1, False),
        (64, 64, 4, 4, 8, 2, True), (64, 128, 4, 3, 8, 1, True), (64, 128, 4, 3, 8, 0, False),
    ],
    128: [
        (128, 64, 8, 3, 16, 0, False), (128, 64, 8, 4, 16, 0, False), (64, 64, 8, 3, 16, 0, False),
        (64, 64, 4, 3, 16, 0, False), (128, 64, 8, 3, 4, 0, False), (128, 64, 8, 3, 64, 0, False),
    ],
}  # fmt: skip
DOWN = {
    16: [
        (64, 256, 4, 3, 8, 1, True), (64, 256, 4, 2, 8, 2, True), (64, 128, 4, 4, 8, 2, True),
        (64, 128, 4, 4, 8, 0, True), (128, 128, 4, 3, 8, 2, True), (128, 128, 4, 5, 8, 1, True),
        (64, 128, 4, 4, 8, 3, False), (32, 256, 4, 4, 8, 3, False), (64, 256, 4, 3, 8, 0, False),
    ],
    32: [
        (64, 128, 4, 4, 8, 2, True), (64, 128, 4, 4, 8, 0, True), (128, 64, 4, 4, 8, 2, True),
        (64, 256, 4, 3, 8, 1, True), (64, 128, 4, 4, 8, 2, False),
    ],
    64: [
        (128, 64, 4, 4, 8, 2, False), (128, 64, 4, 4, 8, 0, False), (256, 64, 8, 4, 8, 1, False),
        (128, 64, 4, 4, 8, 2, True), (64, 128, 4, 4, 8, 0, False),
    ],
    128: [
        (256, 64, 8, 3, 16, 0, False), (128, 64, 8, 3, 16, 2, False), (128, 64, 4, 3, 16, 0, False),
        (128, 64, 8, 3, 16, 0, False), (256, 64, 8, 4, 16, 1, False), (128, 64, 8, 3, 64, 0, False),
    ],
}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """What one layer's mixture is given."""

    layers: ExpertLayers
    hidden: Tensor
    x: Tensor  # normed
    logits: Tensor  # not the router's: float32, so that no two are equal


def micro(measure: Measure, tokens: tuple[int, ...], launches: bool) -> Iterator[str]:
    """`launches`: False where `measure` only compiles, so that there are no results to check."""
    norm = torch.rand(HIDDEN, device=DEVICE) + 0.5
    weights = [_random_layers() for _ in range(LAYERS)]
    for num_tokens in tokens:
        steps = [_random_step(layers, norm, num_tokens) for layers in weights]
        yield from _of_tokens(num_tokens, steps, norm, measure, launches)


def _of_tokens(num_tokens: int, steps: list[Step], norm: Tensor, measure: Measure, launches: bool) -> Iterator[str]:
    used = [int(route(step.logits, TOP_K, True).experts.unique().numel()) for step in steps]
    moved = sum(used) / len(used) * EXPERT_BYTES
    computed = 2 * num_tokens * TOP_K * 3 * WIDE * HIDDEN
    wanted = _reference(steps[0])
    ops = cuda_ops("under test")
    check = _Check(wanted, launches)

    def rate(seconds: float) -> str:
        return f"{seconds * 1e6:8.1f} us {moved / seconds / 1e12:5.2f} TB/s {computed / seconds / 1e12:6.1f} TFLOP/s"

    yield f"=== {num_tokens} tokens, {used[0]} experts used; floor {moved / 4.25e12 * 1e6:.1f} us to read them"
    now = measure([lambda s=s: ops.norm_experts_add(s.hidden, norm, EPS, s.layers) for s in steps])
    yield f"chosen now, with norm and router: {rate(now)}"
    yield from _others(num_tokens, steps, norm, measure, rate, check)
    yield from _routes(steps, norm, measure)
    for rows in tile_rows(num_tokens):
        routed = [route_to_tiles(step.logits, TOP_K, True, rows) for step in steps]
        ups, downs = ([_cut(rows, parts) for parts in table[rows]] for table in (UP, DOWN))
        found_up, found_down = [], []
        for cut in ups:
            calls: Calls = [partial(_up, step, tiles, cut) for step, (_, tiles) in zip(steps, routed, strict=True)]
            yield from _try("up", calls, measure, cut, found_up)
        middles = [_up(step, tiles, ups[0]) for step, (_, tiles) in zip(steps, routed, strict=True)]
        for cut in downs:
            calls = [
                partial(sorted_down, middle, tiles, step.layers.down, choice.shares, cut, _processors())
                for step, (choice, tiles), middle in zip(steps, routed, middles, strict=True)
            ]
            yield from _try("down", calls, measure, cut, found_down)
        for name, found in (("up", found_up), ("down", found_down)):
            listed = "  ".join(f"{_label(cut)}={seconds * 1e6:.1f}" for seconds, cut in sorted(found, key=_seconds))
            yield f"  {name:4} of {rows:3} rows: {listed}"
        if not found_up or not found_down:
            continue
        up, down = min(found_up, key=_seconds)[1], min(found_down, key=_seconds)[1]
        for _, cut in found_up:
            yield from check.of(f"up {_label(cut)}", partial(_mixture, steps[0], cut, down))
        for _, cut in found_down:
            yield from check.of(f"down {_label(cut)}", partial(_mixture, steps[0], up, cut))
        whole = measure([partial(_whole, step, norm, up, down) for step in steps])
        yield f"best of {rows} rows, with norm and router: {rate(whole)}  up {_label(up)} down {_label(down)}"
        if num_tokens <= STREAMED_TOKENS:
            yield from check.of("down streamed", partial(_mixed, steps[0], *routed[0], up))
            whole = measure([partial(_whole_mixed, step, norm, up) for step in steps])
            yield f"up sorted, down streamed, with norm and router: {rate(whole)}"


def _routes(steps: list[Step], norm: Tensor, measure: Measure) -> Iterator[str]:
    """The norm, the router's product, and the choice with its tiles, in several ways."""
    ways: dict[str, Callable[[Step, Tensor], object]] = {
        "norm, library": lambda s, router: route_to_tiles(
            F.linear(rms_norm(s.hidden, norm, EPS), router), TOP_K, True, 16
        )
    }
    if len(steps[0].hidden) <= norm_route.MAX_TOKENS:
        ways["two launches"] = lambda s, router: norm_route.norm_and_route(s.hidden, norm, EPS, router, TOP_K, True, 16)
    if len(steps[0].hidden) == 1:
        tiles = choose.skinny_tiles(1, NUM_EXPERTS, len(norm), is_normed=True)
        assert tiles is not None
        ways["streamed"] = lambda s, router: route(
            skinny_linear(s.hidden, router, tiles, norm=norm, eps=EPS, dtype=torch.float32), TOP_K, True
        )
    for name, way in ways.items():
        calls: Calls = []
        for step in steps:
            router = step.layers.router
            assert isinstance(router, Tensor)
            calls.append(lambda step=step, router=router, way=way: way(step, router))
        yield f"  routed: {name}: {measure(calls) * 1e6:.1f} us"


def _others(
    num_tokens: int, steps: list[Step], norm: Tensor, measure: Measure, rate: Callable[[float], str], check: _Check
) -> Iterator[str]:
    """Each pair's own stream of weights, and tiles fetched by the programs themselves."""
    if num_tokens <= STREAMED_TOKENS:
        for up, down in [
            ((4, 1024, 4, 2), (8, 256, 4, 3)),
            ((8, 1024, 8, 1), (16, 256, 8, 2)),
            ((2, 2048, 4, 1), (4, 256, 2, 3)),
        ]:
            tiles = StreamTiles(*up), StreamTiles(*down)
            routed = [route(step.logits, TOP_K, True) for step in steps]
            calls: Calls = [
                lambda s=s, r=r, tiles=tiles: stream_experts(
                    s.hidden, norm, EPS, r, s.layers.gate_up, s.layers.down, "silu", *tiles
                )
                for s, r in zip(steps, routed, strict=True)
            ]
            yield f"  stream {up} {down}, products alone: {rate(measure(calls))}"
    for up, down in [
        ((16, 32, 256, 4, 3), (16, 64, 256, 4, 3)), ((16, 64, 128, 4, 4), (16, 64, 128, 4, 4)),
        ((16, 32, 128, 4, 4), (16, 32, 256, 4, 3)), ((32, 64, 128, 4, 3), (32, 128, 64, 4, 4)),
        ((64, 64, 64, 4, 3), (64, 128, 64, 4, 4)), ((128, 128, 64, 8, 3), (128, 128, 64, 8, 3)),
    ]:  # fmt: skip
        if up[0] not in tile_rows(num_tokens):
            continue
        pair = GroupedTiles(*up), GroupedTiles(*down)
        to_tiles = [route_to_tiles(step.logits, TOP_K, True, up[0]) for step in steps]
        calls = [
            lambda s=s, r=r, t=t, pair=pair: grouped_experts(
                s.x, r, t, s.layers.gate_up, s.layers.down, "silu", s.hidden, *pair
            )
            for s, (r, t) in zip(steps, to_tiles, strict=True)
        ]
        yield f"  grouped {up} {down}, products and sum: {rate(measure(calls))}"
        yield from check.of(f"grouped {up}", calls[0])


def _random_layers() -> ExpertLayers:
    return ExpertLayers(
        router=torch.randn(NUM_EXPERTS, HIDDEN, device=DEVICE, dtype=BF16) * HIDDEN**-0.5,
        gate=torch.empty(0),
        up=torch.empty(0),
        down=torch.randn(NUM_EXPERTS, HIDDEN, WIDE, device=DEVICE, dtype=BF16) * WIDE**-0.5,
        top_k=TOP_K,
        norm_topk_prob=True,
        activation="silu",
        gate_up=torch.randn(NUM_EXPERTS, 2 * WIDE, HIDDEN, device=DEVICE, dtype=BF16) * HIDDEN**-0.5,
    )


def _random_step(layers: ExpertLayers, norm: Tensor, num_tokens: int) -> Step:
    hidden = torch.randn(num_tokens, HIDDEN, device=DEVICE, dtype=BF16)
    x = rms_norm(hidden, norm, EPS)
    return Step(layers, hidden, x, torch.randn(num_tokens, NUM_EXPERTS, device=DEVICE))


def _whole(step: Step, norm: Tensor, up: SortedTiles, down: SortedTiles) -> Tensor:
    layers = step.layers
    assert isinstance(layers.router, Tensor) and layers.gate_up is not None and isinstance(layers.down, Tensor)
    if len(step.hidden) <= norm_route.MAX_TOKENS:
        x, routed, tiles = norm_route.norm_and_route(step.hidden, norm, EPS, layers.router, TOP_K, True, up.rows)
    else:
        x = rms_norm(step.hidden, norm, EPS)
        routed, tiles = route_to_tiles(F.linear(x, layers.router), TOP_K, True, up.rows)
    return sorted_experts(x, routed, tiles, layers.gate_up, layers.down, "silu", step.hidden, up, down, _processors())


def _up(step: Step, tiles: ExpertTiles, cut: SortedTiles) -> Tensor:
    assert step.layers.gate_up is not None
    return sorted_up(step.x, tiles, step.layers.gate_up, "silu", TOP_K, cut, _processors())


def _mixture(step: Step, up: SortedTiles, down: SortedTiles) -> Tensor:
    routed, tiles = route_to_tiles(step.logits, TOP_K, True, up.rows)
    layers = step.layers
    assert layers.gate_up is not None and isinstance(layers.down, Tensor)
    return sorted_experts(
        step.x, routed, tiles, layers.gate_up, layers.down, "silu", step.hidden, up, down, _processors()
    )


def _whole_mixed(step: Step, norm: Tensor, up: SortedTiles) -> Tensor:
    assert isinstance(step.layers.router, Tensor)
    x, routed, tiles = norm_route.norm_and_route(step.hidden, norm, EPS, step.layers.router, TOP_K, True, up.rows)
    return _mixed(replace(step, x=x), routed, tiles, up)


def _mixed(step: Step, routed: Routed, tiles: ExpertTiles, up: SortedTiles) -> Tensor:
    layers = step.layers
    assert layers.gate_up is not None and isinstance(layers.down, Tensor)
    middle = sorted_up(step.x, tiles, layers.gate_up, "silu", TOP_K, up, _processors(), by_pair=True)
    return stream_down(middle, routed, layers.down, step.hidden, StreamTiles(8, 256, 4, 3))


def _reference(step: Step) -> Tensor:
    """Of the first tokens, in float32."""
    layers = step.layers
    assert layers.gate_up is not None and isinstance(layers.down, Tensor)
    shares, ids = torch.topk(step.logits[:CHECKED_TOKENS].softmax(dim=-1), TOP_K)
    shares = shares / shares.sum(dim=-1, keepdim=True)
    rows = []
    for token in range(len(ids)):
        both = layers.gate_up[ids[token]].float() @ step.x[token].float()
        middle = F.silu(both[:, :WIDE]) * both[:, WIDE:]
        result = (layers.down[ids[token]].float() @ middle[:, :, None])[:, :, 0]
        rows.append(step.hidden[token].float() + shares[token] @ result)
    return torch.stack(rows)


@dataclass(frozen=True)
class _Check:
    wanted: Tensor
    launches: bool

    def of(self, name: str, call: Callable[[], object]) -> Iterator[str]:
        """A line if the result of the first tokens is wrong."""
        if not self.launches:
            return
        with torch.inference_mode():
            got = call()
        assert isinstance(got, Tensor)
        off = (got[: len(self.wanted)].float() - self.wanted).abs().amax() / self.wanted.abs().amax()
        if not off <= TOLERANCE:
            yield f"  WRONG by {float(off):.3g} of the largest: {name}"


def _try(
    name: str, calls: Calls, measure: Measure, cut: SortedTiles, found: list[tuple[float, SortedTiles]]
) -> Iterator[str]:
    try:
        found.append((measure(calls), cut))
    except Exception as error:
        yield f"  {name} {_label(cut)} does not run: {type(error).__name__} {str(error)[:150]}"


def _cut(rows: int, parts: tuple[int, ...]) -> SortedTiles:
    *sizes, swaps = parts
    return SortedTiles(rows, *sizes, swaps=bool(swaps))


def _label(tiles: SortedTiles) -> str:
    marks = "T" * tiles.swaps
    return f"{tiles.outputs}x{tiles.inputs}w{tiles.warps}s{tiles.stages}g{tiles.group}p{tiles.programs}{marks}"


def _seconds(found: tuple[float, SortedTiles]) -> float:
    return found[0]


def _processors() -> int:
    return torch.cuda.get_device_properties(0).multi_processor_count
