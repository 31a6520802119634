"""Every op on every path of this machine, against the torch reference, on the shapes of the benchmarked models.

    python bench/bench_kernels.py                                   all; a line each, then those slower than the reference
    python bench/bench_kernels.py --ops linear --types Q4_1 --models smollm2 --rows 1 32

Weights are multiplied as they are stored, and in each other form that the engine packs them into on that path.
Microseconds of the least of many turns, in which providers alternate. With one thread (the default) they are of processor
time, which other processes disturb little; with more they are of the clock on the wall. The plain C++ of `baseline` is left
out unless asked for: torch always has vectors.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Generator, Tensor

from trivium.formats.quant_types import QUANT_TYPES
from trivium.kernels.attention import AttentionBatch
from trivium.kernels.cases import normal, quantized
from trivium.kernels.dequantize import dequantize
from trivium.kernels.native import usable_instruction_sets
from trivium.kernels.ops import Ops
from trivium.kernels.sample import Draws, SampleBatch
from trivium.kernels.select import native_ops, reference_ops
from trivium.kernels.weights import LinearWeight, QuantizedTensor
from trivium.models.weight_form import BFLOAT16, Stored, can_be_rows
from trivium.types.kv import INT8_SCALE_BYTES

REFERENCE = "reference"
BLOCK_SIZE = 16  # tokens, the engine's own default
TYPES = ("Q4_1", "Q4_K", "Q6_K", "Q8_0", "BF16", "F16", "F32")
ROWS = (1, 16, 32, 512)
Form = Literal["as stored", "rows", "units", "short"]  # models/weight_form.py
FORMS: tuple[Form, ...] = get_args(Form)
TURN_SECONDS = 0.05  # for one provider's turns on one trial, and one turn more than warming up at least


@dataclass(frozen=True)
class Model:
    hidden: int
    wide: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int


MODELS = {
    "smollm2": Model(576, 1536, 9, 3, 64, 49152),
    "llama-3.2-1b": Model(2048, 8192, 32, 8, 64, 128256),
    "qwen3-0.6b": Model(1024, 3072, 16, 8, 128, 151936),
}


@dataclass(frozen=True)
class Trial:
    op: str
    name: str
    prepare: Callable[[Ops], Callable[[], object] | None]  # for a provider: what is called; None: it does not do such


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", nargs="+", help="default: all")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--types", nargs="+", choices=list(QUANT_TYPES), default=TYPES, help="of weights")
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS)
    parser.add_argument("--paths", nargs="+", help="instruction sets; default: all of vectors that this machine runs")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    paths = args.paths or [name for name in usable_instruction_sets() if name != "baseline"]
    providers = {REFERENCE: reference_ops("benchmark"), **{name: native_ops(name, args.threads) for name in paths}}
    clock = time.thread_time if args.threads == 1 else time.perf_counter
    losers = []
    for model in args.models:
        for trial in trials(MODELS[model], args.types, args.rows):
            if args.ops and trial.op not in args.ops:
                continue
            calls = {name: call for name, ops in providers.items() if (call := trial.prepare(ops)) is not None}
            if len(calls) == 1:
                continue
            seconds = least_seconds(calls, clock)
            title = f"{model:13} {trial.op:16} {trial.name:42}"
            cells = [f"{name} {s * 1e6:9.1f} ({seconds[REFERENCE] / s:6.2f} x)" for name, s in seconds.items()]
            print(title + "  ".join(cells[1:]) + f"  {REFERENCE} {seconds[REFERENCE] * 1e6:.1f}", flush=True)
            losers += [
                f"{title}{name}: {seconds[REFERENCE] / s:.2f} x"
                for name, s in seconds.items()
                if s > seconds[REFERENCE]
            ]
    print(f"\nslower than the reference: {len(losers) or 'none'}", *losers, sep="\n")


def least_seconds(calls: dict[str, Callable[[], object]], clock: Callable[[], float]) -> dict[str, float]:
    least = dict.fromkeys(calls, float("inf"))
    spent, turns = 0.0, 0
    while turns < 3 or spent < TURN_SECONDS * len(calls):
        for name, call in calls.items():
            began = clock()
            call()
            seconds = clock() - began
            if turns > 0:
                least[name] = min(least[name], seconds)
            spent += seconds
        turns += 1
    return least


def trials(model: Model, types: list[str], rows: list[int]) -> Iterator[Trial]:
    random = Generator().manual_seed(0)
    for type in types:
        for num_out, num_in in layers(model):
            if num_in % QUANT_TYPES[type].block_elements == 0:
                weight = quantized(random, type, num_out, num_in)
                for count in rows if num_out < model.vocab else [1, 32]:
                    x = normal(random, count, num_in)
                    for form in FORMS:
                        yield linear(f"{type} {form} {num_out}x{num_in}, {count} rows", x, weight, form)
        if model.hidden % QUANT_TYPES[type].block_elements == 0:
            table = quantized(random, type, 4096, model.hidden)
            for count in rows:
                ids = torch.randint(4096, (count,), generator=random)
                yield embed(f"{type}, {count} rows", ids, table)
    for count in rows:
        yield from pointwise(model, count, random)
        yield write_kv(model, count, random)
    for batch in ([(1, 128)], [(1, 2048)], [(1, 192)] * 32, [(512, 512)], [(32, 1056)] * 32):
        yield attention(model, batch, random)
    for count in (1, 32):
        yield from choosing(model, count, random)
    yield from mixture(random)


def layers(model: Model) -> list[tuple[int, int]]:
    """(out, in) of each kind of matrix."""
    q, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    pairs = [(q, model.hidden), (kv, model.hidden), (model.hidden, q), (model.wide, model.hidden)]
    return list(dict.fromkeys([*pairs, (model.hidden, model.wide), (model.vocab, model.hidden)]))


def held(ops: Ops, weight: QuantizedTensor, form: Form) -> LinearWeight | None:
    """As an engine would hold it: the reference has float types expanded. None: not in that form on this path."""
    packing = ops.packing
    if packing is None:
        return (
            dequantize(weight, torch.float32) if QUANT_TYPES[weight.type].block_elements == 1 else ops.prepare(weight)
        )
    match form:
        case "as stored":
            return ops.prepare(weight)
        case "rows":
            stored = Stored("", weight.type, tuple(weight.shape))
            return packing.pack_as(weight, packing.rows_type) if can_be_rows(packing, stored) else None
        case "units":
            other = packing.units_types.get(weight.type) if packing.makes_bytes else None
            return packing.pack_as(weight, other) if other else None
        case "short":
            is_short = packing.lengthens and weight.type == BFLOAT16
            return packing.pack_as(weight, packing.short_type) if is_short else None


def linear(name: str, x: Tensor, weight: QuantizedTensor, form: Form) -> Trial:
    def prepare(ops: Ops) -> Callable[[], object] | None:
        prepared = held(ops, weight, form)
        return None if prepared is None else lambda: ops.linear(x, prepared, None)

    return Trial("linear", name, prepare)


def embed(name: str, ids: Tensor, table: QuantizedTensor) -> Trial:
    return Trial("embed", name, lambda ops: lambda: ops.embed(ids, table, torch.float32))


def pointwise(model: Model, count: int, random: Generator) -> Iterator[Trial]:
    x, weight = normal(random, count, model.hidden), normal(random, model.hidden)
    yield Trial("rms_norm", f"{count} rows", lambda ops: lambda: ops.rms_norm(x, weight, 1e-5))
    gate, up = normal(random, count, model.wide), normal(random, count, model.wide)
    yield Trial("gated", f"{count} rows", lambda ops: lambda: ops.gated(gate, up, "silu"))
    q, k = (normal(random, count, heads, model.head_dim) for heads in (model.heads, model.kv_heads))
    cos, sin = normal(random, count, model.head_dim // 2), normal(random, count, model.head_dim // 2)
    yield Trial("rotary", f"{count} rows", lambda ops: lambda: ops.rotary(q, k, cos, sin))


def caches(ops: Ops, model: Model, num_blocks: int) -> tuple[Tensor, Tensor]:
    """Zeros, in the dtype that the provider reads best."""
    dtype = getattr(torch, ops.kv_layout.dtypes("float32", BLOCK_SIZE, model.head_dim)[0])
    sizes = model.kv_heads, BLOCK_SIZE, model.head_dim
    head = model.head_dim + (INT8_SCALE_BYTES if dtype == torch.int8 else 0)
    keys, values = (torch.zeros(num_blocks, model.kv_heads * BLOCK_SIZE * head, dtype=dtype) for _ in "kv")
    return ops.kv_layout.keys(keys, *sizes), ops.kv_layout.values(values, *sizes)


def write_kv(model: Model, count: int, random: Generator) -> Trial:
    k, v = (normal(random, count, model.kv_heads, model.head_dim) for _ in "kv")
    slots = torch.arange(count)

    def prepare(ops: Ops) -> Callable[[], object]:
        keys, values = caches(ops, model, -(-count // BLOCK_SIZE))
        return lambda: ops.write_kv(k, v, keys, values, slots)

    return Trial("write_kv", f"{count} rows", prepare)


def attention(model: Model, rows: list[tuple[int, int]], random: Generator) -> Trial:
    """`rows`: (queries, context) of each."""
    blocks_each = -(-rows[0][1] // BLOCK_SIZE)
    num_blocks = blocks_each * len(rows)
    queries = [count for count, _ in rows]
    batch = AttentionBatch(
        query_starts=torch.tensor([0, *queries], dtype=torch.int32).cumsum(0, dtype=torch.int32),
        context_lens=torch.tensor([context for _, context in rows], dtype=torch.int32),
        block_table=torch.arange(num_blocks, dtype=torch.int32).view(len(rows), blocks_each),
        slots=torch.zeros(sum(queries), dtype=torch.int64),
    )
    q = normal(random, sum(queries), model.heads, model.head_dim)
    k, v = (normal(random, num_blocks * BLOCK_SIZE, model.kv_heads, model.head_dim) for _ in "kv")

    def prepare(ops: Ops) -> Callable[[], object]:
        keys, values = caches(ops, model, num_blocks)
        ops.write_kv(k, v, keys, values, torch.arange(num_blocks * BLOCK_SIZE))
        return lambda: ops.paged_attention(q, keys, values, batch, model.head_dim**-0.5, None, None)

    return Trial("paged_attention", f"{len(rows)} x {rows[0][0]} queries over {rows[0][1]}", prepare)


def choosing(model: Model, count: int, random: Generator) -> Iterator[Trial]:
    logits = normal(random, count, model.vocab) * 3
    greedy = SampleBatch()
    columns = torch.tensor([[0.8, 40, 0.95, 0.0, 1.0, 0.3]], dtype=torch.float64).repeat(count, 1)
    drawn = SampleBatch(draws=Draws(columns, filters=True, typical=False))
    plain = SampleBatch(
        draws=Draws(columns * torch.tensor([1.0, 0, 0, 0, 0, 1]) + torch.tensor([0.0, 0, 1, 0, 1, 0]), False, False)
    )
    for name, batch in {"greedy": greedy, "temperature": plain, "top-k and top-p": drawn}.items():
        yield Trial("sample", f"{name}, {count} rows", lambda ops, batch=batch: lambda: ops.sample(logits, batch))  # type: ignore[misc]
    tokens = torch.randint(model.vocab, (count,), generator=random)
    yield Trial("logprobs", f"5 likeliest, {count} rows", lambda ops: lambda: ops.logprobs(logits, tokens, 5))


def mixture(random: Generator) -> Iterator[Trial]:
    """Of experts, on a shape of its own: 8 of 32."""
    num_experts, top_k, hidden, wide = 32, 8, 512, 256
    gate, up = (quantized(random, "Q4_K", num_experts, wide, hidden) for _ in "gu")
    down = quantized(random, "Q4_K", num_experts, hidden, wide)
    for count in (1, 32, 512):
        logits = normal(random, count, num_experts)
        yield Trial("route", f"{count} rows", lambda ops, logits=logits: lambda: ops.route(logits, top_k, True))  # type: ignore[misc]
        x = normal(random, count, hidden)
        ids, shares = reference_ops("benchmark").route(logits, top_k, True)

        def prepare(ops: Ops, x: Tensor = x, ids: Tensor = ids, shares: Tensor = shares) -> Callable[[], object]:
            weights = [ops.prepare(weight) for weight in (gate, up, down)]
            return lambda: ops.experts(x, ids, shares, *weights, "silu")

        yield Trial("experts", f"Q4_K, {count} rows", prepare)


if __name__ == "__main__":
    main()
