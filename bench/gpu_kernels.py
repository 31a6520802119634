"""The kernels one by one: are they right on awkward shapes, and how near do they come to the card's ceilings?"""

from __future__ import annotations

import itertools
import traceback
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import gpu_experts
import torch
from triton.runtime.jit import JITFunction

from trivium.kernels import fused_cases
from trivium.kernels.cases import normal
from trivium.kernels.cuda import _library_attention, cuda_ops
from trivium.kernels.select import reference_ops
from trivium.kernels.triton import choose
from trivium.kernels.triton.argmax import argmax
from trivium.kernels.triton.decode_attention import DecodeTiles, decode_attention
from trivium.kernels.triton.gated import gated
from trivium.kernels.triton.prefill_attention import PrefillTiles, prefill_attention
from trivium.kernels.triton.prompt_attention import PromptTiles, prompt_attention
from trivium.kernels.triton.rms_norm import rms_norm
from trivium.kernels.triton.skinny_linear import SkinnyTiles, skinny_linear

DEVICE = torch.device("cuda")
BF16 = torch.bfloat16
REPLAYS = 8  # of the graph of a candidate; the shortest counts
launches = True  # False where candidates are only compiled


@dataclass(frozen=True)
class Checked:
    op: str
    dtype: str
    case: str
    share: float  # of the tolerance; above 1 is wrong, inf did not run
    error: str = ""


def check(index: int, count: int) -> Iterator[Checked]:
    """Cases of every fused op, small and real shapes, against the reference in float32 on the same card; of every
    count-th kind of case, so that a kernel is compiled in one process alone."""
    reference, ops = reference_ops("the oracle"), cuda_ops("under test")
    torch.use_deterministic_algorithms(True, warn_only=True)  # memory that nobody wrote is nan
    warnings.filterwarnings("ignore", message=".*deterministic.*")
    random = torch.Generator(DEVICE)
    random.seed()
    kinds: dict[tuple[torch.dtype, str], int] = {}
    every = (
        (dtype, case)
        for dtype in (torch.float32, torch.bfloat16)
        for is_large in (False, True)
        for case in fused_cases.cases(random, dtype, is_large)
    )
    for dtype, case in every:
        if kinds.setdefault((dtype, case.kin), len(kinds)) % count != index:
            continue
        names = (case.op, str(dtype).removeprefix("torch."), case.name)
        try:
            with torch.inference_mode():
                off = fused_cases.case_error(case, ops, reference, DEVICE)
            yield Checked(*names, off / fused_cases.TOLERANCE[dtype])
        except Exception as error:
            yield Checked(*names, float("inf"), f"{type(error).__name__}: {str(error)[-600:]}")


def report_checks(found: list[Checked]) -> bool:
    """One line for each op and dtype; those that are wrong by name. True: all are right."""
    by_op: defaultdict[tuple[str, str], list[Checked]] = defaultdict(list)
    for entry in found:
        by_op[entry.op, entry.dtype].append(entry)
    good = bool(found)
    for (op, dtype), entries in sorted(by_op.items()):
        worst = max(entries, key=lambda entry: entry.share)
        bad = [entry for entry in entries if not entry.share <= 1.0]
        good = good and not bad
        print(
            f"check {op:16} {dtype:8} {len(entries):4} cases, worst {worst.share:.2f} of the tolerance ({worst.case})"
        )
        for entry in bad[:8]:
            print(f"   WRONG {entry.share:.3g}: {entry.case} {entry.error}")
    return good


@dataclass(frozen=True)
class Timed:
    what: str
    seconds: float
    moved: float = 0.0  # bytes
    computed: float = 0.0  # operations

    def line(self) -> str:
        rates = []
        if self.moved:
            rates.append(f"{self.moved / self.seconds / 1e12:5.2f} TB/s")
        if self.computed:
            rates.append(f"{self.computed / self.seconds / 1e12:6.1f} TFLOP/s")
        return f"{self.what:72} {self.seconds * 1e6:9.1f} us  {'  '.join(rates)}"


def timed(calls: list[Callable[[], object]]) -> float:
    """Seconds of one call, of several that each have their own data, in one captured graph."""

    def all_of_them() -> None:
        for call in calls:
            call()

    with torch.inference_mode():
        all_of_them()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            all_of_them()
        graph.replay()
        return min(_replayed(graph) for _ in range(REPLAYS)) / len(calls)


def _replayed(graph: torch.cuda.CUDAGraph) -> float:
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began.record()
    graph.replay()
    ended.record()
    ended.synchronize()
    return float(began.elapsed_time(ended)) / 1e3


def compile_only(index: int, count: int, parts: str) -> None:
    """Compiles the kernels of every count-th candidate, and launches none."""
    launch = JITFunction.run

    def compile_kernel(self: JITFunction, *args: object, grid: object, warmup: bool, **options: object) -> object:
        return launch(self, *args, grid=grid, warmup=True, **options)

    JITFunction.run = compile_kernel
    turns = itertools.count()

    def call_one(calls: list[Callable[[], object]]) -> float:
        if next(turns) % count == index:
            calls[0]()
        return 1.0

    global timed, launches
    timed, launches = call_one, False
    micro(parts)


def micro(parts: str = "") -> None:
    every = (
        micro_ceilings,
        micro_single_row,
        micro_few_rows,
        micro_decode_attention,
        micro_prefill_attention,
        micro_few_experts,
        micro_many_experts,
        micro_small,
    )
    for part in every:
        if parts and part.__name__.removeprefix("micro_") not in parts.split(","):
            continue
        print(f"--- {part.__name__}")
        try:
            for result in part():
                print(result if isinstance(result, str) else result.line(), flush=True)
        except Exception:
            traceback.print_exc()
        torch.cuda.empty_cache()


def best(
    name: str, candidates: dict[str, Callable[[], float]], moved: float = 0.0, computed: float = 0.0, show: int = 3
) -> Iterator[Timed]:
    """The fastest few of the candidates; those that do not run are named."""
    found = []
    for label, measure in candidates.items():
        try:
            found.append((measure(), label))
        except Exception as error:
            print(f"   {name} {label}: {type(error).__name__} {str(error)[:150]}")
    for seconds, label in sorted(found)[:show]:
        yield Timed(f"{name} [{label}]", seconds, moved, computed)
    library = [entry for entry in found if entry[1].startswith("torch")]
    if library and min(library) not in sorted(found)[:show]:
        seconds, label = min(library)
        yield Timed(f"{name} [{label}]", seconds, moved, computed)


def micro_ceilings() -> Iterator[Timed]:
    source = torch.randn(1 << 30, device=DEVICE, dtype=BF16)
    target = torch.empty_like(source)
    yield Timed("copy of 2 GiB", timed([lambda: target.copy_(source)]), moved=2 * source.nbytes)
    a, b = (torch.randn(8192, 8192, device=DEVICE, dtype=BF16) for _ in range(2))
    yield Timed("8192 x 8192 x 8192", timed([lambda: a @ b]), computed=2 * 8192**3)
    tiny = torch.zeros(8, device=DEVICE)
    many = [lambda: tiny.add_(1.0)] * 200
    yield Timed("a kernel that does nothing, in a graph", timed(many))


# (name, outputs, inputs, norm before, gate after, residual after)
LINEARS = [
    ("llama qkv", 6144, 4096, True, False, False),
    ("llama o", 4096, 4096, False, False, True),
    ("llama gate_up", 14336, 4096, True, True, False),
    ("llama down", 4096, 14336, False, False, True),
    ("llama head", 128256, 4096, False, False, False),
    ("qwen0.6 qkv", 4096, 1024, True, False, False),
    ("qwen0.6 o", 1024, 2048, False, False, True),
    ("qwen0.6 gate_up", 3072, 1024, True, True, False),
    ("qwen0.6 down", 1024, 3072, False, False, True),
    ("qwen0.6 head", 151936, 1024, False, False, False),
    ("qwen30 qkv", 5120, 2048, True, False, False),
    ("qwen30 o", 2048, 4096, False, False, True),
    ("qwen30 router", 128, 2048, True, False, False),
    ("qwen30 head", 151936, 2048, False, False, False),
]


def micro_single_row() -> Iterator[Timed]:
    tiles = [(4, 1024, 4, 2), (8, 1024, 4, 2), (2, 1024, 4, 2), (4, 2048, 8, 1), (8, 512, 4, 3), (4, 512, 4, 3)]
    yield from micro_linears((1,), [SkinnyTiles(*tile) for tile in tiles])


def micro_few_rows() -> Iterator[Timed]:
    tiles = [(32, 256, 4, 4), (32, 128, 4, 6), (64, 128, 4, 5), (64, 64, 4, 8), (32, 256, 8, 3), (16, 256, 4, 5)]
    yield from micro_linears((2, 8, 16, 32), [SkinnyTiles(*tile) for tile in tiles])


def micro_linears(numbers_of_rows: tuple[int, ...], every_tiles: list[SkinnyTiles]) -> Iterator[Timed]:
    for name, outputs, inputs, has_norm, is_gated, adds in LINEARS:
        rows_of_weight = outputs * (2 if is_gated else 1)
        sets = max(2, min(64, int(400e6 / (rows_of_weight * inputs * 2)) + 1))
        weights = [torch.randn(rows_of_weight, inputs, device=DEVICE, dtype=BF16) * 0.02 for _ in range(sets)]
        norm = torch.rand(inputs, device=DEVICE) if has_norm else None
        for rows in numbers_of_rows:
            x = torch.randn(rows, inputs, device=DEVICE, dtype=BF16)
            residual = torch.randn(rows, outputs, device=DEVICE, dtype=BF16) if adds else None

            def skinny(tiles: SkinnyTiles, starts_early: bool) -> float:
                def call(w: torch.Tensor) -> torch.Tensor:
                    activation = "silu" if is_gated else None
                    return skinny_linear(
                        x, w, tiles, norm=norm, eps=1e-6, residual=residual, activation=activation,
                        starts_early=starts_early,
                    )  # fmt: skip

                return timed([lambda w=w: call(w) for w in weights])

            def library() -> float:
                def call(w: torch.Tensor) -> torch.Tensor:
                    y = rms_norm(x, norm, 1e-6) if norm is not None else x
                    if residual is not None:
                        return residual.addmm_(y, w.T)
                    y = torch.nn.functional.linear(y, w)
                    return gated(y[:, :outputs], y[:, outputs:], "silu") if is_gated else y

                return timed([lambda w=w: call(w) for w in weights])

            candidates: dict[str, Callable[[], float]] = {}
            for tiles, starts_early in itertools.product(every_tiles, (False, True)):
                if is_gated:
                    tiles = replace(tiles, outputs=tiles.outputs // 2)
                label = f"{tiles.outputs}x{tiles.inputs} w{tiles.warps} s{tiles.stages}{' early' * starts_early}"
                candidates[label] = lambda tiles=tiles, early=starts_early: skinny(tiles, early)
            candidates["torch"] = library
            moved = weights[0].nbytes
            yield from best(f"{name} {rows} x {rows_of_weight} x {inputs}", candidates, moved)
        weights.clear()
        torch.cuda.empty_cache()


def micro_decode_attention() -> Iterator[Timed]:
    random = torch.Generator().manual_seed(1)
    for num_q, num_kv in ((32, 8), (16, 8), (32, 4)):
        for rows, context in ((1, 384), (1, 8192), (8, 384), (64, 1152), (256, 1152), (512, 640)):
            # A table of a model's whole length, as in a captured step.
            arguments = fused_cases.paged_arguments(
                random, [(1, context)] * min(rows, 64), num_q, num_kv, 128, 64, BF16, None, None, True
            )
            parts, cos, sin, keys, values, batch, rules = fused_cases.mapped(arguments, lambda x: x.to(DEVICE))
            if rows > 64:  # more rows than were drawn: distinct memory, the same values
                times = rows // 64
                keys, values = (torch.cat([x.transpose(1, 2)] * times).transpose(1, 2) for x in (keys, values))
                blocks = len(keys) // times
                table = torch.cat([batch.block_table + i * blocks for i in range(times)])
                slots = torch.cat([batch.slots + i * blocks * 16 for i in range(times)])
                parts = torch.split(torch.cat([torch.cat(parts, dim=1)] * times), [x.shape[1] for x in parts], dim=1)
                cos, sin, contexts = (torch.cat([x] * times) for x in (cos, sin, batch.context_lens))
                batch = type(batch)(batch.query_starts, contexts, table, slots, num_single=rows, is_decode=True)
            q, k, v = parts
            candidates: dict[str, Callable[[], float]] = {}
            for keys_at_once, warps, stages in (
                (64, 4, 3),
                (128, 4, 2),
                (32, 4, 4),
                (64, 4, 2),
                (128, 8, 2),
                (32, 2, 3),
            ):
                for splits in (1, 2, 4, 8, 16, 32):
                    if rows * num_kv * splits > 8192 or splits * keys_at_once > 2 * context:
                        continue
                    if rows * num_kv * splits < 64 and splits * keys_at_once < context:
                        continue
                    tiles = DecodeTiles(keys_at_once, splits, warps, stages)
                    candidates[f"{keys_at_once} keys, {splits} splits, w{warps} s{stages}"] = lambda tiles=tiles: timed(
                        [lambda: decode_attention(q, k, v, cos, sin, keys, values, batch, rules, tiles)] * 4
                    )
            moved = rows * context * num_kv * 128 * 2 * 2
            yield from best(f"decode attention {num_q}/{num_kv}, {rows} rows of {context}", candidates, moved)
            chosen = choose.decode_tiles(rows, num_kv, 128, 32768, 132)
            print(f"   chosen: {chosen}")


def micro_prefill_attention() -> Iterator[Timed]:
    random = torch.Generator().manual_seed(1)
    for num_q, num_kv in ((32, 8), (16, 8), (32, 4)):
        for rows in ([(8192, 8192)], [(1024, 1024)] * 8, [(200, 200)] * 40, [(64, 2112)] * 64):
            arguments = fused_cases.paged_arguments(random, rows, num_q, num_kv, 128, 64, BF16, None, None, False)
            parts, _, _, keys, values, batch, rules = fused_cases.mapped(arguments, lambda x: x.to(DEVICE))
            torch.nan_to_num_(keys), torch.nan_to_num_(values)
            q, k, v = parts
            candidates: dict[str, Callable[[], float]] = {}
            for queries, keys_at_once, warps, stages in (
                (128, 64, 8, 3), (128, 128, 8, 2), (128, 64, 4, 3), (64, 64, 4, 3), (128, 64, 8, 2), (64, 128, 4, 2),
                (256, 64, 8, 2),
            ):  # fmt: skip
                tiles = PrefillTiles(queries, keys_at_once, warps, stages)
                candidates[f"{queries}x{keys_at_once} w{warps} s{stages}"] = lambda tiles=tiles: timed(
                    [lambda: prefill_attention(q, keys, values, batch, rules, tiles)]
                )
            out = torch.empty((len(q), q.shape[1]), dtype=BF16, device=DEVICE)
            for queries, keys_at_once, warps, stages in (
                (128, 64, 8, 2), (128, 64, 8, 3), (128, 128, 8, 2), (64, 64, 4, 2), (64, 64, 4, 3), (64, 128, 4, 2),
            ):  # fmt: skip
                if rows[0][0] != rows[0][1]:
                    continue
                prompt_tiles = PromptTiles(queries, keys_at_once, warps, stages)
                label = f"prompts {queries}x{keys_at_once} w{warps} s{stages}"
                candidates[label] = lambda tiles=prompt_tiles: timed(
                    [lambda: prompt_attention(q, k, v, batch.query_starts, len(rows), rules, tiles, out)]
                )
            if len(rows) == 1:
                candidates["torch: cudnn or flash"] = lambda: timed([lambda: _library_attention(q, k, v, rules)])
            pairs = sum(count * keys_seen - count * (count - 1) / 2 for count, keys_seen in rows)
            name = f"prefill attention {num_q}/{num_kv}, {len(rows)} rows of {rows[0]}"
            yield from best(name, candidates, computed=4 * pairs * num_q * 128, show=9)


def micro_few_experts() -> Iterator[str]:
    yield from gpu_experts.micro(_measured, gpu_experts.FEW_TOKENS, launches)


def micro_many_experts() -> Iterator[str]:
    yield from gpu_experts.micro(_measured, gpu_experts.MANY_TOKENS, launches)


def _measured(calls: list[Callable[[], object]]) -> float:
    return timed(calls)


def micro_small() -> Iterator[Timed]:
    ops = cuda_ops("under test")
    random = torch.Generator().manual_seed(0)
    for rows in (1, 256):
        logits = normal(random, rows, 151936).to(DEVICE)
        yield Timed(f"argmax of {rows} rows", timed([lambda: argmax(logits)] * 4), logits.nbytes)
        yield Timed(f"torch argmax of {rows} rows", timed([lambda: logits.argmax(dim=-1)] * 4), logits.nbytes)
    for rows in (1, 256, 8192):
        x, weight = normal(random, rows, 4096, dtype=BF16).to(DEVICE), torch.rand(4096, device=DEVICE)
        yield Timed(f"rms_norm {rows} x 4096", timed([lambda: rms_norm(x, weight, 1e-6)] * 4), 2 * x.nbytes)
        gate_up = torch.randn(rows, 2 * 14336, device=DEVICE, dtype=BF16)
        gate, up = gate_up[:, :14336], gate_up[:, 14336:]
        yield Timed(f"gated {rows} x 14336", timed([lambda: ops.gated(gate, up, "silu")] * 4), 1.5 * gate_up.nbytes)
