"""Inputs to try fused ops on, fresh at each call. The oracle is the method of `Ops` of the same name, over the reference
ops, in float32 on the same values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor

from trivium.kernels.attention import AttentionBatch, HeadRules
from trivium.kernels.cases import error, normal
from trivium.kernels.gated import Activation
from trivium.kernels.ops import ExpertLayers, Ops
from trivium.kernels.weights import LinearLayers

# The largest difference, as a fraction of the largest magnitude. bfloat16 keeps 8 bits: 2^-9 for each rounding on the way.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 2.5e-2}


@dataclass(frozen=True)
class FusedCase:
    name: str
    op: str  # a method of Ops
    arguments: tuple[Any, ...]
    changed: tuple[int, ...] = ()  # arguments that the op changes, to be compared too
    kin: str = ""  # what cases have in common that run the same compiled kernels


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same, with every tensor in it changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple | list):
        return type(value)(mapped(item, change) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{item.name: mapped(getattr(value, item.name), change) for item in fields(value)})
    return value


def case_error(case: FusedCase, ops: Ops, reference: Ops, device: torch.device | str) -> float:
    """How far `ops` are from `reference` in float32, both on `device`."""
    exact = mapped(case.arguments, lambda x: (x.float() if x.is_floating_point() else x).to(device, copy=True))
    given = mapped(case.arguments, lambda x: x.to(device, copy=True))
    wanted = _results(getattr(reference, case.op)(*exact), exact, case.changed)
    got = _results(getattr(ops, case.op)(*given), given, case.changed)
    return max(error(mine, theirs) for mine, theirs in zip(got, wanted, strict=True))


def _results(result: Any, arguments: tuple[Any, ...], changed: tuple[int, ...]) -> list[Tensor]:
    outputs = list(result) if isinstance(result, tuple) else [result]
    return outputs + [torch.nan_to_num(arguments[index], nan=77.0) for index in changed]


def cases(random: Generator, dtype: torch.dtype, is_large: bool = False) -> Iterator[FusedCase]:
    """On the device of `random`. `is_large`: shapes of real models, for a device; else what an interpreter can do."""
    yield from linear_cases(random, dtype, is_large)
    yield from attention_cases(random, dtype, is_large)
    yield from expert_cases(random, dtype, is_large)


def linear_cases(random: Generator, dtype: torch.dtype, is_large: bool) -> Iterator[FusedCase]:
    shapes = [(1, 40, 24), (1, 33, 70), (2, 48, 32), (5, 20, 72), (17, 40, 24)]
    if is_large:
        shapes = [(1, 1024, 1024), (1, 2048, 6144), (8, 1024, 1024), (13, 2048, 6144), (16, 77, 576), (300, 2048, 6144)]
    for tokens, hidden, wide in shapes:
        shape = f"{tokens} x {hidden} x {wide}"
        x, norm = normal(random, tokens, hidden, dtype=dtype), normal(random, hidden)
        for bias in (False, True):
            layers = _layers(random, (wide, wide // 2, wide // 2), hidden, dtype, bias)
            yield FusedCase(f"norm_linears {shape} bias {bias}", "norm_linears", (x, norm, 1e-5, layers), kin=shape)
            gate_up = _layers(random, (wide, wide), hidden, dtype, bias)
            activations: tuple[Activation, ...] = ("silu", "gelu_tanh")
            for activation in activations:
                name = f"norm_gated {shape} bias {bias} {activation}"
                yield FusedCase(name, "norm_gated", (x, norm, 1e-5, gate_up, activation), kin=shape)
            down = _layers(random, (hidden,), wide, dtype, bias)
            middle, residual = normal(random, tokens, wide, dtype=dtype), normal(random, tokens, hidden, dtype=dtype)
            arguments = (middle, down.weights[0], down.biases[0], residual)
            yield FusedCase(f"linear_add {shape} bias {bias}", "linear_add", arguments, kin=shape)
        head = normal(random, 3 * wide + 1, hidden, dtype=dtype)
        yield FusedCase(f"logits {shape}", "logits", (x, head), kin=shape)


def _layers(random: Generator, sizes: tuple[int, ...], num_in: int, dtype: torch.dtype, bias: bool) -> LinearLayers:
    joined = (normal(random, sum(sizes), num_in) * num_in**-0.5).to(dtype)
    joined_bias = normal(random, sum(sizes), dtype=dtype) if bias else None
    biases = (None,) * len(sizes) if joined_bias is None else torch.split(joined_bias, list(sizes))
    return LinearLayers(torch.split(joined, list(sizes)), biases, joined, joined_bias)


def attention_cases(random: Generator, dtype: torch.dtype, is_large: bool) -> Iterator[FusedCase]:
    heads = [(4, 2, 16, 8), (3, 1, 20, 10), (8, 1, 32, 8)]  # query heads, key/value heads, size, half that turns
    batches = {
        "decode": [(1, 1), (1, 40), (1, 17), (1, 16)],
        "prefill": [(5, 5), (3, 33), (17, 49), (1, 20)],
        "mixed": [(1, 40), (1, 7), (33, 70), (9, 9)],
    }
    if is_large:
        heads = [(9, 3, 64, 32), (8, 1, 80, 40)]
        if (
            dtype != torch.float32
        ):  # whose products are unrolled: wide heads compile for minutes, and nobody runs them so
            heads += [(32, 8, 128, 64), (16, 8, 128, 64), (32, 4, 128, 64), (8, 4, 256, 128)]
        batches = {
            "decode": [(1, 1), (1, 40), (1, 17), (1, 1000), (1, 64), (1, 65), (1, 2049)],
            "decode of one": [(1, 700)],
            "many decode": [(1, 3 + 11 * i) for i in range(100)],
            "prefill": [(5, 5), (3, 33), (17, 49), (1, 20), (300, 300), (129, 1000), (1, 400)],
            "mixed": [(1, 40), (1, 700), (33, 70), (9, 9), (700, 701), (1, 1)],
            "prompts": [(1, 40), (33, 70), (300, 300), (77, 77), (129, 129), (1, 1), (256, 256), (640, 640)],
            "long": [(2500, 2500)],
            "long, a multiple of 4096": [(4096, 4096)],
        }
    for num_q, num_kv, size, half in heads:
        for name, rows in batches.items():
            for window, softcap, has_norm in ((None, None, True), (7, None, False), (20, 30.0, False)):
                if is_large and window and (name.startswith("long") or size not in (64, 256)):
                    continue  # of wide models only those with heads of 256 have windows
                arguments = paged_arguments(random, rows, num_q, num_kv, size, half, dtype, window, softcap, has_norm)
                kin = f"heads {num_q}/{num_kv} of {size}, window {window}, softcap {softcap}"
                yield FusedCase(f"attend {name}: {kin}", "attend", arguments, changed=(3, 4), kin=kin)


def paged_arguments(
    random: Generator,
    rows: list[tuple[int, int]],  # (new tokens, keys with them) of each
    num_q: int,
    num_kv: int,
    size: int,
    half: int,
    dtype: torch.dtype,
    window: int | None,
    softcap: float | None,
    has_norm: bool,
    block_size: int = 16,
) -> tuple[Any, ...]:
    """Arguments of `attend`. What no row may see is nan: blocks of nobody, and what the new tokens will write over."""
    device = random.device
    tokens = sum(count for count, _ in rows)
    most = max(-(-keys // block_size) for _, keys in rows)
    num_blocks = len(rows) * most + 3
    free = torch.randperm(num_blocks, generator=random, device=device).to(torch.int32)
    table = torch.full((len(rows), most), -1, dtype=torch.int32, device=device)
    cache = torch.full((2, num_blocks, num_kv, block_size, size), float("nan"), dtype=dtype, device=device)
    slots = []
    for row, (count, keys) in enumerate(rows):
        first = 0 if window is None else max(0, keys - count - window + 1)
        used = torch.arange(first // block_size, -(-keys // block_size), device=device)
        table[row, used], free = free[: len(used)], free[len(used) :]
        positions = torch.arange(keys, device=device)
        places = table[row, positions // block_size].long()
        old = torch.arange(first // block_size * block_size, keys - count, device=device)
        cache[:, places[old], :, old % block_size] = normal(random, len(old), 2, num_kv, size, dtype=dtype)
        new = positions[keys - count :]
        slots.append(places[new] * block_size + new % block_size)
    single = next((i for i, (count, _) in enumerate(rows) if count != 1), len(rows))
    batch = AttentionBatch(
        query_starts=torch.tensor([0, *(count for count, _ in rows)], device=device).cumsum(0).to(torch.int32),
        context_lens=torch.tensor([keys for _, keys in rows], dtype=torch.int32, device=device),
        block_table=table,
        slots=torch.cat(slots),
        num_single=single,
        is_decode=single == len(rows),
        spans=tuple(rows[single:]),
    )
    rules = HeadRules(
        head_dim=size,
        scale=size**-0.5,
        window=window,
        softcap=softcap,
        q_norm=normal(random, size) if has_norm else None,
        k_norm=normal(random, size) if has_norm else None,
        norm_eps=1e-6,
    )
    projected = normal(random, tokens, (num_q + 2 * num_kv) * size, dtype=dtype)
    parts = torch.split(projected, [num_q * size, num_kv * size, num_kv * size], dim=1)
    angles = normal(random, tokens, half) * 10
    keys_by_token, values_by_token = cache.transpose(2, 3)
    return (parts, angles.cos(), angles.sin(), keys_by_token, values_by_token, batch, rules)


def expert_cases(random: Generator, dtype: torch.dtype, is_large: bool) -> Iterator[FusedCase]:
    # tokens, choices, experts, wide, hidden
    shapes = [(1, 2, 8, 33, 20), (3, 2, 4, 32, 48), (19, 3, 5, 40, 32), (70, 2, 6, 24, 36)]
    if is_large:
        shapes = [(tokens, 8, 128, 768, 512) for tokens in (1, 2, 8, 9, 16, 64, 65, 256, 1000, 3000)] + [
            (40, 2, 8, 1000, 520)
        ]
    for tokens, top_k, num_experts, wide, hidden in shapes:
        gate_up = (normal(random, num_experts, 2 * wide, hidden) * hidden**-0.5).to(dtype)
        gate, up = torch.split(gate_up, wide, dim=1)
        x, norm = normal(random, tokens, hidden), normal(random, hidden)
        # An expert's score is one input of the token, and scores are so far apart that no rounding changes the choice.
        every = torch.arange(num_experts, device=random.device)
        inputs = every * (hidden // num_experts)
        x[:, inputs] = normal(random, tokens, num_experts).argsort(dim=-1) * (4 / num_experts) - 2
        norm[inputs] = 1.0
        router = torch.zeros((num_experts, hidden), dtype=dtype, device=random.device)
        router[every, inputs] = 1.0
        layers = ExpertLayers(
            router=router,
            gate=gate,
            up=up,
            down=(normal(random, num_experts, hidden, wide) * wide**-0.5).to(dtype),
            top_k=top_k,
            norm_topk_prob=tokens % 2 == 1,
            activation="silu",
            gate_up=gate_up,
        )
        name = f"norm_experts_add {tokens} tokens, {top_k} of {num_experts}, {wide} wide"
        yield FusedCase(name, "norm_experts_add", (x.to(dtype), norm, 1e-6, layers), kin=name)
